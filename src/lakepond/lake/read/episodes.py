"""Episodes of a lake: the steps of each stream, from a start to the next end.

Streams are interleaved, so an episode is gathered from many places. It ends where a step says so, and also
where the next step of its stream does not continue it: a cut, or an environment reset in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lakepond.lake.read.assemble import PART_STEPS, batch_of, tree_of, windows_of
from lakepond.lake.read.reader import LakeReader, LeafPart, Part
from lakepond.types import Array, Spec, Tree, leaves

EXACT_LENGTH = 16
"""windows up to this long are compared row by row, longer ones by their first and last row"""


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
    for segment, ids in reader.parts(np.arange(reader.oldest, reader.recorded), PART_STEPS):
        if segment.writer != writer:  # streams of another writer
            yield from sorted((np.concatenate(waiting) for waiting in unfinished.values()), key=_last)
            unfinished, writer = {}, segment.writer
        part = reader.read(segment, ids)
        marks = _marks(part)
        ends = part.columns["terminated"] | part.columns["truncated"]
        order = np.argsort(part.columns["stream"], kind="stable")
        streams = part.columns["stream"][order]
        edges = np.flatnonzero(np.diff(streams, prepend=-1, append=-1))
        ended: list[Array] = []
        for at, to in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            mine, stream = order[at:to], int(streams[at])
            follows = np.zeros(len(mine), bool)
            follows[1:] = ~ends[mine[:-1]] & _same(marks, mine[:-1], mine[1:])
            follows[0] = stream in unfinished and _continues(
                reader, spec, unfinished[stream][-1][-1], ids[mine[0]]
            )
            pieces = np.split(ids[mine], np.flatnonzero(~follows))
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


def _marks(part: Part) -> list[Array]:
    """For each leaf, numbers that are equal only for equal observations, (steps, 2, n)."""
    found: list[Array] = []
    for leaf in part.leaves:
        if isinstance(leaf, LeafPart):
            length = leaf.layout.length
            within = np.arange(length) if length <= EXACT_LENGTH else np.array([0, length - 1])
            found.append(leaf.track[leaf.starts[..., None] + within])
        else:
            flat = np.ascontiguousarray(leaf).reshape(len(leaf), 2, -1)
            found.append(flat.view(np.uint8))  # bytes: a NaN equals itself
    return found


def _same(marks: list[Array], before: Array, after: Array) -> Array:
    """Whether the next_obs of one step is the obs of another."""
    same = np.ones(len(before), bool)
    for mark in marks:
        same &= (mark[before, 1] == mark[after, 0]).all(axis=1)
    return same


def _continues(reader: LakeReader, spec: Spec, before: int, after: int) -> bool:
    """The same for steps of two parts, by content: their rows may have other numbers and another layout."""
    batch = batch_of(reader, spec, np.array([before, after]))
    if batch.terminated[0] or batch.truncated[0]:
        return False
    pairs = zip(leaves(batch.next_obs), leaves(batch.obs), strict=True)
    return all(one[0].tobytes() == other[1].tobytes() for (_, one), (_, other) in pairs)
