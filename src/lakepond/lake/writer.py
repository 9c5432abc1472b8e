"""Writing a lake: what is new goes into new files, then a commit names them.

The order is the promise: rows and steps first, written aside, synced and renamed; then the commit, likewise.
Killed at any moment, a lake holds its last commit whole, and at most some files that nobody names.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import LakeCorrupt
from lakepond.lake import commits
from lakepond.lake.blocks import ShardInfo, block_rows_for
from lakepond.lake.commits import Commit, RowsFile, Segment
from lakepond.lake.files import ASIDE, WriterLock, sync_folder, write_whole
from lakepond.lake.guard import DiskGuard
from lakepond.lake.handover import HandOver, Windows, encode_track
from lakepond.lake.shard_writer import write_shard
from lakepond.lake.steps import StepsInfo, write_steps
from lakepond.types import Array

log = logging.getLogger("lakepond")


class LakeWriter:
    """The one writer of a lake. What it is handed is durable when `commit` returns."""

    def __init__(
        self,
        path: Path,
        leaves: int,
        *,
        codec: str = "zstd",
        max_steps: int | None = None,
        keep_last: int | None = None,
        min_free: int = 0,
    ) -> None:
        """`max_steps`: live steps; the oldest leave. `keep_last`: commits kept. `min_free`: bytes."""
        self.path = path
        self._max_steps, self._keep_last = max_steps, keep_last
        self._guard = DiskGuard(path, min_free)
        self._lock = WriterLock(path / "lock")
        self._segments, self._commits = path / "segments", path / "commits"
        self._codec = codec
        self.last: Commit | None = None
        """what is written next follows this commit"""
        self._number = self._next_number()
        self._leaves = leaves
        for folder in (self._segments, self._commits):
            for aside in folder.glob(f"*{ASIDE}"):  # of a process that was killed: nobody names them
                aside.unlink(missing_ok=True)

    def go_on_from(self, commit: Commit) -> None:
        """What is written next follows that commit, under a number that no commit has had."""
        self.last = commit

    def _next_number(self) -> int:
        """One that no commit has had, nor one that `repair` moved aside."""
        return (
            max([*commits.numbers(self._commits), *commits.numbers(self.path / "quarantine")], default=-1) + 1
        )

    def next_rows(self) -> list[int]:
        """The number of the next new row, for each leaf."""
        return [0] * self._leaves if self.last is None else list(self.last.next_rows)

    def commit(self, new: HandOver, note: dict[str, Any]) -> Commit:
        """Make these steps durable, under the next number."""
        began = time.perf_counter()
        last = self.last
        if last is not None and new.first < last.recorded:
            raise AssertionError(f"steps from {new.first} on were handed over, {last.recorded} are committed")
        for i, leaf in enumerate(new.leaves):
            if isinstance(leaf, Windows) and leaf.first != self.next_rows()[i]:
                raise AssertionError(
                    f"rows from {leaf.first} on were handed over, {self.next_rows()[i]} is next"
                )
        self._guard.check(self._number)
        segments = [] if last is None else list(last.segments)
        rows = [] if last is None else list(last.rows)
        next_rows = self.next_rows()
        written = 0
        if new.steps:
            fresh = self._write_rows(new)
            for file in fresh:
                next_rows[file.leaf] = file.first + file.shard.rows
            written += sum(file.shard.bytes for file in fresh)
            rows += fresh
            steps = self._write_steps(new)
            written += steps.bytes
            segments.append(Segment(new.first, steps, self._needs(new, rows)))
        priorities = None
        if new.priorities is not None:
            priorities = self._store_steps({"weight": new.priorities})
            written += priorities.bytes
        recorded = new.first + new.steps
        oldest = new.first if last is None or new.first > last.recorded else last.oldest
        if self._max_steps is not None:
            oldest = max(oldest, recorded - self._max_steps)
        segments = [segment for segment in segments if segment.stop > oldest]
        needed = {name for segment in segments for name in segment.needs}
        rows = [file for file in rows if file.name in needed]
        commit = Commit(
            number=self._number,
            parent=None if last is None else last.number,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            note=note,
            oldest=oldest,
            recorded=recorded,
            segments=tuple(segments),
            rows=tuple(rows),
            next_rows=tuple(next_rows),
            priorities=priorities,
            largest_priority=new.largest_priority,
            alpha=new.alpha,
            bytes_written=written,
            seconds=time.perf_counter() - began,
        )
        commits.write(self._commits, commit)
        self.last = commit
        self._number += 1
        self._guard.written(written)
        if self._keep_last is not None:
            try:
                self._forget(commits.numbers(self._commits)[: -self._keep_last])
            except OSError as error:  # the commit is durable; the next one tidies up
                log.warning("old commits of %s could not be deleted: %s", self.path, error)
        return commit

    def _forget(self, numbers: list[int]) -> None:
        """Delete old commits, and then the files that no commit names any more."""
        if not numbers:
            return
        gone: set[str] = set()
        for number in numbers:
            with suppress(LakeCorrupt):  # a broken commit is for `repair`
                gone |= set(commits.read(self._commits, number).files())
                (self._commits / commits.file_name(number)).unlink()
        sync_folder(self._commits)  # a commit must not come back after its files have gone
        for number in commits.numbers(self._commits):
            with suppress(LakeCorrupt):
                gone -= set(commits.read(self._commits, number).files())
        for name in gone:
            (self._segments / name).unlink(missing_ok=True)

    def _write_rows(self, new: HandOver) -> list[RowsFile]:
        files = []
        for i, leaf in enumerate(new.leaves):
            if isinstance(leaf, Windows) and leaf.count:
                row = leaf.layout.row_bytes

                def fill(file: Any, leaf: Windows = leaf, row: int = row) -> ShardInfo:
                    return write_shard(
                        file, leaf.rows(), row_bytes=row, block_rows=block_rows_for(row), codec=self._codec
                    )

                shard = write_whole(self._segments, fill, lambda shard: f"{shard.digest}.rows")
                files.append(RowsFile(i, leaf.first, shard))
        return files

    def _write_steps(self, new: HandOver) -> StepsInfo:
        columns, notes = dict(new.columns), {}
        for i, leaf in enumerate(new.leaves):
            if isinstance(leaf, Windows):
                columns[f"windows[{i}]"] = leaf.starts
                layout = [leaf.layout.length, leaf.layout.row_bytes, leaf.layout.axis]
                notes[f"layout[{i}]"] = repr(layout).replace("None", "null").encode()
                notes[f"track[{i}]"] = encode_track(leaf.track)
            else:
                columns[f"values[{i}]"] = leaf
        return self._store_steps(columns, notes)

    def _store_steps(self, columns: dict[str, Array], notes: dict[str, bytes] | None = None) -> StepsInfo:
        return write_whole(
            self._segments,
            lambda file: write_steps(file, columns, notes),
            lambda info: f"{info.digest}.steps",
        )

    @staticmethod
    def _needs(new: HandOver, rows: list[RowsFile]) -> tuple[str, ...]:
        """The files of rows that the new tracks name."""
        needed = []
        for i, leaf in enumerate(new.leaves):
            if isinstance(leaf, Windows):
                own = [file for file in rows if file.leaf == i]
                first = np.array([file.first for file in own])
                named = np.unique(leaf.track)
                which = np.searchsorted(first, named, "right") - 1
                stops = np.array([file.first + file.shard.rows for file in own])
                if len(named) and (which.min() < 0 or (named >= stops[which]).any()):
                    raise AssertionError("a window names a row that is in no file of the lake")
                needed += [own[k].name for k in np.unique(which).tolist()]
        return tuple(needed)

    def close(self) -> None:
        """Let others write."""
        self._lock.close()


def create(path: Path, description: bytes) -> None:
    """Make an empty lake: the folders, and `lake.json`, which is written once."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in (path, path / "segments", path / "commits"):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: file.write(description), lambda _: "lake.json")
    for folder in missing:  # or a power cut loses the folder with all that is in it
        sync_folder(folder.parent)
