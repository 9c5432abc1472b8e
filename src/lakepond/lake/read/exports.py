"""Reading a lake as a whole, and its exports, in memory bounded by a batch or an episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import SpecError
from lakepond.lake.read.assemble import PART_STEPS
from lakepond.lake.read.episodes import Episode, episode_ids, episode_of
from lakepond.lake.read.reader import SCANNED_STEPS, LakeReader, LeafPart
from lakepond.lake.read.step_files import column_fields
from lakepond.lake.read.views import View
from lakepond.types import Array, Field, Spec, leaves

Progress = Callable[[int, int], None]
"""called with the steps done and the steps there are"""


class Exports:
    """The methods of a lake that export its steps."""

    spec: Spec
    reader: LakeReader

    def episodes(self) -> Iterator[Episode]:
        """Iterate over episodes in the order of their ends; each has one more observation than steps.

        Unfinished episodes come last. Memory: one episode, and the step ids of all unfinished ones.
        """
        for ids in episode_ids(self.reader, self.spec):
            yield episode_of(self.reader, self.spec, ids)

    def to_arrow(self, *, next_obs: bool = True) -> Any:
        """A `pyarrow.RecordBatchReader`: one row per step, 16 MB at a time, with or without `next_obs`."""
        return _adapter("arrow").to_arrow(self, next_obs=next_obs)

    def to_parquet(self, path: str | Path, *, next_obs: bool = True) -> None:
        """Write one Parquet file, one row per step; atomic."""
        _adapter("arrow").export_parquet(self, path, next_obs=next_obs)

    def to_npz(self, folder: str | Path, *, progress: Progress | None = None) -> int:
        """Write a folder with one .npz file per episode; returns the number of episodes."""
        count: int = _adapter("npz").export_npz(self, folder, progress=progress)
        return count

    def to_minari(
        self, path: str | Path, *, dataset_id: str = "lakepond/lake-v0", progress: Progress | None = None
    ) -> int:
        """Write a Minari dataset, lossless and with the spaces of the spec; returns the number of episodes.

        `minari.MinariDataset(path / "data")` opens it; under `$MINARI_DATASETS_PATH/<dataset_id>`,
        `minari.load_dataset(dataset_id)` does.
        """
        count: int = _adapter("minari").export_minari(self, path, dataset_id=dataset_id, progress=progress)
        return count

    def to_lerobot(self, path: str | Path, *, fps: int = 30, progress: Progress | None = None) -> int:
        """Write a LeRobot dataset, which `datasets.load_dataset` opens too; returns the episode count."""
        count: int = _adapter("lerobot").export_lerobot(self, path, fps=fps, progress=progress)
        return count

    def column(self, name: str) -> View:
        """Return a column of all live steps: `np.asarray(lake.column("reward"))`."""
        fields = column_fields(self.spec)
        if name not in fields:
            raise SpecError(f"there is no column {name!r}; the columns are {sorted(fields)}.")
        field = fields[name]

        def read(places: Array) -> Array:
            order = np.argsort(places, kind="stable")
            found = np.empty((len(places), *field.shape), field.dtype)
            for start in range(0, len(order), SCANNED_STEPS):
                some = order[start : start + SCANNED_STEPS]
                at = 0
                for segment, ids in self.reader.parts(self.reader.oldest + places[some], PART_STEPS):
                    found[some[at : at + len(ids)]] = self.reader.read(segment, ids).columns[name]
                    at += len(ids)
            return found

        return View(self.reader.recorded - self.reader.oldest, field.shape, field.dtype, read)

    def rows(self, leaf: int = 0) -> View:
        """Return the distinct rows of one leaf of the observations, in the order of recording.

        A row of several slices has these as its first axis, (3, 84, 84) for colour frames of (84, 84, 12).
        With codec "none" slices such as `lake.rows()[10:20]` are views of the memory-mapped file.
        Raises `SpecError` if the leaf has no rows, or rows of several shapes.
        """
        field: Field = [field for _, field in leaves(self.spec.obs)][leaf]
        if not self.reader.has_rows(leaf):
            raise SpecError(
                f"leaf {leaf}, {field}, is small and stored without deduplication: it has no "
                "rows; read steps instead."
            )
        shapes = self._row_shapes(leaf, field) or {field.shape}
        shape = shapes.pop()
        row_bytes = int(np.prod(shape)) * np.dtype(field.dtype).itemsize
        files = ((first, f.shard.rows, f.shard.row_bytes) for first, f in self.reader.row_files(leaf))
        firsts, counts, sizes = np.fromiter(files, np.dtype((np.int64, 3))).T.copy()
        if shapes or (sizes != row_bytes).any():
            several = len(self.reader.heads) > 1
            one = "open one writer with writer=..., or " if several else ""
            raise SpecError(
                f"leaf {leaf}, {field}, has rows of several shapes, because its layout "
                f"{'differs between writers or ' if several else ''}changed while steps were recorded; "
                f"{one}read steps instead."
            )
        before = np.cumsum(counts) - counts

        def numbers(places: Array) -> Array:
            file = np.searchsorted(before, places, "right") - 1
            found: Array = firsts[file] + places - before[file]
            return found

        def read(places: Array) -> Array:
            out = np.empty((len(places), *shape), field.dtype)
            plain = out.view(np.uint8).reshape(len(places), row_bytes)
            self.reader.gather(leaf, numbers(places), plain)
            return out

        def mapped(start: int, stop: int) -> Array | None:
            first, last = numbers(np.array([start, stop - 1])).tolist()
            rows = self.reader.mapped(leaf, first, last + 1) if last - first == stop - 1 - start else None
            return None if rows is None else rows.reshape(-1).view(field.dtype).reshape(stop - start, *shape)

        return View(int(counts.sum()), shape, field.dtype, read, mapped)

    def _row_shapes(self, leaf: int, field: Field) -> set[tuple[int, ...]]:
        """The shapes of the rows in the newest file of steps of each writer."""
        found = set()
        for head in self.reader.heads:
            stop = head.offset + head.commit.recorded
            for stored in self.reader.stored(stop - 1, stop):
                part = self.reader.read(stored, np.array([stop - 1])).leaves[leaf]
                if isinstance(part, LeafPart):
                    found.add(part.layout.row_shape(field.shape))
        return found


def _adapter(name: str) -> Any:
    """A module of `lakepond.adapters`, which is a layer above this one: imported when it is used."""
    return import_module(f"lakepond.adapters.{name}")
