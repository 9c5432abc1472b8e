"""TensorDicts into a `Replay`."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensordict import is_tensor_collection

from lakepond.adapters.torchrl.keys import Keys
from lakepond.errors import RecordError, SpecError
from lakepond.replay import Replay
from lakepond.types import Array

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
    return record_steps(replay, keys, steps, streams)


def record_steps(replay: Replay, keys: Keys, steps: Any, streams: Array) -> Array:
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
