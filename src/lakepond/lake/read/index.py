"""What sampling a lake needs to know of all its steps: what follows what, and the stored priorities.

Both are read when they are first needed, in one pass over a few small columns, and kept: 4 bytes for each
live step for n-step returns and sequences, 8 more for sampling by priority. Uniform sampling needs neither.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import NamedTuple

import numpy as np

from lakepond import forks
from lakepond.errors import LakeCorrupt, SampleError
from lakepond.lake.format.link_notes import are_alone
from lakepond.lake.read.reader import LakeReader, Stored
from lakepond.lake.read.step_files import FOLLOWS
from lakepond.lake.read.weights import read_weights
from lakepond.sampling.links import NextSteps, previous_steps
from lakepond.sampling.priorities import Priorities
from lakepond.types import Array


class IndexedSteps(NamedTuple):
    """The steps of a lake that can be drawn, [oldest, recorded); see `lakepond.sampling`."""

    oldest: int
    recorded: int
    ring: int
    links: NextSteps
    priorities: Priorities | None


class Index:
    """Links and priorities of one commit. `lock` is held while steps are chosen."""

    def __init__(self, reader: LakeReader) -> None:
        self._reader = reader
        self._links: NextSteps | None = None
        self._weighted: IndexedSteps | None = None
        self.restart_in_child()
        forks.register(self)

    def restart_in_child(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self.lock = threading.RLock()

    def steps(self, *, linked: bool, weighted: bool) -> IndexedSteps:
        """The steps to draw from. `linked`: with links; `weighted`: with priorities, those that have one."""
        if weighted:
            steps = self._with_priorities()
        else:
            oldest, recorded = self._reader.oldest, self._reader.recorded
            ring = max(1, recorded - oldest)
            steps = IndexedSteps(oldest, recorded, ring, NextSteps(np.zeros(0, np.int32)), None)
        return steps._replace(links=self._chain()) if linked else steps

    def _chain(self) -> NextSteps:
        if self._links is None:
            self._links = NextSteps(self._read_links())
        return self._links

    def _read_links(self) -> Array:
        oldest = self._reader.oldest
        size = self._reader.recorded - oldest
        ahead = np.zeros(max(1, size), np.int32 if size < 1 << 31 else np.int64)
        ended = np.zeros(size, np.bool_)
        newest: dict[int, int] = {}
        writer: str | None = None
        for segment, ids, columns in self._reader.scan(["stream", "terminated", "truncated", FOLLOWS]):
            if segment.writer != writer:  # each writer numbers its streams itself
                newest, writer = {}, segment.writer
            ended[ids - oldest] = columns["terminated"] | columns["truncated"]
            previous, last = previous_steps(ids, columns["stream"], newest)
            alone = partial(_alone, segment)
            linked = (previous >= 0) & ~alone(ids)
            linked[linked] = ~alone(previous[linked])
            distance = (ids - previous)[linked]
            previous = previous[linked]
            continues = columns[FOLLOWS][linked] & ~ended[previous - oldest]
            ahead[previous % len(ahead)] = np.where(continues, distance, -distance)
            newest.update(last)
        return ahead

    def _with_priorities(self) -> IndexedSteps:
        if self._weighted is None:
            reader, head = self._reader, self._reader.heads[0]
            commit = head.commit
            if len(reader.heads) > 1 or not commit.weights or commit.alpha is None:
                raise SampleError(
                    f"commit {commit.number} of {reader.path} stores no priorities; sample without beta, or "
                    "open the lake of one writer whose replay has alpha=..."
                )
            ids, weights = read_weights(commit, head.segments)
            live = ids >= commit.oldest
            ids, weights = ids[live], weights[live]
            first = int(ids.min(initial=commit.recorded))
            ring = max(1, commit.recorded - commit.oldest)
            priorities = Priorities(ring, commit.alpha)
            priorities.restore(ids % ring, weights, commit.largest_priority)
            if not (priorities.held[np.arange(first, commit.recorded) % ring] > 0).all():
                raise LakeCorrupt(f"commit {commit.number} of {reader.path} lacks priorities of some steps.")
            self._weighted = IndexedSteps(
                first, commit.recorded, ring, NextSteps(np.zeros(0, np.int32)), priorities
            )
        return self._weighted


def _alone(stored: Stored, ids: Array) -> Array:
    """Whether steps of this file's writer were appended by `fill_from`, and belong to no sequence."""
    return are_alone(stored.head.commit, ids - stored.head.offset)
