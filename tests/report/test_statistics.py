import numpy as np
import pytest

from lakepond.report.statistics import (
    chance_of_improvement,
    holm,
    interval,
    iqm,
    mean,
    t_interval,
)


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


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_t_interval_of_few_seeds_holds_the_truth_in_95_percent_of_cases(rng, seeds):
    scores = rng.normal(size=(4_000, seeds))
    found = [t_interval(each) for each in scores]
    held = np.array([each.low <= 0 <= each.high for each, _ in found])
    assert held.mean() == pytest.approx(0.95, abs=0.012)
    assert (held == [p > 0.05 for _, p in found]).all()
    drawn = [interval(each[:, None], figure=mean, draws=200) for each in scores[:400]]
    assert np.mean([each.low <= 0 <= each.high for each in drawn]) < 0.89  # which the bootstrap does not


def test_a_t_interval_by_hand():
    """The mean of 1, 2, 3 is 2, its standard error 1 / sqrt(3); of the tables, t is 4.3027 with 2 degrees."""
    found, p = t_interval(np.array([1.0, 2.0, 3.0]))
    assert found == pytest.approx((2, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4)
    assert p == pytest.approx(0.0742, abs=1e-4)


def test_equal_differences_and_single_ones():
    assert t_interval(np.array([2.0, 2.0])) == ((2.0, 2.0, 2.0), 0.0)
    assert t_interval(np.zeros(3)) == ((0.0, 0.0, 0.0), 1.0)
    (value, low, high), p = t_interval(np.array([2.0]))
    assert value == 2.0
    assert np.isnan([low, high, p]).all()


def test_holm_by_hand():
    # 0.05 / 3, / 2, / 1: the third is not tested, because the second is above its level
    assert holm([0.04, 0.01, float("nan"), 0.03]) == [False, True, False, False]
    assert holm([0.04, 0.01, 0.02]) == [True, True, True]
    assert holm([]) == []
