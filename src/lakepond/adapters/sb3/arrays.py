"""SB3's (buffer_size, n_envs, ...) arrays, read from the replay when they are indexed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lakepond.errors import RecordError
from lakepond.types import Array, Field

if TYPE_CHECKING:
    from lakepond.adapters.sb3.buffer import LakepondReplayBuffer


class StoredArray:
    """One of SB3's arrays: zeros where nothing has been recorded. Flags of the newest steps can be set."""

    def __init__(self, buffer: LakepondReplayBuffer, name: str, key: str | None = None) -> None:
        self._buffer, self._name, self._key = buffer, name, key
        spec = buffer.spec
        fields = {"obs": spec.obs, "next_obs": spec.obs, "action": spec.action, "reward": spec.reward}
        field: Any = fields.get(name, Field((), "float32"))
        field = field if key is None else field[key]
        self.dtype: np.dtype[Any] = np.dtype(field.dtype)
        self.shape: tuple[int, ...] = (buffer.buffer_size, buffer.n_envs, *field.shape)
        self.ndim = len(self.shape)

    def _cells(self, index: Any) -> tuple[Array, Array, tuple[Any, ...]]:
        """The positions and environments that an index names, and what is left of it."""
        index = index if isinstance(index, tuple) else (index,)
        grid = np.arange(self.shape[0] * self.shape[1]).reshape(self.shape[:2])[index[:2]]
        return grid // self.shape[1], grid % self.shape[1], index[2:]

    def __getitem__(self, index: Any) -> Array:
        buffer = self._buffer
        if isinstance(index, tuple) and len(index) >= 2 and all(type(i) is np.ndarray for i in index[:2]):
            pos, env, rest = index[0] % self.shape[0], index[1] % self.shape[1], index[2:]
        else:
            pos, env, rest = self._cells(index)
        ids = buffer.ids_at(pos, env)
        recorded = ids < buffer.replay.recorded
        found = np.zeros((*ids.shape, *self.shape[2:]), self.dtype)
        if recorded.any():
            found[recorded] = self._read(ids[recorded])
        return found[(slice(None),) * ids.ndim + rest] if rest else found

    def _read(self, ids: Array) -> Array:
        buffer, name = self._buffer, self._name
        wanted = name if self._key is None else f"{name}[{self._key!r}]"
        batch = buffer.replay.steps(ids, exclude=buffer.all_but(wanted))
        if name == "dones":
            values = (batch.terminated | batch.truncated).astype(np.float32)
        elif name == "timeouts":
            values = (batch.truncated & buffer.handle_timeout_termination).astype(np.float32)
        else:
            values = getattr(batch, name)
            values = values if self._key is None else values[self._key]
        found: Array = values.reshape((*np.shape(ids), *self.shape[2:]))
        return found

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._name not in ("dones", "timeouts"):
            raise RecordError(f"{self._name} of a step cannot be changed once it is recorded.")
        pos, env, _ = self._cells(index)
        buffer = self._buffer
        if (pos != (buffer.pos - 1) % buffer.buffer_size).any():
            raise RecordError(f"{self._name} can be set for the newest step of each environment only.")
        for stream, flag in np.broadcast(np.atleast_1d(env), np.asarray(value, np.bool_)):
            batch = buffer.replay.recent(1, stream=int(stream))
            before = bool(batch.terminated[0]), bool(batch.truncated[0])
            if self._name == "timeouts":
                after = (False, True) if flag else (any(before), False)
            else:
                after = before if any(before) == flag else (bool(flag), False)
            if after != before:
                if any(before):
                    raise RecordError(f"{self._name} of a step that has ended cannot be changed.")
                buffer.replay.end(int(stream), terminated=after[0], truncated=after[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("an array that is read from a replay is always a copy.")
        return self[:].astype(dtype or self.dtype, copy=False)

    def __len__(self) -> int:
        return self.shape[0]
