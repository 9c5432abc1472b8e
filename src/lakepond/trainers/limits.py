"""Check the numbers in a trainer's settings against their limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import inf
from typing import Any

from lakepond.errors import ConfigError

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
