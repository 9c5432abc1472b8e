"""Runs that differ only in their seed are drawn as one line: their mean, with a band from lowest to highest.

runs/a-0  runs/a-1  runs/a-2    runs/b
└───── a, 3 seeds ──────────┘   └ b ┘      one line each
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from lakepond.report.chart import Line, Points, line, mean_line
from lakepond.report.gathered import RunFolder

SEED = "seed"
NOTE = "Several seeds: the mean over the steps that all of them reached; the band is their range."


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
