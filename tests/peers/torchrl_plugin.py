"""A plugin for pytest that puts lakepond's checkpointer in the place of TorchRL's three."""

import sys

import gymnasium
import torchrl.data
from torchrl.data.replay_buffers import checkpointers

from lakepond.adapters.torchrl import LakeCheckpointer

sys.modules.setdefault("gym", gymnasium)  # the tests are skipped without a package of that name

for name in ("FlatStorageCheckpointer", "NestedStorageCheckpointer", "H5StorageCheckpointer"):
    for module in (torchrl.data, torchrl.data.replay_buffers, checkpointers):
        if hasattr(module, name):
            setattr(module, name, LakeCheckpointer)
