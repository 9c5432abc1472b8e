"""How values of each unit are written on report pages, in text and on an axis."""

from __future__ import annotations

from typing import TypeGuard

from lakepond.formats import duration, number, percent, short, size
from lakepond.runs.metrics import TIME_LIMIT, is_number


def is_moment(value: object) -> TypeGuard[float]:
    """Whether a value from JSON is a number of seconds since 1970."""
    return is_number(value) and 0 <= value < TIME_LIMIT


UNITS = {"": number, "bytes": size, "seconds": duration, "percent": percent}
AXES = {"": short, "bytes": size, "seconds": duration, "percent": percent}
