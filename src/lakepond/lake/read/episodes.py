"""Episodes of a lake: the steps of each stream, from a start to the next end.

Streams are interleaved, so an episode is gathered from many places. It ends where a step says so, and also
where the next step of its stream does not continue it: a cut, or an environment reset in the middle. A step
continues an episode if its `follows_previous` is true and its obs is the next_obs before it: an episode has
only one of the two, so if they differ, one would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lakepond.lake.read.assemble import PART_STEPS, batch_of, tree_of, windows_of
from lakepond.lake.read.reader import LakeReader, LeafPart, Part, Stored
from lakepond.lake.read.step_files import FOLLOWS
from lakepond.types import Array, Spec, Tree, leaves

COMPARED = 1 << 18
"""row numbers, or bytes of values, that are compared at a time"""


class Episode(NamedTuple):
    """Consecutive steps of one stream."""

    obs: Tree
    """one observation more than there are steps"""
    action: Tree
    reward: Array
    terminated: Array
    truncated: Array
    extras: dict[str, Array]
    stream: int = 0
    step_id: Array | None = None

    @property
    def steps(self) -> int:
        """How many; a tuple's own length is that of its fields."""
        return len(self.reward)


def episode_ids(reader: LakeReader, spec: Spec) -> Iterator[Array]:
    """The ids of each episode, in the order in which they end; those that have not ended come last.

    Of several writers, one after another.
    """
    unfinished: dict[int, list[Array]] = {}
    writer = ""
    for segment, ids in _all_parts(reader):
        if segment.writer != writer:  # streams of another writer
            yield from sorted((np.concatenate(waiting) for waiting in unfinished.values()), key=_last)
            unfinished, writer = {}, segment.writer
        part = reader.read(segment, ids)
        ends = part.columns["terminated"] | part.columns["truncated"]
        order = np.argsort(part.columns["stream"], kind="stable")
        streams = part.columns["stream"][order]
        edges = np.flatnonzero(np.diff(streams, prepend=-1, append=-1))
        follows = part.columns[FOLLOWS][order]
        follows[1:] &= ~ends[order[:-1]]
        inside = np.setdiff1d(np.flatnonzero(follows), edges)
        follows[inside] = _same(part, order[inside - 1], order[inside])
        ended: list[Array] = []
        for at, to in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            mine, stream = order[at:to], int(streams[at])
            follows[at] = (
                part.columns[FOLLOWS][mine[0]]
                and stream in unfinished
                and _continues(reader, spec, unfinished[stream][-1][-1], ids[mine[0]])
            )
            pieces = np.split(ids[mine], np.flatnonzero(~follows[at:to]))
            first, rest = pieces[0], pieces[1:]
            if len(first):
                unfinished[stream].append(first)
            for piece in rest:
                if stream in unfinished:
                    ended.append(np.concatenate(unfinished.pop(stream)))
                unfinished[stream] = [piece]
            if ends[mine[-1]]:
                ended.append(np.concatenate(unfinished.pop(stream)))
        yield from sorted(ended, key=_last)
    yield from sorted((np.concatenate(waiting) for waiting in unfinished.values()), key=_last)


def _all_parts(reader: LakeReader) -> Iterator[tuple[Stored, Array]]:
    """The ids of all live steps by file, at most `PART_STEPS` at a time."""
    for stored in reader.stored():
        for start in range(stored.start, stored.stop, PART_STEPS):
            yield stored, np.arange(start, min(start + PART_STEPS, stored.stop))


def _last(ids: Array) -> int:
    return int(ids[-1])


def episode_of(reader: LakeReader, spec: Spec, ids: Array) -> Episode:
    """The steps with these sorted ids, which follow each other. Memory: its observations, once."""
    parts = [reader.read(segment, some) for segment, some in reader.parts(ids, PART_STEPS)]
    columns = {name: np.concatenate([p.columns[name] for p in parts]) for name in parts[0].columns}
    obs = [windows_of(reader, i, field, parts) for i, (_, field) in enumerate(leaves(spec.obs))]
    return Episode(
        obs=tree_of(spec.obs, obs),
        action=tree_of(spec.action, [columns[path] for path, _ in leaves(spec.action, "action")]),
        reward=columns["reward"],
        terminated=columns["terminated"],
        truncated=columns["truncated"],
        extras={name: columns[name] for name in spec.extras},
        stream=int(columns["stream"][0]),
        step_id=ids,
    )


def _same(part: Part, before: Array, after: Array) -> Array:
    """Whether the next_obs of each step at `before` is the obs of the one at `after`, in some of a part."""
    same = np.ones(len(before), bool)
    for leaf in part.leaves:
        length = leaf.layout.length if isinstance(leaf, LeafPart) else leaf[0, 0].nbytes
        count = max(1, COMPARED // length)
        for at in range(0, len(before), count):
            some = slice(at, at + count)
            same[some] &= (_marks(leaf, before[some], 1) == _marks(leaf, after[some], 0)).all(axis=1)
    return same


def _marks(leaf: LeafPart | Array, steps: Array, which: int) -> Array:
    """Numbers that are equal only for equal observations, (steps, n): row numbers, or the bytes of values."""
    if isinstance(leaf, LeafPart):
        return leaf.track[leaf.starts[steps, which][:, None] + np.arange(leaf.layout.length)]
    values = np.ascontiguousarray(leaf[steps, which]).reshape(len(steps), -1)
    return values.view(np.uint8)  # bytes: a NaN equals itself


def _continues(reader: LakeReader, spec: Spec, before: int, after: int) -> bool:
    """The same for steps of two parts, by content: their rows may have other numbers and another layout."""
    batch = batch_of(reader, spec, np.array([before, after]))
    pairs = zip(leaves(batch.next_obs), leaves(batch.obs), strict=True)
    return all(one[0].tobytes() == other[1].tobytes() for (_, one), (_, other) in pairs)
