"""Merging: a few large files in place of many small ones, with the same steps and the same rows in them.

    segments   [0,200) [200,400) [400,600)          rows   [0,90) [90,140) [140,150)
                       └──────────┬──────┘                 └─────────┬─────────────┘
               [0,200)      [200,600)                             [0,150)

Ids and row numbers stay as they are, so nothing else changes. The new files replace the old ones in the next
commit; the old ones are deleted with the commits that name them. Memory: some batches of steps, some blocks
of rows, and the tracks (at most 32 MB), whatever the files hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lakepond.errors import LakeCorrupt
from lakepond.lake.files import is_damage, write_atomic
from lakepond.lake.format.blocks import ShardInfo
from lakepond.lake.format.checksum import digest_of
from lakepond.lake.format.columns import StepFileLayout
from lakepond.lake.format.entries import File, RowsFile, Segment
from lakepond.lake.format.ranges import joined_needs
from lakepond.lake.format.shard import Shard
from lakepond.lake.format.shard_writer import write_shard
from lakepond.lake.format.steps import read_layout, read_steps, write_batches
from lakepond.lake.format.tracks import track_length
from lakepond.types import Array

SMALL_BYTES, LARGE_BYTES = 32 << 20, 64 << 20
"""files below the first size are merged, into ones of up to the second"""
ENOUGH_BYTES = LARGE_BYTES - (16 << 20)
"""a new file of rows of this size is finished; blocks that are being compressed take less than the rest"""
TRACK_ENTRIES = 4 << 20
"""rows that the windows of one file of steps may name: reading a step reads its track"""
MOST_FILES = 4096
"""files that are merged into one, and newest files of a list that are looked at"""
COPIED_BYTES = 1 << 20
"""while all commits are kept, files are merged only if they are smaller than this on average: the old ones
stay on the disk, so merging stores their bytes twice"""
PIECE_BYTES = 8 << 20
"""rows read at a time"""


class Stopped(Exception):
    """Merging was stopped; nothing has changed."""


@dataclass(frozen=True)
class Merged:
    """A file that replaces all others with its steps or rows, if these are the ones that were merged."""

    new: File
    count: int
    """files that it replaces"""
    names: str
    """digest of their names and places"""

    @classmethod
    def of(cls, files: Sequence[File], new: File) -> Merged:
        """`new` in place of `files`."""
        return cls(new, len(files), _digest_of(files))

    def replaces(self, files: Sequence[File]) -> bool:
        """Whether these are the files that were merged."""
        return len(files) == self.count and _digest_of(files) == self.names


def _digest_of(files: Sequence[File]) -> str:
    return digest_of("".join(f"{file.first} {file.name}\n" for file in files).encode())


def all_small(files: Iterable[File]) -> Iterator[list[File]]:
    """Everything that can be merged: neighbours that are small, in groups of up to a large file."""
    return (group for group in _groups(files) if len(group) > 1)


class GrowingList:
    """Finds what is worth merging in one list of files while it grows, without reading all of it again.

    The newest small files are merged if they are many or large together. Small files between larger ones are
    merged as soon as they are two: no later file can join them.
    """

    def __init__(self, least: int, *, keeps_all: bool) -> None:
        """`least`: number of files that are many; they are large together from `SMALL_BYTES` on.

        `keeps_all`: old commits are kept, and with them the old files. Each byte should then be copied once,
        so merging waits until they are large together, or for 16 times as many files.
        """
        self._least, self._keeps_all = least, keeps_all
        self._settled = 0  # nothing is left to merge before this step or row

    def groups(self, newest_first: Iterable[File]) -> Iterator[list[File]]:
        """What is worth merging, each group in order. Take the next one only if a group cannot be merged."""
        files = takewhile(lambda file: file.stop > self._settled, islice(newest_first, MOST_FILES))
        groups = _groups(files)
        newest = next(groups, [])
        if group := self._grown(newest):
            yield group[::-1]
        closed = next(groups, [])
        if not closed or _join(closed[0], newest[-1]):
            return  # none is closed off by a large file, or those of 64 MB are not worth a copy
        for group in chain([closed], groups):
            if len(group) > 1 and self._worth_a_copy(group):
                yield group[::-1]
        self._settled = newest[-1].first

    def _grown(self, newest: list[File]) -> list[File]:
        """The newest files of a group if they are worth merging now.

        No file of them is larger than the others together, or all make one that is finished: so a byte is
        written again only when its file doubles, and once more.
        """
        many = self._least * (16 if self._keeps_all else 1)
        total = largest = stop = 0
        for count, file in enumerate(newest, 1):
            total, largest = total + file.bytes, max(largest, file.bytes)
            if total >= SMALL_BYTES or (count >= many and 2 * largest <= total):
                stop = count
        group = newest[:stop]
        return group if len(group) > 1 and self._worth_a_copy(group) else []

    def _worth_a_copy(self, group: list[File]) -> bool:
        return not self._keeps_all or sum(file.bytes for file in group) < COPIED_BYTES * len(group)


def _groups(files: Iterable[File]) -> Iterator[list[File]]:
    """Files, in either order, in groups: small neighbours of up to a large file, and others alone."""
    group: list[File] = []
    total = 0
    for file in files:
        fits = total + file.bytes <= LARGE_BYTES and len(group) < MOST_FILES
        if group and not (fits and _join(group[-1], file)):
            yield group
            group, total = [], 0
        group.append(file)
        total += file.bytes
    if group:
        yield group


def merge(
    folder: Path,
    paths: Sequence[Path],
    group: Sequence[File],
    stop: Callable[[], bool],
    claim: Callable[[str], None],
    damaged: Callable[[str], None],
) -> Merged | None:
    """Write the file that replaces a group, or its newest files, to `folder`; None if no two can be joined.

    paths: where the files of the group are. `stop` is called now and then; `Stopped` is raised if
    it returns True. `claim` is called with the name of the new file before it gets it, and `damaged` with the
    name of a file of the group that is damaged, before that is raised. The folder is not synced.
    """
    if isinstance(group[0], RowsFile):
        rows = [file for file in group if isinstance(file, RowsFile)]
        shard = write_atomic(
            folder,
            lambda file: _write_rows(file, paths, rows, stop, damaged),
            lambda shard: _claimed(f"{shard.digest}.rows", claim),
            sync=False,
        )
        return Merged.of(rows, RowsFile(rows[0].leaf, rows[0].first, shard))
    segments = [file for file in group if isinstance(file, Segment)]
    layouts = _joinable(paths, damaged)
    count = len(layouts)
    if count < 2:
        return None
    segments, paths = segments[-count:], paths[-count:]
    whole = _joined(layouts)
    steps = write_atomic(
        folder,
        lambda file: write_batches(file, whole, _batches(paths, layouts, whole, stop, damaged), sync=True),
        lambda info: _claimed(f"{info.digest}.steps", claim),
        sync=False,
    )
    needs = joined_needs([segment.needs for segment in segments])
    return Merged.of(segments, Segment(segments[0].first, steps, needs))


def _claimed(name: str, claim: Callable[[str], None]) -> str:
    claim(name)
    return name


@contextmanager
def _reading(path: Path, damaged: Callable[[str], None]) -> Iterator[None]:
    """Call `damaged` with the name of a file if it cannot be read in the block because it is damaged."""
    try:
        yield
    except (LakeCorrupt, OSError) as error:
        if is_damage(error):
            damaged(path.name)
        raise


def _join(one: File, other: File) -> bool:
    """Whether both are small, and one continues the other and is of its kind."""
    if max(one.bytes, other.bytes) >= SMALL_BYTES:
        return False
    if isinstance(one, Segment) or isinstance(other, Segment):
        return True  # steps have no gaps
    a, b = one.shard, other.shard
    same = (a.row_bytes, a.block_rows, a.codec) == (b.row_bytes, b.block_rows, b.codec)
    return same and (one.stop == other.first or other.stop == one.first) and not (one.source or other.source)


# --- rows ------------------------------------------------------------------------------------------


def _write_rows(
    file: BinaryIO,
    paths: Sequence[Path],
    group: Sequence[RowsFile],
    stop: Callable[[], bool],
    damaged: Callable[[str], None],
) -> ShardInfo:
    info = group[0].shard

    def rows() -> Iterator[Array]:
        size = max(1, PIECE_BYTES // info.row_bytes)
        buffer = np.empty((size, info.row_bytes), np.uint8)
        for path, part in zip(paths, group, strict=True):
            with _reading(path, damaged), Shard(path, part.shard) as shard:
                for start in range(0, len(shard), size):
                    if stop():
                        raise Stopped
                    count = min(size, len(shard) - start)
                    yield shard.rows(start, start + count, buffer[:count])

    return write_shard(
        file, rows(), row_bytes=info.row_bytes, block_rows=info.block_rows, codec=info.codec, sync=True
    )


# --- steps -----------------------------------------------------------------------------------------


def _joinable(paths: Sequence[Path], damaged: Callable[[str], None]) -> list[StepFileLayout]:
    """The layouts of the newest of these files that can be in one: alike, and with short tracks."""
    found: list[StepFileLayout] = []
    rows: dict[str, int] = {}
    for path in reversed(paths):
        with _reading(path, damaged):
            layout = read_layout(path)
        for name, value in layout.notes:
            if name.startswith("track["):
                rows[name] = rows.get(name, 0) + track_length(value)
        if found and (_alike(layout) != _alike(found[0]) or max(rows.values(), default=0) > TRACK_ENTRIES):
            break
        found.append(layout)
    return found[::-1]


def _alike(layout: StepFileLayout) -> tuple[object, ...]:
    """What must be the same in two files that are joined: columns, and notes but for the tracks."""
    notes = {name: None if name.startswith("track[") else value for name, value in layout.notes}
    return layout.columns, sorted(notes.items())


def _joined(layouts: Sequence[StepFileLayout]) -> StepFileLayout:
    """The layout of all of them in one file."""
    first = layouts[0]
    notes = [dict(layout.notes) for layout in layouts]
    joined = tuple(
        (name, b"".join(note[name] for note in notes) if name.startswith("track[") else value)
        for name, value in first.notes
    )
    return StepFileLayout(first.columns, sum(layout.steps for layout in layouts), first.batch, joined)


def _batches(
    paths: Sequence[Path],
    layouts: Sequence[StepFileLayout],
    whole: StepFileLayout,
    stop: Callable[[], bool],
    damaged: Callable[[str], None],
) -> Iterator[dict[str, Array]]:
    """The steps of all segments, one batch of the new file at a time; windows moved to the joined track."""
    starts = np.cumsum([0, *(layout.steps for layout in layouts)]).tolist()
    tracks: dict[str, list[int]] = {}
    for name, _ in whole.notes:
        if name.startswith("track["):
            lengths = [track_length(dict(layout.notes)[name]) for layout in layouts]
            tracks[name.replace("track", "windows")] = np.cumsum([0, *lengths]).tolist()
    for at in range(0, whole.steps, whole.batch):
        to = min(at + whole.batch, whole.steps)
        parts: list[dict[str, Array]] = []
        for k, path in enumerate(paths):
            low, high = max(at, starts[k]), min(to, starts[k + 1])
            if low < high:
                if stop():
                    raise Stopped
                with _reading(path, damaged):
                    part = read_steps(path, None, low - starts[k], high - starts[k])
                for name, offsets in tracks.items():
                    part[name] = part[name] + offsets[k]
                parts.append(part)
        yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
