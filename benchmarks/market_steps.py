"""What the market workload records: a panel, sixteen agents walking over it, and their windows.

The agents take turns; their episodes of 125 steps begin staggered, so that every 128 steps in a row hold
about one episode start, the dearest step there is, as they do on average.

    agent 0   |------ 125 steps ------|------ from another random day ------|
    agent 1   ---|------ 125 steps ------|------
    agent 2   ------|------ 125 steps ------|---
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

AGENTS, EPISODE, DAYS = 16, 125, 2_500
WINDOW, ROW = 504, (108, 9)
SHAPE = (WINDOW, *ROW)
PLAIN = 2 * WINDOW * 108 * 9 * 4  # bytes of both windows
BATCH = 32

Windows = Callable[[int], Any]  # step k -> its obs and next_obs, in whatever form


class Walk(NamedTuple):
    """Who stood where: step k of the run is agent k % 16's."""

    stop: np.ndarray  # the day after the last one in obs
    truncated: np.ndarray
    action: np.ndarray  # (108, 2), the same for all: it is not what is measured


def panel() -> np.ndarray:
    """(days, 108, 9) float32: synthetic prices, nine features, NaN where they are not known."""
    from lakepond.envs import market

    rows = market.features(market.synthetic(days=DAYS, instruments=ROW[0], seed=0))
    if rows.shape != (DAYS, *ROW) or rows.dtype != np.float32:
        raise ValueError(f"the features are {rows.shape} {rows.dtype}: has lakepond.envs.market changed?")
    return np.ascontiguousarray(rows)


def walk(steps: int, seed: int = 0) -> Walk:
    """Random starts, 125 steps, again."""
    rng = np.random.default_rng(seed)
    rounds = -(-steps // AGENTS)
    stop = np.empty((rounds, AGENTS), np.int64)
    elapsed = (np.arange(rounds)[:, None] + np.arange(AGENTS) * EPISODE // AGENTS) % EPISODE
    for agent in range(AGENTS):
        day = int(rng.integers(WINDOW, DAYS - EPISODE))
        for turn in range(rounds):
            if elapsed[turn, agent] == 0:
                day = int(rng.integers(WINDOW, DAYS - EPISODE))
            stop[turn, agent] = day
            day += 1
    truncated = elapsed == EPISODE - 1
    action = rng.standard_normal((ROW[0], 2), dtype=np.float32)
    return Walk(stop.reshape(-1)[:steps], truncated.reshape(-1)[:steps], action)


def views(rows: np.ndarray, steps: Walk) -> Windows:
    """Windows as views of the panel."""

    def windows(k: int) -> tuple[np.ndarray, np.ndarray]:
        stop = int(steps.stop[k])
        return rows[stop - WINDOW : stop], rows[stop - WINDOW + 1 : stop + 1]

    return windows


def copies(rows: np.ndarray, steps: Walk, pool: np.ndarray) -> Windows:
    """Windows copied into arrays that are written over again and again, as many environments do."""
    view = views(rows, steps)

    def windows(k: int) -> np.ndarray:
        slot = pool[k % len(pool)]
        slot[0], slot[1] = view(k)
        return slot

    return windows


def references(rows: np.ndarray, steps: Walk) -> Windows:
    """Windows named, not copied."""
    import lakepond as lp

    source = lp.RowSource(rows)

    def windows(k: int) -> tuple[Any, Any]:
        stop = int(steps.stop[k])
        return lp.WindowRef(source, stop), lp.WindowRef(source, stop + 1)

    return windows


def new_replay(capacity: int, threads: int = 1) -> Any:
    """An empty replay for market steps."""
    import lakepond as lp

    spec = lp.Spec(obs=lp.Field(SHAPE, "float32"), action=lp.Field((ROW[0], 2), "float32"))
    return lp.Replay(spec, capacity, threads=threads)


def record(replay: Any, steps: Walk, start: int, stop: int, windows: Windows) -> None:
    """Steps [start, stop), one a call."""
    for k in range(start, stop):
        obs, next_obs = windows(k)
        replay.record(
            obs=obs,
            action=steps.action,
            reward=float(k),  # its own number: any mix-up shows
            next_obs=next_obs,
            terminated=False,
            truncated=bool(steps.truncated[k]),
            stream=k % AGENTS,
        )


def wrong(replay: Any, rows: np.ndarray, steps: Walk, batches: int = 4) -> int:
    """The number of transitions in `batches` batches of 32 that differ from the panel in any bit."""
    rng, view, count = np.random.default_rng(1), views(rows, steps), 0
    for _ in range(batches):
        batch = replay.sample(BATCH, rng=rng)
        for k, *got in zip(batch.reward.tolist(), batch.obs, batch.next_obs, strict=True):
            pairs = zip(got, view(int(k)), strict=True)
            count += not all(np.array_equal(a.view(np.uint32), b.view(np.uint32)) for a, b in pairs)
    return count
