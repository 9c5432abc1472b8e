"""Numbers as people read them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TypeGuard

from lakepond.runs.metrics import TIME_LIMIT, is_number


def size(count: float) -> str:
    """Bytes, in powers of a thousand: 196 GB."""
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = 0
    while abs(count) >= 1000 and power < len(units) - 1:
        count /= 1000
        power += 1
    return f"{count:,.0f} B" if power == 0 else f"{_three(count)} {units[power]}"


def duration(seconds: float) -> str:
    """12 ms, 3.4 s, 25 min, 1.5 h."""
    if 0 < abs(seconds) < 1:
        return f"{seconds * 1000:.3g} ms"
    if abs(seconds) < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if abs(seconds) < 7200 else f"{seconds / 3600:,.1f} h"


def number(value: float) -> str:
    """Four digits that matter; whole numbers with separators."""
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 1e7 or (value and abs(value) < 1e-3):
        return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    if value == round(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def short(value: float) -> str:
    """For an axis: 250k, 1.5M."""
    for power, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= power:
            return f"{_three(value / power)}{letter}"
    return number(value)


def percent(value: float) -> str:
    """25.4 %."""
    text = f"{value:.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.1f}"
    return f"{'0' if text in ('-0.0', '-0', '0.0') else text} %"


def day(seconds: float) -> str:
    """Seconds since 1970 as a date."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def moment(seconds: float) -> str:
    """Seconds since 1970 as date and time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def is_moment(value: object) -> TypeGuard[float]:
    """Whether a value from JSON is a number of seconds since 1970."""
    return is_number(value) and 0 <= value < TIME_LIMIT


def _three(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:,.0f}" if "e" in text else text


UNITS = {"": number, "bytes": size, "seconds": duration, "percent": percent}
AXES = {"": short, "bytes": size, "seconds": duration, "percent": percent}
"""how values of a unit are written, in text and on an axis"""
