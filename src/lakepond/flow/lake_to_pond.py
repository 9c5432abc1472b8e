"""lake ──fill──▶ pond: steps by id, in the order of the disk, rows read once a part and never expanded."""

from __future__ import annotations

import numpy as np

from lakepond.lake.lake import Lake
from lakepond.lake.reader import LeafPart
from lakepond.lake.steps import read_steps
from lakepond.pond import Pond, Spelled, Steps, column_fields
from lakepond.types import Array


def fill(lake: Lake, pond: Pond, ids: Array, *, resume: bool) -> None:
    """Append the steps with these sorted ids to a pond.

    `resume`: they are all steps from one on, so that each follows the one before it in its stream, and what
    the pond records next goes to the same lake.
    """
    names = [path for path, _ in column_fields(pond.spec)]
    if not pond.size:
        for observations, axis in zip(pond.leaves, lake.reader.axes(), strict=True):
            if axis is not None:
                observations.settle_on(axis)
    for part in lake.parts(ids):
        held = [_spell(lake, pond, i, leaf, resume) for i, leaf in enumerate(part.leaves)]
        steps = Steps(
            streams=part.columns["stream"].tolist(),
            obs=[leaf if isinstance(leaf, Spelled) else leaf[:, 0] for leaf in held],
            next_obs=[leaf if isinstance(leaf, Spelled) else leaf[:, 1] for leaf in held],
            columns=[part.columns[name] for name in names],
            linked=resume,
        )
        try:
            pond.append(steps)
        finally:
            for i, leaf in enumerate(held):
                if isinstance(leaf, Spelled):
                    pond.let_go_of_rows(i, leaf.held)


def restore_priorities(lake: Lake, pond: Pond) -> None:
    """Give the steps of a pond the priorities they had when the lake was committed."""
    saved = lake.commit.priorities
    if pond.priorities is None or saved is None:
        return
    weights = read_steps(lake.path / "segments" / f"{saved.digest}.steps")["weight"][-pond.size :]
    ids = pond.ids()[len(pond.ids()) - len(weights) :]
    alpha = lake.commit.alpha
    if alpha and alpha != pond.priorities.alpha:
        weights = weights ** (pond.priorities.alpha / alpha)
    pond.priorities.restore(pond.places(ids), weights, lake.commit.largest_priority)


def draw(lake: Lake, count: int, rng: np.random.Generator) -> Array:
    """Exactly `count` of all live steps, every choice as likely as any other; sorted."""
    return np.sort(lake.commit.oldest + rng.choice(len(lake), count, replace=False, shuffle=False))


def _spell(lake: Lake, pond: Pond, i: int, leaf: LeafPart | Array, resume: bool) -> Spelled | Array:
    """The windows of a part as slots of the pond, whose rows are now there and held."""
    if not isinstance(leaf, LeafPart):
        return leaf
    if not pond.takes_rows(i, leaf.layout.length, leaf.layout.axis):  # laid out before its row axis was known
        return np.stack([lake.observations(i, leaf, 0), lake.observations(i, leaf, 1)], axis=1)
    positions = np.unique(leaf.starts[..., None] + np.arange(leaf.layout.length))
    numbers, place = np.unique(leaf.track[positions], return_inverse=True)
    rows = lake.reader.rows(i, numbers, leaf.layout.row_bytes)
    slots = pond.load_rows(i, rows, numbers if resume else None)
    track = np.full(len(leaf.track), -1, np.int32)
    track[positions] = slots[place]
    return Spelled(track, leaf.starts, slots)
