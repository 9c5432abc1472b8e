"""PyTorch datasets over a lake that may be larger than memory.

    dataset = LakeDataset("lakes/demo", batch_size=256, seed=0)
    for batch in LakeLoader(dataset, num_workers=2):  # one epoch: every step exactly once
        ...

A batch is a `Batch` of tensors. `LakeDataset` divides an epoch among the ranks of a distributed run and the
workers of a `DataLoader`; see `epochs`. `LakeLoader` is a `DataLoader` that also starts the next epoch by
itself and can save its position. `LakeSteps` is the map-style view, for samplers of your own.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from lakepond.adapters.epochs import Epoch, EpochPosition
from lakepond.adapters.notes import commit_numbers
from lakepond.adapters.torch import to_torch
from lakepond.errors import SampleError, TooFewSteps
from lakepond.lake.read.lake import Lake, open_commits
from lakepond.lake.read.loaded import LoadedSteps, Place, views
from lakepond.lake.read.sequences import LakeSequences
from lakepond.types import Array, Batch, Field, Tree, leaves, map_leaves

BUFFER_BYTES = 64 << 20
"""decoded steps that an iterator keeps in memory, about"""
BLOCK_STEPS = 128
"""neighbours that are read together: 4 blocks of Atari frames"""


class LakeDataset(IterableDataset):
    """Batches of a lake's steps in shuffled epochs, each step exactly once per epoch.

    An iteration continues where the last one ended, so leaving a loop early skips no step. Give it to a
    `LakeLoader`, or to a `DataLoader` with `batch_size=None`. A plain `DataLoader` with workers copies the
    dataset to them and does not report back: call `set_epoch` before each epoch.
    """

    def __init__(
        self,
        lake: Lake | str | Path,
        batch_size: int,
        *,
        seed: int = 0,
        replace: bool = False,
        drop_last: bool = False,
        sequence_length: int | None = None,
        burn_in: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """`lake`: an open lake, whose commit is read, or a path, whose newest commit is.

        `replace`: draw steps uniformly with replacement, as many per epoch as the lake holds. `drop_last`:
        leave out the last steps of an epoch so that all batches are full and all ranks have the same number.
        `sequence_length`: batches (B, T, ...) of consecutive steps of one episode, with up to `burn_in` steps
        before them. The steps to learn from have the weight 1; those to burn in, and those that fill up short
        sequences at their end, have the weight 0.
        `rank`, `world_size`: from torch.distributed if it is initialised, or the environment variables RANK
        and WORLD_SIZE, if not given. `buffer_bytes`: memory for decoded steps, per worker, about.
        """
        super().__init__()
        self.lake = _opened(self, lake)
        self.batch_size, self.seed = int(batch_size), int(seed)
        self.rank, self.world_size = _place_in_world(rank, world_size)
        self._replace, self._drop_last = replace, drop_last
        self._sequence = None if sequence_length is None else (int(sequence_length), int(burn_in))
        self._buffer_bytes = buffer_bytes
        if self.batch_size < 1 or self.seed < 0 or buffer_bytes < 1:
            raise SampleError(
                f"batch_size and buffer_bytes must be at least 1 and seed at least 0, but are {batch_size}, "
                f"{buffer_bytes} and {seed}."
            )
        if burn_in and sequence_length is None:
            raise SampleError(f"burn_in={burn_in} needs sequence_length, the number of steps to learn from.")
        self._prepare()
        self._position = EpochPosition()

    def _prepare(self) -> None:
        """Derive from the lake what does not change while it is read."""
        if not len(self.lake):
            raise TooFewSteps(f"{self.lake.path} has no steps; record some and commit them.")
        self._sequences = None if self._sequence is None else LakeSequences(self.lake, *self._sequence)
        self._units = len(self.lake) if self._sequences is None else len(self._sequences)
        self._block, self._group = _sizes(self.lake, self._buffer_bytes, self._sequences, self._replace)

    def __len__(self) -> int:
        """Batches of this rank in one epoch."""
        return self._plan(0).batches

    @property
    def epoch(self) -> int:
        """The epoch that is read, or that is read next; the first is 0."""
        return self._position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch from its beginning."""
        self._position = EpochPosition(epoch)

    def _plan(self, epoch: int) -> Epoch:
        return Epoch(number=epoch, block=self._block, group=self._group, rank=self.rank, **self._order())

    def _order(self) -> dict[str, Any]:
        """What determines the order of the steps on all ranks, besides the epoch."""
        return {
            "units": self._units,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "world_size": self.world_size,
            "replace": self._replace,
            "drop_last": self._drop_last,
        }

    # --- iteration ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        return self.delivered(self.marked())

    def delivered(self, marked: Iterable[tuple[int, Batch]]) -> Iterator[Batch]:
        """Hand out batches and count them by their groups; with the last one the next epoch begins."""
        epoch = self.epoch
        plan = self._plan(epoch)
        for group, batch in marked:
            self._position.add(group, plan)
            if self._position.is_complete(plan):  # before the batch: a loop may stop with it
                self.set_epoch(epoch + 1)
            yield batch
        if self.epoch == epoch:  # no batches here, or other workers have the rest
            self.set_epoch(epoch + 1)

    def marked(self) -> Iterator[tuple[int, Batch]]:
        """The remaining batches of the epoch for this worker, each with the group that it is from."""
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        plan = self._plan(self.epoch)
        order = plan.block_order()
        for group, done in list(self._position.remaining(plan, worker, workers)):
            yield from ((group, batch) for batch in self._read(plan.units_of(group, order), done))

    def _read(self, units: Array, skip: int) -> Iterator[Batch]:
        """The batches of a group, without the first `skip`."""
        size = self.batch_size
        units = units[skip * size :]
        weight: Array | None = None
        if self._sequences is None:
            ids = self.lake.commit.oldest + units
        else:
            ids, weight = self._sequences.steps(units)
        distinct, at = np.unique(ids, return_inverse=True)
        at = at.reshape(ids.shape)
        loaded = LoadedSteps(self.lake, distinct)
        in_worker = get_worker_info() is not None
        for start in range(0, len(at), size):
            part = slice(start, start + size)
            memory = _Memory(shared=in_worker)
            _, places = loaded.batch(at[part], memory.allocate, None if weight is None else weight[part])
            sent = _Sent(memory.tensor, loaded.form, places)
            yield sent if in_worker else _received(*sent.parts)  # type: ignore[misc]

    # --- position ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch delivered, and what it depends on; numbers and strings only.

        With worker processes ask the `LakeLoader`, which knows what it handed out.
        """
        return {**self._position.state_dict(), **self._settings(), "commits": commit_numbers(self.lake)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position, at the commit of the lake that it was saved with.

        The number of workers may be another one. Raises `SampleError`, and changes nothing, if the dataset
        has other settings.
        """
        new = copy.copy(self)
        new._position = EpochPosition.from_state_dict(state)
        commits = state.get("commits")
        with ExitStack() as opened:
            if commits != commit_numbers(self.lake):
                if not isinstance(commits, dict):
                    raise SampleError(f"{state!r} is not a position that state_dict() returned: no commits.")
                new.lake = open_commits(self.lake.path, commits)
                opened.callback(new.lake.close)
                new._prepare()
            settings = new._settings()
            wrong = {name: state.get(name) for name in settings if state.get(name) != settings[name]}
            if wrong:
                here = {name: settings[name] for name in wrong}
                raise SampleError(
                    f"the position was saved with {wrong}, this dataset has {here}; use the former."
                )
            weakref.finalize(self, opened.pop_all().close).atexit = False
        self.__dict__.update(new.__dict__)

    def _settings(self) -> dict[str, Any]:
        sequence = None if self._sequence is None else list(self._sequence)
        return {**self._order(), "sequence": sequence, "buffer_bytes": self._buffer_bytes}


class LakeLoader(DataLoader):
    """A `DataLoader` over a `LakeDataset`: each `for` loop is an epoch, or the rest of one.

    Workers are started for each loop. Leaving a loop early skips no batch, whatever the workers have read
    ahead.
    """

    def __init__(self, dataset: LakeDataset, num_workers: int = 0, **options: Any) -> None:
        """`options`: of `DataLoader`, such as `pin_memory`, `prefetch_factor`, `multiprocessing_context`."""
        for name in ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn"):
            if name in options:
                raise SampleError(f"LakeLoader takes no {name}: the LakeDataset makes the batches.")
        if options.get("persistent_workers"):
            raise SampleError("LakeLoader starts its workers for each epoch; leave persistent_workers out.")
        self.lake_dataset = dataset
        super().__init__(
            _Marked(dataset), batch_size=None, collate_fn=_unchanged, num_workers=num_workers, **options
        )

    def __iter__(self) -> Any:
        return self.lake_dataset.delivered(super().__iter__())

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was handed out."""
        return self.lake_dataset.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position with the next loop."""
        self.lake_dataset.load_state_dict(state)


class _Marked(IterableDataset):
    """Batches with their marks, by which the receiving process counts what was delivered."""

    def __init__(self, dataset: LakeDataset) -> None:
        super().__init__()
        self._dataset = dataset

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        return self._dataset.marked()

    def __len__(self) -> int:
        return len(self._dataset)


class LakeSteps(Dataset):
    """Single steps of a lake by position, 0 the oldest; a list of positions gives a batch.

    `DataLoader(view, batch_size=32, shuffle=True)` collates steps as usual. With `batch_size=None` and a
    `BatchSampler` as `sampler`, a batch is read at once and not copied again.
    """

    def __init__(self, lake: Lake | str | Path) -> None:
        self.lake = _opened(self, lake)

    def __len__(self) -> int:
        return len(self.lake)

    def __getitem__(self, index: int | Sequence[int] | Array) -> Batch:
        positions = np.asarray(index)
        if positions.dtype.kind not in "iu" or positions.ndim > 1:
            raise IndexError(f"a position, or a list of them, is needed, not {index!r}.")
        if positions.size and not (-len(self) <= positions.min() and positions.max() < len(self)):
            raise IndexError(f"positions are in [0, {len(self):,}), not {index!r}.")
        batch = self._batch(np.atleast_1d(positions))
        return _step(batch, 0) if positions.ndim == 0 else batch

    def __getitems__(self, indices: list[int]) -> list[Batch]:
        """Several steps, read together; called by `DataLoader`."""
        batch = self._batch(np.asarray(indices))
        return [_step(batch, i) for i in range(len(indices))]

    def _batch(self, positions: Array) -> Batch:
        ids = self.lake.commit.oldest + np.where(positions < 0, positions + len(self), positions)
        return to_torch(self.lake.steps(ids))


def _opened(owner: object, lake: Lake | str | Path) -> Lake:
    """A lake, closed together with its owner if it is opened here."""
    if isinstance(lake, Lake):
        return lake
    opened = Lake.open(lake)
    weakref.finalize(owner, opened.close).atexit = False
    return opened


# --- between processes -------------------------------------------------------------------------------


class _Memory:
    """The memory of a batch; shared: another process can map it, by one file descriptor for all arrays."""

    tensor: Any

    def __init__(self, *, shared: bool) -> None:
        self._new = torch.UntypedStorage._new_shared if shared else torch.UntypedStorage

    def allocate(self, size: int) -> Array:
        self.tensor = torch.empty(0, dtype=torch.uint8).set_(self._new(size))
        array: Array = self.tensor.numpy()
        return array


class _Sent:
    """A batch on its way to another process, where it arrives as a `Batch` of tensors."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, self.parts


def _received(tensor: Any, form: Tree, places: tuple[Place, ...]) -> Batch:
    return to_torch(views(form, tensor.numpy(), places))


def _unchanged(item: Any) -> Any:
    return item


def _step(batch: Batch, i: int) -> Batch:
    """One step of a batch."""
    return Batch(*(map_leaves(lambda leaf: leaf[i], tree) for tree in batch))


# --- sizes -------------------------------------------------------------------------------------------


def _place_in_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise SampleError(f"rank={rank} and world_size={world_size} are given together or not at all.")
    if rank is None or world_size is None:
        rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if not 0 <= rank < world_size:
        raise SampleError(f"rank must be in [0, {world_size}), the world size, but is {rank}.")
    return rank, world_size


def _sizes(lake: Lake, buffer_bytes: int, sequences: LakeSequences | None, replace: bool) -> tuple[int, int]:
    """Units of a block, and units of a group that take about `buffer_bytes`."""
    spec = lake.spec
    fields: list[Field] = [field for _, field in leaves(spec.obs)]
    window = sum(field.nbytes for field in fields)
    columns = spec.step_nbytes - 2 * window
    stored = sum(
        lake.reader.rows_count(leaf) * (field.nbytes if layout is None else layout.row_bytes)
        for leaf, (field, layout) in enumerate(zip(fields, lake.reader.layouts(), strict=True))
    )
    rows = stored / len(lake) or 2 * window  # of a step among its neighbours
    steps = 1 if sequences is None else sequences.length + sequences.burn_in
    block = max(1, BLOCK_STEPS // steps)
    unit = steps * (columns + rows) + (window if replace else window / block)
    return block, max(1, int(buffer_bytes / unit))
