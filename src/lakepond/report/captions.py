"""Captions: the figures of a chart in one sentence, also for readers who cannot see it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from lakepond.formats import day, number, ratio
from lakepond.report.chart import UNITS, Chart, Line

MOST_LINES = 4
Point = tuple[float, float]


def caption(chart: Chart) -> str:
    """The figures that matter, then what the chart shows."""
    named = [(one, points) for one in chart.lines if not one.thin and (points := _points(one.x, one.y))]
    if chart.reads == "ratio" and len(named) > 1:
        phrases = [_ratio(chart, named)]
    else:
        describe = {"typical": _typical, "growth": _growth}.get(chart.reads, _level)
        phrases = [
            (f"{one.name}: " if len(named) > 1 and one.name else "") + describe(chart, one, points)
            for one, points in named[:MOST_LINES]
        ]
        if len(named) > MOST_LINES:
            phrases.append(f"and {len(named) - MOST_LINES} more")
    text = "; ".join(phrases)
    parts = [f"{text[:1].upper()}{text[1:]}." if named else "", _clipped(chart), chart.note]
    return " ".join(filter(None, parts))


def _points(x: Sequence[float], y: Sequence[float]) -> list[Point]:
    return [point for point in zip(x, y, strict=True) if math.isfinite(point[1])]


def _peak(points: Sequence[Point]) -> Point:
    return max(points, key=lambda point: point[1])


def _at(chart: Chart, point: Point) -> str:
    """A point: "30 s at generation 1", "12 at 5,000 steps"."""
    x, y = point
    if chart.dates:
        place = day(x)
    elif chart.x_name.endswith("s"):  # frames, steps: that many of them
        place = f"{number(x)} {chart.x_name}"
    else:
        place = f"{chart.x_name} {number(x)}"
    return f"{UNITS[chart.unit](y)} at {place}"


def _level(chart: Chart, one: Line, points: Sequence[Point]) -> str:
    """Its last, first and highest value."""
    unit, last, peak = UNITS[chart.unit], points[-1], _peak(points)
    if len(points) == 1:
        return _at(chart, last)
    level = f"{unit(last[1])} at the end, from {unit(points[0][1])}"
    return level if peak[1] == last[1] else f"{level}; highest {_at(chart, peak)}"


def _typical(chart: Chart, one: Line, points: Sequence[Point]) -> str:
    """The median and the largest value."""
    peak = _peak(points if one.high is None else _points(one.x, one.high))
    middle = statistics.median(y for _, y in points)
    return f"median {UNITS[chart.unit](middle)}, largest {_at(chart, peak)}"


def _growth(chart: Chart, one: Line, points: Sequence[Point]) -> str:
    """The peak, and how much was added since the middle of the run: a leak shows here."""
    added = points[-1][1] - points[len(points) // 2][1]
    trend = f"{'+' if added >= 0 else '−'}{UNITS[chart.unit](abs(added))} in the second half of the run"
    return f"peak {_at(chart, _peak(points))}, {trend}"


def _ratio(chart: Chart, named: Sequence[tuple[Line, list[Point]]]) -> str:
    """How much smaller the other lines are than the first, at the end."""
    unit = UNITS[chart.unit]
    (first, of), *others = [(one.name, points[-1][1]) for one, points in named]
    phrases = [f"{unit(of)} {first}"]
    for name, value in others:
        times = f" ({ratio(of / value)} less)" if value > 0 and of > value else ""
        phrases.append(f"{unit(value)} {name}{times}")
    return f"At the end {', '.join(phrases)}"


def _clipped(chart: Chart) -> str:
    """The spikes that are above the axis."""
    if chart.clip is None:
        return ""
    above = [point for one in chart.lines for point in _points(one.x, one.y) if point[1] > chart.clip]
    shown = ", ".join(_at(chart, point) for point in above[:3])
    return f"Above the axis, marked by triangles: {shown}{' and others' if len(above) > 3 else ''}."
