"""Tracks: the sequences of row numbers whose slices are the windows of some steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lakepond.types import Array, Field

DECODED_ENTRIES = 4 << 20
"""row numbers of a track that is held decoded, 32 MB"""


@dataclass(frozen=True)
class Layout:
    """How the observations of one leaf are made of rows."""

    length: int
    """rows of a window"""
    row_bytes: int
    axis: int | None
    """along which the rows are, -1 for the last of several; None: an observation is one row"""

    def fits(self, of: Field) -> bool:
        """Whether observations of a field can be made of such rows."""
        numbers = (self.length, self.row_bytes, 0 if self.axis is None else self.axis)
        if any(type(number) is not int for number in numbers) or self.length < 1:
            return False
        if self.axis is None:
            slices = 1
        elif of.shape and self.axis in (-1, *range(len(of.shape))):
            slices = of.shape[self.axis]
        else:
            return False
        return slices % self.length == 0 and self.row_bytes * self.length == of.nbytes

    def row_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a row, of observations of that shape; slices of the row axis come first."""
        if self.axis is None:
            return shape
        size = shape[self.axis] // self.length
        rest = tuple(np.delete(shape, self.axis).tolist())
        return rest if size == 1 else (size, *rest)


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
