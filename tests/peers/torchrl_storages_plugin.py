"""A plugin for pytest that puts lakepond's storages in the place of two of TorchRL's.

`LazyTensorStorage` is `ReplayStorage` in memory. `LazyMemmapStorage` is `ReplayStorage` with a lake, and what
is read from it is read from the lake by `LakeStorage`.
"""

import tempfile
from pathlib import Path

import torchrl.data
from torchrl.data.replay_buffers import storages

from lakepond.adapters import torchrl as ours


class Tensors:
    """Some tests read the tensors of a storage past it, by `_storage`; here they are read by the storage."""

    def __init__(self, storage):
        self._of = storage

    def __getitem__(self, index):
        return self._of[:][index] if isinstance(index, str | tuple) else self._of[index]

    def get(self, key, default=None):
        """The tensor of one key."""
        return self._of[:].get(key, default)


ours.ReplayStorage._storage = property(Tensors, lambda storage, tensors: None)


class ReplayStorage(ours.ReplayStorage):
    """A storage in memory; there is one device on the machine of these tests."""

    def __init__(self, max_size, *, device="cpu", ndim=1):
        assert ndim == 1, "ndim"
        super().__init__(max_size)


class LakeReplayStorage(ours.ReplayStorage):
    """A storage with a lake in a folder, from which it is read by `LakeStorage`."""

    def __init__(self, max_size, *, scratch_dir=None, device="cpu", ndim=1):
        assert ndim == 1, "ndim"
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        super().__init__(max_size, Path(scratch_dir or self._folder.name) / "lake")

    def _tensordict(self, positions):
        self.commit()
        newest = self._recorded - self._base - 1
        ids = self._base + newest - (newest - positions) % self.max_size
        lake = ours.LakeStorage(self._path)
        try:
            return lake._tensordict(ids - lake.lake.commit.oldest)
        finally:
            lake.lake.close()


for name, ours_class in {
    "LazyTensorStorage": ReplayStorage,
    "LazyMemmapStorage": LakeReplayStorage,
}.items():
    for module in (torchrl.data, torchrl.data.replay_buffers, storages):
        setattr(module, name, ours_class)
