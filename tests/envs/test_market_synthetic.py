"""Made-up prices: consistent for any size, exact by seed, with the habits of real ones."""

import hashlib
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lakepond.envs.market import FEATURES, Panel, features, synthetic
from lakepond.envs.market.panel import PRICES
from lakepond.errors import MarketDataError

DISTANCE = FEATURES.index("distance_to_mean")


@pytest.fixture(scope="module")
def panel() -> Panel:
    return synthetic()


def returns(panel: Panel) -> np.ndarray:
    return np.diff(np.log(panel.close), axis=0)


def digest(panel: Panel) -> str:
    found = hashlib.sha256("".join(panel.symbols).encode())
    for name in ("dates", *PRICES):
        found.update(getattr(panel, name).tobytes())
    return found.hexdigest()


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    both = np.isfinite(x) & np.isfinite(y)
    return float(np.corrcoef(x[both], y[both])[0, 1])


@settings(max_examples=60, deadline=None)
@given(
    days=st.integers(1, 300),
    instruments=st.integers(1, 40),
    seed=st.integers(0, 2**64),
    signal=st.floats(0, 1),
)
def test_prices_are_consistent_for_any_size_and_seed(days, instruments, seed, signal):
    panel = synthetic(days, instruments, seed=seed, signal=signal)  # checks low <= open, close <= high
    assert panel.shape == (days, instruments)
    assert np.is_busday(panel.dates).all()
    there = panel.traded
    assert (panel.low[there] >= 1e-4).all()
    for name in PRICES:
        price = getattr(panel, name)[there]
        np.testing.assert_array_equal(np.round(price, 4), price)


def test_the_same_seed_gives_the_same_bytes_for_ever():
    expected = "1a361465f52facaa7800b2b940f6019b08cf22ef8b116a5c1f63870edf03ab80"
    assert digest(synthetic(120, 7, seed=5)) == expected
    expected = "37573b7c5e0146d3ffd4979f9ae44bdda6d9242f84abc7cd7767c9124afef188"
    assert digest(synthetic(120, 7, seed=5, signal=0.3)) == expected


def test_another_seed_gives_another_market():
    assert digest(synthetic(50, 3, seed=1)) != digest(synthetic(50, 3, seed=2))


def test_a_longer_panel_begins_with_the_shorter_one_so_no_day_knows_the_future():
    short, long = synthetic(300, 20, seed=3, signal=0.4), synthetic(500, 20, seed=3, signal=0.4)
    both = short.traded & long.traded[:300]
    assert both.mean() > 0.8
    for name in PRICES:
        np.testing.assert_array_equal(getattr(short, name)[both], getattr(long, name)[:300][both])


def test_the_default_is_the_trading_panel_and_takes_about_a_second_at_most():
    start = time.process_time()
    assert synthetic().shape == (2500, 108)
    assert time.process_time() - start < 3  # 0.2 s measured; room for a slow machine


def test_volatility_comes_in_clusters_and_returns_do_not(panel):
    move = returns(panel)
    for lag in (1, 5, 20):
        assert correlation(np.abs(move[:-lag]), np.abs(move[lag:])) > 0.08
    assert abs(correlation(move[:-1], move[1:])) < 0.03


def test_instruments_move_together_and_sectors_more_so(panel):
    move = np.nan_to_num(returns(panel))
    matrix = np.corrcoef(move.T)
    sector = np.arange(108) % 9
    same = (sector[:, None] == sector) & ~np.eye(108, dtype=bool)
    other = sector[:, None] != sector
    assert matrix[other].mean() > 0.1
    assert matrix[same].mean() > matrix[other].mean() + 0.05


def test_tails_are_fat(panel):
    move = returns(panel)
    excess = [stats.kurtosis(column[np.isfinite(column)]) for column in move.T]
    assert np.median(excess) > 1.5


def test_regimes_show_in_the_market_as_calm_and_stormy_months(panel):
    market = np.nanmean(returns(panel), axis=1)
    by_quarter = market[: len(market) // 63 * 63].reshape(-1, 63).std(axis=1)
    assert by_quarter.max() > 2.5 * np.median(by_quarter)


def test_some_list_late_some_leave_and_most_miss_a_day_now_and_then(panel):
    traded = panel.traded
    first = traded.argmax(axis=0)
    last = len(traded) - 1 - traded[::-1].argmax(axis=0)
    assert 5 <= (first > 30).sum() <= 35
    assert 3 <= (last < 2470).sum() <= 25
    inside = np.concatenate([traded[a : b + 1, j] for j, (a, b) in enumerate(zip(first, last, strict=True))])
    assert 0.01 < (~inside).mean() < 0.06
    assert traded.any(axis=0).all()


def test_a_day_has_a_range_and_a_night(panel):
    there = panel.traded
    assert (panel.high > panel.low)[there].mean() > 0.99
    night = np.log(panel.open[1:] / panel.close[:-1])
    day = np.log(panel.close / panel.open)
    share = np.nanvar(night) / (np.nanvar(night) + np.nanvar(day))
    assert 0.2 < share < 0.3


def predictability(signal: float, seed: int) -> float:
    """Correlation of today's distance to the mean with tomorrow's move, each against the day's average."""
    panel = synthetic(seed=seed, signal=signal)
    distance = features(panel)[25:-1, :, DISTANCE].astype(float)
    tomorrow = np.log(panel.close[26:] / panel.open[26:])
    distance -= np.nanmean(distance, axis=1, keepdims=True)
    tomorrow -= np.nanmean(tomorrow, axis=1, keepdims=True)
    return correlation(distance, tomorrow)


@pytest.mark.parametrize("seed", range(3))
def test_the_planted_signal_is_there_when_asked_for_and_only_then(seed):
    # About 240,000 pairs: the correlation of nothing with nothing has a standard error of 0.002.
    assert abs(predictability(0.0, seed)) < 0.01
    weak, strong = predictability(0.1, seed), predictability(0.3, seed)
    assert -0.09 < weak < -0.03
    assert strong < 2 * weak


def test_the_planted_drift_is_the_documented_one():
    # The same seed has the same noise, and day 19 is the first with a mean: pasts agree up to there,
    # and on day 20 only the planted part differs.
    quiet, half, full = (synthetic(21, 30, seed=4, signal=signal) for signal in (0.0, 0.25, 0.5))
    whole = quiet.traded.all(axis=0)
    assert whole.sum() > 10
    np.testing.assert_array_equal(quiet.close[:20], full.close[:20])
    np.testing.assert_array_equal(quiet.open, full.open)  # nothing of it comes overnight

    half_drift, drift = (np.log(panel.close[20] / quiet.close[20])[whole] for panel in (half, full))
    np.testing.assert_allclose(drift, 2 * half_drift, atol=1e-4)  # closes are rounded to 0.0001
    distance = (quiet.close[19] / quiet.close[:20].mean(axis=0) - 1)[whole]
    assert (np.sign(drift) == -np.sign(distance)).all()
    # s * tanh(d / 2.5 s) grows with s, and no instrument's usual volatility lies outside 0.8 and 3.5 percent.
    least, most = (s * np.tanh(np.abs(distance) / (2.5 * s)) for s in (0.008, 0.035))
    size = np.abs(drift) / 0.5
    assert (least - 1e-4 <= size).all()
    assert (size <= most + 1e-4).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"days": 0}, "at least one day and one instrument, not 0 x 108"),
        ({"instruments": 0}, "not 2500 x 0"),
        ({"signal": -0.1}, "signal is -0.1, but must be from 0"),
        ({"signal": float("nan")}, "signal is nan"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_invalid_arguments_of_a_synthetic_market_are_refused(arguments, sentence):
    with pytest.raises(MarketDataError, match=sentence):
        synthetic(**arguments)
