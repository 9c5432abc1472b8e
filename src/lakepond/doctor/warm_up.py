"""Compile the functions of a replay ahead of time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from lakepond.doctor.check import Finding
from lakepond.formats import duration


def warm_up() -> Finding:
    """Record, sample and evict small frames, so that all compiled functions run once."""
    from lakepond.replay import Replay
    from lakepond.types import Field, RowSource, Spec, WindowRef

    began = time.perf_counter()
    step: dict[str, Any] = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}
    frames = np.arange(80 * 8 * 8, dtype=np.float32).reshape(80, 8, 8)
    source = RowSource(frames)
    replay = Replay(Spec(obs=Field((4, 8, 8), "float32")), 32, alpha=0.6)
    for t in range(4, 70):
        windows: Any = (frames[t - 4 : t], frames[t - 3 : t + 1])
        if t % 2:
            windows = (WindowRef(source, t), WindowRef(source, t + 1))
        replay.record(obs=windows[0], next_obs=windows[1], **step)
    batch = replay.sample(8, n_step=3, gamma=0.99)
    replay.update_priorities(batch.step_id, np.ones(8))
    replay.clear()
    for dtype in ("uint8", "float32", "float64"):
        for shape in ((84, 84), (4, 84, 84)):
            pixels = Replay(Spec(obs=Field(shape, dtype)), 4)
            obs = np.zeros(shape, dtype)
            pixels.record(obs=obs, next_obs=obs, **step)
            pixels.sample(1)
    took = duration(time.perf_counter() - began)
    return Finding("compiled", "pass", f"in {took}; later starts load it from disk")
