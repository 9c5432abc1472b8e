"""The priorities that a commit names, read and checked."""

from __future__ import annotations

import numpy as np

from lakepond.errors import LakeCorrupt
from lakepond.lake.elsewhere import Segments
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.steps import StepsInfo, read_layout, read_steps
from lakepond.types import Array


def read_weights(commit: Commit, segments: Segments, *, reachable: bool = False) -> tuple[Array, Array]:
    """Step ids and their weights, priority ** alpha; of an id that comes twice, the later weight counts.

    `LakeCorrupt` unless all weights are finite and at least 0. `reachable`: leave out files that are
    elsewhere and cannot be fetched.
    """
    ids: list[Array] = [np.zeros(0, np.int64)]
    weights: list[Array] = [np.zeros(0)]
    for info in commit.weights:
        if reachable and not segments.reachable(f"{info.digest}.steps"):
            continue
        some_ids, some = _read_file(commit, info, segments)
        ids.append(some_ids)
        weights.append(some)
    return np.concatenate(ids), np.concatenate(weights)


def _read_file(commit: Commit, info: StepsInfo, segments: Segments) -> tuple[Array, Array]:
    with segments.using(f"{info.digest}.steps") as file:
        layout = read_layout(file)
        found = {column.name: (column.dtype.str, column.shape) for column in layout.columns}
        changes = info is not commit.priorities
        expected = {"weight": ("<f8", ()), **({"step": ("<i8", ())} if changes else {})}
        if found != expected or layout.steps != info.steps:
            raise LakeCorrupt(
                f"{file} has {layout.steps} steps with the columns {sorted(found)}, not the {info.steps} "
                "priorities that were committed; run `lakepond repair`."
            )
        columns = read_steps(file)
        weights = columns["weight"]
        wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if len(wrong):
            raise LakeCorrupt(
                f"{file} has {len(wrong)} priorities that are negative, infinite or not a number, the first "
                f"{weights[wrong[0]]}; run `lakepond repair`."
            )
        if changes:
            return columns["step"], weights
        noted = dict(layout.notes).get("first", str(commit.recorded - len(weights)).encode())
        if not noted.isdigit() or int(noted) + len(weights) > commit.recorded:
            raise LakeCorrupt(
                f"{file} has priorities of steps that were never recorded; run `lakepond repair`."
            )
        return int(noted) + np.arange(len(weights)), weights
