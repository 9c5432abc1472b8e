"""The status of a lake, in a folder or in a bucket: two commits of each writer are read, and no step."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from lakepond import background
from lakepond.cloud.place import Cloud
from lakepond.errors import LakeCorrupt, LakeError, LakeNotFound
from lakepond.flow.following import positions
from lakepond.flow.following.chains import Chains, chains_at
from lakepond.flow.following.lag import is_alive
from lakepond.lake.format.commits import Commit
from lakepond.types import Spec

log = logging.getLogger("lakepond")
COLLECTOR_NOTE = "collector"
"""what a collector stores with its commits"""
BACK = 8
"""commits back to which the lake's growth is measured"""
DISCOVER_SECONDS = 30.0
"""between two searches for the writers and learners of a lake in a bucket"""
ASKED_AT_A_TIME = 16


@dataclass(frozen=True)
class WriterStatus:
    """One of the writers of a lake."""

    name: str
    commit: int
    steps: int
    committed: float
    """when its newest commit was made, seconds since 1970"""
    alive: bool
    """whether that is at most 5 of its usual intervals ago, or less than a minute"""
    collector: dict[str, Any] | None = None
    """what a collector stored with it, see `lakepond.distributed.collector.CollectorStatus`"""


@dataclass(frozen=True)
class LearnerStatus:
    """A learner that follows the lake with a limit of samples per insert."""

    sampled: int
    inserted: int
    ahead: bool
    """whether collectors wait for it"""
    said: float
    """when, seconds since 1970"""


@dataclass(frozen=True)
class LakeStatus:
    """The lake of a run; of all its writers together."""

    commit: int
    commits_kept: int
    steps: int
    recorded: int
    rows: int
    bytes_on_disk: int
    bytes_plain: int
    committed: float
    """when its newest commit was made, seconds since 1970"""
    bytes_per_second: float | None
    """how fast it grows, over its last commits; None: not known, or several writers"""
    alive: bool
    """whether a writer is"""
    writers: tuple[WriterStatus, ...] = ()
    """if they have names"""
    learners: tuple[LearnerStatus, ...] = ()
    collector: dict[str, Any] | None = None
    """of the newest commit"""

    @property
    def ratio(self) -> float:
        """Ratio of the size without deduplication to the size on disk."""
        return self.bytes_plain / self.bytes_on_disk if self.bytes_on_disk else 1.0


@dataclass
class _RecentCommits:
    last: deque[Commit] = field(default_factory=lambda: deque(maxlen=BACK + 1))
    """its last commits, oldest first; one of `BACK` commits ago and the newest, to begin with"""
    kept: int = 0


class LakeWatch:
    """The lake at a place, read again at each look.

    Of a lake in a bucket, the learners, the writers and the commits of each are LISTed every
    `DISCOVER_SECONDS`; a look between only asks each writer for its next commit, one GET.
    """

    def __init__(self, place: Path | Cloud) -> None:
        self.place = place
        self._interval = DISCOVER_SECONDS if isinstance(place, Cloud) else 0.0
        self._discovered = -math.inf
        self._chains: Chains | None = None
        self._writers: dict[str, _RecentCommits] = {}
        self._learners: tuple[LearnerStatus, ...] = ()

    def look(self) -> LakeStatus | None:
        """The lake now; None if there is none. Raises `LakeError` if no commit of it can be read."""
        if self._chains is None:
            try:
                self._chains = chains_at(self.place)
            except LakeNotFound:
                return None
        chains = self._chains
        if time.monotonic() - self._discovered >= self._interval:
            self._writers = {name: _RecentCommits() for name in chains.names()}
            self._learners = tuple(
                LearnerStatus(each.sampled, each.inserted, each.ahead, each.modified)
                for each in positions.positions(chains.store)
            )
            self._discovered = time.monotonic()
        updates = background.results(
            lambda name: _update(chains, name, self._writers[name]),
            self._writers,
            ASKED_AT_A_TIME,
            "lakepond-status",
        )
        for _ in updates:
            pass
        seen = {name: each for name, each in self._writers.items() if each.last}
        if not seen:
            raise LakeNotFound(f"{chains} has no intact commit yet.")
        found = _together({name: _lake_status(chains.spec, each) for name, each in seen.items()})
        listed = [source for each in seen.values() for leaf in each.last[-1].sources for source in leaf]
        shared = {(source.digest, source.bytes): source for source in listed}.values()  # by all writers
        return replace(
            found,
            learners=self._learners,
            rows=found.rows - sum(s.rows for s in listed) + sum(s.rows for s in shared),
            bytes_on_disk=found.bytes_on_disk - sum(s.bytes for s in listed) + sum(s.bytes for s in shared),
        )


def _update(chains: Chains, name: str, writer: _RecentCommits) -> None:
    """Read the commits of a writer that are new; damaged ones are skipped with a warning."""
    if writer.last:
        try:
            while (commit := chains.next(name, writer.last[-1].number)) is not None:
                writer.last.append(commit)
                writer.kept += 1
        except LakeCorrupt as error:
            log.warning("%s: skipping an unreadable commit: %s", name or chains, error)
        return
    numbers = chains.numbers(name)
    for number in reversed(numbers):
        try:
            newest = chains.commit(name, number)
            chains.check(name, newest)
        except (LakeCorrupt, FileNotFoundError) as error:
            if chains.numbers(name)[-1:] != numbers[-1:]:  # deleted while it was read: start again
                return _update(chains, name, writer)
            log.warning("skipping unreadable commit %d of %s: %s", number, name or chains, error)
            continue
        for earlier in [each for each in numbers if each < number][-BACK:][:1]:
            with suppress(LakeError, FileNotFoundError):  # damaged, or just deleted: the rate is unknown
                writer.last.append(chains.commit(name, earlier))
        writer.last.append(newest)
        writer.kept = len(numbers)
        return


def _together(found: dict[str, LakeStatus]) -> LakeStatus:
    """The status of a lake from those of its writers, by name."""
    newest = max(found.values(), key=lambda each: each.committed)
    return replace(
        newest,
        **{
            what: sum(getattr(each, what) for each in found.values())
            for what in ("commits_kept", "steps", "recorded", "rows", "bytes_on_disk", "bytes_plain")
        },
        bytes_per_second=newest.bytes_per_second if len(found) == 1 else None,
        alive=any(each.alive for each in found.values()),
        writers=tuple(
            WriterStatus(name, each.commit, each.steps, each.committed, each.alive, each.collector)
            for name, each in found.items()
            if list(found) != [""]
        ),
    )


def _lake_status(spec: Spec, writer: _RecentCommits) -> LakeStatus:
    """The status of one writer."""
    before, newest = writer.last[0], writer.last[-1]
    held, had = newest.totals.bytes, before.totals.bytes
    moment, earlier = (datetime.fromisoformat(commit.time).timestamp() for commit in (newest, before))
    return LakeStatus(
        commit=newest.number,
        commits_kept=writer.kept,
        steps=newest.recorded - newest.oldest,
        recorded=newest.recorded,
        rows=sum(entry.count for listed in newest.rows for entry in listed),
        bytes_on_disk=held,
        bytes_plain=(newest.recorded - newest.oldest) * spec.step_nbytes,
        committed=moment,
        bytes_per_second=max(0.0, (held - had) / (moment - earlier)) if moment > earlier else None,
        alive=is_alive(
            max(0.0, time.time() - moment),
            (moment - earlier) / (newest.number - before.number) if newest.number > before.number else None,
        ),
        collector=note if isinstance(note := newest.note.get(COLLECTOR_NOTE), dict) else None,
    )
