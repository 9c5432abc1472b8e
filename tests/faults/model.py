"""The perfect model: steps that identify themselves, and what must hold after any fault.

Step n has the reward n, the action n and frames n..n+4, so a step in the wrong place, or one that was never
recorded, is found at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import lakepond as lp
from lakepond.lake.writers import home

SPEC = lp.Spec(obs=lp.Field((4, 9, 8), "uint8"), action=lp.Field((), "int64"))
"""an observation has more than 256 bytes, so that it is stored as rows"""
_FRAMES = np.random.default_rng(13).integers(0, 255, (20_000, 9, 8), dtype=np.uint8)
_SOURCE = lp.RowSource(_FRAMES[:90])
_STACKS = np.lib.stride_tricks.sliding_window_view(_FRAMES, 4, axis=0).transpose(0, 3, 1, 2)

logging.getLogger("lakepond").addHandler(logging.NullHandler())  # a drill expects warnings


def record(replay: lp.Replay, start: int, stop: int, *, by_reference: bool = False) -> None:
    """Record the steps [start, stop), as arrays or as windows of a source."""
    if stop > start:
        ids = np.arange(start, stop)
        replay.record(
            obs=lp.WindowRef(_SOURCE, ids + 4) if by_reference else _STACKS[start:stop],
            action=ids,
            reward=ids.astype(np.float32),
            next_obs=lp.WindowRef(_SOURCE, ids + 5) if by_reference else _STACKS[start + 1 : stop + 1],
            terminated=ids % 7 == 6,
            truncated=np.zeros(len(ids), bool),
            stream=0,
        )


def check_batch(batch: lp.Batch, ids: Iterable[int]) -> None:
    """The batch is these steps, to the last bit."""
    wanted = np.fromiter(ids, np.int64)
    assert batch.reward.tolist() == wanted.tolist(), (
        f"rewards {batch.reward.tolist()[:5]}..., not {wanted[:5]}"
    )
    assert (batch.action == wanted).all(), "actions differ"
    assert (batch.obs == _STACKS[wanted]).all(), "observations differ"
    assert (batch.next_obs == _STACKS[wanted + 1]).all(), "next observations differ"
    assert (batch.terminated == (wanted % 7 == 6)).all(), "episode ends differ"


def check_lake(lake: lp.Lake) -> None:
    """Every byte verifies and every live step is the one that was recorded."""
    lake.verify()
    oldest, recorded = lake.commit.oldest, lake.commit.recorded
    check_batch(lake.steps(oldest, recorded), range(oldest, recorded))


def check_and_continue(
    path: Path,
    acknowledged: int | None,
    handed_over: int,
    *,
    writer: str = "",
    capacity: int = 30,
    by_reference: bool = False,
    **how: Any,
) -> None:
    """Reopen a lake, verify it against the model, record and commit more, reopen and verify again.

    `acknowledged`: steps whose commit was reported as durable, None if not even the lake was; `handed_over`:
    steps that had been recorded. `how` is given to `Replay.open`.
    """
    recorded = 0
    if acknowledged is not None or _has_commit(path, writer):
        with lp.Lake.open(path, writer=writer) as lake:
            recorded = lake.commit.recorded
            low = acknowledged or 0
            assert low <= recorded <= handed_over, (
                f"{recorded} steps; {low} acknowledged, {handed_over} given"
            )
            check_lake(lake)
            numbers = lake.commits()
        for number in numbers:
            with lp.Lake.open(path, number, writer=writer) as lake:
                check_lake(lake)
    with lp.Replay.open(path, SPEC, capacity=capacity, writer=writer, **how) as replay:
        assert replay.stats().recorded == recorded
        if recorded:
            check_batch(replay.recent(len(replay)), range(recorded - len(replay), recorded))
        record(replay, recorded, recorded + 5, by_reference=by_reference)
        assert replay.commit().recorded == recorded + 5
        record(replay, recorded + 5, recorded + 9, by_reference=by_reference)
    with lp.Lake.open(path, writer=writer) as lake:
        assert lake.commit.recorded == recorded + 9
        check_lake(lake)
    own = home(path, writer)
    left = [file.name for folder in (own / "commits", own / "segments") for file in folder.glob("*.aside")]
    assert not left, f"temporary files are left: {left}"


def _has_commit(path: Path, writer: str) -> bool:
    """Whether the lake opens; that it is not there, or has no commit yet, is the only other answer."""
    try:
        lp.Lake.open(path, writer=writer).close()
    except lp.LakeNotFound:
        return False
    return True
