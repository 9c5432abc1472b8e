"""Storages for TorchRL's replay buffers over a replay and over a lake."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
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
    TensorStorage,
)
from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase

from lakepond.adapters.notes import commit_numbers
from lakepond.adapters.torchrl.keys import NOTE, Keys, positions_of, record_steps
from lakepond.errors import LakeError, RecordError, SpecError
from lakepond.lake.format.link_notes import cleared_before
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk
from lakepond.replay import Replay
from lakepond.types import Array

ALONE = "_tensor"
"""the key of steps that are tensors without keys"""


class StepsStorage(TensorStorage):
    """What storages over a replay and over a lake have in common: positions, and TensorDicts of steps.

    A `TensorStorage` for TorchRL's samplers and buffers, but without tensors of its own.
    """

    def __init__(self, max_size: int) -> None:
        Storage.__init__(self, int(max_size))
        self._storage, self.initialized = None, False
        self.device = torch.device("cpu")

    _len = property(lambda self: len(self))
    _total_shape = property(lambda self: torch.Size([self.max_size]))
    __getstate__, __setstate__ = Storage.__getstate__, Storage.__setstate__

    def get(self, index: Any) -> Any:
        """The steps at these positions as a TensorDict of the same shape, or as a tensor if they were."""
        if isinstance(index, tuple) and len(index) == 1:
            index = index[0]
        if index is Ellipsis:
            index = slice(None)
        if isinstance(index, slice):
            index = range(len(self))[index]
        if isinstance(index, range):
            index = np.arange(index.start, index.stop, index.step)
        at = positions_of(index)
        if at.dtype == np.bool_:
            at = np.flatnonzero(at)
        size = len(self)
        if at.size and (at.min() < -size or at.max() >= size):
            raise IndexError(f"positions are in [0, {size:,}), not {index!r}.")
        found = self._tensordict(np.where(at < 0, at + size, at).reshape(-1))
        found = found[ALONE] if list(found.keys()) == [ALONE] else found
        return found[0] if at.ndim == 0 else found.reshape(at.shape + found.shape[1:])

    @abstractmethod
    def _tensordict(self, positions: Array) -> Any:
        """The steps at these positions."""

    def contains(self, item: Any) -> Any:
        """Whether positions hold a step."""
        if isinstance(item, torch.Tensor):
            return (item >= 0) & (item < len(self))
        return 0 <= item < len(self)


class _Commits(StorageCheckpointerBase):
    """Checkpointer of `ReplayStorage`: its state in a file, without a lake the steps beside it."""

    def dumps(self, storage: Any, path: Any) -> None:
        state = storage.state_dict()
        if "steps" in state:
            state.pop("steps").memmap(Path(path) / "steps")
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "replay.json").write_text(json.dumps(state, allow_nan=False))

    def loads(self, storage: Any, path: Any) -> None:
        state = json.loads((Path(path) / "replay.json").read_text())
        if "path" not in state:
            state["steps"] = TensorDict.load_memmap(Path(path) / "steps")
        storage.load_state_dict(state)


class ReplayStorage(StepsStorage):
    """A storage for TorchRL's replay buffers that keeps its steps in a `Replay`, each distinct row once.

    With a `path`, all steps are also stored in a lake there, and `dumps` commits the new ones. A storage
    opened on an existing lake contains its newest steps; `replay_buffer` also restores the writer's cursor.
    """

    _default_checkpointer = _Commits  # a replay buffer sets the default one

    def __init__(self, max_size: int, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(int(max_size))
        self._path = None if path is None else on_disk(path)
        self._keys: Keys | None = None
        self._replay: Replay | None = None
        self._base = 0
        """the step at position 0 of the first round: the one after the last that was cleared"""
        if self._path is not None and any((self._path / "commits").glob("*.json")):
            self._open(None)

    @property
    def _recorded(self) -> int:
        return 0 if self._replay is None else self._replay.recorded

    @property
    def replay(self) -> Replay:
        """The replay with the steps; there is none before the first step, which determines its spec."""
        if self._replay is None:
            raise RecordError("the storage has no steps yet; extend the replay buffer first.")
        return self._replay

    def _open(self, keys: Keys | None, commit: int | None = None) -> None:
        """Open the replay with the keys of the first step, or the lake, at its newest commit or another."""
        spec = None if keys is None else keys.spec
        if self._path is None:
            assert spec is not None
            self._replay = Replay(spec, self.max_size)
        else:
            self._replay = Replay.open(self._path, spec, self.max_size, commit=commit)
            if keys is None or self._recorded:
                with self._replay.lake(commit) as lake:
                    keys, self._base = Keys.of_lake(lake), cleared_before(lake.commit)
        self._keys, self.initialized = keys, True
        if self._path is not None and spec is not None and not self._recorded:
            self.commit()  # the keys, before the first automatic commit, which has no note

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Append steps; `cursor` must be where the next ones go, as a round-robin writer has it."""
        at = positions_of(cursor)
        one, at = at.ndim == 0, at.reshape(-1)
        if isinstance(data, list | tuple) and all(isinstance(d, torch.Tensor | TensorDict) for d in data):
            data = torch.stack(list(data))
        if isinstance(data, torch.Tensor):
            data = TensorDict({ALONE: data}, data.shape[: 0 if one else 1])
        if not is_tensor_collection(data):
            raise RecordError(
                f"{type(self).__name__} stores tensors and TensorDicts, not {type(data).__name__}."
            )
        steps = data.unsqueeze(0) if one else data
        expected = (self._recorded - self._base + np.arange(len(at))) % self.max_size
        if not np.array_equal(at, expected) or len(steps) != len(at):
            raise RecordError(
                f"a replay appends: position {expected[:1]} is next, not {at[:3]}; write with extend or add."
            )
        if not len(at):
            return
        steps = steps.exclude("index", inplace=False)
        self._append(steps)
        if set_cursor:
            self._set_last_cursor(int(at[-1]))
        self._bump_mutation_revision()

    def _append(self, steps: Any) -> None:
        """Record steps with one batch dimension."""
        if self._replay is None:
            self._open(Keys.of_tensordict(steps[0]))
        assert self._keys is not None
        record_steps(self.replay, self._keys, steps, np.zeros(len(steps), np.int64))

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
        if self._replay is not None:
            self._replay.clear()
        self._base = self._recorded
        self._bump_mutation_revision()

    def commit(self) -> dict[str, Any]:
        """Make all steps durable; returns what `state_dict` returns."""
        if self._path is None:
            raise LakeError("this storage is in memory only; create it with ReplayStorage(max_size, path).")
        assert self._keys is not None
        number = self.replay.commit({NOTE: self._keys.to_note()}).number
        return {"path": str(self._path), "commit": number, "base": self._base}

    def state_dict(self) -> dict[str, Any]:
        """With a lake its path and the commit that was made, without one a copy of the steps."""
        if self._path is not None:
            return self.commit()
        oldest_first = (self.cursor if self._is_full else 0) + np.arange(len(self))
        steps = self._tensordict(oldest_first % self.max_size) if len(self) else TensorDict({}, [0])
        return {"steps": steps, "written": self._recorded - self._base, "max_size": self.max_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Return to a state: to that commit of the lake, or to a copy of those steps."""
        if self._path is None:
            _check_state(self, state_dict, "steps")
            if state_dict["max_size"] != self.max_size:
                raise SpecError(
                    f"the state is of max_size={state_dict['max_size']}, this storage has {self.max_size}."
                )
            if len(state_dict["steps"]):
                self._append(state_dict["steps"])
            self._base = self._recorded - state_dict["written"]
        else:
            _check_state(self, state_dict, "commit")
            if self._path.resolve() != Path(state_dict["path"]).resolve():
                raise SpecError(
                    f"the state is of the lake {state_dict['path']}, this storage is on {self._path}."
                )
            if self._replay is not None and self.commit()["commit"] != state_dict["commit"]:
                self._replay.close()
                self._replay = None
            if self._replay is None:
                self._open(None, state_dict["commit"])
            self._base = state_dict["base"]
        self._bump_mutation_revision()

    def close(self) -> None:
        """Commit and close the lake."""
        if self._replay is not None:
            if self._path is not None and self._recorded:
                self.commit()
            self._replay.close()


class LakeStorage(StepsStorage):
    """A read-only storage over a lake, or one commit of it, that may be larger than memory.

    A lake that TorchRL's adapters wrote gives back its own keys, any other one those of `Keys.of_spec`:
    "observation" or the keys of the observation's dict, "action", "next" and the names of the extras.
    """

    def __init__(self, lake: Lake | str | os.PathLike[str]) -> None:
        self.lake = lake if isinstance(lake, Lake) else Lake.open(os.fspath(lake))
        super().__init__(len(self.lake))
        self.initialized = True
        self._keys = Keys.of_lake(self.lake)

    def _tensordict(self, positions: Array) -> Any:
        return self._keys.to_tensordict(self.lake.steps(self.lake.commit.oldest + positions))

    def __len__(self) -> int:
        return len(self.lake)

    def set(self, *_: Any, **__: Any) -> None:
        """Refuse: it is read-only."""
        raise SpecError(f"{self.lake.path} is read-only here; ReplayStorage(max_size, path) writes a lake.")

    _empty = set

    def state_dict(self) -> dict[str, Any]:
        """The path and the commits of the lake."""
        return {"path": str(self.lake.path), "commits": commit_numbers(self.lake)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that it is the same lake at the same commits."""
        _check_state(self, state_dict, "commits")
        if state_dict["commits"] != commit_numbers(self.lake):
            raise SpecError(
                f"the state is of the commits {state_dict['commits']}, {self.lake.path} is open at "
                f"{commit_numbers(self.lake)}; pass Lake.open(path, commit=...)."
            )

    def dumps(self, path: Any) -> None:
        """Nothing to save: the lake is on disk."""

    def loads(self, path: Any) -> None:
        """Nothing to load: the lake is on disk."""


def lake_buffer(lake: Lake | str | os.PathLike[str], **options: Any) -> Any:
    """A `TensorDictReplayBuffer` that samples a lake: `lake_buffer("lakes/demo", batch_size=256)`."""
    return TensorDictReplayBuffer(storage=LakeStorage(lake), writer=ImmutableDatasetWriter(), **options)


def replay_buffer(max_size: int, path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """A `TensorDictReplayBuffer` over a `ReplayStorage`, which continues the lake at `path`, if any."""
    storage = ReplayStorage(max_size, path)
    buffer = TensorDictReplayBuffer(storage=storage, writer=_Writer(), **options)
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


def _check_state(storage: Any, state: dict[str, Any], key: str) -> None:
    if key not in state:
        raise SpecError(
            f"the state of this {type(storage).__name__} needs {key!r}, but has {sorted(state)}: another "
            "kind of storage saved it. Load it there and extend this buffer with its steps."
        )
