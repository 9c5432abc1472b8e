"""Captions: the figures of a chart in one sentence, also for readers who cannot see it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from lakepond.formats import day, number, ratio
from lakepond.report.chart import UNITS, Bars, Chart, Drawing, Line

MOST_LINES = 4
Point = tuple[float, float]


def caption(drawing: Drawing) -> str:
    """The figures that matter, then what the chart shows."""
    if isinstance(drawing, Bars):
        return drawing.note
    named = [(one, points) for one in drawing.lines if not one.thin and (points := _points(one))]
    if drawing.reads == "ratio" and len(named) > 1:
        phrases = [_ratio(drawing, named)]
    else:
        describe = {"typical": _typical, "growth": _growth}.get(drawing.reads, _level)
        several = len(named) > 1
        phrases = [
            (f"{one.name}: " if several and one.name else "") + describe(drawing, one, points)
            for one, points in named[:MOST_LINES]
        ]
        if len(named) > MOST_LINES:
            phrases.append(f"and {len(named) - MOST_LINES} more")
    text = "; ".join(phrases)
    parts = [f"{text[:1].upper()}{text[1:]}."] if named else []
    return " ".join([*parts, *_clipped(drawing), *([drawing.note] if drawing.note else [])])


def _points(one: Line) -> list[Point]:
    return [(x, y) for x, y in zip(one.x, one.y, strict=True) if math.isfinite(y)]


def _level(chart: Chart, one: Line, points: Sequence[Point]) -> str:
    """Its last, first and highest value."""
    unit = UNITS[chart.unit]
    last, peak = points[-1], max(points, key=lambda point: point[1])
    if len(points) == 1:
        return f"{unit(last[1])} at {_place(chart, last[0])}"
    level = f"{unit(last[1])} at the end, from {unit(points[0][1])}"
    return level if peak[1] == last[1] else f"{level}; highest {unit(peak[1])} at {_place(chart, peak[0])}"


def _typical(chart: Chart, one: Line, points: Sequence[Point]) -> str:
    """The median and the largest value."""
    unit = UNITS[chart.unit]
    highs = (
        points if one.high is None else [p for p in zip(one.x, one.high, strict=True) if math.isfinite(p[1])]
    )
    peak = max(highs, key=lambda point: point[1])
    middle = statistics.median(y for _, y in points)
    return f"median {unit(middle)}, largest {unit(peak[1])} at {_place(chart, peak[0])}"


def _growth(chart: Chart, one: Line, points: Sequence[Point]) -> str:
    """The peak, and how much was added since the middle of the run: a leak shows here."""
    unit = UNITS[chart.unit]
    peak, middle = max(points, key=lambda point: point[1]), points[len(points) // 2]
    added = points[-1][1] - middle[1]
    trend = f"{'+' if added >= 0 else '−'}{unit(abs(added))} in the second half of the run"
    return f"peak {unit(peak[1])} at {_place(chart, peak[0])}, {trend}"


def _ratio(chart: Chart, named: Sequence[tuple[Line, list[Point]]]) -> str:
    """How much smaller the other lines are than the first, at the end."""
    unit = UNITS[chart.unit]
    (first, of), *others = [(one.name, points[-1][1]) for one, points in named]
    phrases = [f"{unit(of)} {first}"]
    for name, value in others:
        times = f" ({ratio(of / value)} less)" if value > 0 and of > value else ""
        phrases.append(f"{unit(value)} {name}{times}")
    return f"At the end {', '.join(phrases)}"


def _clipped(chart: Chart) -> list[str]:
    """The spikes that are above the axis."""
    if chart.clip is None:
        return []
    unit = UNITS[chart.unit]
    above = [(x, y) for one in chart.lines for x, y in _points(one) if y > chart.clip]
    shown = ", ".join(f"{unit(y)} at {_place(chart, x)}" for x, y in above[:3])
    return [f"Above the axis, marked by triangles: {shown}{' and others' if len(above) > 3 else ''}."]


def _place(chart: Chart, x: float) -> str:
    if chart.dates:
        return day(x)
    counted = chart.x_name.endswith("s")  # frames, steps: that many of them
    return f"{number(x)} {chart.x_name}" if counted else f"{chart.x_name} {number(x)}"
