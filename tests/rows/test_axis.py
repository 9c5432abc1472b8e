"""The row axis is told from what is recorded, and never from data that says nothing."""

import numpy as np
import pytest

import lakepond as lp
from lakepond.rows import find_row_axis


def frames(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (n, 8, 9), dtype=np.uint8)


def test_a_stack_on_the_first_axis_is_found():
    f = frames(5)
    assert find_row_axis(f[:4], f[1:5]) == 0


def test_a_stack_on_the_last_axis_is_found():
    f = frames(5)
    assert find_row_axis(np.moveaxis(f[:4], 0, -1), np.moveaxis(f[1:5], 0, -1)) == -1


def test_newest_first_is_found_too():
    f = frames(5)
    assert find_row_axis(f[1:5][::-1], f[:4][::-1]) == 0


def test_equal_rows_say_nothing():
    still = np.repeat(frames(1), 4, axis=0)
    assert find_row_axis(still, still) == "unclear"
    empty = np.zeros((8, 9, 4), np.uint8)
    assert find_row_axis(empty, empty) == "unclear"


def test_unrelated_observations_speak_against_any_axis():
    assert find_row_axis(frames(4, 1), frames(4, 2)) == "none"


def test_nan_rows_are_compared_by_bytes():
    w = np.full((6, 3, 3), np.nan, np.float32)
    w[:, 0, 0] = np.arange(6)
    assert find_row_axis(w[:5], w[1:6]) == 0


def test_tiny_rows_do_not_count():
    v = np.arange(100, dtype=np.float32)
    assert find_row_axis(v[:50], v[1:51]) == "none"


@pytest.mark.parametrize("quiet", [0, 40])
def test_the_axis_is_found_after_a_quiet_start(quiet):
    """An episode that begins with a still screen: nothing is decided until something moves."""
    f = np.concatenate([np.repeat(frames(1), 4 + quiet, axis=0), frames(60, 3)])
    f = f.reshape(len(f), 8, 9).repeat(4, axis=2)  # large enough not to be kept plainly
    replay = lp.Replay(lp.Spec(obs=lp.Field((4, 8, 36), "uint8")), 1000)
    for t in range(quiet + 50):
        replay.record(
            obs=f[t : t + 4],
            action=0,
            reward=float(t),
            next_obs=f[t + 1 : t + 5],
            terminated=False,
            truncated=False,
        )
    assert "4 rows of 288 B along axis 0" in str(replay.stats())
    batch = replay.steps(np.arange(quiet + 50))
    for t in range(quiet + 50):
        assert np.array_equal(batch.obs[t], f[t : t + 4])
        assert np.array_equal(batch.next_obs[t], f[t + 1 : t + 5])
    assert replay.stats().rows <= 52 + 4


def test_noise_settles_for_whole_observations():
    replay = lp.Replay(lp.Spec(obs=lp.Field((4, 100), "float32")), 100)
    rng = np.random.default_rng(0)
    for t in range(50):
        obs, next_obs = rng.random((2, 4, 100), np.float32)
        replay.record(obs=obs, action=0, reward=t, next_obs=next_obs, terminated=False, truncated=False)
    assert replay.stats().layout["obs"] == "whole observations of 1,600 B"
