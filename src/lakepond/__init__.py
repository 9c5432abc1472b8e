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
        LakeNotAFolder,
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
    from lakepond.replay import Replay
    from lakepond.types import Batch, Field, RowSource, Spec, Stats, WindowRef

_HOMES = {
    "Replay": "replay",
    "FollowedReplay": "followed",
    "Lag": "flow.following.lag",
    "WriterLag": "flow.following.lag",
    "Mixture": "flow.mixing",
    "mix": "flow.mixing",
    "Snapshot": "lake.format.snapshots",
    "Lake": "lake.read.lake",
    "LakeStats": "lake.read.lake",
    "Cloud": "cloud.place",
    "UploadStatus": "cloud.status",
    "push": "flow.lake_to_cloud",
    "pull": "flow.cloud_to_lake",
    "gc": "cloud.garbage",
    "repair": "lake.repair",
    **dict.fromkeys(("Spec", "Field", "Batch", "Stats", "RowSource", "WindowRef"), "types"),
}
"""the module of each name below lakepond; all others are in `errors`"""

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
    "LakeNotAFolder",
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
    if name in __all__:
        home = import_module(f"lakepond.{_HOMES.get(name, 'errors')}")
        globals()[name] = value = getattr(home, name)  # later uses do not call this function
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
