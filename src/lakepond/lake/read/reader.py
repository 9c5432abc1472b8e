"""Reading a lake at one commit of each writer: steps by id, with their observations, in bounded memory."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lakepond import forks
from lakepond.errors import LakeCorrupt
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.entries import RowsFile, Segment
from lakepond.lake.format.shard import Job, Shard, ShardInfo, run
from lakepond.lake.format.tracks import Layout, Track, covered, distinct
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.read.step_files import StepsFiles
from lakepond.lake.segments import Segments
from lakepond.types import Array, Spec
from lakepond.types import leaves as leaves_of

HELD_BYTES = 128 << 20
"""files of rows that are kept in memory, compressed as they are stored"""
UNPIN_SECONDS = 2.0
"""seconds that `close` waits until files that are elsewhere need not be kept there any more"""
OPEN_BLOCKS = 1 << 18
"""blocks of rows whose offsets are kept in memory, about 45 MB; the number of descriptors is bounded for all
readers together"""
FILE_BLOCKS = 16
"""memory of an open file of rows besides that, in blocks"""


SCANNED_STEPS = 1 << 16
"""steps of which some columns are read at a time"""


class Head(NamedTuple):
    """The commit of one writer in a lake. Ids and row numbers of several writers are counted through."""

    writer: str
    commit: Commit
    catalog: Catalog
    segments: Segments
    """the only way to a file: it may have to be fetched, and may be deleted when it is not in use"""
    first: int
    """id of its oldest live step among the steps of all writers"""
    shift: tuple[int, ...]
    """for each leaf, what is added to its row numbers"""

    @property
    def offset(self) -> int:
        """What is added to its step ids."""
        return self.first - self.commit.oldest


class Stored(NamedTuple):
    """A file of steps and the writer it belongs to; ids are those of the reader."""

    head: Head
    segment: Segment

    @property
    def name(self) -> str:
        """The file's name in the folder of segments."""
        return self.segment.name

    @property
    def first(self) -> int:
        """Id of its first step; steps that are not live count, so it may be below `oldest`."""
        return self.segment.first + self.head.offset

    @property
    def stop(self) -> int:
        """The id after its last step."""
        return self.segment.stop + self.head.offset

    @property
    def start(self) -> int:
        """Id of its first live step."""
        return max(self.first, self.head.first)

    @property
    def writer(self) -> str:
        """The writer's name."""
        return self.head.writer


class LeafPart(NamedTuple):
    """The windows of some steps of one segment: a track of row numbers and where each window starts in it."""

    layout: Layout
    track: Track
    starts: Array
    """(steps, 2)"""


class Part(NamedTuple):
    """Some steps of one segment."""

    ids: Array
    columns: dict[str, Array]
    leaves: list[LeafPart | Array]
    """for each leaf its windows, or the values (steps, 2, *shape) if they are stored without deduplication"""


class LakeReader:
    """The files of one commit of each writer. Thread-safe."""

    def __init__(
        self,
        path: Path,
        commits: Mapping[str, Commit],
        spec: Spec,
        segments: Mapping[str, Segments] | None = None,
    ) -> None:
        """`segments`: of writers whose files may be elsewhere."""
        self.path = path
        self._leaves = leaves = sum(1 for _ in leaves_of(spec.obs))
        self.heads: list[Head] = []
        first, shift = 0, (0,) * leaves
        for writer, commit in commits.items():
            if len(commit.rows) != leaves:
                raise LakeCorrupt(
                    f"commit {commit.number} of {path} has {len(commit.rows)} observations, not {leaves}; "
                    "restore lake.json from a copy."
                )
            files = segments[writer] if segments and writer in segments else Segments(path, writer)
            start = commit.oldest if len(commits) == 1 else first
            self.heads.append(Head(writer, commit, Catalog(commit, files), files, start, shift))
            first += commit.recorded - commit.oldest
            shift = tuple(a + b for a, b in zip(shift, commit.next_rows, strict=True))
        self.oldest = self.heads[0].first
        """the live steps are [oldest, recorded)"""
        self.recorded = self.heads[0].first + first
        self._firsts = np.array([head.first for head in self.heads], np.int64)
        self._shifts = [np.array([head.shift[i] for head in self.heads], np.int64) for i in range(leaves)]
        self._steps = StepsFiles(spec)
        self._shards: OrderedDict[str, _OpenShard] = OrderedDict()
        self._open_blocks = 0
        self.pool = forks.ThreadPool(2, "lakepond-read")
        self._unpins = [
            head.segments.pin(head.commit, (name for name, _ in head.catalog.files())) for head in self.heads
        ]
        for unpin in self._unpins:  # if it is dropped without `close`
            weakref.finalize(self, unpin, 0.0).atexit = False
        self._lock = threading.Lock()
        forks.register(self)

    def restart_in_child(self) -> None:
        """In a forked child open files again: another thread of the parent may have been opening one."""
        self._lock = threading.Lock()
        shards, self._shards, self._open_blocks = self._shards, OrderedDict(), 0
        for each in shards.values():
            each.shard.close()

    def stored(self, start: int | None = None, stop: int | None = None) -> Iterator[Stored]:
        """The files of the live steps, or of those in [start, stop), in order."""
        start = self.oldest if start is None else start
        stop = self.recorded if stop is None else stop
        for head in self.heads:
            if head.first < stop and head.offset + head.commit.recorded > start:
                for segment in head.catalog.segments(start - head.offset, stop - head.offset):
                    yield Stored(head, segment)

    def parts(self, ids: Array, most: int) -> list[tuple[Stored, Array]]:
        """Sorted ids by segment, at most `most` at a time."""
        found: list[tuple[Stored, Array]] = []
        for head, at, to in self._split(self._firsts, ids):
            try:
                files = head.catalog.find(None, ids[at:to] - head.offset)
            except LookupError:
                raise LakeCorrupt(f"steps of {self.path} are in no file; run `lakepond repair`.") from None
            for file, start, stop in files:
                assert isinstance(file, Segment)
                found += [
                    (Stored(head, file), ids[at + k : at + min(k + most, stop)])
                    for k in range(start, stop, most)
                ]
        return found

    def _split(self, firsts: Array, numbers: Array) -> Iterator[tuple[Head, int, int]]:
        """The heads that sorted numbers belong to, and which numbers, [start, stop)."""
        which = np.searchsorted(firsts, numbers, "right") - 1
        edges = np.flatnonzero(np.diff(which, prepend=-2, append=-2)).tolist()
        for at, to in pairwise(edges):
            yield self.heads[which[at]], at, to

    def layouts(self) -> list[Layout | None]:
        """The layout of each leaf, as the newest segment has it; None if it has no rows, or none yet."""
        found: list[Layout | None] = [None] * self._leaves
        for head in self.heads:
            recorded = head.commit.recorded
            for segment in head.catalog.segments(recorded - 1, recorded):
                for i, layout in enumerate(self._steps.know(Stored(head, segment)).layouts):
                    if layout is not None and layout.axis is not None:
                        found[i] = layout
        return found

    def read(self, stored: Stored, ids: Array) -> Part:
        """The columns of some steps of a segment, by sorted ids, and where their windows are."""
        known = self._steps.know(stored)
        columns = self._steps.read(stored, ids - stored.first)
        known.check_windows(stored.head.segments.folder / stored.name, columns)
        leaves: list[LeafPart | Array] = []
        for i, (layout, track) in enumerate(zip(known.layouts, known.tracks, strict=True)):
            if layout is None or track is None:
                leaves.append(columns.pop(f"values[{i}]"))
                continue
            leaves.append(LeafPart(layout, track, columns.pop(f"windows[{i}]")))
        return Part(ids, columns, leaves)

    def scan(
        self, names: list[str], start: int | None = None, stop: int | None = None
    ) -> Iterator[tuple[Stored, Array, dict[str, Array]]]:
        """Some columns of the live steps [start, stop), or of all, a part of a segment at a time."""
        start = self.oldest if start is None else start
        stop = self.recorded if stop is None else stop
        for stored in self.stored(start, stop):
            last = min(stop, stored.stop)
            for first in range(max(start, stored.start), last, SCANNED_STEPS):
                ids = np.arange(first, min(first + SCANNED_STEPS, last))
                at = first - stored.first
                yield stored, ids, self._steps.columns(stored, names, at, at + len(ids))

    def expect(self, stored: Iterator[Stored] | list[Stored]) -> None:
        """Fetch segments and the files of their rows, several at a time, if they are only elsewhere."""
        wanted: dict[Segments, list[str]] = {}
        for each in stored:
            head = each.head
            if head.segments.fetches:
                names = wanted.setdefault(head.segments, [])
                names.append(each.name)
                for leaf, ranges in enumerate(each.segment.needs):
                    names += [f.name for start, stop in ranges for f in head.catalog.rows(leaf, start, stop)]
        for segments, names in wanted.items():
            segments.expect(names)

    def row_bytes(self, part: Part) -> int:
        """The bytes of the distinct rows of a part."""
        total = 0
        for leaf in part.leaves:
            if isinstance(leaf, LeafPart):
                numbers = distinct(leaf.track[covered(leaf.starts, leaf.layout.length)])[0]
                total += len(numbers) * leaf.layout.row_bytes
        return total

    def rows(self, leaf: int, numbers: Array, row_bytes: int, scratch: Array | None = None) -> Array:
        """The rows with these numbers, sorted and each once, as (n, row_bytes) uint8.

        `scratch`: an array of bytes for the result, used if it is large enough: new memory costs as much as
        reading rows.
        """
        size = len(numbers) * row_bytes
        if scratch is None or len(scratch) < size:
            scratch = np.empty(size, np.uint8)
        out = scratch[:size].reshape(len(numbers), row_bytes)
        jobs: list[Job] = []
        opened: list[_OpenShard] = []
        try:
            for head, file, at, to in self._row_files(leaf, numbers, row_bytes):
                if self._is_full(file) or head.segments.open_bytes is not None:
                    run(jobs, self.pool)  # opening more may close those that are to be read
                    jobs = []
                    self._done(opened)
                opened.append(self._open(head, file))
                jobs += opened[-1].shard.jobs(numbers[at:to] - head.shift[leaf] - file.first, out[at:to])
            run(jobs, self.pool)
        finally:
            self._done(opened)
        return out

    def _row_files(
        self, leaf: int, numbers: Array, row_bytes: int
    ) -> Iterator[tuple[Head, RowsFile, int, int]]:
        for head, at, to in self._split(self._shifts[leaf], numbers):
            try:
                files = head.catalog.find(leaf, numbers[at:to] - head.shift[leaf])
            except LookupError as error:
                raise LakeCorrupt(
                    f"a row of {self.path} is missing: {error} of its commit; run `lakepond repair`."
                ) from None
            head.segments.expect(found.file.name for found in files)
            for file, start, stop in files:
                if not isinstance(file, RowsFile) or file.shard.row_bytes != row_bytes:
                    raise LakeCorrupt(
                        f"{file.name} of {self.path} does not have rows of {row_bytes:,} bytes; run "
                        "`lakepond repair`."
                    )
                yield head, file, at + start, at + stop

    def mapped(self, leaf: int, start: int, stop: int) -> Array | None:
        """Rows [start, stop) in the mapped file, (n, row_bytes) uint8; None if compressed or in two files."""
        head = self.heads[int(np.searchsorted(self._shifts[leaf], start, "right")) - 1]
        start, stop = start - head.shift[leaf], stop - head.shift[leaf]
        file = next(head.catalog.rows(leaf, start, stop), None)
        if file is None or file.shard.codec != "none" or start < file.first or stop > file.stop:
            return None
        with self._opened(head, file) as shard:
            return shard.view(start - file.first, stop - file.first)

    def gather(self, leaf: int, numbers: Array, out: Array) -> None:
        """The rows with these numbers, in any order and with repeats, into `out`."""
        known, place = distinct(numbers)
        rows = self.rows(leaf, known, out.shape[1])
        half = len(place) // 2
        other = self.pool.submit(np.take, rows, place[:half], 0, out[:half], "clip")  # "raise" would copy
        np.take(rows, place[half:], axis=0, out=out[half:], mode="clip")
        other.result()

    def rows_count(self, leaf: int) -> int:
        """The number of rows of a leaf."""
        return sum(head.catalog.rows_count(leaf) for head in self.heads)

    def has_rows(self, leaf: int) -> bool:
        """Whether a leaf is stored as rows, and not as values without deduplication."""
        return any(head.commit.rows[leaf] for head in self.heads)

    def row_files(self, leaf: int) -> Iterator[tuple[int, RowsFile]]:
        """The files of the rows of a leaf, in order, each with the number of its first row."""
        for head in self.heads:
            for file in head.catalog.rows(leaf):
                yield file.first + head.shift[leaf], file

    # --- open files of rows ----------------------------------------------------------------------

    @contextmanager
    def _opened(self, head: Head, file: RowsFile) -> Iterator[Shard]:
        opened = self._open(head, file)
        try:
            yield opened.shard
        finally:
            self._done([opened])

    def _open(self, head: Head, file: RowsFile) -> _OpenShard:
        """A file of rows, which is not closed until it is `_done`."""
        with self._lock:
            opened = self._shards.pop(file.name, None)
            if opened is None:
                self._make_room(file)
                with head.segments.using(file.name) as there:
                    opened = _OpenShard(head.segments, Shard(there, file.shard, held=self._hold(file)))
                    head.segments.hold(file.name)  # until it is closed
                self._open_blocks += _blocks(file.shard)
            opened.users += 1
            self._shards[file.name] = opened
            return opened

    def _done(self, opened: list[_OpenShard]) -> None:
        with self._lock:
            for each in opened:
                each.users -= 1
        opened.clear()

    def _hold(self, file: RowsFile) -> bool:
        """Whether a file that is opened is kept in memory, as it is stored: while there is room for it."""
        held = sum(each.shard.held_bytes for each in self._shards.values())
        return file.shard.codec != "none" and held + file.shard.bytes <= HELD_BYTES

    def _is_full(self, file: RowsFile) -> bool:
        """Whether others must be closed before a file is opened: too many blocks, or too much of the disk."""
        with self._lock:
            return self._needs_room(file)

    def _needs_room(self, file: RowsFile) -> bool:
        if file.name in self._shards or not self._shards:
            return False
        most = self.heads[0].segments.open_bytes
        return self._open_blocks + _blocks(file.shard) > OPEN_BLOCKS or (
            most is not None
            and file.shard.bytes + sum(each.shard.info.bytes for each in self._shards.values()) > most
        )

    def _make_room(self, file: RowsFile) -> None:
        """Close the least recently used files that no thread reads, until there is room. Needs the lock."""
        for name in [name for name, each in self._shards.items() if not each.users]:
            if not self._needs_room(file):
                return
            self._close(name)

    def _close(self, name: str) -> None:
        each = self._shards.pop(name)
        self._open_blocks -= _blocks(each.shard.info)
        each.shard.close()
        each.segments.release(name)

    def close(self) -> None:
        """Close all files."""
        self.pool.shutdown()
        with self._lock:
            for name in list(self._shards):
                self._close(name)
        for unpin in self._unpins:
            unpin(UNPIN_SECONDS)


class _OpenShard:
    """An open file of rows."""

    def __init__(self, segments: Segments, shard: Shard) -> None:
        self.segments, self.shard = segments, shard
        self.users = 0
        """threads that read it now"""


def _blocks(info: ShardInfo) -> int:
    return info.blocks + FILE_BLOCKS
