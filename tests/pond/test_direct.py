"""The fast path for small observations stores what the ordinary path stores, or declines."""

import contextlib
import sys

import numpy as np
import pytest

import lakepond as lp
from lakepond.pond.direct import DirectAppend

OBS, ACTION = lp.Field((3,), "float32"), lp.Field((2,), "float32")
FAST = lp.Spec(obs=OBS, action=ACTION)
ORDINARY = lp.Spec(
    obs=OBS, action=ACTION, extras={"unused": lp.Field((), "int8")}
)  # extras decline the fast path


def twins(capacity: int) -> tuple[lp.Replay, lp.Replay]:
    fast, ordinary = lp.Replay(FAST, capacity), lp.Replay(ORDINARY, capacity)
    assert isinstance(fast._direct, DirectAppend)
    assert ordinary._direct is None
    return fast, ordinary


def values(rng: np.random.Generator, n: int | None, number: int) -> dict:
    """Steps whose rewards are their numbers; each continues the one before, so that n-step returns see it."""
    lead = () if n is None else (n,)
    return {
        "obs": np.full((*lead, 3), number // 8, np.float32),
        "next_obs": np.full((*lead, 3), number // 8 + 1, np.float32),
        "action": rng.random((*lead, 2), np.float32),
        "reward": float(number) if n is None else number + np.arange(n, dtype=np.float64),
        "terminated": bool(rng.random() < 0.1) if n is None else rng.random(n) < 0.1,
        "truncated": False if n is None else np.zeros(n, bool),
    }


def same(one: lp.Batch, other: lp.Batch) -> None:
    for name in (
        "obs",
        "next_obs",
        "action",
        "reward",
        "terminated",
        "truncated",
        "step_id",
        "stream",
        "num_steps",
    ):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("seed", range(8))
def test_both_paths_store_the_same(seed):
    """Single steps and batches, with and without streams, in any order, over the end of the ring."""
    rng = np.random.default_rng(seed)
    fast, ordinary = twins(100)
    number = 0
    streams = np.arange(8)
    for _ in range(150):
        kind = rng.integers(5)
        n = None if kind < 2 else 8 if kind < 4 else int(rng.integers(1, 20))
        stream = [None, int(rng.integers(500)), None, streams, np.arange(n or 1)][kind]
        for _ in range(int(rng.integers(1, 6))):
            step = values(rng, n, number)
            assert np.array_equal(
                fast.record(**step, stream=stream),
                ordinary.record(**step, stream=stream, unused=0 if n is None else np.zeros(n, np.int8)),
            )
            number += 1 if n is None else n
        if stream is streams:
            streams += int(rng.integers(3))  # the caller's own array
        if rng.random() < 0.2:
            fast.cut(3)
            ordinary.cut(3)
        if rng.random() < 0.3:
            same(fast.recent(len(fast)), ordinary.recent(len(ordinary)))
    held = np.arange(fast.oldest, fast.recorded)
    same(fast.steps(held, n_step=3, gamma=0.9), ordinary.steps(held, n_step=3, gamma=0.9))


@pytest.mark.parametrize(
    "wrong",
    [
        {"obs": np.zeros(3)},
        {"obs": np.zeros((1, 4), np.float32)},
        {"next_obs": np.zeros(2, np.float32)},
        {"action": np.zeros(3, np.float32)},
        {"reward": "many"},
        {"terminated": 2},
        {"stream": -1},
        {"stream": 1.5},
    ],
)
def test_what_the_fast_path_declines_is_refused_and_changes_nothing(wrong):
    replay = lp.Replay(FAST, 10)
    good = values(np.random.default_rng(0), None, 0)
    for _ in range(12):
        replay.record(**good)
    with pytest.raises(lp.RecordError):
        replay.record(**(good | wrong))
    assert replay.recorded == 12
    assert (replay.recent(10).reward == 0).all()


def test_float64_actions_are_cast_as_the_ordinary_path_does():
    replay = lp.Replay(FAST, 10)
    replay.record(**(values(np.random.default_rng(0), None, 0) | {"action": np.array([0.1, 0.2])}))
    assert replay.recent(1).action.tolist() == np.array([[0.1, 0.2]], np.float32).tolist()


@pytest.mark.parametrize("n", [None, 4])
def test_an_interrupted_record_is_complete_or_absent(n):
    """A KeyboardInterrupt at every line in turn; streams change from call to call."""
    rng, replay = np.random.default_rng(0), lp.Replay(FAST, 12)
    expected: list[tuple[float, int]] = []

    def record(stream: int) -> None:
        """Record, and note what is stored by the counter that publishes it."""
        number, before = len(expected), replay.recorded
        streams = stream + np.arange(n or 1)
        try:
            replay.record(**values(rng, n, number), stream=stream if n is None else streams)
        finally:
            sys.settrace(None)
            if replay.recorded > before:
                expected.extend((float(number + i), int(s)) for i, s in enumerate(streams))

    for line in range(200):
        left, raised = line, False

        def interrupt(frame, event, _):
            nonlocal left, raised
            if "/lakepond/pond/" not in frame.f_code.co_filename:
                return None
            if event == "line" and not raised:
                left -= 1
                if left < 0:
                    raised = True
                    raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            record(line // 3)
        if line % 2:
            record(line // 3)  # so that every line is met at different states of the ring
        if len(replay):
            batch = replay.recent(len(replay))
            assert list(zip(batch.reward.tolist(), batch.stream.tolist(), strict=True)) == expected[-12:]
        if not raised:
            break
    else:
        pytest.fail("there are more lines than that")
    assert len(expected) > 12
