"""TorchRL: collectors into a `Replay`, replay buffers over a replay or a lake, checkpoints that are lakes.

    record(replay, data)       what a collector yields becomes steps of a replay
    ReplayStorage              a storage for TorchRL's replay buffers that keeps each distinct row once
    LakeStorage, lake_buffer   a read-only storage over a lake that may be larger than memory
    LakeCheckpointer           saves the storage of an existing replay buffer as a lake, incrementally

Keys and shapes of a TensorDict are kept: see `torchrl_keys`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection
from torchrl.data import (
    ImmutableDatasetWriter,
    Storage,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase

from lakepond.adapters.torchrl_keys import Keys
from lakepond.errors import RecordError, SpecError
from lakepond.lake.read.lake import Lake
from lakepond.lake.read.loaded import LoadedSteps, views
from lakepond.replay import Replay
from lakepond.types import Array, Batch

NOTE = "torchrl"
POND_BYTES = 256 << 20
"""uncompressed steps, about, among which a checkpoint looks for rows that it has already stored"""
PIECE_BYTES = 64 << 20
"""uncompressed steps that are converted at a time"""


def spec_of(data: Any) -> Any:
    """Return the `Spec` for a TensorDict from a collector: `Replay(spec_of(data), capacity)`."""
    return Keys.of_tensordict(_flat(data)[0]).spec


def record(replay: Replay, data: Any, *, first_stream: int = 0) -> Array:
    """Record a TensorDict from a collector, (time,) or (environments, time); return the ids of the steps.

    Each environment is a stream, numbered from `first_stream`: give each of several collectors its own range.
    """
    shape = data.shape
    if len(shape) not in (1, 2):
        raise RecordError(f"a collector yields (time,) or (environments, time), not the shape {list(shape)}.")
    steps = _flat(data.transpose(0, 1) if len(shape) == 2 else data)  # time first: streams take turns
    keys = Keys.of_tensordict(steps[0])
    if keys.spec != replay.spec:
        raise SpecError(
            f"the TensorDict has steps of {keys.spec}, the replay of {replay.spec}; see spec_of(data)."
        )
    count = shape[0] if len(shape) == 2 else 1
    streams = first_stream + np.tile(np.arange(count), len(steps) // count)
    return _record(replay, keys, steps, streams)


def _record(replay: Replay, keys: Keys, steps: Any, streams: Array) -> Array:
    """Record a TensorDict with one batch dimension in pieces that fit the replay."""
    piece = max(1, min(replay.capacity, PIECE_BYTES // keys.spec.step_nbytes))
    ids = []
    for at in range(0, len(steps), piece):
        some = slice(at, at + piece)
        ids.append(np.atleast_1d(replay.record(**keys.to_steps(steps[some]), stream=streams[some])))
    return np.concatenate(ids)


def _flat(data: Any) -> Any:
    if not is_tensor_collection(data):
        raise RecordError(f"steps must be TensorDicts, not {type(data).__name__}.")
    return data.reshape(-1)


# --- storages ----------------------------------------------------------------------------------------


class _StepsStorage(Storage):
    """What storages over a replay and over a lake have in common: positions, and TensorDicts of steps."""

    def get(self, index: Any) -> Any:
        """The steps at these positions as a TensorDict of the same shape."""
        if isinstance(index, tuple) and len(index) == 1:
            index = index[0]
        if isinstance(index, slice):
            index = np.arange(len(self))[index]
        elif isinstance(index, range):
            index = np.arange(index.start, index.stop, index.step)
        elif isinstance(index, torch.Tensor):
            index = index.cpu().numpy()
        at = np.asarray(index)
        if at.dtype == np.bool_:
            at = np.flatnonzero(at)
        size = len(self)
        if at.size and (at.min() < -size or at.max() >= size):
            raise IndexError(f"positions are in [0, {size:,}), not {index!r}.")
        flat = np.where(at < 0, at + size, at).reshape(-1)
        found = self._tensordict(flat)
        return found[0] if at.ndim == 0 else found.reshape(at.shape)

    def _tensordict(self, positions: Array) -> Any:
        raise NotImplementedError

    def contains(self, item: Any) -> Any:
        """Whether positions hold a step."""
        if isinstance(item, torch.Tensor):
            return (item >= 0) & (item < len(self))
        return 0 <= item < len(self)


class _Commits(StorageCheckpointerBase):
    """Checkpointer of `ReplayStorage`: a dump commits the new steps to the lake of the storage."""

    def dumps(self, storage: Any, path: Any) -> None:
        Path(path).mkdir(exist_ok=True)
        (Path(path) / "replay.json").write_text(json.dumps(storage.commit()))

    def loads(self, storage: Any, path: Any) -> None:
        storage.load_state_dict(json.loads((Path(path) / "replay.json").read_text()))


class ReplayStorage(_StepsStorage):
    """A storage for TorchRL's replay buffers that keeps its steps in a `Replay`, each distinct row once.

    With a `path`, all steps are also stored in a lake there, and `dumps` commits the new ones. A storage
    opened on an existing lake contains its newest steps; `replay_buffer` also restores the writer's cursor.
    """

    _default_checkpointer = _Commits  # a replay buffer sets the default one

    def __init__(self, max_size: int, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(int(max_size))
        self._path = None if path is None else Path(path)
        self._keys: Keys | None = None
        self._replay: Replay | None = None
        self._recorded = self._base = 0
        if self._path is not None and (self._path / "lake.json").exists():
            self._open(None)

    @property
    def replay(self) -> Replay:
        """The replay with the steps; there is none before the first step, which determines its spec."""
        if self._replay is None:
            raise RecordError("the storage has no steps yet; extend the replay buffer first.")
        return self._replay

    def _open(self, keys: Keys | None) -> None:
        spec = None if keys is None else keys.spec
        if self._path is None:
            assert spec is not None
            self._replay = Replay(spec, self.max_size)
        else:
            self._replay = Replay.open(self._path, spec, self.max_size)
            self._recorded = self._replay.stats().recorded
            if self._recorded:
                keys = Keys.from_note(self._replay.lake().commit.note.get(NOTE), self._replay.spec)
        self._keys = keys

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Append steps; `cursor` must be where the next ones go, as a round-robin writer has it."""
        one = isinstance(cursor, int) or (isinstance(cursor, torch.Tensor) and cursor.ndim == 0)
        if isinstance(data, list | tuple) and all(map(is_tensor_collection, data)):
            data = torch.stack(list(data))
        if not is_tensor_collection(data):
            raise RecordError(f"{type(self).__name__} stores TensorDicts, not {type(data).__name__}.")
        steps = data.unsqueeze(0) if one else data
        at = np.asarray(cursor.cpu() if isinstance(cursor, torch.Tensor) else cursor).reshape(-1)
        expected = (self._recorded - self._base + np.arange(len(at))) % self.max_size
        if not np.array_equal(at, expected) or len(steps) != len(at):
            raise RecordError(
                f"a replay appends: position {expected[:1]} is next, not {at[:3]}; write with extend or add."
            )
        steps = steps.exclude("index", inplace=False)
        if self._replay is None:
            self._open(Keys.of_tensordict(steps[0]))
        assert self._keys is not None
        _record(self.replay, self._keys, steps, np.zeros(len(at), np.int64))
        self._recorded += len(at)
        if set_cursor:
            self._set_last_cursor(int(at[-1]))
        self._bump_mutation_revision()

    def _tensordict(self, positions: Array) -> Any:
        newest = self._recorded - self._base - 1
        ids = self._base + newest - (newest - positions) % self.max_size
        assert self._keys is not None
        return self._keys.to_tensordict(self.replay.steps(ids))

    def __len__(self) -> int:
        return int(min(self._recorded - self._base, self.max_size))

    @property
    def cursor(self) -> int:
        """The position of the next step."""
        return int((self._recorded - self._base) % self.max_size)

    def _empty(self) -> None:
        """Forget all steps; those in a lake stay there."""
        self._base = self._recorded
        self._bump_mutation_revision()

    def commit(self) -> dict[str, Any]:
        """Make all steps durable; returns what `state_dict` returns."""
        if self._path is None:
            raise SpecError("this storage is in memory only; create it with ReplayStorage(max_size, path).")
        assert self._keys is not None
        number = self.replay.commit({NOTE: self._keys.to_note()}).number
        return {"path": str(self._path), "commit": number, "base": self._base}

    def state_dict(self) -> dict[str, Any]:
        """The path of the lake and the commit that was made; the steps are not copied."""
        return self.commit()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the storage is open where the state was saved."""
        _check_state(self, state_dict, "base")
        if self._path is None or str(self._path) != state_dict["path"] or not self._recorded:
            raise SpecError(f"open the storage on its path: ReplayStorage(max_size, {state_dict['path']!r}).")
        self._base = state_dict["base"]
        self._bump_mutation_revision()

    def close(self) -> None:
        """Commit and close the lake."""
        if self._replay is not None:
            if self._path is not None and self._recorded:
                self.commit()
            self._replay.close()


class LakeStorage(_StepsStorage):
    """A read-only storage over a lake, or one commit of it, that may be larger than memory.

    A lake that TorchRL's adapters wrote gives back its own keys, any other one those of `Keys.of_spec`:
    "observation" or the keys of the observation's dict, "action", "next" and the names of the extras.
    """

    def __init__(self, lake: Lake | str | os.PathLike[str]) -> None:
        self.lake = lake if isinstance(lake, Lake) else Lake.open(Path(lake))
        super().__init__(len(self.lake))
        self._keys = Keys.from_note(self.lake.commit.note.get(NOTE), self.lake.spec)

    def _tensordict(self, positions: Array) -> Any:
        ids, at = np.unique(self.lake.commit.oldest + positions, return_inverse=True)
        return self._keys.to_tensordict(_steps(self.lake, ids, at.reshape(-1)))

    def __len__(self) -> int:
        return len(self.lake)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Refuse: it is read-only."""
        raise SpecError(f"{self.lake.path} is read-only here; ReplayStorage(max_size, path) writes a lake.")

    def _empty(self) -> None:
        raise SpecError(f"{self.lake.path} is read-only here; ReplayStorage(max_size, path) writes a lake.")

    def state_dict(self) -> dict[str, Any]:
        """The path and the commits of the lake."""
        return {"path": str(self.lake.path), "commits": _numbers(self.lake)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that it is the same lake at the same commits."""
        _check_state(self, state_dict, "commits")
        if state_dict["commits"] != _numbers(self.lake):
            raise SpecError(
                f"the state is of the commits {state_dict['commits']}, {self.lake.path} is open at "
                f"{_numbers(self.lake)}; pass Lake.open(path, commit=...)."
            )

    def dumps(self, path: Any) -> None:
        """Nothing to save: the lake is on disk."""

    def loads(self, path: Any) -> None:
        """Nothing to load: the lake is on disk."""


def lake_buffer(lake: Lake | str | os.PathLike[str], **options: Any) -> Any:
    """A `TensorDictReplayBuffer` that samples a lake: `lake_buffer("lakes/demo", batch_size=256)`."""
    return TensorDictReplayBuffer(
        storage=LakeStorage(lake), writer=ImmutableDatasetWriter(), collate_fn=_unchanged, **options
    )


def replay_buffer(max_size: int, path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """A `TensorDictReplayBuffer` over a `ReplayStorage`, which continues the lake at `path`, if any."""
    storage = ReplayStorage(max_size, path)
    buffer = TensorDictReplayBuffer(storage=storage, writer=_Writer(), collate_fn=_unchanged, **options)
    buffer.writer._cursor = storage.cursor
    return buffer


class _Writer(TensorDictRoundRobinWriter):
    """Stays where it is if a step is refused; TorchRL's own moves its cursor first."""

    def add(self, data: Any) -> Any:
        return self._unless_refused(super().add, data)

    def extend(self, data: Any) -> Any:
        return self._unless_refused(super().extend, data)

    def _unless_refused(self, write: Callable[[Any], Any], data: Any) -> Any:
        before = {name: getattr(self, name) for name in ("_cursor", "_write_count")}
        try:
            return write(data)
        except BaseException:
            for name, value in before.items():
                setattr(self, name, value)
            raise


def _unchanged(data: Any) -> Any:
    return data


def _check_state(storage: Any, state: dict[str, Any], key: str) -> None:
    if key not in state:
        raise SpecError(
            f"the state of a {type(storage).__name__} has a path and commits; this one has {sorted(state)}, "
            "as another class of storage saved it. Load it there and extend this buffer with its steps."
        )


def _numbers(lake: Lake) -> dict[str, int]:
    return {name: head.number for name, head in lake.heads.items()}


def _steps(lake: Lake, ids: Array, at: Array) -> Batch:
    """Steps of a lake: those at the positions `at` among sorted ids."""
    loaded = LoadedSteps(lake, ids)
    data, places = loaded.batch(at, lambda size: np.empty(size, np.uint8))
    return views(loaded.form, data, places)


# --- checkpoints -------------------------------------------------------------------------------------


class LakeCheckpointer(StorageCheckpointerBase):
    """Saves the TensorDicts of a storage as a lake: `buffer.storage.checkpointer = LakeCheckpointer()`.

    The first `dumps` to a path writes all steps, the next ones write the steps that were added since, if they
    were added with `extend` or `add`; after any other change all steps are written again. A checkpoint that
    is interrupted leaves the one before it. `loads` restores steps, order and cursor.
    """

    def __init__(self) -> None:
        super().__init__()
        self._replay: Replay | None = None
        self._saved: tuple[Any, ...] = ()
        """storage, path and revision at the last dump"""
        self._cursor = -1
        self._written: list[Array] = []
        """positions that were written since"""

    def mark_update(self, index: Any) -> None:
        """Called by TorchRL's writers with the positions that they wrote."""
        at = np.asarray(index.cpu() if isinstance(index, torch.Tensor) else index)
        ndim = self._saved[0].ndim if self._saved else 1
        self._written.append(np.unique(at[..., 0]) if ndim > 1 and at.ndim > 1 else np.atleast_1d(at))

    def dumps(self, storage: Any, path: Any) -> None:
        """Write the steps of a storage to the lake `path`/lake."""
        folder = Path(path) / "lake"
        data = _tensordict_of(storage)
        size = int(data.shape[0])
        length = len(storage) // (data[0].numel() if data.ndim > 1 else 1)
        cursor = storage._last_cursor_index
        cursor = length - 1 if cursor is None else int(cursor)
        new = self._new_positions(storage, folder, cursor, size)
        if new is None:
            new = (cursor + 1 + np.arange(length)) % length  # oldest first
        keys = Keys.of_tensordict(data[0].reshape(-1)[0] if data.ndim > 1 else data[0])
        replay = self._opened(folder, keys, size * (data[0].numel() if data.ndim > 1 else 1))
        streams = data[0].numel() if data.ndim > 1 else 1
        piece = max(1, PIECE_BYTES // (keys.spec.step_nbytes * streams))
        for at in range(0, len(new), piece):
            some = data[torch.from_numpy(new[at : at + piece])].reshape(-1)
            _record(replay, keys, some, np.tile(np.arange(streams), len(some) // streams))
        replay.commit(
            {NOTE: keys.to_note(), "length": length, "cursor": cursor, "shape": list(data.shape[1:])}
        )
        storage.attach(self)
        self._saved = (storage, folder, storage._mutation_revision)
        self._cursor, self._written = cursor, []

    def _new_positions(self, storage: Any, folder: Path, cursor: int, size: int) -> Array | None:
        """The positions written since the last dump, oldest first; None if all are to be written."""
        if not self._saved or self._saved[0] is not storage or self._saved[1] != folder:
            return None
        writes = storage._mutation_revision - self._saved[2]
        if writes != len(self._written):  # something was written past the writer
            return None
        written = np.concatenate([np.zeros(0, np.int64), *self._written])
        expected = (self._cursor + 1 + np.arange(len(written))) % size
        if not np.array_equal(written, expected):
            return None
        return written[-size:]

    def _opened(self, folder: Path, keys: Keys, most: int) -> Replay:
        if self._replay is not None and (self._saved[1] != folder or self._replay.spec != keys.spec):
            self.close()
        if self._replay is None:
            capacity = max(1, min(most, POND_BYTES // keys.spec.step_nbytes))
            self._replay = Replay.open(folder, keys.spec, capacity, max_steps=most, keep_last=2)
        return self._replay

    def loads(self, storage: Any, path: Any) -> None:
        """Read the newest checkpoint of `path` into a storage."""
        with Lake.open(Path(path) / "lake") as lake:
            note = lake.commit.note
            if NOTE not in note or "length" not in note:
                raise SpecError(f"{lake.path} was not written by LakeCheckpointer; sample it by lake_buffer.")
            keys = Keys.from_note(note[NOTE], lake.spec)
            length, cursor, shape = note["length"], note["cursor"], note["shape"]
            streams = int(np.prod(shape, dtype=np.int64))
            first = lake.commit.recorded - length * streams
            piece = max(1, PIECE_BYTES // (lake.spec.step_nbytes * streams))
            for at in range(0, length, piece):
                count = min(piece, length - at)
                ids = first + np.arange(at * streams, (at + count) * streams)
                some = keys.to_tensordict(_steps(lake, ids, np.arange(len(ids)))).reshape(count, *shape)
                if not storage.initialized:
                    storage._init(some[0])
                positions = (cursor + 1 + at + np.arange(count)) % length
                storage._storage[torch.from_numpy(positions)] = some
        storage._len = length * streams
        storage._set_last_cursor(cursor)

    def close(self) -> None:
        """Close the lake; the next dump opens it again and writes all steps."""
        if self._replay is not None:
            self._replay.close()
        self._replay, self._saved = None, ()

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts without an open lake."""
        return {**self.__dict__, "_replay": None, "_saved": (), "_written": []}


def _tensordict_of(storage: Any) -> Any:
    data = getattr(storage, "_storage", None)
    if not getattr(storage, "initialized", False) or data is None:
        raise RecordError("the storage has no steps yet; extend the replay buffer before saving it.")
    if not isinstance(data, TensorDict) and not is_tensor_collection(data):
        raise RecordError(f"LakeCheckpointer saves TensorDicts, the storage has {type(data).__name__}.")
    return data
