"""A chart as data; `svg.py` draws it for the page and as a file, `png.py` as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

import numpy as np

POINTS = 240
"""points of a line; of more, means of as many groups"""
COLOURS = 6
Unit = Literal["", "bytes", "seconds", "percent"]


@dataclass(frozen=True)
class Line:
    """One curve; missing values are NaN."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    """a band around it"""
    colour: int = 0
    thin: bool = False
    dash: bool = False


@dataclass(frozen=True)
class Chart:
    """Curves over a common axis."""

    key: str
    """names its file"""
    title: str
    lines: tuple[Line, ...]
    x_name: str = ""
    unit: Unit = ""
    marks: tuple[float, ...] = ()
    """where something happened to the run: resets"""
    mark_name: str = ""
    log: bool = False
    dates: bool = False
    """x is seconds since 1970"""
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """How many there are in each range."""

    key: str
    title: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    x_name: str = ""
    unit: Unit = ""
    note: str = ""


Drawing = Chart | Bars


def line(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    colour: int = 0,
    *,
    thin: bool = False,
    dash: bool = False,
) -> Line:
    """A curve thinned to what can be seen: groups as their mean, with a band from lowest to highest."""
    if len(x) <= POINTS:
        return Line(name, list(x), list(y), colour=colour, thin=thin, dash=dash)
    edges = [round(i * len(x) / POINTS) for i in range(POINTS + 1)]
    values = np.asarray(y, np.float64)
    xs, ys, low, high = [], [], [], []
    for start, stop in pairwise(edges):
        group = values[start:stop]
        group = group[np.isfinite(group)]
        xs.append(x[stop - 1])
        ys.append(float(group.mean()) if len(group) else math.nan)
        low.append(float(group.min()) if len(group) else math.nan)
        high.append(float(group.max()) if len(group) else math.nan)
    return Line(name, xs, ys, low, high, colour=colour, thin=thin, dash=dash)


def histogram(values: Sequence[float], bins: int = 30) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Edges and counts of about so many ranges of equal width; if 0 is among them, it is an edge."""
    low, high = min(values), max(values)
    edges = ticks(low, high, bins) if low < high else [low - 0.5, low + 0.5]
    width = edges[1] - edges[0]
    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[min(len(counts) - 1, max(0, math.floor((value - edges[0]) / width + 1e-9)))] += 1
    return tuple(edges), tuple(counts)


# --- scales ------------------------------------------------------------------------------------------


def bounds(chart: Chart) -> tuple[float, float, float, float]:
    """The lowest and highest x and y of a chart; on a log scale of those above 0."""
    xs = [x for line in chart.lines for x in line.x]
    sides = [side for line in chart.lines for side in (line.y, line.low or (), line.high or ())]
    ys = [y for side in sides for y in side if math.isfinite(y) and (y > 0 or not chart.log)]
    low, high = (min(ys), max(ys)) if ys else (1.0, 10.0) if chart.log else (0.0, 1.0)
    if math.isclose(low, high):  # also where means of equal numbers differ in their last digit
        low, high = (
            (low / 2, high * 2)
            if chart.log
            else (low - (abs(low) * 0.05 or 0.5), high + (abs(high) * 0.05 or 0.5))
        )
    left, right = (min(xs), max(xs)) if xs else (0.0, 1.0)
    if math.isclose(left, right):
        left, right = left - 0.5, right + 0.5
    return left, right, low, high


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from below `low` to above `high`, about so many steps."""
    rough = (high - low) / max(1, most)
    power = 10 ** math.floor(math.log10(rough))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from below `low` to above `high`, at most seven."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    every = max(1, -(-(last - first) // 6))
    return [10.0**k for k in range(first, last + every, every)]


def inner_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers between two, at least two of them."""
    found: list[float] = []
    while len(found) < 2 and most < 64:
        found = [x for x in ticks(low, high, most) if low <= x <= high]
        most *= 2
    return found


def date_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """First days of months between two moments, as seconds since 1970, and how they are written."""
    begin, end = (datetime.fromtimestamp(t, UTC) for t in (low, high))
    months = (end.year - begin.year) * 12 + end.month - begin.month
    if months < 2:
        days = inner_ticks(low / 86400, high / 86400, most)
        return [(d * 86400, datetime.fromtimestamp(d * 86400, UTC).strftime("%d %b %Y")) for d in days]
    every = next((k for k in (1, 2, 3, 6, 12, 24, 60) if months / k <= most), 120)
    found = []
    for month in range(begin.year * 12 + begin.month - 1, end.year * 12 + end.month):
        at = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
        if month % every == 0 and low <= at.timestamp() <= high:
            found.append((at.timestamp(), at.strftime("%Y" if every >= 12 else "%b %Y")))
    return found
