"""What a pond submits for a commit: a copy of the columns, and rows that stay pinned until then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from lakepond.lake.format.tracks import Layout
from lakepond.types import Array


@dataclass(frozen=True)
class SourceRows:
    """A row source that the lake stores once for all writers; its rows get the numbers from `first` on."""

    first: int
    digest: str
    """of its rows; see `sources.digest_of_rows`"""
    rows: Array
    """all of them, (n, row_bytes) uint8"""


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
    sources: tuple[SourceRows, ...] = ()
    """sources that the writer has not used before; their rows are numbered before the new rows"""


@dataclass(frozen=True)
class HandOver:
    """Steps [first, first + steps), not changed by anything that happens later."""

    first: int
    oldest: int
    """the oldest step that stays live"""
    columns: dict[str, Array]
    leaves: tuple[Windows | Array, ...]
    """for each leaf of the observations its windows, or its values, (steps, 2, *shape)"""
    priorities: Array | None
    """the priority of each live step, to the power of alpha; or of those in `changed`"""
    changed: Array | None
    """the ids of the steps whose priorities have changed since the last hand-over; None: all are given"""
    largest_priority: float
    alpha: float | None
    release: Callable[[], None]
    """call it when all is written: the rows need no longer be pinned"""
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
