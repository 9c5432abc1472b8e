"""Ctrl-C at any moment of recording: a step is there whole, or not at all, and everything goes on."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import lakepond as lp
from lakepond.rows.memory import Slab

sys.path.insert(0, str(Path(__file__).parents[1] / "lake"))
from test_lake import agrees, spec_of, step_of

WORLD = "dict and tuple"


class Interrupt:
    """Raises KeyboardInterrupt before the n-th line of the pond or the rows that is run, like a signal."""

    def __init__(self, line: int) -> None:
        self.left, self.raised = line, False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if "/lakepond/pond/" not in name and "/lakepond/rows/" not in name:
            return None
        if event == "line" and not self.raised:
            self.left -= 1
            if self.left < 0:
                self.raised = True
                raise KeyboardInterrupt
        return self


def checked(replay: lp.Replay) -> lp.Batch:
    """All steps held, after a look at each and at the books."""
    for leaf in replay._pond.leaves:
        if leaf.store is not None:
            leaf.store.check()
    batch = replay.recent(len(replay))
    for i in range(len(replay)):
        agrees(batch, i, WORLD)
    return batch


@pytest.mark.parametrize("full", [False, True])
def test_an_interrupted_record_is_whole_or_not_there(full):
    """Every line in turn."""
    replay = lp.Replay(spec_of(WORLD), 12, alpha=0.6)
    n = 0
    for _ in range(30 if full else 5):  # laid out in rows, and round the ring
        replay.record(**step_of(WORLD, n))
        n += 1
    whole = 0
    for line in range(400):
        interrupt = Interrupt(line)
        before = replay.stats().recorded
        sys.settrace(interrupt)
        try:
            replay.record(**step_of(WORLD, n))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if replay.stats().recorded == before:
            assert interrupt.raised
            replay.record(**step_of(WORLD, n))
        else:
            whole += interrupt.raised
        n += 1
        assert replay.stats().recorded == n
        if not interrupt.raised:
            break
        batch = checked(replay)
        pond = replay._pond
        ahead = pond.links.ahead[pond.places(batch.step_id)]
        assert set(ahead.tolist()) <= {0, 3, -3}  # each step links to the next one of its stream
        assert (ahead[:-3] != 0).all()
        assert replay._pond.priorities.total() == pytest.approx(len(replay))
    else:
        pytest.fail("there are more lines than that")
    assert whole > 2
    assert n > 30
    sample = replay.sample(8, rng=np.random.default_rng(0), n_step=2, gamma=0.9)
    assert len(sample.reward) == 8


def test_an_interrupted_growth_leaves_a_replay_that_goes_on(monkeypatch):
    """Every line in turn; then a step that would have fit without it. The rows move each time."""

    def move(slab: Slab, slots: int) -> None:
        before, slab._rows = slab._map or b"", None
        slab._map = mmap.mmap(-1, slots * slab.row_bytes)
        kept = min(len(before), len(slab._map))
        slab._map[:kept] = before[:kept]

    monkeypatch.setattr(Slab, "grow", move)
    spec = lp.Spec(obs=lp.Field((1 << 17,), "uint8", rows=None))
    for line in range(400):
        replay = lp.Replay(spec, 200)

        def record(first: int, count: int, replay: lp.Replay = replay) -> None:
            obs = np.repeat(np.arange(first, first + count + 1, dtype=np.uint8)[:, np.newaxis], 1 << 17, 1)
            zeros, flags = np.zeros(count, np.int64), np.zeros(count, bool)
            replay.record(
                obs=obs[:-1],
                next_obs=obs[1:],
                action=zeros,
                reward=zeros,
                terminated=flags,
                truncated=flags,
                stream=0,
            )

        record(0, 20)  # leaves room for some more
        interrupt = Interrupt(line)
        sys.settrace(interrupt)
        try:
            record(20, 40)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        done = replay.stats().recorded
        assert done in (20, 60)
        (store,) = [leaf.store for leaf in replay._pond.leaves]
        assert store.counter("address") in (0, store.slab.address)
        record(done, 0)  # tells how much room there is, and must not tell of rows that are nowhere
        record(done, 1)
        record(done + 1, 70)
        store.check()
        assert (replay.recent(done + 71).obs[:, ::1024] == np.arange(done + 71)[:, np.newaxis]).all()
        if not interrupt.raised:
            return
    pytest.fail("there are more lines than that")


def test_an_interrupted_change_of_layout_leaves_the_one_before():
    """Every line in turn of the step that tells the row axis; then one that tells nothing."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (24, 24, 5), dtype=np.uint8)
    pair = rng.integers(0, 256, (2, 24, 24, 4), dtype=np.uint8)
    flat = np.zeros((24, 24, 4), np.uint8)
    rest = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}
    for line in range(1_000):
        replay = lp.Replay(lp.Spec(obs=lp.Field((24, 24, 4), "uint8")), 100)
        replay.record(obs=flat, next_obs=flat, **rest)
        interrupt = Interrupt(line)
        sys.settrace(interrupt)
        try:
            replay.record(obs=frames[..., :4], next_obs=frames[..., 1:], **rest)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        replay.record(obs=pair[0], next_obs=pair[1], **rest)
        newest, oldest = replay.recent(1), replay.recent(len(replay))
        assert np.array_equal(newest.obs[0], pair[0])
        assert np.array_equal(newest.next_obs[0], pair[1])
        assert not oldest.obs[0].any()
        if not interrupt.raised:
            return
    pytest.fail("there are more lines than that")


def test_an_interrupted_clear_forgets_all_or_nothing():
    """Every line in turn."""
    for line in range(400):
        replay = lp.Replay(spec_of(WORLD), 12, alpha=0.6)
        for n in range(20):
            replay.record(**step_of(WORLD, n))
        interrupt = Interrupt(line)
        sys.settrace(interrupt)
        try:
            replay.clear()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert len(replay) in (0, 12)
        held = replay._pond.streams
        assert held == ([] if len(replay) == 0 else [0, 1, 2])
        for n in range(20, 26):
            replay.record(**step_of(WORLD, n))
        checked(replay)
        if not interrupt.raised:
            assert len(replay) == 6
            return
    pytest.fail("there are more lines than that")
