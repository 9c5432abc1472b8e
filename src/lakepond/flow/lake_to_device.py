"""lake ──fill──▶ device pond: contiguous blocks of steps, chosen at random, with each frame copied once.

Which steps. The live steps of each stream within a segment are cut into blocks of `BLOCK` steps; the first
and the last block of a stream may be shorter. All blocks are put on a circle in random order, and the steps
of a random arc of `count` steps are taken. Every step is in the arc with probability count / len(lake)
exactly, whatever the sizes of the blocks; the blocks at the two ends of the arc are taken in part. The
position of the cuts is random too, so that no step is always the last of its block.

Which rows. A run is a sequence of chosen steps in which each continues the one before it. A run of n steps
takes `length` rows for its first observation and one more for each step::

    run of 3 steps, stacks of 4     a0 a0 a0 a0 a1 a2 a3        n + length rows

so `count` steps in r runs take count + r * length rows, and a run starts only at the start of a block and
after the end of an episode. (A next observation that is not its observation shifted by one frame takes
`length` rows instead of one.) `plan` computes the exact number before any row is read.

Links. A step continues another if they are consecutive in their stream and segment, the earlier one does not
end an episode, and its next observation is the observation of the later one. Streams that were interrupted
without an end of an episode are therefore not joined. Adjacent blocks that were both chosen form one run.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lakepond.errors import SpecError, TooFewSteps
from lakepond.lake.format.tracks import Layout, Track, distinct
from lakepond.lake.read.lake import Lake
from lakepond.lake.read.reader import LeafPart, Stored
from lakepond.types import Array

BLOCK = 32
"""steps per block"""


@dataclass(frozen=True)
class Fill:
    """Steps chosen from a lake, and the rows that a device pond of one lane needs for them."""

    lake: Lake
    columns: dict[str, Array]
    """(steps, ...): the columns of `pond.device_load`, and `step_id`"""
    row_numbers: Array
    """(rows,): the number in the lake of each row of the pond"""
    row_shape: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.columns["at"])

    @property
    def rows(self) -> int:
        """Number of rows that the pond needs."""
        return len(self.row_numbers)

    def pieces(self, size: int) -> Iterator[tuple[int, Array]]:
        """All rows as (position, rows), `size` at a time; the next piece is read while one is in use.

        All have the same size, unless there are fewer rows than that: the last piece overlaps the one before.
        """
        last = max(0, self.rows - size)
        starts = [*range(0, last, size), last]
        with ThreadPoolExecutor(1, "lakepond-fill") as ahead:
            reading = ahead.submit(self._read, starts[0], size)
            for start, following in zip(starts, [*starts[1:], None], strict=True):
                rows = reading.result()
                if following is not None:
                    reading = ahead.submit(self._read, following, size)
                yield start, rows

    def _read(self, start: int, size: int) -> Array:
        dtype = np.dtype(self.lake.spec.obs.dtype)
        row_bytes = int(np.prod(self.row_shape, dtype=np.int64)) * dtype.itemsize
        numbers, place = distinct(self.row_numbers[start : start + size])
        data = self.lake.reader.rows(0, numbers, row_bytes)[place]
        rows: Array = data.reshape(-1).view(dtype).reshape(len(place), *self.row_shape)
        return rows


def plan(
    lake: Lake, count: int, *, rng: np.random.Generator, block: int = BLOCK, newest: int | None = None
) -> Fill:
    """Choose `count` of all live steps in blocks, each step with the same probability; reads no rows.

    Memory: about 70 bytes per block of the lake, besides the columns and rows of the chosen steps.

    The steps come in the order of the disk, those of a stream within a segment in the order of time.
    newest: choose from this many that were recorded last.
    """
    steps = len(lake) if newest is None else min(newest, len(lake))
    if not 1 <= count <= steps:
        raise TooFewSteps(f"{count:,} steps were requested, but {lake.path} has {steps:,}.")
    if not hasattr(lake.spec.obs, "shape") or not hasattr(lake.spec.action, "shape"):
        raise SpecError(
            f"{lake.path} has observations or actions of several arrays; a device pond takes one of each."
        )
    phase = int(rng.integers(block))
    first = lake.reader.oldest if newest is None else lake.reader.recorded - steps

    def live() -> Iterator[tuple[Stored, Array]]:
        for segment in lake.reader.stored(first):
            yield segment, np.arange(max(segment.start, first), segment.stop)

    sizes = [_block_sizes(_order(_streams(lake, *part))[1], block, phase) for part in live()]
    chosen = _choose(np.concatenate(sizes), count, rng)
    parts: list[_Part] = []
    rows = stop = 0
    for segment, ids in live():
        start, stop = stop, stop + len(ids)
        low, high = np.searchsorted(chosen, [start, stop])
        if low < high:
            parts.append(_read(lake, segment, ids, chosen[low:high] - start, rows))
            rows += len(parts[-1].row_numbers)
    if len({part.layout for part in parts}) > 1:
        raise SpecError(
            f"{lake.path} stores some observations in rows and some without, but a device pond needs one "
            "layout; record with obs=Field(..., rows=0) for stacks or rows=None for single observations."
        )
    return Fill(
        lake=lake,
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        row_numbers=np.concatenate([part.row_numbers for part in parts]),
        row_shape=parts[0].layout.row_shape(lake.spec.obs.shape),
    )


def _streams(lake: Lake, segment: Stored, ids: Array) -> Array:
    """The stream of each of these steps of a segment."""
    return lake.reader.read(segment, ids).columns["stream"]


def _order(stream: Array) -> tuple[Array, Array]:
    """The order that puts the steps of each stream together, and which of them start a stream."""
    order = np.argsort(stream, kind="stable")
    return order, np.diff(stream[order], prepend=stream[order[:1]] - 1) != 0


def _block_sizes(starts: Array, block: int, phase: int) -> Array:
    """The sizes of the blocks of ordered steps, of which some start a stream."""
    first = np.flatnonzero(starts)
    position = np.arange(len(starts)) - np.repeat(first, np.diff(first, append=len(starts)))
    edges = np.flatnonzero(starts | ((position + phase) % block == 0))
    return np.diff(edges, append=len(starts))


def _choose(sizes: Array, count: int, rng: np.random.Generator) -> Array:
    """Sorted numbers of `count` of all steps: an arc of a circle of blocks in random order."""
    total = int(sizes.sum())
    order = rng.permutation(len(sizes))
    stops = np.cumsum(sizes[order])
    starts = stops - sizes[order]
    arc = int(rng.integers(total))
    firsts, counts = [], []
    for turn in (0, total):  # the arc may run past the end of the circle
        low, high = (np.clip(end - turn, starts, stops) for end in (arc, arc + count))
        taken = np.flatnonzero(high > low)
        firsts.append((np.cumsum(sizes) - sizes)[order[taken]] + (low - starts)[taken])
        counts.append((high - low)[taken])
    return np.sort(_ranges(np.concatenate(firsts), np.concatenate(counts)))


class _Part(NamedTuple):
    """The chosen steps of one segment."""

    layout: Layout
    columns: dict[str, Array]
    row_numbers: Array


def _read(lake: Lake, segment: Stored, ids: Array, chosen: Array, rows_before: int) -> _Part:
    """Those of the steps `ids` that have these numbers in the order of `_order`, and the rows they need."""
    part = lake.reader.read(segment, ids)
    leaf = part.leaves[0]
    if not isinstance(leaf, LeafPart) or leaf.layout.axis not in (0, None):
        raise SpecError(
            f"{lake.path} does not store its observations in rows along the first axis, which a device pond "
            "needs; record with obs=Field(..., rows=0) for stacks or rows=None for single observations."
        )
    order, starts = _order(part.columns["stream"])
    step = order[chosen]
    columns = {name: values[step] for name, values in part.columns.items()}
    windows, length = leaf.starts[step], leaf.layout.length
    ended = columns["terminated"] | columns["truncated"]
    continues = (np.diff(chosen) == 1) & ~starts[chosen[1:]] & ~ended[:-1]
    continues &= columns["follows_previous"][1:]
    continues &= _equal(leaf.track, windows[:-1, 1], windows[1:, 0], length)
    shifted = _equal(leaf.track, windows[:, 0] + 1, windows[:, 1], length - 1)
    # rows to append for each step: its observation, if it starts a run, and what its next observation adds
    counts = np.stack([np.where(np.append(False, continues), 0, length), np.where(shifted, 1, length)], 1)
    positions = _ranges((windows + length - counts).reshape(-1), counts.reshape(-1))
    newest = rows_before + np.cumsum(counts.reshape(-1)).reshape(-1, 2) - 1
    return _Part(
        leaf.layout,
        {
            "at": newest[:, 0],
            "next_at": newest[:, 1],
            **{name: columns[name] for name in ("action", "reward", "terminated", "truncated")},
            "step_id": ids[step],
        },
        leaf.track[positions],
    )


def _equal(track: Track, one: Array, other: Array, length: int) -> Array:
    """Whether the windows of a track that start at these positions hold the same rows."""
    equal: Array = one == other
    rest = np.flatnonzero(~equal)
    window = np.arange(length)
    equal[rest] = (track[one[rest, None] + window] == track[other[rest, None] + window]).all(axis=1)
    return equal


def _ranges(firsts: Array, counts: Array) -> Array:
    """The ranges [first, first + count), one after another."""
    offsets = np.cumsum(counts) - counts
    return np.repeat(firsts - offsets, counts) + np.arange(counts.sum())
