"""From parts of a lake to a batch: each row is decoded once, and copied once to where it belongs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from lakepond.lake.read.reader import LakeReader, LeafPart, Part
from lakepond.lake.read.step_files import column_fields
from lakepond.rows.layouts import from_rows_first
from lakepond.sampling.links import NextSteps
from lakepond.types import Array, Batch, Field, Spec, Tree, leaves, rebuild

PART_STEPS = 8192
"""steps read at a time"""


def batch_of(
    reader: LakeReader,
    spec: Spec,
    ids: Array,
    *,
    links: NextSteps | None = None,
    n_step: int = 1,
    gamma: float = 1.0,
    excluded: Collection[str] = (),
) -> Batch:
    """The steps with these ids, in that order and shape; an id may come twice.

    `links`, `n_step`, `gamma`: for n-step returns. `excluded`: paths of observations that are not read.
    """
    flat = ids.reshape(-1)
    through = flat[:, np.newaxis]
    if links is not None:
        through = through + links.follow(flat % links.ring, n_step, across_episodes=False)[0]
    known, place = np.unique(through, return_inverse=True)
    place = place.reshape(through.shape)
    here, last = place[:, 0], place[:, -1]
    parts = [reader.read(segment, some) for segment, some in reader.parts(known, PART_STEPS)]
    whole = {
        name: np.concatenate([np.zeros((0, *field.shape), field.dtype), *(p.columns[name] for p in parts)])
        for name, field in column_fields(spec).items()
    }
    wanted = {f"{name}{path}" for name in ("obs", "next_obs") for path, _ in leaves(spec.obs)} - set(excluded)
    obs: list[Array | None] = []
    next_obs: list[Array | None] = []
    for i, (path, field) in enumerate(leaves(spec.obs)):
        both = _both(
            reader,
            i,
            field,
            parts,
            here if f"obs{path}" in wanted else None,
            last if f"next_obs{path}" in wanted else None,
        )
        for found, target in zip(both, (obs, next_obs), strict=True):
            target.append(None if found is None else found.reshape(*ids.shape, *field.shape))
    num_steps = np.ones(len(flat), np.int64)
    reward = whole["reward"][here]
    if links is not None:
        ring, oldest = links.ring, reader.oldest

        def reward_at(places: Array) -> Array:
            found: Array = whole["reward"][np.searchsorted(known, oldest + (places - oldest) % ring)]
            return found

        _, reward, num_steps = links.n_step(flat % ring, reward_at, n_step, gamma)
    terminated = whole["terminated"][last]
    discount = np.power(gamma, num_steps).astype(np.float32) * ~terminated

    def shaped(values: Array) -> Array:
        return values.reshape(*ids.shape, *values.shape[1:])

    return Batch(
        obs=tree_of(spec.obs, obs),
        action=tree_of(spec.action, [shaped(whole[path][here]) for path, _ in leaves(spec.action, "action")]),
        reward=shaped(reward),
        next_obs=tree_of(spec.obs, next_obs),
        terminated=shaped(terminated),
        truncated=shaped(whole["truncated"][last]),
        discount=shaped(discount),
        weight=np.ones(len(ids), np.float32),
        step_id=ids,
        stream=shaped(whole["stream"][here]),
        extras={name: shaped(whole[name][here]) for name in spec.extras},
        num_steps=shaped(num_steps),
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


def tree_of(spec: Tree, values: Sequence[Array | None]) -> Tree:
    """Values in the order of a tree's leaves, as that tree."""
    ordered = iter(values)
    return rebuild(spec, lambda: next(ordered))


def _both(
    reader: LakeReader, i: int, field: Field, parts: list[Part], here: Array | None, last: Array | None
) -> tuple[Array | None, Array | None]:
    """The obs at some places of the parts' steps and the next_obs at others, of one leaf; None: skipped."""
    found = [part.leaves[i] for part in parts]
    windows = [leaf for leaf in found if isinstance(leaf, LeafPart)]
    which = [(k, places) for k, places in enumerate((here, last)) if places is not None]
    both: list[Array | None] = [None, None]
    if windows and len(windows) == len(found) and len({leaf.layout for leaf in windows}) == 1:
        numbers = np.concatenate([_numbers(leaf) for leaf in windows])
        if which:
            rows = _gathered(reader, i, windows[0], np.stack([numbers[places, k] for k, places in which]))
            for (k, _), some in zip(which, rows, strict=True):
                both[k] = _shaped(some, field, windows[0])
    else:
        none = np.zeros((0, *field.shape), field.dtype)
        for k, places in which:
            values = [observations(reader, i, field, leaf, k) for leaf in found]
            both[k] = np.concatenate([none, *values])[places]
    return both[0], both[1]


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
    plain = rows.reshape(-1).view(field.dtype).reshape(len(rows), -1)
    return from_rows_first(plain, field.shape, leaf.layout.axis, 1)
