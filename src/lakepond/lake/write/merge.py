"""Merging: a few large files in place of many small ones, with the same steps and the same rows in them.

    segments   [0,200) [200,400) [400,600)          rows   [0,90) [90,140) [140,150)
                       └──────────┬──────┘                 └─────────┬─────────────┘
               [0,200)      [200,600)                             [0,150)

Ids and row numbers stay as they are, so nothing else changes. The new files are written as any others are and
take the place of the old ones in the next commit; the old ones stay as long as a kept commit names them.
Memory: some batches of steps, some blocks of rows, and the tracks (at most 32 MB), whatever the files hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lakepond.lake.files import write_whole
from lakepond.lake.format.blocks import ShardInfo
from lakepond.lake.format.columns import Layout
from lakepond.lake.format.commits import Commit, RowsFile, Segment
from lakepond.lake.format.shard import Shard
from lakepond.lake.format.shard_writer import write_shard
from lakepond.lake.format.steps import read_layout, read_steps, write_batches
from lakepond.lake.format.tracks import track_length
from lakepond.types import Array

SMALL_BYTES, LARGE_BYTES = 8 << 20, 64 << 20
"""files below the first size are merged, into ones of up to the second"""
ENOUGH_BYTES = LARGE_BYTES - (16 << 20)
"""a new file of rows that has so much in it is finished; what is on its way to it is less than the rest"""
TRACK_ENTRIES = 4 << 20
"""rows that the windows of one file of steps may name: whoever reads a step reads its track"""
ENTRY_BYTES = 480
"""what a segment adds to the file of every commit that names it"""
PIECE_BYTES = 8 << 20
"""rows read at a time"""

File = Segment | RowsFile


class Stopped(Exception):
    """The merging was told to stop; nothing has changed."""


@dataclass(frozen=True)
class Merged:
    """A file that stands for others."""

    old: tuple[File, ...]
    new: File

    @property
    def bytes(self) -> int:
        """What the new file takes."""
        return _bytes(self.new)


def all_small(commit: Commit) -> list[list[File]]:
    """Everything that can be merged: neighbours that are small, in groups of up to a large file."""
    groups: list[list[File]] = []
    for files in _lists(commit):
        groups += [group for group in _greedy(files) if len(group) > 1]
    return groups


def newest_small(commit: Commit, least: int, *, free: bool) -> list[list[File]]:
    """What is worth merging while a lake grows: the newest files, if `least` of them have gathered.

    An older file joins them when it is no larger than they are together, so that a byte is written again as
    often as its file doubles, and no more. Old commits that are kept go on naming the old files: unless
    these will be `free` one day, they are merged only where naming them costs more than a copy of them.
    """
    groups: list[list[File]] = []
    for files in _lists(commit):
        group: list[File] = []
        total = 0
        for file in reversed(files):
            size = _bytes(file)
            if size >= SMALL_BYTES or total + size > LARGE_BYTES or (len(group) >= least and size > total):
                break
            if group and not _neighbours(file, group[-1]):
                break
            group.append(file)
            total += size
        if len(group) >= least and (free or total < ENTRY_BYTES * len(group) * len(commit.segments)):
            groups.append(group[::-1])
    return groups


def merge(folder: Path, group: Sequence[File], stop: Callable[[], bool]) -> Merged | None:
    """Write the file that stands for a group; None if it cannot be, because files are elsewhere or unlike.

    `stop` is asked now and then; `Stopped` is raised if it says so. The folder is not synced.
    """
    if not all((folder / file.name).exists() for file in group):
        return None
    if isinstance(group[0], RowsFile):
        rows = [file for file in group if isinstance(file, RowsFile)]
        shard = write_whole(
            folder,
            lambda file: _write_rows(file, folder, rows, stop),
            lambda shard: f"{shard.digest}.rows",
            sync=False,
        )
        return Merged(tuple(rows), RowsFile(rows[0].leaf, rows[0].first, shard))
    segments = [file for file in group if isinstance(file, Segment)]
    layouts = [read_layout(folder / segment.name) for segment in segments]
    whole = _joined(layouts)
    if whole is None:
        return None
    steps = write_whole(
        folder,
        lambda file: write_batches(file, whole, _batches(folder, segments, layouts, whole, stop), sync=True),
        lambda info: f"{info.digest}.steps",
        sync=False,
    )
    needs = tuple(dict.fromkeys(name for segment in segments for name in segment.needs))
    return Merged(tuple(segments), Segment(segments[0].first, steps, needs))


def replaced(commit: Commit, merged: Sequence[Merged]) -> tuple[list[Segment], list[RowsFile]]:
    """The files of a commit with merged ones in place of those they stand for, if all of these are there."""
    lists = _lists(commit)
    for each in merged:
        lists = [_spliced(files, each) for files in lists]
    files = [file for each in lists for file in each]
    rows = [file for file in files if isinstance(file, RowsFile)]
    there = {file.name for file in rows}
    instead = {old.name: each.new.name for each in merged for old in each.old if each.new.name in there}

    def needs(segment: Segment) -> tuple[str, ...]:
        """Two files may have the same rows in them, and so the same name: then both are needed."""
        new = [n for old in segment.needs for n in (instead.get(old, old), old) if n in there]
        return tuple(dict.fromkeys(new))

    return [replace(file, needs=needs(file)) for file in files if isinstance(file, Segment)], rows


def _spliced(files: list[File], merged: Merged) -> list[File]:
    old = merged.old
    places = [_place(file) for file in files]
    at = places.index(_place(old[0])) if _place(old[0]) in places else len(files)
    if places[at : at + len(old)] != [_place(file) for file in old]:
        return files
    return [*files[:at], merged.new, *files[at + len(old) :]]


def _place(file: File) -> tuple[int, int, str]:
    return -1 if isinstance(file, Segment) else file.leaf, file.first, file.name


def _lists(commit: Commit) -> list[list[File]]:
    """The segments, and for each leaf the files of its rows."""
    rows: list[list[File]] = [[f for f in commit.rows if f.leaf == i] for i in range(len(commit.next_rows))]
    return [list(commit.segments), *rows]


def _bytes(file: File) -> int:
    return file.steps.bytes if isinstance(file, Segment) else file.shard.bytes


def _neighbours(one: File, other: File) -> bool:
    """Whether `other` goes on where `one` ends, and is of its kind."""
    if isinstance(one, Segment) or isinstance(other, Segment):
        return True  # steps have no gaps
    a, b = one.shard, other.shard
    same = (a.row_bytes, a.block_rows, a.codec) == (b.row_bytes, b.block_rows, b.codec)
    return same and one.first + a.rows == other.first


def _greedy(files: Sequence[File]) -> list[list[File]]:
    groups: list[list[File]] = [[]]
    total = 0
    for file in files:
        size = _bytes(file)
        fits = groups[-1] and total + size <= LARGE_BYTES and _neighbours(groups[-1][-1], file)
        if size >= SMALL_BYTES or not fits:
            groups.append([])
            total = 0
        if size < SMALL_BYTES:
            groups[-1].append(file)
            total += size
    return groups


# --- rows ------------------------------------------------------------------------------------------


def _write_rows(
    file: BinaryIO, folder: Path, group: Sequence[RowsFile], stop: Callable[[], bool]
) -> ShardInfo:
    info = group[0].shard

    def rows() -> Iterator[Array]:
        size = max(1, PIECE_BYTES // info.row_bytes)
        buffer = np.empty((size, info.row_bytes), np.uint8)
        for part in group:
            with Shard(folder / part.name, part.shard) as shard:
                for start in range(0, len(shard), size):
                    if stop():
                        raise Stopped
                    count = min(size, len(shard) - start)
                    yield shard.rows(start, start + count, buffer[:count])

    return write_shard(
        file, rows(), row_bytes=info.row_bytes, block_rows=info.block_rows, codec=info.codec, sync=True
    )


# --- steps -----------------------------------------------------------------------------------------


def _joined(layouts: Sequence[Layout]) -> Layout | None:
    """The layout of all of them in one file, or None if they are unlike or name too many rows together."""
    first = layouts[0]
    notes = {name: [dict(layout.notes).get(name, b"") for layout in layouts] for name, _ in first.notes}
    for layout in layouts:
        if layout.columns != first.columns or {name for name, _ in layout.notes} != notes.keys():
            return None
    joined = {}
    for name, told in notes.items():
        if name.startswith("track["):
            if sum(map(track_length, told)) > TRACK_ENTRIES:
                return None
            joined[name] = b"".join(told)
        elif len(set(told)) > 1:
            return None
        else:
            joined[name] = told[0]
    return Layout(first.columns, sum(layout.steps for layout in layouts), first.batch, tuple(joined.items()))


def _batches(
    folder: Path,
    segments: Sequence[Segment],
    layouts: Sequence[Layout],
    whole: Layout,
    stop: Callable[[], bool],
) -> Iterator[dict[str, Array]]:
    """The steps of all segments, a batch of the new file at a time; windows moved to the joined track."""
    starts = np.cumsum([0, *(layout.steps for layout in layouts)]).tolist()
    tracks: dict[str, list[int]] = {}
    for name, _ in whole.notes:
        if name.startswith("track["):
            lengths = [track_length(dict(layout.notes)[name]) for layout in layouts]
            tracks[name.replace("track", "windows")] = np.cumsum([0, *lengths]).tolist()
    for at in range(0, whole.steps, whole.batch):
        to = min(at + whole.batch, whole.steps)
        parts: list[dict[str, Array]] = []
        for k, segment in enumerate(segments):
            low, high = max(at, starts[k]), min(to, starts[k + 1])
            if low < high:
                if stop():
                    raise Stopped
                part = read_steps(folder / segment.name, None, low - starts[k], high - starts[k])
                for name, offsets in tracks.items():
                    part[name] = part[name] + offsets[k]
                parts.append(part)
        yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
