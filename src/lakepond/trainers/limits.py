"""Check a trainer's settings against their limits, and its memory against the machine's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import inf
from typing import Any

from lakepond import machine
from lakepond.errors import ConfigError
from lakepond.formats import size

Limits = Mapping[str, tuple[float, float]]
"""smallest and largest value by the name of a setting; of a tuple, of each of its values"""


def check_limits(config: Any, limits: Limits) -> None:
    """Raise `ConfigError` for the first number in a dataclass, or in those within it, beyond its limits."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_limits(value, limits)
        elif field.name in limits:
            least, most = limits[field.name]
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, int | float) and not least <= each <= most:
                    allowed = f"at least {least:g}" if most == inf else f"between {least:g} and {most:g}"
                    raise ConfigError(f"{field.name} must be {allowed}, but is {each:g}.")


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
