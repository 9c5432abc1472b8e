"""The charts of one run, or of several side by side.

Runs that differ only in their seed are drawn as one line: their mean, with a band from lowest to highest.

runs/a-0  runs/a-1  runs/a-2    runs/b
└───── a, 3 seeds ──────────┘   └ b ┘      one line each
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from lakepond.formats import percent
from lakepond.report.chart import Chart, Line, Points, histogram, line, mean_line, spike_limit
from lakepond.report.gathered import RunFolder, Series
from lakepond.report.panels import PANELS, SKIPPED, SPREADS, ChartSpec, title_of

SEED = "seed"
NOTE = "Several seeds: the mean over the steps that all of them reached; the band is their range."

Figures = dict[str, list[Chart]]


class Side(NamedTuple):
    """One run, or several that differ only in their seed."""

    name: str
    """empty if it is the only run: the title of a chart says it"""
    runs: tuple[RunFolder, ...]
    colour: int

    def line(self, points_of: Callable[[RunFolder], Points | None]) -> Line | None:
        """The curve of its run, or mean and range of its runs' curves; None if none has it."""
        known = [points for run in self.runs if (points := points_of(run)) is not None]
        if len(known) < 2:
            return line(self.name, *known[0], self.colour) if known else None
        return mean_line(self.name, known, self.colour)


def sides(runs: Sequence[RunFolder]) -> list[Side]:
    """The sides of a comparison, in the order of their first runs."""
    if len(runs) == 1:
        return [Side("", (runs[0],), 0)]
    groups: dict[str, dict[str, RunFolder]] = {}  # runs by their other settings, and then by their seed
    for run in runs:
        settings = dict(run.about["config"])
        seed = str(settings.pop(SEED, None))
        key = json.dumps([run.trainer, settings], sort_keys=True, default=str)
        if seed in groups.get(key, {}):
            key += f" {len(groups)}"  # the same seed again is not another seed
        groups.setdefault(key, {})[seed] = run
    members = [tuple(group.values()) for group in groups.values()]
    names = [_name(group) for group in members]
    return [
        Side(name if names.count(name) == 1 else f"{name} ({group[0].name})", group, colour)
        for colour, (name, group) in enumerate(zip(names, members, strict=True))
    ]


def _name(group: Sequence[RunFolder]) -> str:
    """The common start of its runs' names."""
    if len(group) == 1:
        return group[0].name
    letters = takewhile(lambda some: len(set(some)) == 1, zip(*(run.name for run in group), strict=False))
    start = re.sub(r"[-_./ ]*(seed|s)?[-_./ ]*$", "", "".join(letter for letter, *_ in letters))
    return f"{start or group[0].trainer}, {len(group)} seeds"


def figures(runs: Sequence[RunFolder]) -> Figures:
    """Every chart, by group: learning, market, storage, time, memory, uploads, inside."""
    compared = sides(runs)
    found: Figures = {}
    for panel in PANELS:
        charts = _one(panel, runs[0]) if len(runs) == 1 else _by_metric(panel, compared)
        found.setdefault(panel.group, []).extend(charts)
    found["market"] = list(_market(runs, compared))
    found["learning"][1:1] = _growth(runs, compared)  # beside the first curve
    found["time"] += _commits(compared)
    found["inside"] = [chart for panel in _others(runs) for chart in _by_metric(panel, compared)]
    note = NOTE if any(len(side.runs) > 1 for side in compared) else ""
    return {group: [_finished(one, note) for one in drawn] for group, drawn in found.items() if drawn}


def _finished(chart: Chart, note: str) -> Chart:
    """The chart with the note of all charts; a few spikes, as of compilation, do not flatten its times."""
    if not chart.lines:
        return chart
    clip = spike_limit(chart.lines) if chart.unit == "seconds" and not chart.log else None
    return replace(chart, clip=clip, note=f"{chart.note} {note}".strip())


def _one(panel: ChartSpec, run: RunFolder) -> list[Chart]:
    """All curves of a panel in one chart, for one run."""
    lines = [
        _curve(name, run.metrics[metric], run.metrics.get(SPREADS.get(metric, "")), colour)
        for colour, (metric, name) in enumerate(panel.curves.items())
        if metric in run.metrics
    ]
    if not lines:
        return []
    log = panel.log and len(lines) > 1
    if len(lines) == 1:
        lines = [replace(lines[0], name="", colour=0)]  # the title says it
    members = run.lists.get(panel.members, [])
    lines += [line(f"agent {i}", m.x, m.y, 5, thin=True) for i, m in enumerate(members) if len(m.x)]
    if panel.key == "phases":  # those that take the most are drawn, and named, first
        lines.sort(key=lambda each: -each.y[-1])
    marks = tuple(reset.step for reset in run.resets) if panel.group == "learning" else ()
    chart = Chart(panel.key, panel.title, tuple(lines), run.x_name, panel.unit, marks, log)
    return [replace(chart, reads=panel.reads, note=panel.note)]


def _curve(name: str, series: Series, spread: Series | None, colour: int) -> Line:
    """A line, with a band of one standard deviation if `spread` has that."""
    drawn = line(name, series.x, series.y, colour)
    if spread is None or len(spread.y) != len(series.y) or drawn.low is not None:
        return drawn
    pairs = list(zip(series.y, spread.y, strict=True))
    return replace(drawn, low=[y - s for y, s in pairs], high=[y + s for y, s in pairs])


def _by_metric(panel: ChartSpec, compared: Sequence[Side]) -> Iterator[Chart]:
    """A chart for each metric of a panel and unit of steps, with a line for each side that has it."""
    for metric, name in panel.curves.items():
        for x_name in dict.fromkeys(side.runs[0].x_name for side in compared):
            mine = [side for side in compared if side.runs[0].x_name == x_name]
            lines = _lines(mine, partial(_logged, metric))
            if lines:
                title = panel.title if len(panel.curves) == 1 else f"{panel.title}: {name}"
                log = panel.log and len(lines) > 1 and all(min(one.y) > 0 for one in lines)
                key = "-".join(filter(None, (panel.key, metric, x_name if compared[0].name else "")))
                reads = "level" if panel.reads == "ratio" else panel.reads
                yield Chart(key, title, lines, x_name, panel.unit, log=log, reads=reads)


def _others(runs: Sequence[RunFolder]) -> Iterator[ChartSpec]:
    """A panel for each metric that no other panel shows and that does not always have the same value."""
    shown = {metric for panel in PANELS for metric in panel.curves} | SKIPPED
    for metric in dict.fromkeys(name for run in runs for name in run.metrics if name not in shown):
        known = [run.metrics[metric].y for run in runs if metric in run.metrics]
        if any(min(values) < max(values) for values in known):
            yield ChartSpec("", title_of(metric), "inside", {metric: ""})


def _lines(compared: Sequence[Side], points_of: Callable[[RunFolder], Points | None]) -> tuple[Line, ...]:
    """A line for each side that has points."""
    return tuple(one for side in compared if (one := side.line(points_of)) is not None)


def _logged(metric: str, run: RunFolder) -> Points | None:
    """A metric over the steps."""
    return (run.metrics[metric].x, run.metrics[metric].y) if metric in run.metrics else None


def _of_commits(x: str, y: str, run: RunFolder) -> Points | None:
    """Two figures of each commit that was read, if there are several."""
    points = [one[x] for one in run.growth], [one[y] for one in run.growth]
    return points if len(run.growth) > 1 else None


def _growth(runs: Sequence[RunFolder], compared: Sequence[Side]) -> list[Chart]:
    """The size of the lake, read from its commits, where the trainer did not log it."""
    grown = _lines(compared, partial(_of_commits, "steps", "bytes"))
    if not grown or (len(runs) == 1 and "lake_bytes" in runs[0].metrics):
        return []
    if len(runs) > 1:
        return [Chart("lake", "Lake size on disk", grown, "steps", "bytes")]
    (plain,) = _lines(compared, partial(_of_commits, "steps", "bytes_plain"))
    lines = replace(plain, name="without deduplication"), replace(grown[0], name="on disk", colour=2)
    note = "Read from the commits of the lake. Logarithmic scale."
    return [Chart("lake", "Lake size", lines, "steps", "bytes", log=True, reads="ratio", note=note)]


def _commits(compared: Sequence[Side]) -> list[Chart]:
    lines = _lines(compared, partial(_of_commits, "number", "seconds"))
    note = "From the call to durable on disk, in the background."
    chart = Chart("commits", "Time per commit", lines, "commit", "seconds", reads="typical", note=note)
    return [chart] if lines else []


def _market(runs: Sequence[RunFolder], compared: Sequence[Side]) -> Iterator[Chart]:
    """Equity, and the profits of the trades of each side, for each part of the days."""
    for part in dict.fromkeys(evaluation.part for run in runs for evaluation in run.evaluations):
        if lines := _equity(runs, compared, part):
            title = f"Equity on {part} days"
            yield Chart(f"equity-{part}", title, lines, "", "percent", dates=True)
        for side in compared:
            trades = [t for run in side.runs for e in run.evaluations if e.part == part for t in e.trades]
            profits = [float(t["profit_percent"]) for t in trades if t.get("profit_percent")]
            if profits:
                yield _profits(profits, part, side.name)


def _profits(profits: list[float], part: str, side: str) -> Chart:
    """How many trades made which profit."""
    title = f"Profit per trade{f', {side}' if side else ''}, {part} days"
    won = sum(profit > 0 for profit in profits)
    note = (
        f"{len(profits):,} trades, {percent(100 * won / len(profits))} with a profit; median "
        f"{percent(statistics.median(profits))}, best {percent(max(profits))}, worst {percent(min(profits))}."
    )
    key = "-".join(filter(None, ("profits", part, side)))
    x_name = "profit of a trade after costs"
    return Chart(key, title, x_name=x_name, unit="percent", note=note, bars=histogram(profits))


def _equity(runs: Sequence[RunFolder], compared: Sequence[Side], part: str) -> tuple[Line, ...]:
    """Cumulative return in percent; of several runs the champions, and buy-and-hold of the first."""

    def points(run: RunFolder, name: str) -> Points | None:
        for one in run.evaluations:
            if one.part == part and name in one.equity:
                return one.days, [100 * (value - 1) for value in one.equity[name]]
        return None

    if len(runs) == 1:
        names = dict.fromkeys(name for e in runs[0].evaluations if e.part == part for name in e.equity)
        known = [(name, points(runs[0], name)) for name in names]
        return tuple(line(name, *p, k) for k, (name, p) in enumerate(known) if p is not None)
    champions = _lines(compared, lambda run: points(run, "champion"))
    held = next((p for run in runs if (p := points(run, "buy and hold")) is not None), None)
    return champions if held is None else (*champions, line("buy and hold", *held, 5))
