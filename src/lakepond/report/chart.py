"""A chart as data: `static/charts.js` draws it in the browser, `png.py` as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lakepond.formats import duration, json_numbers, number, percent, size
from lakepond.types import Array

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
Points = tuple[Sequence[float], Sequence[float]]
"""x and y of a curve"""


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
    """Curves over a common axis, or bars."""

    key: str
    """names its file"""
    title: str
    lines: tuple[Line, ...] = ()
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
    bars: tuple[Sequence[float], Sequence[int]] | None = None
    """edges of ranges, and the number of values in each"""


def line(name: str, x: Sequence[float], y: Sequence[float], colour: int = 0, *, thin: bool = False) -> Line:
    """A curve of at most `POINTS` points: of a longer one the means of groups, with their range as a band."""
    if len(x) <= POINTS:
        return Line(name, list(x), list(y), colour=colour, thin=thin)
    ends, mean, low, high = grouped(np.asarray(y, np.float64), POINTS)
    band = low.tolist(), high.tolist()
    return Line(name, [x[end] for end in ends], mean.tolist(), *band, colour, thin)


def grouped(values: Array, groups: int) -> tuple[Array, Array, Array, Array]:
    """Last index, mean, lowest and highest value of consecutive groups of about equal length."""
    edges = np.linspace(0, len(values), groups + 1).round().astype(np.int64)
    starts = edges[:-1]
    mean = np.add.reduceat(values, starts) / np.diff(edges)
    return edges[1:] - 1, mean, np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)


def mean_line(name: str, curves: Sequence[Points], colour: int) -> Line:
    """Mean, lowest and highest of several curves, over the steps that all of them reached."""
    thinned = [line("", *points) for points in curves]
    first, last = max(one.x[0] for one in thinned), min(one.x[-1] for one in thinned)
    places = np.unique(np.concatenate([one.x for one in thinned]))
    places = places[(first <= places) & (places <= last)]
    if len(places) > POINTS:
        places = np.linspace(first, last, POINTS)
    if not len(places):  # no step in common: the first curve as it is
        return line(name, *curves[0], colour)
    values = np.stack([np.interp(places, one.x, one.y) for one in thinned])
    mean, low, high = (each(values, axis=0).tolist() for each in (np.mean, np.min, np.max))
    return Line(name, places.tolist(), mean, low, high, colour)


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


def as_json(chart: Chart) -> dict[str, Any]:
    """The chart for `charts.js`; lines over the same x share one list of it."""
    shared = {name: getattr(chart, name) for name in ("key", "title", "x_name", "unit")}
    if chart.bars is not None:
        edges, counts = chart.bars
        return {**shared, "kind": "bars", "edges": edges, "counts": counts}
    xs: list[list[float]] = []
    lines = []
    for each in chart.lines:
        x = [int(value) if value == int(value) else value for value in each.x]
        if x not in xs:
            xs.append(x)
        columns = {"y": each.y, "low": each.low, "high": each.high}
        values = {name: json_numbers(column, 6) for name, column in columns.items() if column is not None}
        lines.append(
            {"name": each.name, "colour": each.colour, "thin": each.thin, "xs": xs.index(x), **values}
        )
    look = {name: getattr(chart, name) for name in ("marks", "log", "dates", "clip")}
    return {**shared, "xs": xs, "lines": lines, **look}
