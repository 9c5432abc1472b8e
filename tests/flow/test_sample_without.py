"""Batches without the observations that nobody asked for."""

import numpy as np
import pytest

import lakepond as lp

SPEC = lp.Spec(
    obs={"window": lp.Field((4, 3), "float32", rows=0), "position": lp.Field((2,), "float32")},
    extras={"day": lp.Field((), "int32")},
)
ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)


@pytest.fixture
def replay() -> lp.Replay:
    replay, source = lp.Replay(SPEC, 50), lp.RowSource(ROWS)
    stops = np.arange(4, 19, dtype=np.int32)  # int32, as JAX counts
    replay.record(
        obs={
            "window": lp.WindowRef(source, stops),
            "position": np.stack([stops, -stops], 1).astype(np.float32),
        },
        action=stops,
        reward=stops.astype(np.float32),
        next_obs={"window": lp.WindowRef(source, stops + 1), "position": np.zeros((15, 2), np.float32)},
        terminated=np.zeros(15, bool),
        truncated=np.zeros(15, bool),
        stream=0,
        day=stops - 1,
    )
    return replay


def test_what_is_left_out_is_none_and_all_else_is_the_same(replay):
    whole = replay.sample(8, rng=np.random.default_rng(0))
    part = replay.sample(8, rng=np.random.default_rng(0), exclude=("obs['window']", "next_obs['window']"))
    assert part.obs["window"] is None
    assert part.next_obs["window"] is None
    for name in ("position",):
        np.testing.assert_array_equal(part.obs[name], whole.obs[name])
        np.testing.assert_array_equal(part.next_obs[name], whole.next_obs[name])
    np.testing.assert_array_equal(part.extras["day"], whole.extras["day"])
    np.testing.assert_array_equal(part.step_id, whole.step_id)
    for k, day in enumerate(whole.extras["day"]):
        np.testing.assert_array_equal(whole.obs["window"][k], ROWS[day - 3 : day + 1])


def test_a_batch_without_can_be_filled_again(replay):
    rng, left = np.random.default_rng(0), ("obs['window']",)
    first = replay.sample(8, rng=rng, exclude=left)
    again = replay.sample(8, rng=rng, exclude=left, out=first)
    assert again.reward is first.reward
    assert again.obs["window"] is None


@pytest.mark.parametrize("wrong", ["obs['window']", ("reward",), ("obs['other']",)])
def test_only_observations_can_be_left_out(replay, wrong):
    with pytest.raises(lp.SampleError, match="exclude names observations"):
        replay.sample(8, rng=np.random.default_rng(0), exclude=wrong)
