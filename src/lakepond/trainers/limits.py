"""Check a trainer's settings against their limits, and its memory against the machine's."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from functools import cache
from math import inf
from typing import Any, Literal

from lakepond import machine
from lakepond.errors import ConfigError
from lakepond.formats import size

Limits = Mapping[str, tuple[float, float]]
"""smallest and largest value by the name of a setting; of a tuple, of each of its values. None is infinite"""
ABOVE_0 = math.ulp(0.0)
"""the smallest value of a setting that must be above 0"""
_hints: Callable[..., dict[str, Any]] = cache(typing.get_type_hints)


def check_limits(config: Any, limits: Limits) -> None:
    """Raise `ConfigError` for the first setting of a dataclass, or of those within it, that is invalid.

    That is a number beyond its limits, or a word that is not one of the `Literal` of the setting.
    """
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_limits(value, limits)
            continue
        if name in limits:
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, int | float):
                    _check_number(name, each, *limits[name])
        hint = _hints(type(config))[name]
        words = [word for part in (hint, *typing.get_args(hint)) for word in _words(part)]
        if words and value not in words and (isinstance(value, str) or _words(hint)):
            named = [*map(str, words), *([] if _words(hint) else ["a number"])]
            raise ConfigError(f"{name} must be {' or '.join(named)}, but is {value!r}.")


def _check_number(name: str, number: float, least: float, most: float) -> None:
    if least <= number <= most and number != inf:
        return
    allowed = "finite" if number == inf else f"between {least:g} and {most:g}"
    if number != inf and most == inf:
        allowed = "above 0" if least == ABOVE_0 else f"at least {least:g}"
    raise ConfigError(f"{name} must be {allowed}, but is {number:g}.")


def _words(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()


def check_order(config: Any, low: str, high: str) -> None:
    """Raise `ConfigError` if the setting `low` is above the setting `high`."""
    least, most = getattr(config, low), getattr(config, high)
    if least > most:
        raise ConfigError(f"{low} is {least:,}, more than {high}, which is {most:,}; lower it.")


def check_memory(parts: Mapping[str, int], settings: str) -> None:
    """Raise `ConfigError` if the bytes that a run needs, by purpose, are more than the machine has free.

    settings: those that could be lower, for the message.
    """
    needed, free = sum(parts.values()), machine.memory().available
    if needed > free:
        largest = max(parts, key=lambda name: parts[name])
        raise ConfigError(
            f"this run needs about {size(needed)} of memory, most of it for {largest} "
            f"({size(parts[largest])}), but {size(free)} is available; lower {settings}."
        )
