"""From parts of a lake to a batch: each row is decoded once, and copied once to where it belongs."""

from __future__ import annotations

import numpy as np

from lakepond.lake.reader import LakeReader, LeafPart, Part
from lakepond.types import Array, Batch, Field, Spec, Tree, leaves, rebuild

PART_STEPS = 8192
"""steps read at a time"""


def batch_of(reader: LakeReader, spec: Spec, ids: Array) -> Batch:
    """The steps with these ids, in that order; an id may come twice."""
    order = np.argsort(ids, kind="stable")
    back = np.empty(len(ids), np.int64)
    back[order] = np.arange(len(ids))
    parts = [reader.read(segment, some) for segment, some in reader.parts(ids[order], PART_STEPS)]
    whole = {name: np.concatenate([p.columns[name] for p in parts])[back] for name in parts[0].columns}
    obs, next_obs = [], []
    for i, (_, field) in enumerate(leaves(spec.obs)):
        here, there = _both(reader, i, field, parts, back)
        obs.append(here)
        next_obs.append(there)
    return Batch(
        obs=tree_of(spec.obs, obs),
        action=tree_of(spec.action, [whole[path] for path, _ in leaves(spec.action, "action")]),
        reward=whole["reward"],
        next_obs=tree_of(spec.obs, next_obs),
        terminated=whole["terminated"],
        truncated=whole["truncated"],
        discount=(~whole["terminated"]).astype(np.float32),
        weight=np.ones(len(ids), np.float32),
        step_id=ids,
        stream=whole["stream"],
        extras={name: whole[name] for name in spec.extras},
        num_steps=np.ones(len(ids), np.int64),
    )


def observations(reader: LakeReader, i: int, field: Field, leaf: LeafPart | Array, which: int) -> Array:
    """The obs (0) or next_obs (1) of a part's steps, of one leaf, as an array."""
    if not isinstance(leaf, LeafPart):
        return leaf[:, which]
    return _shaped(_gathered(reader, i, leaf, _numbers(leaf)[None, :, which])[0], field, leaf)


def windows_of(reader: LakeReader, i: int, field: Field, parts: list[Part]) -> Array:
    """The obs of all steps of some parts, and the next_obs of the last one, of one leaf."""
    found = [part.leaves[i] for part in parts]
    windows = [leaf for leaf in found if isinstance(leaf, LeafPart)]
    if len(windows) == len(found) and len({leaf.layout for leaf in windows}) == 1:
        numbers = [_numbers(leaf) for leaf in windows]
        rows = np.concatenate([*(some[:, 0] for some in numbers), numbers[-1][-1:, 1]])
        return _shaped(_gathered(reader, i, windows[0], rows[None])[0], field, windows[0])
    obs = [observations(reader, i, field, leaf, 0) for leaf in found]
    return np.concatenate([*obs, observations(reader, i, field, found[-1], 1)[-1:]])


def tree_of(spec: Tree, values: list[Array]) -> Tree:
    """Values in the order of a tree's leaves, as that tree."""
    ordered = iter(values)
    return rebuild(spec, lambda: next(ordered))


def _both(reader: LakeReader, i: int, field: Field, parts: list[Part], back: Array) -> tuple[Array, Array]:
    """The obs and next_obs of all parts, of one leaf, in the order that `back` gives."""
    found = [part.leaves[i] for part in parts]
    windows = [leaf for leaf in found if isinstance(leaf, LeafPart)]
    if len(windows) == len(found) and len({leaf.layout for leaf in windows}) == 1:
        numbers = np.concatenate([_numbers(leaf) for leaf in windows])[back]
        both = _gathered(reader, i, windows[0], numbers.transpose(1, 0, 2))
        return _shaped(both[0], field, windows[0]), _shaped(both[1], field, windows[0])
    here, there = (
        np.concatenate([observations(reader, i, field, leaf, which) for leaf in found])[back]
        for which in (0, 1)
    )
    return here, there


def _numbers(leaf: LeafPart) -> Array:
    """The row numbers of the windows of a part, (steps, 2, length)."""
    return leaf.track[leaf.starts[..., None] + np.arange(leaf.layout.length)]


def _gathered(reader: LakeReader, i: int, leaf: LeafPart, numbers: Array) -> Array:
    """The rows with these numbers, in an array with one axis more."""
    out = np.empty((*numbers.shape, leaf.layout.row_bytes), np.uint8)
    reader.gather(i, numbers.reshape(-1), out.reshape(-1, leaf.layout.row_bytes))
    return out


def _shaped(rows: Array, field: Field, leaf: LeafPart) -> Array:
    """Windows of rows as observations."""
    plain = rows.reshape(-1).view(field.dtype)
    if leaf.layout.axis == -1:
        return np.moveaxis(plain.reshape(len(rows), field.shape[-1], *field.shape[:-1]), 1, -1)
    return plain.reshape(len(rows), *field.shape)
