"""Runs that differ only in their seed are drawn as one line: their mean, with a band from lowest to highest.

runs/a-0  runs/a-1  runs/a-2    runs/b
└───── a, 3 seeds ──────────┘   └ b ┘      one line each
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lakepond.report.chart import POINTS, Line, line
from lakepond.report.gathered import RunFolder

SEED = "seed"
NOTE = "Several seeds: the mean over the steps that all of them reached; the band is their range."
Points = tuple[Sequence[float], Sequence[float]]


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
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        settings = {name: value for name, value in run.about["config"].items() if name != SEED}
        key = json.dumps([run.trainer, settings], sort_keys=True, default=str)
        if any(_seed(run) == _seed(other) for other in groups.get(key, [])):
            key += f" {len(groups)}"  # the same seed again is not another seed
        groups.setdefault(key, []).append(run)
    names = [_name(group) for group in groups.values()]
    return [
        Side(name if names.count(name) == 1 else f"{name} ({group[0].name})", tuple(group), colour)
        for colour, (name, group) in enumerate(zip(names, groups.values(), strict=True))
    ]


def _seed(run: RunFolder) -> str:
    return str(run.about["config"].get(SEED))


def _name(group: Sequence[RunFolder]) -> str:
    """The common start of its runs' names."""
    if len(group) == 1:
        return group[0].name
    first, last = min(run.name for run in group), max(run.name for run in group)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    common = re.sub(r"[-_./ ]*(seed|s)?[-_./ ]*$", "", first[:same]) or group[0].trainer
    return f"{common}, {len(group)} seeds"


def mean_line(name: str, many: Sequence[Points], colour: int) -> Line:
    """Mean, lowest and highest of several curves, over the steps that all of them reached."""
    thinned = [line("", *points) for points in many]
    first, last = max(one.x[0] for one in thinned), min(one.x[-1] for one in thinned)
    places = np.unique(np.concatenate([one.x for one in thinned]))
    places = places[(first <= places) & (places <= last)]
    if len(places) > POINTS:
        places = np.linspace(first, last, POINTS)
    if not len(places):  # no step in common: the first curve as it is
        return line(name, *many[0], colour)
    values = np.stack([np.interp(places, one.x, one.y) for one in thinned])
    mean, low, high = (each(values, axis=0).tolist() for each in (np.mean, np.min, np.max))
    return Line(name, places.tolist(), mean, low, high, colour)
