"""The charts of one run, or of several side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from lakepond.formats import percent
from lakepond.report.chart import Bars, Chart, Drawing, Line, histogram, line, spike_limit
from lakepond.report.gathered import RunFolder, Series
from lakepond.report.panels import PANELS, SKIPPED, SPREADS, ChartSpec, Group, title_of, unit_of
from lakepond.report.seeds import NOTE, Points, sides

Figures = dict[Group | str, list[Drawing]]


def figures(runs: Sequence[RunFolder]) -> Figures:
    """Every chart, by group: learning, market, storage, time, memory, uploads, inside."""
    found: Figures = {}
    for panel in PANELS:
        charts = [_one(panel, runs[0])] if len(runs) == 1 else _many(panel, runs)
        found.setdefault(panel.group, []).extend(chart for chart in charts if chart is not None)
    found["market"] = _market(runs)
    found["learning"][1:1] = _growth(runs)  # beside the first curve
    found["time"] += _commits(runs)
    found["inside"] = _rest(runs)
    return {group: [_clipped(one) for one in drawn] for group, drawn in found.items() if drawn}


def _clipped(drawing: Drawing) -> Drawing:
    """A chart of times whose few spikes, as of compilation, do not flatten the rest."""
    if isinstance(drawing, Bars) or drawing.unit != "seconds" or drawing.log:
        return drawing
    return replace(drawing, clip=spike_limit(drawing.lines))


def _one(panel: ChartSpec, run: RunFolder) -> Chart | None:
    """All curves of a panel, for one run."""
    lines: list[Line] = []
    for colour, (metric, name) in enumerate(panel.curves.items()):
        series = run.metrics.get(metric)
        if series is not None and len(series.x):
            lines.append(_curve(name, series, run.metrics.get(SPREADS.get(metric, "")), colour))
    if not lines:
        return None
    if len(lines) == 1:
        lines = [replace(lines[0], name="", colour=0)]  # the title says it
    members = run.lists.get(panel.members, [])
    lines += [line(f"agent {i}", m.x, m.y, 5, thin=True) for i, m in enumerate(members) if len(m.x)]
    if panel.key == "phases":  # those that take the most are drawn, and named, first
        lines.sort(key=lambda each: -each.y[-1])
    marks = tuple(reset.step for reset in run.resets) if panel.group == "learning" else ()
    chart = Chart(
        panel.key, panel.title, tuple(lines), run.x_name, panel.unit, marks, "reset" if marks else ""
    )
    return replace(chart, log=panel.log and len(lines) > 1, reads=panel.reads, note=panel.note)


def _many(panel: ChartSpec, runs: Sequence[RunFolder]) -> list[Chart | None]:
    """A chart for each curve of a panel, with a line for each side that has it."""
    charts: list[Chart | None] = []
    for metric, name in panel.curves.items():
        for x_name in dict.fromkeys(run.x_name for run in runs):
            lines = _lines(runs, lambda run, m=metric, x=x_name: _points(run, m, x))  # type: ignore[misc]
            if lines:
                title = panel.title if len(panel.curves) == 1 else f"{panel.title}: {name}"
                log = panel.log and len(lines) > 1 and all(min(one.y) > 0 for one in lines)
                key = f"{panel.key}-{metric}-{x_name}"
                chart = Chart(key, title, lines, x_name, panel.unit, log=log, note=_note(runs))
                charts.append(replace(chart, reads="level" if panel.reads == "ratio" else panel.reads))
    return charts


def _points(run: RunFolder, metric: str, x_name: str) -> Points | None:
    """A metric of a run, if its steps count that."""
    series = run.metrics.get(metric)
    return None if series is None or run.x_name != x_name else (series.x, series.y)


def _lines(runs: Sequence[RunFolder], points_of: Callable[[RunFolder], Points | None]) -> tuple[Line, ...]:
    """A line for each side that has points."""
    names = {} if len(runs) > 1 else {"name": ""}  # of one run the title says it
    return tuple(one for side in sides(runs) if (one := side.line(points_of, **names)) is not None)


def _note(runs: Sequence[RunFolder]) -> str:
    return NOTE if any(len(side.runs) > 1 for side in sides(runs)) else ""


def _curve(name: str, series: Series, spread: Series | None, colour: int) -> Line:
    """A line, with a band of one standard deviation if `spread` has that."""
    drawn = line(name, series.x, series.y, colour)
    if spread is None or len(spread.y) != len(series.y) or drawn.low is not None:
        return drawn
    low = [y - s for y, s in zip(series.y, spread.y, strict=True)]
    high = [y + s for y, s in zip(series.y, spread.y, strict=True)]
    return Line(name, drawn.x, drawn.y, low, high, colour=colour)


def _growth(runs: Sequence[RunFolder]) -> list[Drawing]:
    """The size of the lake, read from its commits, where the trainer did not log it."""
    if not any(len(run.growth) > 1 for run in runs) or (len(runs) == 1 and "lake_bytes" in runs[0].metrics):
        return []
    if len(runs) == 1:
        steps = [one.steps for one in runs[0].growth]
        lines = (
            line("without deduplication", steps, [one.plain for one in runs[0].growth], 0),
            line("on disk", steps, [one.bytes for one in runs[0].growth], 2),
        )
        note = "Read from the commits of the lake. Logarithmic scale."
        return [Chart("lake", "Lake size", lines, "steps", "bytes", log=True, reads="ratio", note=note)]
    grown = _lines(runs, lambda run: _of_commits(run, "steps", "bytes"))
    return [Chart("lake", "Lake size on disk", grown, "steps", "bytes", note=_note(runs))]


def _of_commits(run: RunFolder, x: str, y: str) -> Points | None:
    """Two attributes of each commit that was read, if there are several."""
    points = [getattr(one, x) for one in run.growth], [getattr(one, y) for one in run.growth]
    return points if len(run.growth) > 1 else None


def _commits(runs: Sequence[RunFolder]) -> list[Drawing]:
    lines = _lines(runs, lambda run: _of_commits(run, "number", "seconds"))
    note = f"From the call to durable on disk, in the background. {_note(runs)}".strip()
    chart = Chart("commits", "Time per commit", lines, "commit", "seconds", reads="typical", note=note)
    return [chart] if lines else []


def _market(runs: Sequence[RunFolder]) -> list[Drawing]:
    drawn: list[Drawing] = []
    for part in dict.fromkeys(evaluation.part for run in runs for evaluation in run.evaluations):
        lines = _equity(runs, part)
        if lines:
            key, title = f"equity-{part}", f"Equity on {part} days"
            drawn.append(Chart(key, title, lines, "", "percent", dates=True, note=_note(runs)))
        for side in sides(runs):
            trades = [t for run in side.runs for e in run.evaluations if e.part == part for t in e.trades]
            profits = [float(t["profit_percent"]) for t in trades if t.get("profit_percent")]
            if profits:
                edges, counts = histogram(profits)
                alone = len(runs) == 1
                title = f"Profit per trade{'' if alone else f', {side.name}'}, {part} days"
                key = f"profits-{part}" if alone else f"profits-{part}-{side.name}"
                won = sum(profit > 0 for profit in profits)
                note = (
                    f"{len(profits):,} trades, {percent(100 * won / len(profits))} with a profit; median "
                    f"{percent(statistics.median(profits))}, best {percent(max(profits))}, "
                    f"worst {percent(min(profits))}."
                )
                x_name = "profit of a trade after costs"
                drawn.append(Bars(key, title, edges, counts, x_name, "percent", note))
    return drawn


def _equity(runs: Sequence[RunFolder], part: str) -> tuple[Line, ...]:
    """Cumulative return in percent; of several runs the champions, and buy-and-hold of the first."""

    def points(run: RunFolder, name: str) -> Points | None:
        for one in run.evaluations:
            if one.part == part and name in one.equity:
                days = [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in one.dates]
                return days, [100 * (value - 1) for value in one.equity[name]]
        return None

    if len(runs) == 1:
        names = dict.fromkeys(name for e in runs[0].evaluations if e.part == part for name in e.equity)
        known = [(name, points(runs[0], name)) for name in names]
        return tuple(line(name, *p, k) for k, (name, p) in enumerate(known) if p is not None)
    champions = _lines(runs, lambda run: points(run, "champion"))
    held = next((p for run in runs if (p := points(run, "buy and hold")) is not None), None)
    return champions if held is None else (*champions, line("buy and hold", *held, 5))


def _rest(runs: Sequence[RunFolder]) -> list[Drawing]:
    """A chart for each metric that no panel shows."""
    shown = {metric for panel in PANELS for metric in panel.curves} | SKIPPED
    drawn: list[Drawing] = []
    for metric in dict.fromkeys(name for run in runs for name in run.metrics):
        if metric in shown:
            continue
        for x_name in dict.fromkeys(run.x_name for run in runs):
            lines = _lines(runs, lambda run, m=metric, x=x_name: _seen(_points(run, m, x)))  # type: ignore[misc]
            if lines:
                key = f"{metric}-{x_name}" if len(runs) > 1 else metric
                drawn.append(Chart(key, title_of(metric), lines, x_name, unit_of(metric), note=_note(runs)))
    return drawn


def _seen(points: Points | None) -> Points | None:
    """Points that are not all the same; None otherwise."""
    if points is None:
        return None
    known = np.asarray(points[1], np.float64)
    known = known[np.isfinite(known)]
    return points if len(known) > 1 and known.min() < known.max() else None
