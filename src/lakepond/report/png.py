"""Charts as PNG and SVG files, drawn by matplotlib from the same data as those of the page."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lakepond.formats import short
from lakepond.report.chart import COLOURS, UNITS, Bars, Chart, Drawing

PALETTE = ("#0b5cad", "#b8520a", "#00756a", "#9a3f7d", "#6b5d00", "#4d5a6a")
DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (2.5, 1.5)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "X", "P")
FEW = 40
"""points of a line that each get a marker"""
QUIET, GRID = "#4c5a6b", "#dfe3e8"


def save(drawing: Drawing, files: list[Path]) -> list[Path]:
    """Write the chart in the formats of the files' suffixes, 1520 pixels wide; returns them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    axes = figure.subplots()
    if isinstance(drawing, Bars):
        _bars(drawing, axes)
    else:
        _lines(drawing, axes)
    _style(drawing, axes)
    for file in files:
        figure.savefig(file, dpi=200)
    return files


def _lines(chart: Chart, axes: Any) -> None:
    several = sum(not each.thin for each in chart.lines) > 1
    for x in chart.marks:
        axes.axvline(x, color="#8a94a3", linestyle=(0, (2, 3)), linewidth=0.9)
    for each in chart.lines:
        colour = PALETTE[each.colour % COLOURS]
        xs: list[Any] = [datetime.fromtimestamp(x, UTC) for x in each.x] if chart.dates else list(each.x)
        ys = [y if math.isfinite(y) and (y > 0 or not chart.log) else math.nan for y in each.y]
        if each.low is not None and each.high is not None:
            axes.fill_between(xs, each.low, each.high, color=colour, alpha=0.16, linewidth=0)
        axes.plot(
            xs,
            ys,
            color=colour,
            linewidth=0.7 if each.thin else 1.6,
            alpha=0.55 if each.thin else 1,
            linestyle="-" if each.thin else DASHES[each.colour % COLOURS],
            marker=MARKERS[each.colour % COLOURS] if not each.thin and (len(xs) <= FEW or several) else None,
            markevery=max(1, len(xs) // 8) if len(xs) > FEW else None,
            markersize=3.5,
            label=each.name if each.name and not each.thin else None,
        )
    if chart.log:
        axes.set_yscale("log")
    if chart.clip is not None:
        axes.set_ylim(top=chart.clip)
    if any(each.name and not each.thin for each in chart.lines):
        axes.legend(frameon=False, fontsize=8, labelcolor=QUIET)


def _bars(bars: Bars, axes: Any) -> None:
    widths = [high - low for low, high in zip(bars.edges[:-1], bars.edges[1:], strict=True)]
    colours = [
        PALETTE[0 if low + width / 2 >= 0 else 1] for low, width in zip(bars.edges, widths, strict=False)
    ]
    axes.bar(
        bars.edges[:-1], bars.counts, widths, align="edge", color=colours, edgecolor="white", linewidth=0.5
    )


def _style(drawing: Drawing, axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_title(drawing.title, loc="left", fontsize=10, fontweight="bold", color="#16202c")
    axes.set_xlabel(drawing.x_name, fontsize=8, color=QUIET)
    unit = UNITS[drawing.unit] if drawing.unit else short
    along, up = (unit, short) if isinstance(drawing, Bars) else (short, unit)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: up(value)))
    if not getattr(drawing, "dates", False):
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: along(value)))
    axes.tick_params(which="both", labelsize=8, colors=QUIET, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#8a94a3")
