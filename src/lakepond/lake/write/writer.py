"""Writing a lake: new data goes into new files, then a commit names them.

The order is the guarantee: rows and steps first, then manifests, each written to a temporary name, synced and
renamed; then the commit in the same way. A process that is killed at any moment leaves its last commit intact
and at most some files that no commit names.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import LakeConflict, LakeCorrupt, LakeNotFound, LakepondError
from lakepond.formats import ranges
from lakepond.lake import writers
from lakepond.lake.files import is_damage, make_folders, write_bytes
from lakepond.lake.format import commits, description
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.entries import Entries, Entry, Manifest, RowsFile, Segment, Source
from lakepond.lake.format.ranges import Ranges, union, within
from lakepond.lake.format.steps import read_notes, read_steps
from lakepond.lake.lock import WriterLock
from lakepond.lake.read.catalog import Catalog, new_files
from lakepond.lake.segments import Segments
from lakepond.lake.write import packing
from lakepond.lake.write.disk_guard import DiskGuard, named_errors
from lakepond.lake.write.handover import HandOver, Windows
from lakepond.lake.write.maintenance import Maintenance
from lakepond.lake.write.merge import Merged
from lakepond.lake.write.new_files import NewFiles
from lakepond.lake.write.new_manifests import NewManifests
from lakepond.lake.write.sources import Sources

log = logging.getLogger("lakepond")
Ends = Mapping[int, tuple[bool, bool]]
LIVE_RANGES = 64
"""ranges of rows that live steps refer to, for each leaf"""
MOST_LIVE_RANGES = 256
"""the same in a commit, at most; see `_live_rows`"""


class LakeWriter:
    """The only writer of a lake, or one of several. Steps are durable when `commit` returns."""

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
        """`max_steps`: live steps; older ones are dropped. `keep_last`, `keep_every`: commits that are kept.

        `merge_after`: small files that are merged into a larger one, on another thread. `min_free`: bytes.
        `writer`: its name, if there are several. `files`: fetches files that are only in the cloud.
        """
        writers.check_own(writer)
        self.path, self.name = path, writer
        self._home = writers.home(path, writer)
        self._max_steps = max_steps
        self._commits = self._home / "commits"
        with named_errors(path, creating=True):
            make_folders(self._commits)
            self._lock = WriterLock(self._home / "lock")
        self._files = Segments(path, writer) if files is None else files
        self._folder = self._files.folder
        self._guard = DiskGuard((path, self._folder), min_free)
        self._new = NewFiles(
            self._folder,
            Sources(path, codec),
            leaves,
            codec,
            lambda name: self.maintenance.claim(name, self._number),
        )
        self._manifests = NewManifests(self._files, self._new, leaves)
        self.last: Commit | None = None
        """the commit that the next one follows"""
        self._in_doubt: tuple[Commit, Sequence[Merged]] | None = None
        """the commit that failed last, if it may have been published nevertheless"""
        self._leaves = leaves
        self._upgraded = False
        self._late_ends: Ends = {}  # end flags of earlier steps whose files could not be read
        try:
            with named_errors(path):
                self._make_segments()
                self._number = commits.next_number(self._commits, self._home / "quarantine")
                self.maintenance = Maintenance(
                    path,
                    writer,
                    self._files,
                    keep_last=keep_last,
                    keep_every=keep_every,
                    merge_after=merge_after,
                )
                self.maintenance.delete_temporary(path, self._commits, self._folder)
        except BaseException:
            self._lock.close()
            raise

    def continue_from(self, commit: Commit) -> None:
        """Continue after that commit, under a number that no commit has had."""
        self.last = commit

    def _make_segments(self) -> None:
        """The writer's folder of segments, with all its files if the lake is of format 1."""
        if not self.name:
            make_folders(self._home / "segments")
        elif not (self._home / "segments").is_dir():
            found: dict[str, int] = {}
            for number in commits.numbers(self._commits):
                with suppress(LakeCorrupt):
                    commit = commits.read(self._commits, number)
                    new_files(Catalog(commit, Segments(self.path, self.name)), found)
            writers.adopt(self.path, self.name, found)

    def next_rows(self) -> list[int]:
        """The number of the next new row, for each leaf."""
        return [0] * self._leaves if self.last is None else list(self.last.next_rows)

    def sources(self) -> list[list[Source]]:
        """The row sources that the rows of each leaf contain."""
        if self.last is None or not self.last.sources:
            return [[] for _ in range(self._leaves)]
        return [list(listed) for listed in self.last.sources]

    def commit(self, new: HandOver, note: dict[str, Any]) -> Commit:
        """Make these steps durable, under the next number.

        Publishing is the last step: it raises before that, or `last` is the new commit. Merging and deleting
        old files follow on another thread. `LakeFull` if the disk is full or a quota is exceeded.
        """
        with named_errors(self.path):
            return self._commit(new, note)

    def _commit(self, new: HandOver, note: dict[str, Any]) -> Commit:
        began = time.perf_counter()
        self._check(new)
        self._resolve_doubt()
        self._guard.check(self._number)
        merged = self.maintenance.take()
        lists, written, late = self._with_ends(self._with_merged(merged), {**self._late_ends, **new.ends})
        next_rows, sources = self.next_rows(), self.sources()
        if new.steps:
            for i, leaf in enumerate(new.leaves):
                if isinstance(leaf, Windows):
                    shared, added, shared_bytes = self._new.sources(i, leaf)
                    rows, row_bytes = self._new.rows(i, leaf)
                    for file in (*shared, *rows):
                        next_rows[i] = file.stop
                        lists[1 + i].append(file)
                    sources[i] += added
                    written += shared_bytes + row_bytes
            segments = self._new.segments(new)
            lists[0] += segments
            written += sum(file.bytes for file in segments)
        priorities, changes = self._new.priorities(new, self.last)
        if priorities is not None:
            written += (changes[-1] if changes else priorities).bytes
        recorded, last = new.stop, self.last
        oldest = new.first if last is None or new.first > last.recorded else last.oldest
        if self._max_steps is not None:
            oldest = max(oldest, recorded - self._max_steps)
        commit = Commit(
            number=self._number,
            parent=None if last is None else last.number,
            time=_now(),
            note=note,
            oldest=oldest,
            recorded=recorded,
            segments=tuple(lists[0]),
            rows=tuple(tuple(listed) for listed in lists[1:]),
            live_rows=(),
            next_rows=tuple(next_rows),
            sources=tuple(map(tuple, sources)) if any(sources) else (),
            priorities=priorities,
            priority_changes=changes,
            largest_priority=new.largest_priority,
            alpha=new.alpha,
            generator=new.generator,
            bytes_written=written,
        )
        self._publish(self.packed(commit), began, merged, late)
        assert self.last is not None
        return self.last

    def compact(self) -> Commit | None:
        """Merge all small files under a new commit of the same steps, and delete files that no commit names.

        Returns None if there was nothing to merge. `LakeFull` if the disk is full or a quota is exceeded.
        """
        with named_errors(self.path, rest="what was committed is intact"):
            return self._compact()

    def _compact(self) -> Commit | None:
        began, last = time.perf_counter(), self.last
        if last is None:
            return None
        self._resolve_doubt()
        merged = self.maintenance.merge_all(last)
        if merged:
            self._guard.check(self._number)
            lists = self._with_merged(merged)
            commit = replace(
                last,
                number=self._number,
                parent=last.number,
                time=_now(),
                segments=tuple(lists[0]),
                rows=tuple(tuple(listed) for listed in lists[1:]),
                bytes_written=sum(each.new.bytes for each in merged),
            )
            self._publish(self.packed(commit), began, merged, self._late_ends)
        self.maintenance.sweep(self.last or last)
        return self.last if merged else None

    def clean_up(self) -> None:
        """Start to delete what no commit needs and to merge small files, on another thread."""
        if self.last is not None:
            self.maintenance.start(self.last)

    def close(self) -> None:
        """Release the lake's lock, even if something fails before."""
        if self._late_ends:
            log.warning(
                "%s: the ends of episodes at steps %s are not stored",
                self.path,
                ranges(sorted(self._late_ends)),
            )
        try:
            try:
                self._resolve_doubt()
            except OSError:
                if self._in_doubt is not None:
                    self.maintenance.published(*self._in_doubt)  # perhaps: its files must not be deleted
            self.maintenance.close(self.last)
        finally:
            self._lock.close()

    def _check(self, new: HandOver) -> None:
        if self.last is not None and new.first < self.last.recorded:
            raise AssertionError(f"steps from {new.first} were submitted, {self.last.recorded} are committed")
        for i, (leaf, first) in enumerate(zip(new.leaves, self.next_rows(), strict=True)):
            if isinstance(leaf, Windows):
                start = leaf.sources[0].first if leaf.sources else leaf.first
                if start != first:
                    raise AssertionError(f"rows from {start} were submitted, {first} is next")
                self._check_rows(i, leaf)

    def _check_rows(self, leaf: int, windows: Windows) -> None:
        """Refuse windows with a row that the last commit no longer has: its file may have been deleted."""
        new = self.next_rows()[leaf]
        starts = windows.runs[windows.runs[:, 0] < new, 0]
        if len(starts) and self.last is not None:
            stops = np.minimum(windows.runs[windows.runs[:, 0] < new].sum(axis=1), new)
            live = within(self.last.live_rows[leaf], ((0, new),))  # joins those that touch
            edges = np.array([*live, (sys.maxsize, sys.maxsize)]).reshape(-1)
            at = np.searchsorted(edges, starts, side="right")
            lost = starts[(at % 2 == 0) | (edges[at] < stops)]
            if len(lost):
                raise AssertionError(f"row {lost[0]} was submitted, which the lake has dropped")

    # --- lists of files --------------------------------------------------------------------------

    def _with_merged(self, merged: Sequence[Merged]) -> list[list[Entry]]:
        """The lists of the last commit, with merged files in place of those they replace."""
        last = self.last
        if last is None:
            return [[] for _ in range(1 + self._leaves)]
        lists: list[list[Entry]] = []
        for leaf, listed in last.lists():
            lists.append(list(listed))
            found = [each for each in merged if leaf == getattr(each.new, "leaf", None)]
            if found:
                splice = partial(self._splice, last, leaf, lists[-1], found)
                self.maintenance.guarded("small files", "replaced", splice)
        return lists

    def _splice(self, last: Commit, leaf: int | None, listed: list[Entry], merged: Sequence[Merged]) -> None:
        read, live = partial(self._manifests.read, leaf), partial(Catalog(last, self._files).is_live, leaf)
        listed[:] = self._pack(last, leaf, packing.spliced(listed, merged, read, live))

    def _with_ends(self, lists: list[list[Entry]], ends: Ends) -> tuple[list[list[Entry]], int, Ends]:
        """The lists with other end flags for some steps, in new files, and the bytes of these.

        Steps that are not in the lake any more are ignored, and so are, with a warning, those in a damaged
        file or below a damaged manifest. The last result are those in a file that may be readable later, for
        the next commit.
        """
        last = self.last
        late: dict[int, tuple[bool, bool]] = {}
        if last is None:
            return lists, 0, late
        live = {step: flags for step, flags in ends.items() if step >= last.oldest}
        lists[0], written = self._edited(lists[0], live, late)
        return lists, written, late

    def _edited(
        self, entries: Sequence[Entry], ends: Ends, late: dict[int, tuple[bool, bool]]
    ) -> tuple[list[Entry], int]:
        """Entries of steps with other end flags, and the bytes of new files; see `_with_ends`."""
        found, written = list(entries), 0
        for i, entry in enumerate(entries):
            own = {step: flags for step, flags in ends.items() if entry.first <= step < entry.stop}
            if not own:
                continue
            below: Entries = ()
            try:
                if isinstance(entry, Manifest):
                    below = self._manifests.read(None, entry)
                else:
                    with self._files.using(entry.name) as file:
                        columns, notes = read_steps(file), read_notes(file)
            except (LakepondError, OSError) as error:
                if not is_damage(error):
                    late |= own
                log.warning(
                    "%s: the ends of episodes at steps %s are %s: %s",
                    self.path,
                    ranges(sorted(own)),
                    "not stored" if is_damage(error) else "stored with a later commit",
                    error,
                )
                continue
            if isinstance(entry, Manifest):
                edited, size = self._edited(below, own, late)
                if edited != list(below):
                    found[i] = self._manifests.make(None, edited, entry.level)
                written += size
            elif isinstance(entry, Segment):
                for step, flags in own.items():
                    for name, value in zip(("terminated", "truncated"), flags, strict=True):
                        columns[name][step - entry.first] = value
                info = self._new.steps(columns, notes)
                if info != entry.steps:
                    found[i] = replace(entry, steps=info)
                    written += info.bytes
        return found, written

    def packed(self, commit: Commit) -> Commit:
        """The same commit with short lists, without files that have no live step or row."""
        commit = replace(commit, segments=self._pack(commit, None, commit.segments))
        live = tuple(self._live_rows(commit, leaf) for leaf in range(self._leaves))
        commit = replace(commit, live_rows=live)
        rows = tuple(self._pack(commit, leaf, listed) for leaf, listed in enumerate(commit.rows))
        commit = replace(commit, rows=rows)
        for leaf, each in enumerate(live):
            if len(each) > MOST_LIVE_RANGES:
                commit = self._with_fewer_ranges(commit, leaf)
        return replace(commit, bytes_written=commit.bytes_written + self._manifests.write(commit))

    def _with_fewer_ranges(self, commit: Commit, leaf: int) -> Commit:
        """The same commit with coarser `live_rows` of a leaf, and a list without the files this would add."""
        is_live = partial(Catalog(commit, self._files).is_live, leaf)
        try:
            files = packing.unpacked(commit.rows[leaf], partial(self._manifests.read, leaf), is_live)
            listed = self._pack(commit, leaf, files)
        except (LakepondError, OSError):  # a manifest cannot be read: next time, perhaps
            return commit
        live = union([commit.live_rows[leaf]], LIVE_RANGES)
        rows = (*commit.rows[:leaf], listed, *commit.rows[leaf + 1 :])
        return replace(
            commit, rows=rows, live_rows=(*commit.live_rows[:leaf], live, *commit.live_rows[leaf + 1 :])
        )

    def _pack(self, commit: Commit, leaf: int | None, entries: Iterable[Entry]) -> Entries:
        live = partial(Catalog(commit, self._files).is_live, leaf)
        return packing.pack(
            entries, partial(self._manifests.read_here, leaf), partial(self._manifests.make, leaf), live
        )

    def _live_rows(self, commit: Commit, leaf: int) -> Ranges:
        """Ranges with all rows that live steps refer to. If no step was dropped, those are all rows.

        The rows of sources always belong to the commit: later steps may refer to any of them.

        The ranges are coarse. A row that was not live in the last commit must not be in them again, because
        its file may have been deleted; no new step refers to it, see `_check_rows`.
        """
        last, recorded = self.last, commit.next_rows[leaf]
        if not commit.segments or commit.oldest <= commit.segments[0].first == 0:
            live: Ranges = ((0, recorded),)
        else:
            shared = [((s.first, s.stop),) for s in commit.sources[leaf]] if commit.sources else []
            live = union((*self._needs(commit.segments, leaf, commit.oldest), *shared), LIVE_RANGES)
        known = (
            ((0, recorded),) if last is None else (*last.live_rows[leaf], (last.next_rows[leaf], recorded))
        )
        return within(live, known)

    def _needs(self, entries: Entries, leaf: int, oldest: int) -> Iterator[Ranges]:
        for entry in entries:
            if isinstance(entry, RowsFile) or entry.stop <= oldest:
                continue
            below = None
            if isinstance(entry, Manifest) and entry.first < oldest:
                below = self._manifests.read_here(None, entry)
            yield from [entry.needs[leaf]] if below is None else self._needs(below, leaf, oldest)

    def _publish(self, commit: Commit, began: float, merged: Sequence[Merged], late: Ends) -> None:
        commit = replace(commit, seconds=time.perf_counter() - began)
        if not self._upgraded:
            description.upgrade(self.path)
            self._upgraded = True
        try:
            commits.write(self._commits, commit, segments=self._folder)
        except LakeConflict:
            raise
        except BaseException:
            self._in_doubt = commit, merged
            with suppress(OSError):  # it is tried again before the next commit
                self._resolve_doubt()
            raise
        self.last, self._number, self._in_doubt = commit, commit.number + 1, None
        self._late_ends = late
        self.maintenance.published(commit, merged)  # first: its files must not be deleted
        self._guard.written(commit.bytes_written)

    def _resolve_doubt(self) -> None:
        """Continue after the number of a commit that failed if it is visible, though perhaps not durable.

        Its content determines that: a commit of another writer under this number is a conflict. OSError if it
        cannot be read; then nothing may be written, because the number is neither free nor taken.
        """
        if self._in_doubt is not None and commits.is_there(self._commits, self._in_doubt[0]):
            (commit, merged), self._in_doubt = self._in_doubt, None
            self._number = commit.number + 1
            self.maintenance.published(commit, merged)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def create(path: Path, content: bytes) -> None:
    """Make an empty lake: the folders, and `lake.json`, which is written once."""
    with named_errors(path, creating=True):
        try:
            make_folders(path / "segments")
        except FileNotFoundError as error:  # in /proc, for example
            raise LakeNotFound(
                error.errno, f"{error.filename} cannot be created; choose another folder"
            ) from None
        write_bytes(path, description.NAME, content, existing="keep")  # two processes may do so at once
