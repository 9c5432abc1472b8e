"""Tracks: the sequences of row numbers whose slices are the windows of some steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lakepond.lake.format.commits import RowsFile
from lakepond.types import Array

DECODED_ENTRIES = 4 << 20
"""row numbers of a track that is held decoded, 32 MB"""


def runs_of(track: Array) -> Array:
    """A track as runs of consecutive numbers, (runs, 2) int64: first number and count."""
    starts = np.flatnonzero(np.diff(track, prepend=track[:1] - 2) != 1)
    counts = np.diff(np.append(starts, len(track)))
    return np.stack([track[starts], counts], axis=1).astype("<i8")


class Track:
    """Row numbers by position: a short track is decoded, a longer one stays encoded as runs.

    So the memory for a track is bounded by the file it comes from, however long a run claims to be.
    """

    def __init__(self, data: bytes, shift: int = 0) -> None:
        """`data`: runs as they are stored; `shift` is added to every row number. ValueError if damaged."""
        runs = np.frombuffer(data, "<i8").reshape(-1, 2)
        if len(runs) and (runs.min() < 0 or runs.max() > 1 << 40 or runs[:, 1].sum(dtype=float) > 1 << 40):
            raise ValueError("a track with impossible runs")
        counts = runs[:, 1]
        self.runs = runs + np.array([shift, 0])
        """(runs, 2) int64: first number and count"""
        self._offsets = np.cumsum(counts) - counts
        self._length = int(counts.sum())
        self._decoded: Array | None = None
        if self._length <= DECODED_ENTRIES:
            self._decoded = np.repeat(self.runs[:, 0] - self._offsets, counts) + np.arange(self._length)

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        """Memory held."""
        decoded = 0 if self._decoded is None else self._decoded.nbytes
        return int(self.runs.nbytes + self._offsets.nbytes + decoded)

    def __getitem__(self, positions: Array) -> Array:
        """The row numbers at these positions, which are within the track; any shape."""
        if self._decoded is not None:
            found: Array = self._decoded[positions]
        else:
            run = np.searchsorted(self._offsets, positions, "right") - 1
            found = self.runs[run, 0] + positions - self._offsets[run]
        return found


def track_length(data: bytes) -> int:
    """How many rows an encoded track names."""
    return int(np.frombuffer(data, "<i8")[1::2].sum())


def spans_of(runs: Array, starts: Array, stops: Array) -> tuple[Array, Array] | None:
    """For each run the first and the last file that hold its rows; None if a row is in no file.

    `starts`, `stops`: the row numbers of the files, sorted. `runs`: (runs, 2), first number and count.
    """
    if not len(starts):
        return None
    low = np.searchsorted(starts, runs[:, 0], "right") - 1
    high = np.searchsorted(starts, runs[:, 0] + runs[:, 1] - 1, "right") - 1
    gaps = np.concatenate([[0], np.cumsum(starts[1:] != stops[:-1])])  # before each file
    if low.min() < 0 or (runs.sum(axis=1) > stops[high]).any() or (gaps[low] != gaps[high]).any():
        return None
    return low, high


def files_of(runs: Array, files: Sequence[RowsFile]) -> list[int]:
    """Which of these files, in the order of their rows, hold the rows of a track; AssertionError if none."""
    if not len(runs):
        return []
    starts = np.array([file.first for file in files], np.int64)
    spans = spans_of(runs, starts, np.array([file.first + file.shard.rows for file in files], np.int64))
    if spans is None:
        raise AssertionError("a window names a row that is in no file of the lake")
    low, high = spans
    edges = np.zeros(len(files) + 1, np.int64)
    np.add.at(edges, low, 1)
    np.add.at(edges, high + 1, -1)
    return np.flatnonzero(np.cumsum(edges)[:-1]).tolist()


class RowPlaces:
    """Places for the rows of one leaf, counted without gaps through the files that hold them.

    Row numbers grow without end and old ones may stay live, so an array with one entry per row is sized and
    indexed by place: `count` is the number of rows that are there, whatever their numbers.
    """

    def __init__(self, files: Sequence[RowsFile]) -> None:
        """`files`: sorted by their first row."""
        rows = np.array([file.shard.rows for file in files], np.int64)
        self._starts = np.array([file.first for file in files], np.int64)
        self._stops = self._starts + rows
        self._before = np.cumsum(rows) - rows
        self.count = int(rows.sum())

    def of(self, numbers: Array) -> Array:
        """The place of each row number; LookupError if one is in no file."""
        file = np.searchsorted(self._starts, numbers, "right") - 1
        if len(numbers) and (not len(self._starts) or file.min() < 0 or (numbers >= self._stops[file]).any()):
            raise LookupError("a row that is in no file")
        return numbers - self._starts[file] + self._before[file] if len(numbers) else numbers


def covered(starts: Array, length: int) -> Array:
    """The positions of a track that windows of one length with these starts cover, sorted."""
    known = np.sort(starts, axis=None)
    if not len(known):
        return known
    breaks = np.flatnonzero(known[1:] > known[:-1] + length) + 1
    low = known[np.concatenate([[0], breaks])]
    sizes = known[np.append(breaks - 1, len(known) - 1)] + length - low
    offsets = np.cumsum(sizes) - sizes
    return np.repeat(low - offsets, sizes) + np.arange(sizes.sum())


def distinct(numbers: Array) -> tuple[Array, Array]:
    """Each number once, sorted, and where among them each one is. Row numbers are close together."""
    low = int(numbers.min(initial=0))
    span = int(numbers.max(initial=0)) - low + 1
    if span > 16 * len(numbers):
        known, place = np.unique(numbers, return_inverse=True)
        return known, place.reshape(numbers.shape)
    seen = np.zeros(span, bool)
    seen[numbers - low] = True
    return np.flatnonzero(seen) + low, (np.cumsum(seen) - 1)[numbers - low]
