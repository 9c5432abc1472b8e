"""Charts as PNG and SVG files, drawn by matplotlib from the same data as those of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from lakepond.formats import short
from lakepond.report.chart import COLOURS, UNITS, Chart

PALETTE = ("#0b5cad", "#b8520a", "#00756a", "#9a3f7d", "#6b5d00", "#4d5a6a")
DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (2.5, 1.5)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "X", "P")
FEW = 40
"""points of a line that each get a marker"""
TEXT, QUIET, MARK, GRID = "#16202c", "#4c5a6b", "#8a94a3", "#dfe3e8"
SIZE = 7.6, 3.6
"""of one chart, in inches of 200 pixels"""


def save(charts: Sequence[Chart], files: Sequence[Path]) -> None:
    """Draw charts in one picture, one below the other, in the formats of the files' suffixes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE[0], SIZE[1] * len(charts)), layout="constrained")
    for chart, axes in zip(charts, figure.subplots(len(charts), squeeze=False).flat, strict=True):
        if chart.bars is None:
            _lines(chart, axes)
        else:
            _bars(*chart.bars, axes)
        _style(chart, axes)
    for file in files:
        figure.savefig(file, dpi=200)


def _lines(chart: Chart, axes: Any) -> None:
    named = [each for each in chart.lines if not each.thin]
    for x in chart.marks:
        axes.axvline(x, color=MARK, linestyle=(0, (2, 3)), linewidth=0.9)
    for each in chart.lines:
        colour, look = PALETTE[each.colour % COLOURS], (each.colour + each.colour // COLOURS) % COLOURS
        xs: list[Any] = [datetime.fromtimestamp(x, UTC) for x in each.x] if chart.dates else list(each.x)
        ys = [y if math.isfinite(y) and (y > 0 or not chart.log) else math.nan for y in each.y]
        if each.low is not None and each.high is not None:
            axes.fill_between(xs, each.low, each.high, color=colour, alpha=0.16, linewidth=0)
        if each.thin:
            axes.plot(xs, ys, color=colour, linewidth=0.7, alpha=0.55)
            continue
        axes.plot(
            xs,
            ys,
            color=colour,
            linewidth=1.6,
            linestyle=DASHES[look],
            marker=MARKERS[look] if len(xs) <= FEW or len(named) > 1 else None,
            markevery=max(1, len(xs) // 8) if len(xs) > FEW else None,
            markersize=3.5,
            label=each.name or None,
        )
    if chart.log:
        axes.set_yscale("log")
    if chart.clip is not None:
        axes.set_ylim(top=chart.clip)
    if any(each.name for each in named):
        axes.legend(frameon=False, fontsize=8, labelcolor=QUIET, ncols=1 + len(named) // 5)


def _bars(edges: Sequence[float], counts: Sequence[int], axes: Any) -> None:
    ranges = list(pairwise(edges))
    widths = [high - low for low, high in ranges]
    colours = [PALETTE[int(low + high < 0)] for low, high in ranges]
    axes.bar(edges[:-1], counts, widths, align="edge", color=colours, edgecolor="white", linewidth=0.5)


def _style(chart: Chart, axes: Any) -> None:
    axes.set_title(chart.title, loc="left", fontsize=10, fontweight="bold", color=TEXT)
    axes.set_xlabel(chart.x_name, fontsize=8, color=QUIET)
    unit = UNITS[chart.unit] if chart.unit else short
    along, up = (unit, short) if chart.bars else (short, unit)
    axes.yaxis.set_major_formatter(lambda value, _: up(value))
    if not chart.dates:
        axes.xaxis.set_major_formatter(lambda value, _: along(value))
    axes.tick_params(which="both", labelsize=8, colors=QUIET, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MARK)
