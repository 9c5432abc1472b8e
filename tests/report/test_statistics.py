import numpy as np
import pytest

from lakepond.report.statistics import chance_of_improvement, interval, iqm, mean


def test_the_interquartile_mean_by_hand():
    assert iqm(np.array([[0.0, 1.0, 2.0, 300.0]])) == 1.5  # the middle two
    assert iqm(np.array([[5.0, 1.0, 100.0, 3.0], [2.0, 4.0, 6.0, -9.0]])) == pytest.approx(3.5)
    # five scores: a quarter is 1.25 of them, so the 2nd and the 4th count 0.75 each
    assert iqm(np.array([[0.0, 1.0, 2.0, 4.0, 9.0]])) == pytest.approx((0.75 * 1 + 2 + 0.75 * 4) / 2.5)


def test_the_chance_of_improvement_by_hand():
    ours, theirs = np.array([[1.0], [3.0]]), np.array([[2.0], [3.0]])
    # 1 loses twice; 3 wins once and ties once
    assert chance_of_improvement(ours, theirs) == pytest.approx((0 + 0 + 1 + 0.5) / 4)


def test_intervals_hold_the_truth_about_as_often_as_they_say(rng):
    held = 0
    for trial in range(60):
        scores = rng.normal(loc=[0.0, 10.0], size=(12, 2))
        found = interval(scores, figure=mean, draws=200, seed=trial)
        held += found.low <= 5.0 <= found.high
    assert 48 <= held <= 60  # 95 % in the long run; the bootstrap is a little narrow with twelve


def test_draws_stay_within_a_game():
    scores = np.array([[0.0, 100.0]] * 4)
    assert interval(scores, figure=mean) == (50.0, 50.0, 50.0)
