"""The charts of one run, or of several side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from lakepond.report.chart import Bars, Chart, Drawing, Line, histogram, line
from lakepond.report.gathered import Evaluation, RunFolder, Series
from lakepond.report.panels import PANELS, SKIPPED, Curve, Group, Panel, title_of, unit_of

Figures = dict[Group | str, list[Drawing]]


def figures(runs: Sequence[RunFolder]) -> Figures:
    """Every chart, by group: learning, market, storage, time, memory, uploads, inside."""
    found: Figures = {}
    for panel in PANELS:
        charts = [_one(panel, runs[0])] if len(runs) == 1 else _many(panel, runs)
        found.setdefault(panel.group, []).extend(chart for chart in charts if chart is not None)
    found["market"] = _market(runs)
    found["storage"] += _growth(runs)
    found["time"] += _commits(runs)
    found["inside"] = _rest(runs)
    return {group: drawn for group, drawn in found.items() if drawn}


def _one(panel: Panel, run: RunFolder) -> Chart | None:
    """All curves of a panel, for one run."""
    lines: list[Line] = []
    for colour, curve in enumerate(panel.curves):
        series = run.metrics.get(curve.metric)
        if series is not None and len(series.x):
            lines.append(_curve(curve, series, run, colour))
    if not lines:
        return None
    if len(lines) == 1:
        lines = [replace(lines[0], name="")]  # the title says it
    members = run.lists.get(panel.members, [])
    lines += [line(f"agent {i}", m.x, m.y, 5, thin=True) for i, m in enumerate(members) if len(m.x)]
    if panel.key == "phases":  # those that take the most are drawn, and named, first
        lines.sort(key=lambda each: -each.y[-1])
    marks = tuple(reset.step for reset in run.resets) if panel.group == "learning" else ()
    return _chart(panel, panel.title, lines, run.x_name, marks)


def _many(panel: Panel, runs: Sequence[RunFolder]) -> list[Chart | None]:
    """A chart for each curve of a panel, with a line for each run that has it."""
    charts: list[Chart | None] = []
    for curve in panel.curves:
        for x_name in dict.fromkeys(run.x_name for run in runs):
            lines = []
            for colour, run in enumerate(runs):
                series = run.metrics.get(curve.metric)
                if run.x_name == x_name and series is not None and len(series.x):
                    lines.append(line(run.name, series.x, series.y, colour, dash=colour >= 6))
            if lines:
                title = panel.title if len(panel.curves) == 1 else f"{panel.title}: {curve.name}"
                log = panel.log and all(min(one.y) > 0 for one in lines)
                key = f"{panel.key}-{curve.metric}-{x_name}"
                charts.append(Chart(key, title, tuple(lines), x_name, panel.unit, log=log and len(lines) > 1))
    return charts


def _chart(panel: Panel, title: str, lines: list[Line], x_name: str, marks: tuple[float, ...]) -> Chart:
    return Chart(
        panel.key,
        title,
        tuple(lines),
        x_name,
        panel.unit,
        marks,
        "reset" if marks else "",
        log=panel.log and len(lines) > 1,
        note=panel.note,
    )


def _curve(curve: Curve, series: Series, run: RunFolder, colour: int) -> Line:
    spread = run.metrics.get(curve.spread)
    drawn = line(curve.name, series.x, series.y, colour, dash=curve.dash)
    if spread is None or len(spread.y) != len(series.y) or drawn.low is not None:
        return drawn
    low = [y - s for y, s in zip(series.y, spread.y, strict=True)]
    high = [y + s for y, s in zip(series.y, spread.y, strict=True)]
    return Line(curve.name, drawn.x, drawn.y, low, high, colour=colour, dash=curve.dash)


def _growth(runs: Sequence[RunFolder]) -> list[Drawing]:
    """The lake by its own commits: the metrics of a trainer may lack them."""
    drawn: list[Drawing] = []
    grown = [(colour, run) for colour, run in enumerate(runs) if len(run.growth) > 1]
    if len(runs) == 1 and grown and "lake_bytes" not in runs[0].metrics:
        steps = [one.steps for one in runs[0].growth]
        lines = (
            line("plainly", steps, [one.plain for one in runs[0].growth], 0),
            line("on disk", steps, [one.bytes for one in runs[0].growth], 2),
        )
        note = "From the lake's own commits. The scale is logarithmic."
        drawn.append(
            Chart("lake", "The lake: plainly and on disk", lines, "steps", "bytes", log=True, note=note)
        )
    elif len(runs) > 1 and grown:
        lines_of_runs = tuple(
            line(
                run.name,
                [g.steps for g in run.growth],
                [g.bytes for g in run.growth],
                colour,
                dash=colour >= 6,
            )
            for colour, run in grown
        )
        drawn.append(Chart("lake", "The lake on disk", lines_of_runs, "steps", "bytes"))
    return drawn


def _commits(runs: Sequence[RunFolder]) -> list[Drawing]:
    lines = tuple(
        line(name, [g.number for g in run.growth], [g.seconds for g in run.growth], k, dash=k >= 6)
        for k, run in enumerate(runs)
        for name in ["" if len(runs) == 1 else run.name]
        if len(run.growth) > 1
    )
    note = "From the hand-over to the moment it was durable, in the background."
    return [Chart("commits", "Time of a commit", lines, "commit", "seconds", note=note)] if lines else []


def _market(runs: Sequence[RunFolder]) -> list[Drawing]:
    drawn: list[Drawing] = []
    parts = dict.fromkeys(evaluation.part for run in runs for evaluation in run.evaluations)
    for part in parts:
        lines: list[Line] = []
        trades: list[tuple[str, Evaluation]] = []
        for colour, run in enumerate(runs):
            for one in (e for e in run.evaluations if e.part == part):
                lines += _equity(one, run, colour, alone=len(runs) == 1)
                trades.append((run.name, one))
        if lines:
            drawn.append(
                Chart(f"equity-{part}", f"Equity on {part} days", tuple(lines), "", "percent", dates=True)
            )
        for name, one in trades:
            profits = [float(t["profit_percent"]) for t in one.trades if t.get("profit_percent")]
            if profits:
                edges, counts = histogram(profits)
                title = "Profit of the trades" + ("" if len(runs) == 1 else f" of {name}") + f", {part} days"
                key = f"profits-{part}" if len(runs) == 1 else f"profits-{part}-{name}"
                drawn.append(Bars(key, title, edges, counts, "profit of a trade, after costs", "percent"))
    return drawn


def _equity(one: Evaluation, run: RunFolder, colour: int, *, alone: bool) -> list[Line]:
    """Return so far in percent; for several runs their champions only, and the first one's buy-and-hold."""
    days = [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in one.dates]
    curves = {name: [100 * (v - 1) for v in values] for name, values in one.equity.items()}
    if alone:
        return [line(name, days, ys, k, dash=k > 0) for k, (name, ys) in enumerate(curves.items())]
    lines = [line(run.name, days, curves["champion"], colour)] if "champion" in curves else []
    if colour == 0 and "buy and hold" in curves:
        lines.append(line("buy and hold", days, curves["buy and hold"], 5, dash=True))
    return lines


def _rest(runs: Sequence[RunFolder]) -> list[Drawing]:
    """Every other number that was logged."""
    told = {curve.metric for panel in PANELS for curve in panel.curves} | SKIPPED
    drawn: list[Drawing] = []
    for metric in dict.fromkeys(name for run in runs for name in run.metrics):
        if metric in told:
            continue
        for x_name in dict.fromkeys(run.x_name for run in runs):
            lines = []
            for colour, run in enumerate(runs):
                series = run.metrics.get(metric)
                if run.x_name == x_name and series is not None and _changes(series):
                    name = run.name if len(runs) > 1 else ""
                    lines.append(line(name, series.x, series.y, colour, dash=colour >= 6))
            if lines:
                key = f"{metric}-{x_name}" if len(runs) > 1 else metric
                drawn.append(Chart(key, title_of(metric), tuple(lines), x_name, unit_of(metric)))
    return drawn


def _changes(series: Series) -> bool:
    """Whether there is anything to see."""
    known = [y for y in series.y if math.isfinite(y)]
    return len(known) > 1 and min(known) < max(known)
