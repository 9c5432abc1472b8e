"""Tracks: the sequences of row numbers whose slices are the windows of some steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lakepond.lake.commits import RowsFile
from lakepond.types import Array


def runs_of(track: Array) -> Array:
    """A track as runs of consecutive numbers, (runs, 2) int64: first number and count."""
    starts = np.flatnonzero(np.diff(track, prepend=track[:1] - 2) != 1)
    counts = np.diff(np.append(starts, len(track)))
    return np.stack([track[starts], counts], axis=1).astype("<i8")


def decode_track(data: bytes) -> Array:
    """The track of these runs; ValueError if there is none."""
    runs = np.frombuffer(data, "<i8").reshape(-1, 2)
    if len(runs) and (runs.min() < 0 or runs.max() > 1 << 40 or runs[:, 1].sum() > 1 << 40):
        raise ValueError("a track with impossible runs")
    first, counts = runs[:, 0], runs[:, 1]
    offsets = np.cumsum(counts) - counts
    return np.repeat(first - offsets, counts) + np.arange(counts.sum())


def track_length(data: bytes) -> int:
    """How many rows an encoded track names."""
    return int(np.frombuffer(data, "<i8")[1::2].sum())


def files_of(runs: Array, files: Sequence[RowsFile]) -> list[int]:
    """Which of these files, in the order of their rows, hold the rows of a track; AssertionError if none."""
    if not len(runs):
        return []
    starts = np.array([file.first for file in files], np.int64)
    stops = np.array([file.first + file.shard.rows for file in files], np.int64)
    low = np.searchsorted(starts, runs[:, 0], "right") - 1
    high = np.searchsorted(starts, runs[:, 0] + runs[:, 1] - 1, "right") - 1
    gaps = np.concatenate([[0], np.cumsum(starts[1:] != stops[:-1])])  # before each file
    if (
        not len(files)
        or low.min() < 0
        or (runs.sum(axis=1) > stops[high]).any()
        or (gaps[low] != gaps[high]).any()
    ):
        raise AssertionError("a window names a row that is in no file of the lake")
    edges = np.zeros(len(files) + 1, np.int64)
    np.add.at(edges, low, 1)
    np.add.at(edges, high + 1, -1)
    return np.flatnonzero(np.cumsum(edges)[:-1]).tolist()


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
    """Each number once, sorted, and where among them each one is. Row numbers lie close together."""
    low = int(numbers.min(initial=0))
    span = int(numbers.max(initial=0)) - low + 1
    if span > 16 * len(numbers):
        known, place = np.unique(numbers, return_inverse=True)
        return known, place.reshape(numbers.shape)
    seen = np.zeros(span, bool)
    seen[numbers - low] = True
    return np.flatnonzero(seen) + low, (np.cumsum(seen) - 1)[numbers - low]
