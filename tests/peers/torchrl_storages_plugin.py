"""A plugin for pytest that puts lakepond's storages in the place of two of TorchRL's.

`LazyTensorStorage` is `ReplayStorage` in memory. `LazyMemmapStorage` is `ReplayStorage` with a lake, and what
is read from it is read from the lake by `LakeStorage`.
"""

import tempfile
from pathlib import Path

import torchrl.data
from torchrl.data.replay_buffers import storages
from torchrl.data.replay_buffers.replay_buffers import base, ensemble

from lakepond.adapters import torchrl as ours

# Some tests read the tensors of a storage past it, by `_storage`; here they are read by the storage.
ours.ReplayStorage._storage = property(lambda storage: storage)


class ReplayStorage(ours.ReplayStorage):
    """A storage in memory; there is one device on the machine of these tests."""

    def __init__(self, max_size, *, device="cpu"):
        super().__init__(max_size)


class LakeReplayStorage(ours.ReplayStorage):
    """A storage with a lake in a folder, from which it is read by `LakeStorage`."""

    def __init__(self, max_size, *, scratch_dir=None, device="cpu"):
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

theirs = base._get_default_collate


def collate_for(storage, **options):
    """What `lake_buffer` and `replay_buffer` pass; TorchRL has no default for storages it does not know."""
    return ours._unchanged if isinstance(storage, ours._StepsStorage) else theirs(storage, **options)


base._get_default_collate = ensemble._get_default_collate = collate_for
