"""What a pond hands over to be committed: columns as they were, and rows held until they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from lakepond.types import Array, Field


@dataclass(frozen=True)
class Layout:
    """How the observations of one leaf are made of rows."""

    length: int
    """rows of a window"""
    row_bytes: int
    axis: int | None
    """along which the rows are, -1 for the last of several; None: the whole observation is one row"""

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


@dataclass(frozen=True)
class Windows:
    """The windows of new steps: a track of row numbers, where each window starts in it, and the new rows."""

    layout: Layout
    runs: Array
    """the track as runs of consecutive row numbers: int64 pairs of first number and count"""
    starts: Array
    """(steps, 2) int64: where obs and next_obs start in the track"""
    first: int
    """the number of the first new row"""
    count: int
    rows: Callable[[], Iterator[Array]]
    """the new rows, in order, as arrays of (n, row_bytes) uint8; each is valid until the next"""


@dataclass(frozen=True)
class HandOver:
    """Steps [first, first + steps), not changed by anything that happens later."""

    first: int
    oldest: int
    """the oldest step that stays live"""
    columns: dict[str, Array]
    leaves: tuple[Windows | Array, ...]
    """for each leaf of the observations its windows, or the plain values, (steps, 2, *shape)"""
    priorities: Array | None
    """the priority of each live step, to the power of alpha; or of those in `changed`"""
    changed: Array | None
    """the ids of the steps whose priorities are not what the last hand-over said; None: all are told"""
    largest_priority: float
    alpha: float | None
    release: Callable[[], None]
    """call it when all is written: the rows need no longer be held"""
    generator: dict[str, str] | None = None
    """the state of the replay's own generator"""
    ends: Mapping[int, tuple[bool, bool]] = field(default_factory=dict)
    """steps before `first` whose end flags have changed since they were handed over: terminated, truncated"""

    @property
    def steps(self) -> int:
        """How many."""
        return len(self.columns["stream"])

    @property
    def stop(self) -> int:
        """The id after the last one."""
        return self.first + self.steps
