"""A chart as data: `static/charts.js` draws it in the browser, `png.py` as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lakepond.formats import duration, json_numbers, number, percent, size

POINTS = 600
"""most points of a line; a longer one is drawn as the means of that many groups, with their range"""
COLOURS = 6
SPIKE = 4.0
"""a value that is more than this many times the median is a spike, if few are"""
Unit = Literal["", "bytes", "seconds", "percent"]
UNITS = {"": number, "bytes": size, "seconds": duration, "percent": percent}
"""how the values of each unit are written"""
Reads = Literal["level", "typical", "growth", "ratio"]
"""figures in the caption: ends and extremes, median and largest, peak and trend, or ratio"""


@dataclass(frozen=True)
class Line:
    """One curve; missing values are NaN. `colour` also chooses its dashes and markers."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    """a band around it"""
    colour: int = 0
    thin: bool = False


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
    """x values of resets"""
    log: bool = False
    dates: bool = False
    """x is seconds since 1970"""
    clip: float | None = None
    """top of the y axis, if spikes are above it"""
    reads: Reads = "level"
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """The number of values in each range."""

    key: str
    title: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    x_name: str = ""
    unit: Unit = ""
    note: str = ""


Drawing = Chart | Bars


def line(name: str, x: Sequence[float], y: Sequence[float], colour: int = 0, *, thin: bool = False) -> Line:
    """A curve of at most `POINTS` points: of a longer one the means of groups, with their range as a band."""
    if len(x) <= POINTS:
        return Line(name, list(x), list(y), colour=colour, thin=thin)
    edges = np.linspace(0, len(x), POINTS + 1).round().astype(np.int64)
    values, starts = np.asarray(y, np.float64), edges[:-1]
    mean = np.add.reduceat(values, starts) / np.diff(edges)
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    ends = [x[stop - 1] for stop in edges[1:]]
    return Line(name, ends, mean.tolist(), low.tolist(), high.tolist(), colour, thin)


def spike_limit(lines: Iterable[Line]) -> float | None:
    """The top of the y axis if a few spikes, as of compilation, would flatten the rest; else None."""
    values = sorted(y for one in lines for y in one.y if math.isfinite(y))
    rest = [y for y in values if y <= SPIKE * values[len(values) // 2]]
    spikes = len(values) - len(rest)
    return 1.2 * rest[-1] if 0 < spikes <= max(2, len(values) // 10) and len(rest) > 3 else None


def histogram(values: Sequence[float], bins: int = 30) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Edges and counts of about `bins` ranges of equal, round width; 0 is an edge if it is inside."""
    low, high = min(values), max(values)
    if low == high:
        return (low - 0.5, low + 0.5), (len(values),)
    rough = (high - low) / bins
    power = 10 ** math.floor(math.log10(rough))
    width = next(k * power for k in (1, 2, 5, 10) if k * power >= rough * 0.999)
    first, last = math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9)
    edges = [float(f"{k * width:.12g}") for k in range(first, max(last, first + 1) + 1)]
    return tuple(edges), tuple(np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0].tolist())


def as_json(drawing: Drawing) -> dict[str, Any]:
    """The chart for `charts.js`; lines over the same x share one list of it."""
    shared = {"key": drawing.key, "title": drawing.title, "x_name": drawing.x_name, "unit": drawing.unit}
    if isinstance(drawing, Bars):
        return {**shared, "kind": "bars", "edges": list(drawing.edges), "counts": list(drawing.counts)}
    xs: list[list[float]] = []
    lines = []
    for each in drawing.lines:
        x = [int(value) if value == int(value) else value for value in each.x]
        if x not in xs:
            xs.append(x)
        band = {"low": each.low, "high": each.high}
        sides = {side: json_numbers(values, 6) for side, values in band.items() if values is not None}
        named = {"name": each.name, "colour": each.colour} | ({"thin": True} if each.thin else {})
        lines.append({**named, "xs": xs.index(x), "y": json_numbers(each.y, 6), **sides})
    more = {name: value for name in ("marks", "log", "dates", "clip") if (value := getattr(drawing, name))}
    return {**shared, "xs": xs, "lines": lines, **more}
