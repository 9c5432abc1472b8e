"""Small runs with self-identifying data: a step's reward is its id, and its observation follows from it."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np

import lakepond as lp

SPEC = lp.Spec(obs=lp.Field((4, 20, 20), "uint8"), action=lp.Field((), "int64"))
SHAPE = (4, 20, 20)


@cache
def frame(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 255, SHAPE[1:], dtype=np.uint8)


def observation(n: int) -> np.ndarray:
    return np.stack([frame(n + k) for k in range(SHAPE[0])])


def record(replay: lp.Replay, start: int, stop: int) -> None:
    frames = np.stack([frame(n) for n in range(start, stop + SHAPE[0] + 1)])
    for n in range(start, stop):
        k = n - start
        replay.record(
            obs=frames[k : k + 4],
            action=n,
            reward=float(n),
            next_obs=frames[k + 1 : k + 5],
            terminated=False,
            truncated=False,
        )


def run(replay: lp.Replay, commits: int, steps: int = 40) -> None:
    """Some commits of some steps each, after the steps of the lake."""
    for _ in range(commits):
        begin = replay.stats().recorded
        record(replay, begin, begin + steps)
        replay.commit()


def agrees(batch: lp.Batch) -> None:
    for i, reward in enumerate(batch.reward):
        n = int(reward)
        assert batch.action[i] == n
        assert (batch.obs[i] == observation(n)).all()
        assert (batch.next_obs[i] == observation(n + 1)).all()


def whole(lake: lp.Lake, steps: int) -> None:
    """All steps [0, steps) are there, to the last bit."""
    assert len(lake) == steps
    lake.verify()
    for start in range(0, steps, 50):
        agrees(lake.steps(start, min(start + 50, steps)))


def environment() -> dict[str, str]:
    """For another process that imports this module."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def bytes_of(lake: Path) -> int:
    """What a lake takes: its description, commits and segments."""
    files = [lake / "lake.json", *(lake / "commits").iterdir(), *(lake / "segments").iterdir()]
    return sum(file.stat().st_size for file in files)
