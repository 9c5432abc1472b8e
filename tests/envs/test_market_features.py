"""The nine features against numbers worked by hand, a slow plain-Python reference, and the arrow of time."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakepond.envs.market import FEATURES, Panel, features, synthetic
from lakepond.envs.market.features import WARM_UP

NAN = np.nan
RSI, MACD, SIGNAL, TRIX, DISTANCE = range(4, 9)


def panel_of(*closes) -> Panel:
    """One symbol for each list of closes; open one below, high two above, low two below the close."""
    close = np.array(closes, dtype=float).T
    dates = np.datetime64("2024-01-01") + np.arange(len(close))
    symbols = tuple(f"S{i}" for i in range(close.shape[1]))
    return Panel(dates, symbols, open=close - 1, high=close + 2, low=close - 2, close=close)


def of_one(closes) -> np.ndarray:
    return features(panel_of(closes))[:, 0]


def test_there_are_nine_in_the_order_the_trading_code_expects():
    assert " ".join(FEATURES) == "open close high low rsi macd macd_signal trix distance_to_mean"
    table = features(synthetic(50, 3))
    assert table.shape == (50, 3, 9)
    assert table.dtype == np.float32


def test_the_first_four_are_the_prices():
    np.testing.assert_array_equal(of_one([10, 20])[:, :4], [[9, 10, 12, 8], [19, 20, 22, 18]])


def test_rsi_by_hand():
    # Fourteen changes: +3 and -1 in turn, so G = 21/14 = 1.5 and L = 7/14 = 0.5: 100 * 1.5 / 2 = 75.
    closes = [100]
    for i in range(14):
        closes.append(closes[-1] + (3 if i % 2 == 0 else -1))
    # Then +14: G = (1.5 * 13 + 14) / 14 = 33.5 / 14, L = 6.5 / 14: 100 * 33.5 / 40 = 83.75.
    closes.append(closes[-1] + 14)
    rsi = of_one(closes)[:, RSI]
    assert np.isnan(rsi[:14]).all()
    np.testing.assert_allclose(rsi[14:], [75, 83.75], rtol=1e-6)


def test_rsi_at_its_ends_and_where_nothing_moves():
    assert (of_one(range(100, 130))[14:, RSI] == 100).all()
    assert (of_one(range(130, 100, -1))[14:, RSI] == 0).all()
    assert (of_one([7] * 30)[14:, RSI] == 50).all()


def test_macd_of_a_straight_line_by_hand():
    # An EMA started with the plain mean of a straight line of slope 1 lags (n - 1) / 2 for ever:
    # 5.5 for 12 days, 12.5 for 26, so MACD is 7, and its own mean is 7.
    table = of_one(np.arange(60) + 10)
    assert np.isnan(table[:25, MACD]).all()
    assert np.isnan(table[:33, SIGNAL]).all()
    np.testing.assert_allclose(table[25:, MACD], 7, rtol=1e-6)
    np.testing.assert_allclose(table[33:, SIGNAL], 7, rtol=1e-6)


def test_macd_and_its_signal_after_a_step_by_hand():
    # 34 days at 100, then 127: EMA12 moves by 27 * 2/13, EMA26 by 27 * 2/27 = 2, the signal by 2/10 of MACD.
    table = of_one([100] * 34 + [127])
    macd = 27 * 2 / 13 - 2
    np.testing.assert_allclose(table[33:, MACD], [0, macd], rtol=1e-6)
    np.testing.assert_allclose(table[33:, SIGNAL], [0, macd / 5], rtol=1e-6)


def test_trix_by_hand():
    # A straight line of slope 1 lags 7 in each of three EMA15: from 100 + t they stand at 79 + t.
    table = of_one(np.arange(60) + 100)
    assert np.isnan(table[:43, TRIX]).all()
    np.testing.assert_allclose(table[43:, TRIX], [100 / (79 + t - 1) for t in range(43, 60)], rtol=1e-5)
    # A step of 64 on a flat 100 passes three times through the weight 2/16: 64 / 512 = 0.125.
    np.testing.assert_allclose(of_one([100] * 44 + [164])[43:, TRIX], [0, 0.125], rtol=1e-5)


def test_distance_to_the_mean_by_hand():
    # Nineteen closes of 100 and one of 120: mean 101, distance 120 / 101 - 1; next day the mean is 102.
    distance = of_one([100] * 19 + [120, 120])[:, DISTANCE]
    assert np.isnan(distance[:19]).all()
    np.testing.assert_allclose(distance[19:], [100 * 19 / 101, 100 * 18 / 102], rtol=1e-6)


def test_a_missing_day_is_the_last_close_four_times():
    gap = features(panel_of([10, NAN, NAN, 20]))[:, 0, :4]
    np.testing.assert_array_equal(gap, [[9, 10, 12, 8], [10] * 4, [10] * 4, [19, 20, 22, 18]])


def test_indicators_see_the_carried_close():
    closes = 50 + np.cumsum(np.sin(np.arange(80)))
    closes[[30, 31, 50]] = NAN
    carried = closes.copy()
    carried[[30, 31, 50]] = closes[[29, 29, 49]]
    np.testing.assert_array_equal(of_one(closes)[:, RSI:], of_one(carried)[:, RSI:])


def test_nothing_is_known_before_the_first_trade_and_all_is_after_the_warm_up():
    late = [NAN] * 17 + list(range(50, 150))
    table = features(panel_of(late, [NAN] * 117))
    assert np.isnan(table[:17, 0]).all()
    assert np.isfinite(table[17:, 0, :4]).all()
    assert not np.isfinite(table[17 + WARM_UP - 1, 0]).all()
    assert np.isfinite(table[17 + WARM_UP :, 0]).all()
    assert np.isnan(table[:, 1]).all()  # never listed


def test_a_listing_date_shifts_the_features_and_changes_nothing_else():
    closes = 50 + np.cumsum(np.cos(np.arange(90)))
    early = of_one(closes)
    late = features(panel_of([NAN] * 25 + list(closes)))[25:, 0]
    np.testing.assert_array_equal(late, early)


def plain_reference(closes: list[float]) -> list[list[float]]:
    """The five indicators in the plainest Python, one day at a time, from the closes up to that day."""

    def ema(values, n, weight):
        if len(values) < n:
            return []
        means = [math.fsum(values[:n]) / n]
        for value in values[n:]:
            means.append((1 - weight) * means[-1] + weight * value)
        return means

    known, rows, last = [], [], None
    for close in closes:
        last = last if math.isnan(close) else close
        if last is not None:
            known.append(last)
        changes = [b - a for a, b in itertools.pairwise(known)]
        gains = ema([max(change, 0) for change in changes], 14, 1 / 14)
        losses = ema([max(-change, 0) for change in changes], 14, 1 / 14)
        slow = ema(known, 26, 2 / 27)
        macd = [f - s for f, s in zip(ema(known, 12, 2 / 13)[14:], slow, strict=True)] if slow else []
        signal = ema(macd, 9, 2 / 10)
        triple = ema(ema(ema(known, 15, 2 / 16), 15, 2 / 16), 15, 2 / 16)
        row = [NAN] * 5
        if gains:
            flat = gains[-1] + losses[-1] == 0
            row[0] = 50 if flat else 100 if losses[-1] == 0 else 100 - 100 / (1 + gains[-1] / losses[-1])
        if macd:
            row[1] = macd[-1]
        if signal:
            row[2] = signal[-1]
        if len(triple) >= 2:
            row[3] = 100 * (triple[-1] - triple[-2]) / triple[-2]
        if len(known) >= 20:
            mean = math.fsum(known[-20:]) / 20
            row[4] = 100 * (known[-1] - mean) / mean
        rows.append(row)
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_indicators_agree_with_a_plain_reference(seed):
    panel = synthetic(150, 6, seed=seed)
    found = features(panel)
    for j in range(6):
        expected = np.array(plain_reference(panel.close[:, j].tolist()))
        # float32 at the end; MACD is a small difference of two large means.
        np.testing.assert_allclose(found[:, j, RSI:], expected, rtol=2e-6, atol=1e-6)


def altered_after(panel: Panel, day: int, rng: np.random.Generator) -> Panel:
    """The same past, another future: other prices, other gaps."""
    factor = rng.uniform(0.5, 2, panel.shape)
    factor[:day] = 1
    factor[day:][rng.random(factor[day:].shape) < 0.2] = NAN
    prices = (panel.open, panel.high, panel.low, panel.close)
    return Panel(panel.dates, panel.symbols, *(price * factor for price in prices))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), days=st.integers(2, 130), data=st.data())
def test_features_never_see_the_future(seed, days, data):
    panel = synthetic(days, 4, seed=seed)
    day = data.draw(st.integers(1, days - 1), label="the future begins")
    whole = features(panel)[:day]
    cut = Panel(
        panel.dates[:day],
        panel.symbols,
        *(price[:day] for price in (panel.open, panel.high, panel.low, panel.close)),
    )
    assert features(cut).tobytes() == whole.tobytes()
    other = altered_after(panel, day, np.random.default_rng(seed))
    assert features(other)[:day].tobytes() == whole.tobytes()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), days=st.integers(1, 120), missing=st.floats(0, 0.95))
def test_features_stay_finite_and_in_range_whatever_is_missing(seed, days, missing):
    panel = synthetic(days, 3, seed=seed)
    hole = np.random.default_rng(seed).random(panel.shape) < missing
    prices = (panel.open, panel.high, panel.low, panel.close)
    panel = Panel(panel.dates, panel.symbols, *(np.where(hole, NAN, price) for price in prices))
    table = features(panel)
    for j in range(3):
        traded = np.flatnonzero(panel.traded[:, j])
        listed = traded[0] if traded.size else days
        assert np.isnan(table[:listed, j]).all()
        assert np.isfinite(table[listed + WARM_UP :, j]).all()
    rsi = table[..., RSI][np.isfinite(table[..., RSI])]
    assert ((rsi >= 0) & (rsi <= 100)).all()
