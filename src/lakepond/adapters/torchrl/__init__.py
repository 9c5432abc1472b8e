"""TorchRL: collectors into a `Replay`, replay buffers over a replay or a lake, checkpoints that are lakes.

    record(replay, data)       what a collector yields becomes steps of a replay
    ReplayStorage              a storage for TorchRL's replay buffers that keeps each distinct row once
    LakeStorage, lake_buffer   a read-only storage over a lake that may be larger than memory
    LakeCheckpointer           saves the storage of an existing replay buffer as a lake, incrementally

Keys and shapes of a TensorDict are kept: see `keys`.
"""

from lakepond.adapters.torchrl.checkpoints import LakeCheckpointer
from lakepond.adapters.torchrl.keys import record, spec_of
from lakepond.adapters.torchrl.storages import LakeStorage, ReplayStorage, lake_buffer, replay_buffer

__all__ = [
    "LakeCheckpointer",
    "LakeStorage",
    "ReplayStorage",
    "lake_buffer",
    "record",
    "replay_buffer",
    "spec_of",
]
