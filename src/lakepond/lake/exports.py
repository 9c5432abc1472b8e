"""What a lake can be turned into. Everything is streamed: memory is bounded by a batch, or by an episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import SpecError
from lakepond.lake.episodes import Episode, episode_ids, episode_of
from lakepond.lake.reader import LakeReader
from lakepond.lake.steps_files import column_fields
from lakepond.lake.views import View
from lakepond.types import Array, Field, Spec, leaves

Progress = Callable[[int, int], None]
"""called with the steps done and the steps there are"""


class Exports:
    """The part of a lake that hands its steps to others."""

    spec: Spec
    reader: LakeReader

    def episodes(self) -> Iterator[Episode]:
        """Each episode, in the order in which they end, with one observation more than it has steps.

        Those that have not ended come last. Memory: one episode, and the ids of those that have begun.
        """
        for ids in episode_ids(self.reader, self.spec):
            yield episode_of(self.reader, self.spec, ids)

    def to_arrow(self, *, next_obs: bool = True) -> Any:
        """A `pyarrow.RecordBatchReader`: a step a row, 16 MB at a time. `next_obs=False` leaves that out."""
        from lakepond.lake.arrow import to_arrow

        return to_arrow(self.reader, self.spec, next_obs=next_obs)

    def to_parquet(self, path: str | Path, *, next_obs: bool = True) -> None:
        """One Parquet file, a step a row; it appears whole or not at all."""
        from lakepond.lake.arrow import to_parquet

        to_parquet(self.reader, self.spec, Path(path), next_obs=next_obs)

    def to_npz(self, folder: str | Path, *, progress: Progress | None = None) -> int:
        """A folder with one .npz file an episode; returns how many there are."""
        from lakepond.lake.npz import write_npz

        return write_npz(Path(folder), self.episodes(), total=self._steps(), progress=progress)

    def to_minari(
        self, path: str | Path, *, dataset_id: str = "lakepond/lake-v0", progress: Progress | None = None
    ) -> int:
        """A Minari dataset at `path`, lossless; returns how many episodes it has.

        `minari.MinariDataset(path / "data")` opens it; under `$MINARI_DATASETS_PATH/<dataset_id>`,
        `minari.load_dataset(dataset_id)` does.
        """
        from lakepond.lake.minari import write_minari

        return write_minari(
            Path(path),
            self.spec,
            self.episodes(),
            dataset_id=dataset_id,
            total=self._steps(),
            progress=progress,
        )

    def column(self, name: str) -> View:
        """A column of all live steps: `np.asarray(lake.column("reward"))`."""
        fields = column_fields(self.spec)
        if name not in fields:
            raise SpecError(f"there is no column {name!r}; there are {sorted(fields)}.")
        field, commit = fields[name], self.reader.commit

        def read(places: Array) -> Array:
            order = np.argsort(places, kind="stable")
            found = np.empty((len(places), *field.shape), field.dtype)
            at = 0
            for segment, ids in self.reader.parts(commit.oldest + places[order], 8192):
                found[order[at : at + len(ids)]] = self.reader.read(segment, ids).columns[name]
                at += len(ids)
            return found

        return View(commit.recorded - commit.oldest, field.shape, field.dtype, read)

    def rows(self, leaf: int = 0) -> View:
        """The distinct rows of one leaf of the observations, in the order in which they came.

        With codec "none" nothing is copied: `lake.rows()[10:20]` lies in the mapped file.
        """
        field: Field = [field for _, field in leaves(self.spec.obs)][leaf]
        axis = self.reader.axes()[leaf]
        if not self.reader.has_rows(leaf):
            raise SpecError(
                f"leaf {leaf}, {field}, is small and kept plainly: it has no rows; read steps instead."
            )
        shape = field.shape if axis is None else field.shape[1:] if axis == 0 else field.shape[:-1]
        row_bytes = int(np.prod(shape)) * np.dtype(field.dtype).itemsize
        numbers = self.reader.row_numbers(leaf, row_bytes)

        def read(places: Array) -> Array:
            out = np.empty((len(places), *shape), field.dtype)
            plain = out.view(np.uint8).reshape(len(places), row_bytes)
            self.reader.gather(leaf, numbers[places], plain)
            return out

        def mapped(start: int, stop: int) -> Array | None:
            if numbers[stop - 1] - numbers[start] != stop - 1 - start:
                return None
            rows = self.reader.mapped(leaf, int(numbers[start]), int(numbers[stop - 1]) + 1)
            return None if rows is None else rows.reshape(-1).view(field.dtype).reshape(stop - start, *shape)

        return View(len(numbers), shape, field.dtype, read, mapped)

    def _steps(self) -> int:
        return self.reader.commit.recorded - self.reader.commit.oldest
