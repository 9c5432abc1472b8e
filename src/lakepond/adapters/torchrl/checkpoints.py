"""Checkpoints of TorchRL's own storages, as lakes."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import is_tensor_collection
from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase

from lakepond.adapters.notes import newest_noted
from lakepond.adapters.torchrl.keys import NOTE, PIECE_BYTES, Keys, positions_of, record_steps
from lakepond.errors import LakepondError, RecordError, SpecError
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk
from lakepond.replay import Replay
from lakepond.types import Array

POND_BYTES = 256 << 20
"""uncompressed steps, about, among which a checkpoint looks for rows that it has already stored"""

LENGTH = "length"
"""the key of the commit notes that complete a dump"""


class LakeCheckpointer(StorageCheckpointerBase):
    """Saves the TensorDicts of a storage as a lake: `buffer.storage.checkpointer = LakeCheckpointer()`.

    The first `dumps` to a path writes all steps, the next ones write the steps that were added since, if they
    were added with `extend` or `add`; after any other change all steps are written again. A checkpoint that
    is interrupted or fails leaves the one before it; after a failure all steps are written again. `loads`
    restores steps, order and cursor.
    """

    def __init__(self) -> None:
        super().__init__()
        self._replay: Replay | None = None
        self._saved: tuple[Any, ...] = ()
        """storage, path, revision and positions at the last dump"""
        self._cursor = -1
        self._writes = 0
        self._added: int | None = 0
        """positions that were written since, in order; None if they were not"""

    def mark_update(self, index: Any) -> None:
        """Called by TorchRL's writers with the positions that they wrote."""
        if not self._saved:
            return
        at = positions_of(index)
        several = self._saved[0].ndim > 1 and at.ndim > 1
        at = np.unique(at[..., 0]) if several else np.atleast_1d(at)
        self._writes += 1
        if self._added is not None:
            expected = (self._cursor + 1 + self._added + np.arange(len(at))) % self._saved[3]
            self._added = self._added + len(at) if np.array_equal(at, expected) else None

    def dumps(self, storage: Any, path: Any) -> None:
        """Write the steps of a storage to the lake `path`/lake."""
        folder = on_disk(path) / "lake"
        data = _tensordict_of(storage)
        size = int(data.shape[0])
        streams = data[0].numel() if data.ndim > 1 else 1
        length = len(storage) // streams
        cursor = storage._last_cursor_index
        cursor = length - 1 if cursor is None else int(cursor)
        new = self._new_positions(storage, folder, size)
        if new is None:
            new = (cursor + 1 + np.arange(length)) % length  # oldest first
        keys = Keys.of_tensordict(data[0].reshape(-1)[0] if data.ndim > 1 else data[0])
        piece = max(1, PIECE_BYTES // (keys.spec.step_nbytes * streams))
        with ExitStack() as stack:
            with suppress(LakepondError):  # there is none yet
                stack.enter_context(_newest_checkpoint(folder))  # retention keeps a commit while it is open
            try:
                replay = self._opened(folder, keys, size * streams)
                for at in range(0, len(new), piece):
                    some = data[torch.from_numpy(new[at : at + piece])].reshape(-1)
                    record_steps(replay, keys, some, np.tile(np.arange(streams), len(some) // streams))
                note = {NOTE: keys.to_note(), LENGTH: length, "cursor": cursor, "shape": list(data.shape[1:])}
                replay.commit(note)
            except BaseException:
                self.close(discard=True)  # some steps may be in the lake: the next dump must write all
                raise
        storage.attach(self)
        self._saved = (storage, folder, storage._mutation_revision, size)
        self._cursor, self._writes, self._added = cursor, 0, 0

    def _new_positions(self, storage: Any, folder: Path, size: int) -> Array | None:
        """The positions written since the last dump, oldest first; None if all are to be written."""
        if self._added is None or not self._saved or self._saved[0] is not storage:
            return None
        by_others = storage._mutation_revision - self._writes  # unless it is the revision that was saved
        if self._saved[1:] != (folder, by_others, size):
            return None
        count = min(self._added, size)
        positions: Array = (self._cursor + 1 + self._added - count + np.arange(count)) % size
        return positions

    def _opened(self, folder: Path, keys: Keys, most: int) -> Replay:
        if self._replay is not None and (self._saved[1] != folder or self._replay.spec != keys.spec):
            self.close()
        if self._replay is None:
            capacity = max(1, min(most, POND_BYTES // keys.spec.step_nbytes))
            self._replay = Replay.open(folder, keys.spec, capacity, max_steps=most, keep_last=2)
        return self._replay

    def loads(self, storage: Any, path: Any) -> None:
        """Read the newest checkpoint of `path` into a storage."""
        with _newest_checkpoint(on_disk(path) / "lake") as lake:
            note = lake.commit.note
            keys = Keys.from_note(note[NOTE], lake.spec)
            length, cursor, shape = note[LENGTH], note["cursor"], note["shape"]
            streams = int(np.prod(shape, dtype=np.int64))
            first = lake.commit.recorded - length * streams
            piece = max(1, PIECE_BYTES // (lake.spec.step_nbytes * streams))
            for at in range(0, length, piece):
                count = min(piece, length - at)
                ids = first + np.arange(at * streams, (at + count) * streams)
                some = keys.to_tensordict(lake.steps(ids)).reshape(count, *shape)
                if not storage.initialized:
                    storage._init(some[0])
                positions = (cursor + 1 + at + np.arange(count)) % length
                storage._storage[torch.from_numpy(positions)] = some
        storage._len = length * streams
        storage._set_last_cursor(cursor)

    def close(self, *, discard: bool = False) -> None:
        """Close the lake; the next dump opens it again and writes all steps.

        discard: drop steps that are not committed.
        """
        if self._replay is not None:
            self._replay.close(discard=discard)
        self._replay, self._saved = None, ()

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts without an open lake."""
        return {**self.__dict__, "_replay": None, "_saved": ()}


def _newest_checkpoint(folder: Path) -> Lake:
    """The lake at the newest commit that completed a dump; a large dump makes other commits before it."""
    with Lake.open(folder) as lake:
        commit = newest_noted(lake, LENGTH)
        if commit is None:
            raise SpecError(f"{lake.path} was not written by LakeCheckpointer; sample it by lake_buffer.")
        return Lake.open(folder, commit.number)


def _tensordict_of(storage: Any) -> Any:
    data = getattr(storage, "_storage", None)
    if not getattr(storage, "initialized", False) or data is None:
        raise RecordError("the storage has no steps yet; extend the replay buffer before saving it.")
    if not is_tensor_collection(data):
        raise RecordError(f"LakeCheckpointer saves TensorDicts, the storage has {type(data).__name__}.")
    return data
