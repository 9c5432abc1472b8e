"""Writing a lake: what is new goes into new files, then a commit names them.

The order is the promise: rows and steps first, written aside, synced and renamed; then the commit, likewise.
Killed at any moment, a lake holds its last commit whole, and at most some files that nobody names.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lakepond.lake import commits
from lakepond.lake.blocks import ShardInfo, block_rows_for
from lakepond.lake.commits import Commit, RowsFile, Segment
from lakepond.lake.files import ASIDE, WriterLock, sync_folder, write_bytes, write_whole
from lakepond.lake.guard import DiskGuard
from lakepond.lake.handover import HandOver, Windows
from lakepond.lake.merge import replaced
from lakepond.lake.merging import Merging, merge_all
from lakepond.lake.retention import Retention
from lakepond.lake.shard_writer import write_shard
from lakepond.lake.steps import StepsInfo, write_steps
from lakepond.lake.tracks import files_of
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
        keep_every: int | None = None,
        merge_after: int | None = None,
        min_free: int = 0,
    ) -> None:
        """`max_steps`: live steps; the oldest leave. `keep_last`, `keep_every`: commits that are kept.

        `merge_after`: so many small files are merged to a larger one, on a thread of their own.
        `min_free`: bytes.
        """
        self.path = path
        self._max_steps = max_steps
        self._guard = DiskGuard(path, min_free)
        self._retention = Retention(path, keep_last, keep_every)
        self._lock = WriterLock(path / "lock")
        self._segments, self._commits = path / "segments", path / "commits"
        self._codec = codec
        self.last: Commit | None = None
        """what is written next follows this commit"""
        self._number = self._next_number()
        self._leaves = leaves
        self._pool = ThreadPoolExecutor(1, "lakepond-write")
        self._merging = Merging(self._segments, merge_after, free=keep_last is not None)
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
        segments, rows, merged = self._merging.take(last)
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
            time=_now(),
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
        self._publish(commit, merged)
        self._merging.begin(commit)
        return commit

    def compact(self) -> Commit | None:
        """Merge all that is small, and delete files that nobody names; a new commit of the same steps.

        None if there was nothing to merge.
        """
        began, last = time.perf_counter(), self.last
        if last is None:
            return None
        merged = merge_all(self._segments, last)
        commit = None
        if merged:
            self._guard.check(self._number)
            segments, rows = replaced(last, merged)
            commit = replace(
                last,
                number=self._number,
                parent=last.number,
                time=_now(),
                segments=tuple(segments),
                rows=tuple(rows),
                bytes_written=sum(each.bytes for each in merged),
                seconds=time.perf_counter() - began,
            )
            self._publish(commit, set())
        self._retention.let_go()
        self._retention.delete(self._retention.unnamed())
        return commit

    def _publish(self, commit: Commit, merged: set[str]) -> None:
        """Write a commit, and then let go of what is kept no longer, and of merged files it did not need."""
        commits.write(self._commits, commit, segments=self._segments)
        self.last = commit
        self._number += 1
        self._guard.written(commit.bytes_written)
        try:
            self._retention.let_go()
            self._retention.delete(merged - set(commit.files()))
        except OSError as error:  # the commit is durable; the next one tidies up
            log.warning("old files of %s could not be deleted: %s", self.path, error)

    def _write_rows(self, new: HandOver) -> list[RowsFile]:
        files = []
        for i, leaf in enumerate(new.leaves):
            if isinstance(leaf, Windows) and leaf.count:
                row = leaf.layout.row_bytes

                def fill(file: Any, leaf: Windows = leaf, row: int = row) -> ShardInfo:
                    return write_shard(
                        file,
                        leaf.rows(),
                        row_bytes=row,
                        block_rows=block_rows_for(row),
                        codec=self._codec,
                        sync=True,
                        pool=self._pool,
                    )

                shard = write_whole(self._segments, fill, lambda shard: f"{shard.digest}.rows", sync=False)
                files.append(RowsFile(i, leaf.first, shard))
        return files

    def _write_steps(self, new: HandOver) -> StepsInfo:
        columns, notes = dict(new.columns), {}
        for i, leaf in enumerate(new.leaves):
            if isinstance(leaf, Windows):
                columns[f"windows[{i}]"] = leaf.starts
                layout = [leaf.layout.length, leaf.layout.row_bytes, leaf.layout.axis]
                notes[f"layout[{i}]"] = repr(layout).replace("None", "null").encode()
                notes[f"track[{i}]"] = leaf.runs.tobytes()
            else:
                columns[f"values[{i}]"] = leaf
        return self._store_steps(columns, notes)

    def _store_steps(self, columns: dict[str, Array], notes: dict[str, bytes] | None = None) -> StepsInfo:
        return write_whole(
            self._segments,
            lambda file: write_steps(file, columns, notes, sync=True, pool=self._pool),
            lambda info: f"{info.digest}.steps",
            sync=False,
        )

    @staticmethod
    def _needs(new: HandOver, rows: list[RowsFile]) -> tuple[str, ...]:
        """The files of rows that the new tracks name."""
        needed = []
        for i, leaf in enumerate(new.leaves):
            if isinstance(leaf, Windows):
                own = [file for file in rows if file.leaf == i]
                needed += [own[k].name for k in files_of(leaf.runs, own)]
        return tuple(needed)

    def close(self) -> None:
        """Let others write."""
        self._merging.close()
        self._pool.shutdown()
        self._lock.close()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def create(path: Path, description: bytes) -> None:
    """Make an empty lake: the folders, and `lake.json`, which is written once."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in (path, path / "segments", path / "commits"):
        folder.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "lake.json", description)
    for folder in missing:  # or a power cut loses the folder with all that is in it
        sync_folder(folder.parent)
