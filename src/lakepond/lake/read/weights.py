"""The priorities that a commit names, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from lakepond.errors import LakeCorrupt
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.steps import StepsInfo, read_layout, read_steps
from lakepond.lake.segments import Segments
from lakepond.types import Array


class Weights(NamedTuple):
    """The content of one file of priorities."""

    weight: Array
    """priority ** alpha"""
    step: Array | None
    """step ids, of a file of changes"""
    first: int | None
    """of other files: id of the first step; None if the last one is the newest step of the commit"""

    @property
    def recorded(self) -> int:
        """The least number of recorded steps of a commit that can name the file."""
        return 0 if self.step is not None else (self.first or 0) + len(self.weight)

    def ids(self, recorded: int) -> Array:
        """The step ids, for a commit with that many recorded steps."""
        if self.step is not None:
            return self.step
        first = recorded - len(self.weight) if self.first is None else self.first
        return first + np.arange(len(self.weight))


def read_weights(commit: Commit, segments: Segments) -> tuple[Array, Array]:
    """Step ids and their weights, priority ** alpha; of an id that comes twice, the later weight counts.

    `LakeCorrupt` unless all weights are finite and at least 0.
    """
    ids: list[Array] = [np.zeros(0, np.int64)]
    weights: list[Array] = [np.zeros(0)]
    for info in commit.weights:
        with segments.using(f"{info.digest}.steps") as file:
            found = read_file(file, info, changes=info is not commit.priorities)
        if found.recorded > commit.recorded:
            raise never_recorded(file)
        ids.append(found.ids(commit.recorded))
        weights.append(found.weight)
    return np.concatenate(ids), np.concatenate(weights)


def read_file(file: Path, info: StepsInfo, *, changes: bool, data: bytes | None = None) -> Weights:
    """Read one file of priorities; `data`: its bytes, if they were read."""
    source, name = file if data is None else data, str(file)
    layout = read_layout(source, name=name)
    found = {column.name: (column.dtype.str, column.shape) for column in layout.columns}
    expected = {"weight": ("<f8", ()), **({"step": ("<i8", ())} if changes else {})}
    if found != expected or layout.steps != info.steps:
        raise LakeCorrupt(
            f"{file} has {layout.steps} steps with the columns {sorted(found)}, not the {info.steps} "
            "priorities that were committed; run `lakepond repair`."
        )
    columns = read_steps(source, layout=layout, name=name)
    weights = columns["weight"]
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise LakeCorrupt(
            f"{file} has {len(wrong)} priorities that are negative, infinite or not a number, the first "
            f"{weights[wrong[0]]}; run `lakepond repair`."
        )
    if changes:
        return Weights(weights, columns["step"], None)
    first = dict(layout.notes).get("first")
    if first is not None and not first.isdigit():
        raise never_recorded(file)
    return Weights(weights, None, None if first is None else int(first))


def never_recorded(file: Path) -> LakeCorrupt:
    """The error of a file with priorities of steps that its commit does not have."""
    return LakeCorrupt(f"{file} has priorities of steps that were never recorded; run `lakepond repair`.")
