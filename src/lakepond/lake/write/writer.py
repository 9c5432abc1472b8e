"""Writing a lake: what is new goes into new files, then a commit names them.

The order is the promise: rows and steps first, written aside, synced and renamed; then the commit, likewise.
Killed at any moment, a lake holds its last commit whole, and at most some files that nobody names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lakepond.errors import LakeConflict, LakeError
from lakepond.lake import writers
from lakepond.lake.elsewhere import Segments
from lakepond.lake.files import WriterLock, make_folders, write_bytes, write_whole
from lakepond.lake.format import commits
from lakepond.lake.format.blocks import ShardInfo, block_rows_for
from lakepond.lake.format.commits import Commit, RowsFile, Segment
from lakepond.lake.format.names import delete_temporary
from lakepond.lake.format.shard_writer import write_shard
from lakepond.lake.format.steps import StepsInfo, read_notes, read_steps, write_steps
from lakepond.lake.format.tracks import files_of
from lakepond.lake.write.disk_guard import DiskGuard
from lakepond.lake.write.handover import HandOver, Windows
from lakepond.lake.write.merge import ENOUGH_BYTES, LARGE_BYTES, replaced
from lakepond.lake.write.merging import Merging, merge_all
from lakepond.lake.write.retention import Retention
from lakepond.types import Array

log = logging.getLogger("lakepond")


class LakeWriter:
    """The one writer of a lake, or one of several. What it is handed is durable when `commit` returns."""

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
        writer: str = "",
        files: Segments | None = None,
    ) -> None:
        """`max_steps`: live steps; the oldest leave. `keep_last`, `keep_every`: commits that are kept.

        `merge_after`: so many small files are merged to a larger one, on a thread of their own.
        `min_free`: bytes. `writer`: its name, where there are several. `files`: fetches files that are only
        in the cloud.
        """
        self.path, self.name = path, writer
        self._home = writers.home(path, writer)
        self._max_steps = max_steps
        self._guard = DiskGuard(path, min_free)
        self._retention = Retention(path, writer, keep_last, keep_every)
        self._segments, self._commits = path / "segments", self._home / "commits"
        make_folders(self._commits)
        self._lock = WriterLock(self._home / "lock")
        self._files = Segments(path) if files is None else files
        self._codec = codec
        self.last: Commit | None = None
        """what is written next follows this commit"""
        self._number = commits.next_number(self._commits, self._home / "quarantine")
        self._leaves = leaves
        self._merging = Merging(self._segments, merge_after, free=keep_last is not None)
        with writers.alone(path) as alone:
            for folder in (self._commits, *([self._segments] if alone else [])):
                delete_temporary(folder)

    def go_on_from(self, commit: Commit) -> None:
        """What is written next follows that commit, under a number that no commit has had."""
        self.last = commit

    def next_rows(self) -> list[int]:
        """The number of the next new row, for each leaf."""
        return [0] * self._leaves if self.last is None else list(self.last.next_rows)

    def commit(self, new: HandOver, note: dict[str, Any]) -> Commit:
        """Make these steps durable, under the next number.

        Publishing is the last step: raises before it, or leaves the new commit as `last`. `clean_up` follows.
        """
        with writers.sharing(self.path):
            return self._commit(new, note)

    def clean_up(self) -> None:
        """Delete what no commit needs; then start to merge small files, if it is time to."""
        try:
            self._apply_retention()
        finally:
            if self.last is not None:
                self._merging.begin(self.last)

    def _commit(self, new: HandOver, note: dict[str, Any]) -> Commit:
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
        segments, written = self._with_ends(segments, new.ends)
        if new.steps:
            fresh = self._write_rows(new)
            for file in fresh:
                next_rows[file.leaf] = file.first + file.shard.rows
            written += sum(file.shard.bytes for file in fresh)
            rows += fresh
            first, needs = new.first, self._needs(new, rows)
            for steps in self._write_steps(new):
                segments.append(Segment(first, steps, needs))
                first += steps.steps
                written += steps.bytes
        priorities: StepsInfo | None = None
        changes: tuple[StepsInfo, ...] = ()
        if new.priorities is not None and new.changed is None:
            priorities = self._store_steps({"weight": new.priorities}, {"first": str(new.oldest).encode()})
            written += priorities.bytes
        elif new.priorities is not None and new.changed is not None:
            assert last is not None  # what changed follows a commit that has all
            changed = self._store_steps({"step": new.changed, "weight": new.priorities})
            priorities, changes = last.priorities, (*last.priority_changes, changed)
            written += changed.bytes
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
            priority_changes=changes,
            largest_priority=new.largest_priority,
            alpha=new.alpha,
            generator=new.generator,
            bytes_written=written,
            seconds=time.perf_counter() - began,
        )
        self._publish(commit, merged)
        return commit

    def compact(self) -> Commit | None:
        """Merge all small files under a new commit of the same steps, and delete files that no commit names.

        Returns None if there was nothing to merge.
        """
        began, last = time.perf_counter(), self.last
        if last is None:
            return None
        commit = None
        merged = merge_all(self._segments, last)
        with writers.sharing(self.path):  # another writer's compact may have deleted some before this
            merged = [each for each in merged if (self._segments / each.new.name).exists()]
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
        self._retention.sweep(commit or last)
        return commit

    def _publish(self, commit: Commit, merged: set[str]) -> None:
        try:
            commits.write(self._commits, commit, segments=self._segments)
        except LakeConflict:
            raise
        except BaseException:
            if commits.is_there(self._commits, commit):  # visible, but perhaps not durable
                self._number += 1
            raise
        self.last, self._number = commit, commit.number + 1
        self._guard.written(commit.bytes_written)
        self._retention.wrote(commit, merged)

    def _apply_retention(self, *, wait: bool = False) -> None:
        """Delete commits that are not kept, and files that no commit names any more."""
        try:
            self._retention.apply(self.last, wait=wait)
        except (OSError, LakeError) as error:  # the commit is durable; the next one tries again
            log.warning("old files of %s could not be deleted: %s", self.path, error)

    def _write_rows(self, new: HandOver) -> list[RowsFile]:
        """New rows, in files of up to 64 MB: each is one object in the cloud, put in one go."""
        files: list[RowsFile] = []
        for i, leaf in enumerate(new.leaves):
            if isinstance(leaf, Windows) and leaf.count:
                rows, first = leaf.rows(), leaf.first
                while first < leaf.first + leaf.count:
                    file = RowsFile(i, first, self._store_rows(rows, leaf.layout.row_bytes))
                    files.append(file)
                    first += file.shard.rows
        return files

    def _store_rows(self, rows: Iterator[Array], row_bytes: int) -> ShardInfo:
        """As many of these rows as make a file."""
        return write_whole(
            self._segments,
            lambda file: write_shard(
                file,
                rows,
                row_bytes=row_bytes,
                block_rows=block_rows_for(row_bytes),
                codec=self._codec,
                enough=ENOUGH_BYTES,
                sync=True,
            ),
            lambda shard: f"{shard.digest}.rows",
            sync=False,
        )

    def _write_steps(self, new: HandOver) -> list[StepsInfo]:
        """New steps, in files that hold up to 64 MB plainly."""
        columns, notes = dict(new.columns), {}
        for i, leaf in enumerate(new.leaves):
            if isinstance(leaf, Windows):
                columns[f"windows[{i}]"] = leaf.starts
                layout = [leaf.layout.length, leaf.layout.row_bytes, leaf.layout.axis]
                notes[f"layout[{i}]"] = repr(layout).replace("None", "null").encode()
                notes[f"track[{i}]"] = leaf.runs.tobytes()
            else:
                columns[f"values[{i}]"] = leaf
        size = max(1, LARGE_BYTES // sum(column[:1].nbytes for column in columns.values()))
        return [
            self._store_steps({name: column[at : at + size] for name, column in columns.items()}, notes)
            for at in range(0, new.steps, size)
        ]

    def _with_ends(
        self, segments: list[Segment], ends: Mapping[int, tuple[bool, bool]]
    ) -> tuple[list[Segment], int]:
        """Segments with other end flags for some steps, in new files where they differ; and their bytes.

        Steps that are not in the lake any more are ignored.
        """
        found, written = [], 0
        for segment in segments:
            steps = [step for step in ends if segment.first <= step < segment.stop]
            if steps:
                with self._files.using(segment.name) as file:
                    columns, notes = read_steps(file), read_notes(file)
                for step in steps:
                    for name, value in zip(("terminated", "truncated"), ends[step], strict=True):
                        columns[name][step - segment.first] = value
                changed = self._store_steps(columns, notes)
                if changed != segment.steps:
                    written += changed.bytes
                    segment = replace(segment, steps=changed)
            found.append(segment)
        return found, written

    def _store_steps(self, columns: dict[str, Array], notes: dict[str, bytes] | None = None) -> StepsInfo:
        return write_whole(
            self._segments,
            lambda file: write_steps(file, columns, notes, sync=True),
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
        """Release the lake's lock, whatever fails before it."""
        try:
            self._merging.close()
            self._apply_retention(wait=True)
        finally:
            self._lock.close()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def create(path: Path, description: bytes) -> None:
    """Make an empty lake: the folders, and `lake.json`, which is written once."""
    make_folders(path / "segments")
    write_bytes(path, "lake.json", description, existing="keep")  # two may begin at the same time
