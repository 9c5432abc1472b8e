"""Replay buffers for reinforcement learning that store each distinct row once.

This module is the public API. Each name is imported on first use, so `import lakepond` itself is cheap.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakepond._version import __version__
from lakepond.lake import urls

if TYPE_CHECKING:
    from lakepond.cloud.garbage import gc
    from lakepond.cloud.place import Cloud
    from lakepond.cloud.status import UploadStatus
    from lakepond.errors import (
        CloudConflict,
        CloudCorrupt,
        CloudError,
        CloudNotFound,
        CloudRefused,
        CloudUnreachable,
        ForkedReplay,
        LakeConflict,
        LakeCorrupt,
        LakeError,
        LakeFull,
        LakeLocked,
        LakeNotFound,
        LakepondError,
        LakeReadOnly,
        LakeTooNew,
        RecordError,
        ReplayClosed,
        SampleError,
        SampleTimeout,
        SpecError,
        TooFewSteps,
        UnknownStream,
    )
    from lakepond.flow.cloud_to_lake import pull
    from lakepond.flow.following.lag import Lag, WriterLag
    from lakepond.flow.lake_to_cloud import push
    from lakepond.flow.mixing import Mixture, mix
    from lakepond.followed import FollowedReplay
    from lakepond.lake.format.snapshots import Snapshot
    from lakepond.lake.read.lake import Lake, LakeStats
    from lakepond.lake.repair import repair
    from lakepond.replay import Replay, fill
    from lakepond.types import Batch, Field, RowSource, Spec, Stats, WindowRef

_HOMES = {
    "lakepond.replay": ("Replay", "fill"),
    "lakepond.followed": ("FollowedReplay",),
    "lakepond.flow.following.lag": ("Lag", "WriterLag"),
    "lakepond.flow.mixing": ("Mixture", "mix"),
    "lakepond.lake.format.snapshots": ("Snapshot",),
    "lakepond.lake.read.lake": ("Lake", "LakeStats"),
    "lakepond.cloud.place": ("Cloud",),
    "lakepond.cloud.status": ("UploadStatus",),
    "lakepond.flow.lake_to_cloud": ("push",),
    "lakepond.flow.cloud_to_lake": ("pull",),
    "lakepond.cloud.garbage": ("gc",),
    "lakepond.lake.repair": ("repair",),
    "lakepond.types": ("Spec", "Field", "Batch", "Stats", "RowSource", "WindowRef"),
    "lakepond.errors": (
        "LakepondError",
        "SpecError",
        "RecordError",
        "SampleError",
        "TooFewSteps",
        "SampleTimeout",
        "UnknownStream",
        "ReplayClosed",
        "LakeError",
        "LakeNotFound",
        "LakeLocked",
        "LakeCorrupt",
        "LakeFull",
        "LakeReadOnly",
        "LakeTooNew",
        "LakeConflict",
        "ForkedReplay",
        "CloudError",
        "CloudUnreachable",
        "CloudRefused",
        "CloudNotFound",
        "CloudConflict",
        "CloudCorrupt",
    ),
}

urls.register(lambda: import_module("lakepond.flow.following.cloud_chains"))

_MOVED = ("CloudSync", "PrioritizedReplayBuffer", "ReplayBuffer")

__all__ = [
    "Replay",
    "FollowedReplay",
    "Lag",
    "WriterLag",
    "Snapshot",
    "Mixture",
    "mix",
    "Lake",
    "fill",
    "repair",
    "Cloud",
    "UploadStatus",
    "push",
    "pull",
    "gc",
    "Spec",
    "Field",
    "Batch",
    "Stats",
    "LakeStats",
    "RowSource",
    "WindowRef",
    "LakepondError",
    "SpecError",
    "RecordError",
    "SampleError",
    "TooFewSteps",
    "SampleTimeout",
    "UnknownStream",
    "ReplayClosed",
    "LakeError",
    "LakeNotFound",
    "LakeLocked",
    "LakeCorrupt",
    "LakeFull",
    "LakeTooNew",
    "LakeReadOnly",
    "LakeConflict",
    "ForkedReplay",
    "CloudError",
    "CloudUnreachable",
    "CloudRefused",
    "CloudNotFound",
    "CloudConflict",
    "CloudCorrupt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            globals()[name] = value = getattr(import_module(home), name)  # found at once from now on
            return value
    if name in _MOVED:
        warnings.warn(
            f"lakepond.{name} has moved to lakepond.adapters.trading.{name}; this name goes in version 0.3.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(import_module("lakepond.adapters.trading"), name)
    raise AttributeError(f"module 'lakepond' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
