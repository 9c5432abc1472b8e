"""How sizes, numbers and durations are written: for people, and as JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from lakepond.errors import SpecError

UNKNOWN = "–"


def size(count: float | None) -> str:
    """Bytes with three significant digits, 1 GB = 10^9 bytes: "1.27 GB"."""
    if count is None or not math.isfinite(count):
        return UNKNOWN
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = 0
    while abs(count) >= 999.5 and power < len(units) - 1:
        count /= 1000
        power += 1
    return f"{count:,.0f} B" if power == 0 else f"{_three(count)} {units[power]}"


def span(low: float, high: float) -> str:
    """A range of sizes: "64.7–78.4 GB"."""
    one, other = size(low), size(high)
    if one == other:
        return one
    same_unit = one.split()[-1] == other.split()[-1]
    return f"{one.split()[0] if same_unit else one}–{other}"


def counted(value: float, noun: str) -> str:
    """A whole number of things, the noun in the plural where it has to be: "1 file", "1,000 files"."""
    return f"{number(value)} {noun}" if value == 1 else f"{number(value)} {noun}s"


def number(value: float | None) -> str:
    """A measured value with four significant digits; whole numbers in full: "0.1235", "11,520"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    if abs(value) >= 1e7 or abs(value) < 1e-3:
        return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def short(value: float) -> str:
    """A number for the axis of a chart: "250k", "1.5M"."""
    for factor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{_three(value / factor)}{letter}"
    return number(value)


def duration(seconds: float | None) -> str:
    """A length of time, in its two largest units: "12 ms", "3.4 s", "3 h 12 min"."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    seconds = max(0.0, seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{_three(1000 * seconds)} ms"
    if seconds < 59.95:
        return f"{_three(seconds)} s"
    lengths = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    larger = next(i for i, (_, length) in enumerate(lengths) if round(seconds) >= length)
    least = lengths[larger + 1][1]
    left, parts = round(seconds / least) * least, list[str]()
    for unit, length in lengths:
        if left >= length:
            parts.append(f"{left // length} {unit}")
            left %= length
    return " ".join(parts)


def parse_seconds(text: float | str) -> float:
    """A length of time that a user gave: a number of seconds, or text like "5s", "2min" or "1.5 h"."""
    units = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
    seconds = text if isinstance(text, int | float) and not isinstance(text, bool) else math.nan
    if isinstance(text, str) and (match := re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text)):
        seconds = float(match[1]) * units.get(match[2], math.nan)
    if not 0 < seconds < math.inf:
        raise SpecError(
            f"{text!r} is not a valid length of time; write seconds, or text like '5s' or '2min'."
        )
    return float(seconds)


def age(moment: float, now: float) -> str:
    """How long ago a moment was: "3 min 12 s ago"."""
    return "in the future" if moment > now + 1 else f"{duration(max(0.0, now - moment))} ago"


def percent(value: float) -> str:
    """A value that is in percent already: "25.4 %"."""
    text = f"{value:.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.1f}"
    return f"{'0' if text in ('-0.0', '-0', '0.0') else text} %"


def ratio(times: float | None) -> str:
    """How many times smaller: "3,401x", "0.016x"."""
    if times is None:
        return UNKNOWN
    if 0 < times < 0.095:
        return f"{times:.2g}x"
    return f"{times:,.1f}x" if times < 99.95 else f"{times:,.0f}x"


def day(seconds: float) -> str:
    """Seconds since 1970 as a date."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def moment(seconds: float) -> str:
    """Seconds since 1970 as date and time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def ranges(numbers: list[int]) -> str:
    """Ascending whole numbers, runs of them shortened: "0–3, 7, 9–11"; "none" if there are none."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda at: at[1] - at[0])]
    parts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    if len(parts) > 9:
        parts[4:-4] = [f"... ({sum(map(len, runs[4:-4])):,} more) ..."]
    return ", ".join(parts) or "none"


def json_ready(value: Any) -> Any:
    """A value as JSON can hold it: None for NaN and infinity, text for paths and keys, lists for tuples."""
    if isinstance(value, dict):
        return {str(key): json_ready(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def json_numbers(values: Iterable[float], digits: int = 7) -> list[float | None]:
    """Numbers for JSON with that many significant digits; None for NaN and infinity."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def _three(value: float) -> str:
    """Three significant digits without trailing zeros; from 1000 on all digits before the point."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
