"""The episodes of a commit, found by a thread from four small columns, one segment at a time.

    stream       0 1 0 1 0 1 0 1 │ 0 1 0 1 ...        an episode is a stream's steps up to an end;
    ends             ^     ^     │   ^                an open one continues in the next segment
                 segment 0       │ segment 1

The table grows while it is read; memory is bounded by the newest `MOST_EPISODES`.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from lakepond.errors import LakeCorrupt, LakepondError
from lakepond.lake.format.commits import Commit
from lakepond.report.chart import grouped
from lakepond.report.view.opened import OpenedLake
from lakepond.types import Array

MOST_EPISODES = 2_000_000
"""episodes kept in memory, the newest, 33 bytes each"""
MOST_PARENTS = 1000
"""commits that are read to find out whether one follows from another"""
COLUMNS = ["stream", "reward", "terminated", "truncated"]
OPEN, TERMINATED, TRUNCATED = 0, 1, 2
ENDS = ("open", "terminated", "truncated")
ORDERS = ("newest", "oldest", "best", "worst", "longest")

ROW = np.dtype(
    [("stream", "i4"), ("first", "i8"), ("last", "i8"), ("steps", "i4"), ("total", "f8"), ("end", "u1")]
)


class EpisodeIndex:
    """The episodes of a commit, and of those that follow it."""

    def __init__(self, lake: OpenedLake) -> None:
        self._lake = lake
        self._lock = threading.Condition()
        self._chunks: list[Array] = []
        self._joined: Array | None = None
        self._open: dict[int, Any] = {}  # the episode each stream is in, as a row
        self._streams: dict[int, list[float]] = {}  # steps, episodes, sum of returns, last return, best
        self._wanted: Commit | None = None
        self._reading: Commit | None = None  # whose steps [oldest, next) were read
        self._stop = False
        self.dropped = 0
        """number of dropped episodes, the oldest"""
        self.next = 0
        """the id of the first step that was not read"""
        self.error: str | None = None
        self._thread: threading.Thread | None = None

    def go_to(self, commit: Commit) -> None:
        """Cover this commit as well; starts again if it does not follow from what was covered."""
        with self._lock:
            if self._wanted is not None and self._wanted.number == commit.number and self.error is None:
                return
            self._wanted, self.error = commit, None
            self._lock.notify_all()
            if self._thread is None and not self._stop:
                self._thread = threading.Thread(target=self._work, name="lakepond-episodes", daemon=True)
                self._thread.start()

    def progress(self) -> dict[str, Any]:
        """The number of steps read, and of how many."""
        with self._lock:
            commit = self._wanted
            assert commit is not None, "`go_to` comes first"
            of = commit.recorded - commit.oldest
            return {
                "commit": commit.number,
                "steps": min(max(0, self.next - commit.oldest), of),
                "of": of,
                "done": self._covers(commit),
                "dropped": self.dropped,
                "error": self.error,
            }

    def wait(self, seconds: float) -> None:
        """Wait until all steps are read, at most this long."""
        with self._lock:
            self._lock.wait_for(lambda: not self._has_work(), seconds)

    def page(self, stream: int | None, order: str, offset: int, limit: int) -> tuple[Array, int]:
        """Some episodes, in one of `ORDERS`, and how many are known; open ones are among the newest."""
        rows = self._all()
        if stream is not None:
            rows = rows[rows["stream"] == stream]
        stop = min(offset + limit, len(rows))
        if order in ("newest", "oldest"):
            return rows[:: -1 if order == "newest" else 1][offset:stop], len(rows)
        key = rows["total"] if order == "worst" else -rows["total" if order == "best" else "steps"]
        # NaN is the last; of equal ones the oldest is the first
        nearest = np.argpartition(key, stop)[: stop + 1] if stop < len(rows) else np.arange(len(rows))
        nearest = nearest[np.lexsort((nearest, key[nearest]))]
        return rows[nearest[offset:stop]], len(rows)

    def streams(self) -> list[dict[str, Any]]:
        """Each stream with its steps, its finished episodes and their returns."""
        with self._lock:
            found: list[dict[str, Any]] = []
            for stream, (steps, episodes, total, newest, best) in sorted(self._streams.items()):
                found.append({"stream": stream, "steps": int(steps), "episodes": int(episodes)})
                returns = (total / episodes, newest, best) if episodes else (None, None, None)
                found[-1] |= dict(zip(("mean", "newest", "best"), returns, strict=True))
            return found

    def curve(self, points: int) -> list[list[float]]:
        """Last step, mean, lowest and highest return of groups of finished episodes."""
        rows = self._all()
        rows = rows[(rows["end"] != OPEN) & np.isfinite(rows["total"])]
        if not len(rows):
            return []
        groups = min(points, max(len(rows) // 8, min(len(rows), 24)))
        ends, *returns = grouped(rows["total"], groups)
        table: list[list[float]] = np.stack([rows["last"][ends], *returns], axis=1).tolist()
        return table

    def close(self) -> None:
        """Stop the thread."""
        with self._lock:
            self._stop = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _all(self) -> Array:
        with self._lock:
            if self._joined is None:
                unfinished = np.array(list(self._open.values()), ROW)
                unfinished.sort(order="last")
                self._joined = np.concatenate([*self._chunks, unfinished])
            return self._joined

    # --- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        while (commit := self._next_commit()) is not None:
            try:
                self._read(commit)
            except (LakepondError, OSError) as error:
                with self._lock:
                    self.error = str(error)
                    self._lock.notify_all()

    def _next_commit(self) -> Commit | None:
        """The commit that is wanted, when it has steps that were not read; None: it is time to stop."""
        with self._lock:
            self._lock.wait_for(lambda: self._stop or self._has_work())
            return None if self._stop else self._wanted

    def _read(self, commit: Commit) -> None:
        """Read the steps of a commit that were not read, until another commit is wanted."""
        follows = self._follows(commit)
        with self._lock:
            if not follows:
                self._begin(commit)
            self._reading = commit
            self._lock.notify_all()
        with self._lake.lake(commit) as lake:
            for _, ids, columns in lake.reader.scan(COLUMNS, self.next, commit.recorded):
                reward = columns["reward"].reshape(len(ids), -1).sum(axis=1).astype("f8")
                rows = _pieces(ids, columns["stream"], reward, columns["terminated"], columns["truncated"])
                with self._lock:
                    self._take(rows)
                    self.next = int(ids[-1]) + 1
                    self._lock.notify_all()
                    if self._stop or self._wanted is not commit:
                        return
        if self.next != commit.recorded:
            raise LakeCorrupt(f"step {self.next} of commit {commit.number} is in no file.")

    def _has_work(self) -> bool:
        return self._wanted is not None and self.error is None and not self._covers(self._wanted)

    def _covers(self, commit: Commit) -> bool:
        same = self._reading is not None and self._reading.number == commit.number
        return same and self.next == commit.recorded

    def _follows(self, commit: Commit) -> bool:
        """Whether the commit has all the steps that were read, and possibly more."""
        before = self._reading
        if before is None or commit.oldest != before.oldest or commit.recorded < self.next:
            return False
        for _ in range(MOST_PARENTS):
            if commit.number <= before.number or commit.parent is None:
                break
            if commit.parent == before.number:
                return True
            try:
                commit = self._lake.commit(commit.parent)
            except (LakepondError, OSError):  # for example, it is no longer kept
                return False
        return commit.number == before.number

    def _begin(self, commit: Commit) -> None:
        self._chunks, self._open, self._streams = [], {}, {}
        self._joined = None
        self.dropped, self.next = 0, commit.oldest

    def _take(self, rows: Array) -> None:
        """Add pieces of episodes, sorted by stream; the first of each stream continues its open episode."""
        for mine in np.split(rows, np.flatnonzero(np.diff(rows["stream"])) + 1):
            stream, steps = int(mine["stream"][0]), int(mine["steps"].sum())
            if (before := self._open.pop(stream, None)) is not None:
                mine["first"][0] = before["first"]
                mine["steps"][0] += before["steps"]
                mine["total"][0] += before["total"]
            if mine["end"][-1] == OPEN:
                self._open[stream] = mine[-1].copy()
            done = mine["total"][(mine["end"] != OPEN) & np.isfinite(mine["total"])]
            counts = self._streams.setdefault(stream, [0, 0, 0.0, 0.0, -np.inf])
            counts[0] += steps
            if len(done):
                counts[1:4] = counts[1] + len(done), counts[2] + float(done.sum()), float(done[-1])
                counts[4] = max(counts[4], float(done.max()))
        self._chunks.append(np.sort(rows[rows["end"] != OPEN], order="last"))
        self._joined = None
        while len(self._chunks) > 1 and sum(map(len, self._chunks)) > MOST_EPISODES:
            self.dropped += len(self._chunks.pop(0))


def _pieces(ids: Array, stream: Array, reward: Array, terminated: Array, truncated: Array) -> Array:
    """Each stream's steps cut at the ends of episodes, sorted by stream and then by time."""
    order = np.argsort(stream, kind="stable")
    stream, reward, ids = stream[order], reward[order], ids[order]
    end = np.where(terminated[order], TERMINATED, np.where(truncated[order], TRUNCATED, OPEN)).astype("u1")
    stops = np.flatnonzero((end != OPEN) | np.append(stream[1:] != stream[:-1], True)) + 1
    starts = np.append(0, stops[:-1])
    rows = np.empty(len(starts), ROW)
    rows["stream"], rows["first"], rows["last"] = stream[starts], ids[starts], ids[stops - 1]
    rows["steps"], rows["total"] = stops - starts, np.add.reduceat(reward, starts)
    rows["end"] = end[stops - 1]
    return rows
