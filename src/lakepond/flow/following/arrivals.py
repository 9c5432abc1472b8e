"""Which steps of which chain are in the follower's pond, in the order of their arrival."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import numpy as np

from lakepond.lake.format.commits import Commit
from lakepond.lake.format.snapshots import Named, StepRun, identity
from lakepond.types import Array


class Mark(NamedTuple):
    """A commit that steps in the pond were read from."""

    named: Named
    oldest: int
    recorded: int
    branch: int


@dataclass
class Chain:
    """One chain as far as it was read."""

    name: str
    number: int | None = None
    """the commit that was read last"""
    seen: int = 0
    """all steps before this id were read, or are missing"""
    branch: int = 0
    """how often the writer went back to an earlier commit; ids after that are those of other steps"""
    pending: list[Commit] = field(default_factory=list)
    """commits that were found and not read yet"""
    marks: list[Mark] = field(default_factory=list)
    """commits that contain the live steps, oldest first"""
    streams: dict[int, int] = field(default_factory=dict)
    """the pond's stream for each stream of the writer"""
    steps: int = 0
    """steps that were appended to the pond"""
    missed: int = 0
    """steps that were dropped before they could be read"""
    time: float = 0.0
    """when its newest commit was made, by the writer's clock"""
    arrived: float = 0.0
    """the same by the monotonic clock of this machine"""
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=16))
    """seconds between its last commits"""
    polled: float = 0.0
    """when all its commits were last looked for, seconds since 1970"""
    error: str | None = None
    """why its steps could not be read"""
    look_error: str | None = None
    """why its commits could not be looked for"""
    _prune_at: int = 16

    @property
    def usual_interval(self) -> float | None:
        """Seconds between two of its commits, the median of the last ones; None if it is not known."""
        return statistics.median(self.intervals) if self.intervals else None

    def set_time(self, commit: Commit, commits: int = 1) -> None:
        """Note when its newest commit was made; `commits`: how many there are since the last call."""
        made = datetime.fromisoformat(commit.time).timestamp()
        if self.time:
            self.intervals.append((made - self.time) / commits)
            self.arrived = time.monotonic()
        else:
            self.arrived = time.monotonic() - max(0.0, time.time() - made)
        self.time = made

    def mark(self, commit: Commit) -> bool:
        """Note that a commit contains all steps that were read; returns whether marks should be pruned."""
        new = Mark(Named(commit.number, identity(commit)), commit.oldest, commit.recorded, self.branch)
        last = self.marks[-1] if self.marks else None
        if last is not None and last.branch == new.branch and last.oldest == new.oldest:
            self.marks.pop()
        self.marks.append(new)
        return len(self.marks) >= self._prune_at

    def prune(self, lowest: dict[int, int]) -> None:
        """Forget marks that no live step needs; `lowest`: the lowest live id of each branch."""
        needed = [
            mark
            for mark, later in zip(self.marks, [*self.marks[1:], None], strict=True)
            if later is None
            or (mark.branch in lowest and (later.branch != mark.branch or lowest[mark.branch] < later.oldest))
        ]
        self.marks, self._prune_at = needed, 2 * len(needed) + 16


class Arrivals:
    """The live steps of the pond as runs of consecutive steps of a chain, oldest first."""

    def __init__(self) -> None:
        self.runs: deque[tuple[Chain, int, int, int]] = deque()
        """chain, first, stop, branch"""
        self._first = 0  # the pond's id of the first step of the first run

    def add(self, chain: Chain, first: int, stop: int, recorded: int, oldest: int) -> None:
        """Steps [first, stop) of a chain were appended; the pond has [oldest, recorded) now."""
        if self.runs:
            last, start, end, branch = self.runs[-1]
            if last is chain and end == first and branch == chain.branch:
                self.runs.pop()
                first = start
        else:
            self._first = recorded - (stop - first)
        self.runs.append((chain, first, stop, chain.branch))
        while self._first < oldest:
            owner, start, end, branch = self.runs.popleft()
            gone = min(end - start, oldest - self._first)
            self._first += gone
            if start + gone < end:
                self.runs.appendleft((owner, start + gone, end, branch))

    def lowest(self, chain: Chain) -> dict[int, int]:
        """The lowest live id of each branch of a chain."""
        return {branch: first for owner, first, _, branch in reversed(self.runs) if owner is chain}

    def pond_id(self, chain: Chain, step: int, recorded: int) -> int:
        """The pond's id of a step of a chain, the newest one with that id; -1 if it is not live."""
        for owner, first, end, _ in reversed(self.runs):
            if owner is chain and first <= step < end:
                return recorded - (end - step)
            recorded -= end - first
        return -1

    def chain_ids(self, chain: Chain, ids: Iterable[int]) -> Iterator[int]:
        """The ids in a chain, on its newest branch, of some steps of the pond that are live."""
        wanted, first = sorted(ids), self._first
        for owner, start, stop, branch in self.runs:
            if owner is chain and branch == chain.branch:
                low, high = bisect_left(wanted, first), bisect_left(wanted, first + stop - start)
                yield from (start + step - first for step in wanted[low:high])
            first += stop - start

    def named(self) -> Iterator[StepRun]:
        """The runs, each with the commit to read it from; KeyError with the run if no commit has it."""
        for chain, first, stop, branch in self.runs:
            parts: list[StepRun] = []
            for mark in reversed(chain.marks):
                start = max(first, mark.oldest)
                if mark.branch == branch and start < stop <= mark.recorded:
                    parts.append(StepRun(chain.name, start, stop, mark.named.commit))
                    stop = start
            if first < stop:
                raise KeyError((chain.name, first, stop))
            yield from reversed(parts)


def streams_of(chain: Chain, streams: Array, next_stream: int) -> tuple[Array, int]:
    """The pond's streams for streams of a chain, and the next unused number."""
    own, at = np.unique(streams, return_inverse=True)
    for stream in own.tolist():
        if stream not in chain.streams:
            chain.streams[stream] = next_stream
            next_stream += 1
    return np.array([chain.streams[stream] for stream in own.tolist()], np.int32)[at], next_stream
