"""Reading a lake at one commit: steps by id, with the observations they name, in bounded memory."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lakepond import forks
from lakepond.errors import LakeCorrupt
from lakepond.lake.elsewhere import Segments
from lakepond.lake.format.commits import Commit, RowsFile, Segment
from lakepond.lake.format.shard import Job, Shard, ShardInfo, run
from lakepond.lake.format.tracks import RowPlaces, Track, covered, distinct, spans_of
from lakepond.lake.read.step_files import StepsFiles
from lakepond.lake.write.handover import Layout
from lakepond.types import Array, Spec
from lakepond.types import leaves as leaves_of

HELD_BYTES = 128 << 20
"""files of rows that are kept in memory, compressed as they are: what is read again is not fetched again"""
UNPIN_SECONDS = 2.0
"""how long `close` waits until files that are elsewhere need not be kept there any more"""
OPEN_BLOCKS = 1 << 18
"""blocks of rows whose place is kept in memory, about 45 MB; how many descriptors are open is bounded for all
readers together"""
FILE_BLOCKS = 16
"""what an open file of rows takes beside that, in blocks"""


SCANNED_STEPS = 1 << 16
"""steps of which some columns are read at a time"""


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
    """for each leaf its windows, or the plain values (steps, 2, *shape)"""


class LakeReader:
    """The files that one commit names."""

    def __init__(self, path: Path, commit: Commit, spec: Spec, segments: Segments | None = None) -> None:
        self.path, self.commit = path, commit
        self.segments = segments if segments is not None else Segments(path)
        """the only way to a file of a segment: it may be elsewhere, and may leave again"""
        self._steps = StepsFiles(spec, self.segments)
        self._leaves = leaves = sum(1 for _ in leaves_of(spec.obs))
        self._firsts = np.array([segment.first for segment in commit.segments], np.int64)
        self._rows: list[list[RowsFile]] = [
            sorted((file for file in commit.rows if file.leaf == i), key=lambda file: file.first)
            for i in range(leaves)
        ]
        self._row_firsts = [np.array([file.first for file in files], np.int64) for files in self._rows]
        self._shards: OrderedDict[str, Shard] = OrderedDict()
        self._open_blocks = 0
        self.pool = forks.ThreadPool(2, "lakepond-read")
        self._unpin = self.segments.pin(commit)
        weakref.finalize(self, self._unpin, 0.0).atexit = False  # if it is dropped without `close`
        forks.register(self)

    def restart_in_child(self) -> None:
        """In a forked child open files again: another thread of the parent may have been opening one."""
        shards, self._shards, self._open_blocks = self._shards, OrderedDict(), 0
        for shard in shards.values():
            shard.close()

    def parts(self, ids: Array, most: int) -> list[tuple[Segment, Array]]:
        """Sorted ids by segment, at most so many at a time."""
        which = np.searchsorted(self._firsts, ids, "right") - 1
        edges = np.flatnonzero(np.diff(which, prepend=-2, append=-2))
        found = []
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            segment = self.commit.segments[which[begin]]
            found += [(segment, ids[at : min(at + most, end)]) for at in range(begin, end, most)]
        return found

    def layouts(self) -> list[Layout | None]:
        """The layout of each leaf, as the newest segment has it; None if it has no rows, or none yet."""
        found: list[Layout | None] = [None] * self._leaves
        newest = {segment.writer: segment for segment in self.commit.segments}
        for segment in newest.values():
            for i, layout in enumerate(self._steps.know(segment).layouts):
                if layout is not None and layout.axis is not None:
                    found[i] = layout
        return found

    def read(self, segment: Segment, ids: Array) -> Part:
        """The columns of some steps of a segment, by sorted ids, and where their windows are."""
        known = self._steps.know(segment)
        columns = self._steps.read(segment, ids - segment.first + segment.skip)
        leaves: list[LeafPart | Array] = []
        for i, (layout, track) in enumerate(zip(known.layouts, known.tracks, strict=True)):
            if layout is None or track is None:
                leaves.append(columns.pop(f"values[{i}]"))
                continue
            starts = columns.pop(f"windows[{i}]")
            if len(starts) and (starts.min() < 0 or starts.max() + layout.length > len(track)):
                file = self.path / "segments" / segment.name
                raise LakeCorrupt(f"{file} has a window outside of its track; run `lakepond repair`.")
            leaves.append(LeafPart(layout, track, starts))
        return Part(ids, columns, leaves)

    def scan(
        self, names: list[str], start: int | None = None, stop: int | None = None
    ) -> Iterator[tuple[Segment, Array, dict[str, Array]]]:
        """Some columns of the live steps [start, stop), or of all, a part of a segment at a time."""
        start = self.commit.oldest if start is None else start
        stop = self.commit.recorded if stop is None else stop
        for segment in self.commit.segments:
            last = min(stop, segment.stop)
            for first in range(max(start, segment.first), last, SCANNED_STEPS):
                ids = np.arange(first, min(first + SCANNED_STEPS, last))
                at = int(ids[0]) + segment.skip - segment.first
                yield segment, ids, self._steps.columns(segment, names, at, at + len(ids))

    def row_bytes(self, part: Part) -> int:
        """What the rows of a part take, each once."""
        total = 0
        for leaf in part.leaves:
            if isinstance(leaf, LeafPart):
                numbers = distinct(leaf.track[covered(leaf.starts, leaf.layout.length)])[0]
                total += len(numbers) * leaf.layout.row_bytes
        return total

    def rows(self, leaf: int, numbers: Array, row_bytes: int, scratch: Array | None = None) -> Array:
        """The rows with these numbers, sorted and each once, as (n, row_bytes) uint8.

        They lie in `scratch`, an array of bytes, if that is large enough: fresh memory costs as much as rows.
        """
        size = len(numbers) * row_bytes
        if scratch is None or len(scratch) < size:
            scratch = np.empty(size, np.uint8)
        out = scratch[:size].reshape(len(numbers), row_bytes)
        which = np.searchsorted(self._row_firsts[leaf], numbers, "right") - 1
        edges = np.flatnonzero(np.diff(which, prepend=-2, append=-2))
        self.segments.expect(self._rows[leaf][k].name for k in which[edges[:-1]].tolist() if k >= 0)
        jobs: list[Job] = []
        for at, to in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            file = self._rows[leaf][which[at]] if which[at] >= 0 else None
            if (
                file is None
                or numbers[to - 1] >= file.first + file.shard.rows
                or file.shard.row_bytes != row_bytes
            ):
                raise LakeCorrupt(
                    f"row {numbers[at]} of {self.path} is in no file of this commit; run `lakepond repair`."
                )
            if self._is_full(file) or self.segments.open_bytes is not None:
                run(jobs, self.pool)  # opening more may close those that are to be read
                jobs = []
            jobs += self._shard(file).jobs(numbers[at:to] - file.first, out[at:to])
        run(jobs, self.pool)
        return out

    def mapped(self, leaf: int, start: int, stop: int) -> Array | None:
        """Rows [start, stop) where they lie, (n, row_bytes) uint8: if they are plain, and all in one file."""
        which = int(np.searchsorted(self._row_firsts[leaf], start, "right")) - 1
        file = self._rows[leaf][which] if which >= 0 else None
        if file is None or file.shard.codec != "none" or stop > file.first + file.shard.rows:
            return None
        return self._shard(file).view(start - file.first, stop - file.first)

    def gather(self, leaf: int, numbers: Array, out: Array) -> None:
        """The rows with these numbers, in any order and as often as they come, into `out`."""
        known, place = distinct(numbers)
        rows = self.rows(leaf, known, out.shape[1])
        half = len(place) // 2
        other = self.pool.submit(np.take, rows, place[:half], 0, out[:half], "clip")  # "raise" would copy
        np.take(rows, place[half:], axis=0, out=out[half:], mode="clip")
        other.result()

    def row_places(self, leaf: int) -> RowPlaces:
        """The rows of a leaf that are in the files of this commit, counted without gaps."""
        return RowPlaces(self._rows[leaf])

    def stored_row_bytes(self) -> int:
        """The uncompressed size of all rows of all leaves."""
        return sum(file.shard.rows * file.shard.row_bytes for files in self._rows for file in files)

    def has_rows(self, leaf: int) -> bool:
        """Whether a leaf is kept in rows, and not plainly."""
        return bool(self._rows[leaf])

    def row_numbers(self, leaf: int, row_bytes: int) -> Array:
        """The numbers of all rows of a leaf that are so long, sorted."""
        files = [file for file in self._rows[leaf] if file.shard.row_bytes == row_bytes]
        runs = [np.arange(file.first, file.first + file.shard.rows) for file in files]
        return np.concatenate([np.zeros(0, np.int64), *runs])

    def check_rows(self, leaf: int, track: Track, row_bytes: int) -> None:
        """Raise `LakeCorrupt` unless every row that a track names is in a file of this commit."""
        files = [file for file in self._rows[leaf] if file.shard.row_bytes == row_bytes]
        starts = np.array([file.first for file in files], np.int64)
        stops = np.array([file.first + file.shard.rows for file in files], np.int64)
        runs = track.runs[track.runs[:, 1] > 0]
        if len(runs) and spans_of(runs, starts, stops) is None:
            raise LakeCorrupt(f"a window of {self.path} names a row that is in no file of its commit.")

    def _shard(self, file: RowsFile) -> Shard:
        shard = self._shards.pop(file.name, None)
        if shard is None:
            while self._is_full(file):
                self._close_oldest()
            with self.segments.using(file.name) as there:
                shard = Shard(there, file.shard, held=self._hold(file))
                self.segments.hold(file.name)  # until it is closed
            self._open_blocks += _blocks(file.shard)
        self._shards[file.name] = shard
        return shard

    def _hold(self, file: RowsFile) -> bool:
        """Whether a file that is opened is kept in memory, as it is stored: while there is room for it."""
        held = sum(shard.held_bytes for shard in self._shards.values())
        return file.shard.codec != "none" and held + file.shard.bytes <= HELD_BYTES

    def _is_full(self, file: RowsFile) -> bool:
        """Whether others must be closed before a file is opened: too many blocks, or too much of the disk."""
        if file.name in self._shards or not self._shards:
            return False
        most = self.segments.open_bytes
        return self._open_blocks + _blocks(file.shard) > OPEN_BLOCKS or (
            most is not None
            and file.shard.bytes + sum(shard.info.bytes for shard in self._shards.values()) > most
        )

    def _close_oldest(self) -> None:
        name, shard = self._shards.popitem(last=False)
        self._open_blocks -= _blocks(shard.info)
        shard.close()
        self.segments.release(name)

    def close(self) -> None:
        """Close all files."""
        self.pool.shutdown()
        while self._shards:
            self._close_oldest()
        self._unpin(UNPIN_SECONDS)


def _blocks(info: ShardInfo) -> int:
    return info.blocks + FILE_BLOCKS
