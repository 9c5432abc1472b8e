"""Reading a lake at one commit: steps by id, with the observations they name, in bounded memory."""

from __future__ import annotations

import json
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from lakepond.errors import LakeCorrupt
from lakepond.lake.commits import Commit, RowsFile, Segment
from lakepond.lake.handover import Layout, decode_track
from lakepond.lake.shard import Shard
from lakepond.lake.steps import read_notes, read_steps
from lakepond.types import Array

GONE = "is gone: its commit is kept no longer, then open the lake anew; or it is lost, then see `repair`."
OPEN_SHARDS = 64
"""files of rows that are kept open"""


class LeafPart(NamedTuple):
    """The windows of some steps of one segment: a track of row numbers and where each window starts in it."""

    layout: Layout
    track: Array
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

    def __init__(self, path: Path, commit: Commit, leaves: int) -> None:
        self.path, self.commit = path, commit
        self._folder = path / "segments"
        self._leaves = leaves
        self._firsts = np.array([segment.first for segment in commit.segments], np.int64)
        self._rows: list[list[RowsFile]] = [
            sorted((file for file in commit.rows if file.leaf == i), key=lambda file: file.first)
            for i in range(leaves)
        ]
        self._row_firsts = [np.array([file.first for file in files], np.int64) for files in self._rows]
        self._shards: OrderedDict[str, Shard] = OrderedDict()
        self.pool = ThreadPoolExecutor(2, "lakepond-read")

    def parts(self, ids: Array, most: int) -> list[tuple[Segment, Array]]:
        """Sorted ids by segment, at most so many at a time."""
        which = np.searchsorted(self._firsts, ids, "right") - 1
        found = []
        for k in np.unique(which).tolist():
            mine = ids[which == k]
            segment = self.commit.segments[k]
            found += [(segment, mine[at : at + most]) for at in range(0, len(mine), most)]
        return found

    def axes(self) -> list[Literal[0, -1] | None]:
        """The row axis of each leaf, as the newest segment has it; None if it has none, or none yet."""
        if not self.commit.segments:
            return [None] * self._leaves
        notes = read_notes(self._folder / self.commit.segments[-1].name)
        layouts = [notes.get(f"layout[{i}]") for i in range(self._leaves)]
        return [None if layout is None else json.loads(layout)[2] for layout in layouts]

    def read(self, segment: Segment, ids: Array) -> Part:
        """The columns of some steps of a segment, and where their windows are."""
        file = self._folder / segment.name
        if not file.exists():
            raise LakeCorrupt(
                f"{file} is gone: its commit was let go of, or see `repair`; open the lake anew."
            )
        low, high = int(ids[0]) - segment.first, int(ids[-1]) + 1 - segment.first
        columns = read_steps(file, None, low, high)
        picked = ids - segment.first - low
        columns = {name: values[picked] for name, values in columns.items()}
        notes = read_notes(file)
        leaves: list[LeafPart | Array] = []
        for i in range(self._leaves):
            if f"values[{i}]" in columns:
                leaves.append(columns.pop(f"values[{i}]"))
                continue
            try:
                layout = Layout(*json.loads(notes[f"layout[{i}]"]))
                track = decode_track(notes[f"track[{i}]"])
                starts = columns.pop(f"windows[{i}]")
                if len(starts) and (starts.min() < 0 or starts.max() + layout.length > len(track)):
                    raise ValueError("a window outside of its track")
            except (KeyError, ValueError, TypeError) as error:
                raise LakeCorrupt(f"{file} is not what was written: {error}; see `repair`.") from error
            leaves.append(LeafPart(layout, track, starts))
        return Part(ids, columns, leaves)

    def rows(self, leaf: int, numbers: Array, row_bytes: int) -> Array:
        """The rows with these numbers, sorted and each once, as (n, row_bytes) uint8."""
        out = np.empty((len(numbers), row_bytes), np.uint8)
        which = np.searchsorted(self._row_firsts[leaf], numbers, "right") - 1
        edges = np.flatnonzero(np.diff(which, prepend=-2, append=-2))
        for at, to in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            file = self._rows[leaf][which[at]] if which[at] >= 0 else None
            if (
                file is None
                or numbers[to - 1] >= file.first + file.shard.rows
                or file.shard.row_bytes != row_bytes
            ):
                raise LakeCorrupt(
                    f"row {numbers[at]} of {self.path} is in no file of this commit; see `repair`."
                )
            self._shard(file).read(numbers[at:to] - file.first, out[at:to], self.pool)
        return out

    def check_rows(self, leaf: int, track: Array, row_bytes: int) -> None:
        """Raise `LakeCorrupt` unless every row that a track names is in a file of this commit."""
        files, firsts = self._rows[leaf], self._row_firsts[leaf]
        numbers = np.unique(track)
        which = np.searchsorted(firsts, numbers, "right") - 1
        stops = np.array([f.first + f.shard.rows if f.shard.row_bytes == row_bytes else -1 for f in files])
        if len(numbers) and (which.min() < 0 or (numbers >= stops[which]).any()):
            raise LakeCorrupt(f"a window of {self.path} names a row that is in no file of its commit.")

    def _shard(self, file: RowsFile) -> Shard:
        shard = self._shards.pop(file.name, None)
        if shard is None:
            try:
                shard = Shard(self._folder / file.name, file.shard)
            except FileNotFoundError:
                raise LakeCorrupt(f"{self._folder / file.name} {GONE}") from None
            if len(self._shards) >= OPEN_SHARDS:
                self._shards.popitem(last=False)[1].close()
        self._shards[file.name] = shard
        return shard

    def close(self) -> None:
        """Close all files."""
        self.pool.shutdown()
        while self._shards:
            self._shards.popitem()[1].close()
