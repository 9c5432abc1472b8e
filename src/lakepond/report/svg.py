"""Charts as SVG, drawn by hand: colours are classes, so the page's light, dark and paper styles apply.

A file of its own gets the light style with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from lakepond.report.chart import (
    COLOURS,
    Bars,
    Chart,
    Drawing,
    Line,
    bounds,
    date_ticks,
    inner_ticks,
    log_ticks,
    ticks,
)
from lakepond.report.numbers import AXES, UNITS, day, number, short

LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 40
ALONE = """svg{background:#fff}text{font:12px system-ui,sans-serif;fill:#4c5a6b}
.grid{stroke:#dfe3e8}.axis{stroke:#8a94a3}.mark{stroke:#8a94a3;stroke-dasharray:3 4}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.thin{stroke-width:1;opacity:.55}
.dash{stroke-dasharray:6 4}
.band{opacity:.16}.k0{stroke:#0b5cad}.f0{fill:#0b5cad}.k1{stroke:#b8520a}.f1{fill:#b8520a}.k2{stroke:#00756a}
.f2{fill:#00756a}.k3{stroke:#9a3f7d}.f3{fill:#9a3f7d}.k4{stroke:#6b5d00}.f4{fill:#6b5d00}.k5{stroke:#4d5a6a}
.f5{fill:#4d5a6a}"""


@dataclass(frozen=True)
class Frame:
    """The plane of a chart: values to places."""

    width: int
    height: int
    x: Callable[[float], float]
    y: Callable[[float], float]

    @property
    def bottom(self) -> int:
        """Where the x axis lies."""
        return self.height - BOTTOM


def draw(drawing: Drawing, width: int = 760, height: int = 300, *, alone: bool = False) -> str:
    """The chart as an <svg>; `alone`: as a file of its own, with title, legend and style."""
    body = _bars(drawing, width, height) if isinstance(drawing, Bars) else _lines(drawing, width, height)
    if not alone:
        return f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">{body}</svg>'
    names = [line for line in getattr(drawing, "lines", ()) if line.name and not line.thin]
    head = [f'<text x="{LEFT}" y="22" font-weight="600">{escape(drawing.title)}</text>']
    at = LEFT
    for one in names:
        head.append(f'<path class="{_stroke(one)}" d="M{at} 40h18"/>')
        head.append(f'<text x="{at + 24}" y="44">{escape(one.name)}</text>')
        at += 42 + 7 * len(one.name)
    top = 56 if names else 32
    whole = height + top
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {whole}" width="{width}" '
        f'height="{whole}"><style>{ALONE}</style>{"".join(head)}'
        f'<g transform="translate(0 {top})">{body}</g></svg>\n'
    )


def _lines(chart: Chart, width: int, height: int) -> str:
    left, right, low, high = bounds(chart)
    marks_y = log_ticks(low, high) if chart.log else ticks(low, high, max(2, height // 60))
    frame = _frame(width, height, (left, right), (marks_y[0], marks_y[-1]), log=chart.log)
    most = max(2, width // 130)
    marks_x = (
        date_ticks(left, right, most)
        if chart.dates
        else [(x, short(x)) for x in inner_ticks(left, right, most)]
    )
    parts = _axes(frame, marks_y, AXES[chart.unit], marks_x, chart.x_name)
    for x in chart.marks:
        at = frame.x(x)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{frame.bottom}"/>')
    for each in sorted(chart.lines, key=lambda one: not one.thin):
        if each.low is not None and each.high is not None:
            parts.append(f'<path class="band f{each.colour % COLOURS}" d="{_band(each, frame, chart.log)}"/>')
        parts.append(f'<path class="{_stroke(each)}" d="{_path(each.x, each.y, frame, chart.log)}"/>')
        parts += _dots(each, frame, chart)
    return "".join(parts)


def _dots(each: Line, frame: Frame, chart: Chart) -> list[str]:
    """Points that tell their value, where there are few enough to be met with a pointer."""
    known = [
        (x, y) for x, y in zip(each.x, each.y, strict=True) if math.isfinite(y) and (y > 0 or not chart.log)
    ]
    if each.thin or len(known) > 60:
        return []
    where, unit = day if chart.dates else number, UNITS[chart.unit]
    radius = 3 if len(known) <= 30 else 2
    return [
        f'<circle class="f{each.colour % COLOURS}" r="{radius}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}">'
        f"<title>{escape(each.name)} {where(x)}: {unit(y)}</title></circle>"
        for x, y in known
    ]


def _bars(bars: Bars, width: int, height: int) -> str:
    marks_y = [y for y in ticks(0, max(1, *bars.counts), max(2, height // 60)) if y == round(y)]
    frame = _frame(width, height, (bars.edges[0], bars.edges[-1]), (0, marks_y[-1]))
    inside = inner_ticks(bars.edges[0], bars.edges[-1], max(2, width // 130))
    unit = AXES[bars.unit]
    parts = _axes(frame, marks_y, short, [(x, unit(x)) for x in inside], bars.x_name)
    for low, high, count in zip(bars.edges[:-1], bars.edges[1:], bars.counts, strict=True):
        if count:
            x, y = frame.x(low), frame.y(count)
            parts.append(
                f'<rect class="f{0 if low + high >= 0 else 1}" x="{x:.1f}" y="{y:.1f}" '
                f'width="{max(1, frame.x(high) - x - 1):.1f}" height="{frame.bottom - y:.1f}">'
                f"<title>{unit(low)} to {unit(high)}: {count}</title></rect>"
            )
    return "".join(parts)


def _frame(
    width: int, height: int, xs: tuple[float, float], ys: tuple[float, float], *, log: bool = False
) -> Frame:
    scale = math.log10 if log else float
    low, high = scale(ys[0]), scale(ys[1])
    return Frame(
        width,
        height,
        lambda x: LEFT + (x - xs[0]) / (xs[1] - xs[0]) * (width - LEFT - RIGHT),
        lambda y: height - BOTTOM - (scale(y) - low) / (high - low) * (height - BOTTOM - TOP),
    )


def _axes(
    frame: Frame,
    marks_y: Sequence[float],
    text_y: Callable[[float], str],
    marks_x: Sequence[tuple[float, str]],
    name: str,
) -> list[str]:
    right = frame.width - RIGHT
    parts = []
    for value in marks_y:
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text_y(value)}</text>')
    for at, text in marks_x:
        x = frame.x(at)
        anchor = "end" if x > right - 20 else "start" if x < LEFT + 12 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{frame.bottom + 17}" text-anchor="{anchor}">{text}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{frame.bottom}" y2="{frame.bottom}"/>')
    parts.append(f'<text x="{right}" y="{frame.height - 6}" text-anchor="end">{escape(name)}</text>')
    return parts


def _stroke(each: Line) -> str:
    return f"line k{each.colour % COLOURS}{' thin' if each.thin else ''}{' dash' if each.dash else ''}"


def _path(xs: Sequence[float], ys: Sequence[float], frame: Frame, log: bool) -> str:
    """A line through all points, broken where a value is missing."""
    parts, pen = [], False
    for x, y in zip(xs, ys, strict=True):
        if not math.isfinite(y) or (log and y <= 0):
            pen = False
            continue
        parts.append(f"{'L' if pen else 'M'}{frame.x(x):.1f} {frame.y(y):.1f}")
        pen = True
    return "".join(parts)


def _band(each: Line, frame: Frame, log: bool) -> str:
    assert each.low is not None
    assert each.high is not None
    kept = [
        (frame.x(x), frame.y(low), frame.y(high))
        for x, low, high in zip(each.x, each.low, each.high, strict=True)
        if math.isfinite(low) and math.isfinite(high) and (low > 0 or not log)
    ]
    if not kept:
        return ""
    there = "L".join(f"{x:.1f} {high:.1f}" for x, _, high in kept)
    back = "L".join(f"{x:.1f} {low:.1f}" for x, low, _ in reversed(kept))
    return f"M{there}L{back}Z"
