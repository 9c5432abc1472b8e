"""The new files of a commit: rows, steps, priorities; each is written to a temporary name, synced, renamed.

The folder is not synced: the commit that names the files does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

from lakepond.lake.files import write_all_synced, write_atomic
from lakepond.lake.format.blocks import ShardInfo, block_rows_for
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.entries import RowsFile, Segment, Source
from lakepond.lake.format.ranges import Ranges, joined, most_ranges
from lakepond.lake.format.shard_writer import write_shard
from lakepond.lake.format.steps import StepsInfo, write_steps
from lakepond.lake.write.handover import HandOver, Windows
from lakepond.lake.write.merge import ENOUGH_BYTES, LARGE_BYTES
from lakepond.lake.write.sources import Sources
from lakepond.types import Array

T = TypeVar("T")


class NewFiles:
    """Writes segments to the folder of one writer."""

    def __init__(
        self, folder: Path, sources: Sources, leaves: int, codec: str, claim: Callable[[str], None]
    ) -> None:
        """`claim` is called with the name of each file before it gets it: from then on it is not deleted."""
        self._folder, self._leaves, self._codec, self._claim = folder, leaves, codec, claim
        self._sources = sources

    def rows(self, leaf: int, new: Windows) -> tuple[list[RowsFile], int]:
        """New rows, in files of up to 64 MB: each is one object in the cloud; and their bytes."""
        files: list[RowsFile] = []
        rows, first = new.rows(), new.first
        while first < new.first + new.count:
            files.append(RowsFile(leaf, first, self._store_rows(rows, new.layout.row_bytes)))
            first = files[-1].stop
        return files, sum(file.bytes for file in files)

    def sources(self, leaf: int, new: Windows) -> tuple[list[RowsFile], list[Source], int]:
        """The files of new sources, the sources, and how many bytes were written for them."""
        files: list[RowsFile] = []
        sources: list[Source] = []
        written = 0
        for each in new.sources:
            stored, size = self._sources.files(leaf, each)
            total = sum(file.bytes for file in stored)
            sources.append(Source(each.digest, each.first, len(each.rows), len(stored), total))
            files, written = files + stored, written + size
        return files, sources, written

    def _store_rows(self, rows: Iterator[Array], row_bytes: int) -> ShardInfo:
        """One file of the next rows, up to its maximum size."""
        return self._store(
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
        )

    def segments(self, new: HandOver) -> list[Segment]:
        """New steps, in files of up to 64 MB uncompressed."""
        columns, notes = dict(new.columns), {}
        needs: list[Ranges] = []
        for i, leaf in enumerate(new.leaves):
            if isinstance(leaf, Windows):
                columns[f"windows[{i}]"] = leaf.starts
                layout = [leaf.layout.length, leaf.layout.row_bytes, leaf.layout.axis]
                notes[f"layout[{i}]"] = repr(layout).replace("None", "null").encode()
                notes[f"track[{i}]"] = leaf.runs.tobytes()
                runs = leaf.runs.reshape(-1, 2)
                covered = np.stack([runs[:, 0], runs.sum(axis=1)], axis=1)
                needs.append(joined(covered, most_ranges(self._leaves)))
            else:
                columns[f"values[{i}]"] = leaf
                needs.append(())
        size = max(1, LARGE_BYTES // sum(column[:1].nbytes for column in columns.values()))
        return [
            Segment(
                new.first + at,
                self.steps({name: column[at : at + size] for name, column in columns.items()}, notes),
                tuple(needs),
            )
            for at in range(0, new.steps, size)
        ]

    def priorities(
        self, new: HandOver, last: Commit | None
    ) -> tuple[StepsInfo | None, tuple[StepsInfo, ...]]:
        """All priorities, or those of the last commit and the changes since."""
        if new.priorities is None:
            return None, ()
        if new.changed is None:
            first = str(new.oldest).encode()
            return self.steps({"weight": new.priorities}, {"first": first}), ()
        assert last is not None  # changes follow a commit that has all priorities
        changed = self.steps({"step": new.changed, "weight": new.priorities})
        return last.priorities, (*last.priority_changes, changed)

    def steps(self, columns: dict[str, Array], notes: dict[str, bytes] | None = None) -> StepsInfo:
        """One file of steps with these columns."""
        return self._store(
            lambda file: write_steps(file, columns, notes, sync=True), lambda info: f"{info.digest}.steps"
        )

    def manifest(self, name: str, data: bytes) -> None:
        """One manifest."""
        self._store(lambda file: write_all_synced(file, data), lambda _: name)

    def _store(self, write: Callable[[BinaryIO], T], name: Callable[[T], str]) -> T:
        def claimed(written: T) -> str:
            self._claim(name(written))
            return name(written)

        return write_atomic(self._folder, write, claimed, sync=False)
