"""The nine features, by their textbook formulas, from prices up to and including the same day.

With c(t) the close of day t, counted from an instrument's first trade at t = 0:

    open, close, high, low   the prices themselves
    rsi                100 - 100 / (1 + G/L), G and L Wilder means (14) of the rises and falls of c;
                       100 if nothing fell, 50 if nothing moved           (Wilder 1978)
    macd               EMA12(c) - EMA26(c), in units of price             (Appel 1979)
    macd_signal        EMA9(macd)
    trix               100 * (E(t) / E(t-1) - 1), E = EMA15(EMA15(EMA15(c))), in percent (Hutson 1983)
    distance_to_mean   100 * (c / SMA20(c) - 1), in percent; SMA20 includes the day itself

    EMAn(x)(t) = EMAn(x)(t-1) + a * (x(t) - EMAn(x)(t-1)),  a = 2 / (n + 1), Wilder: a = 1 / n,
    started with the mean of the first n values of x.

Missing days. On a day without a trade all four prices are the last close, and the indicators see
that close; a delisted instrument stays there (see `Panel.traded`). Before the first
trade every feature is NaN.

Warm-up. A feature is NaN until it has its history: rsi 14 days after the first trade, macd 25,
macd_signal 33, trix 43, distance_to_mean 19. So all nine are finite from 43 days after listing on.

No look-ahead: row t is a function of the panel's rows 0 ... t, bit for bit.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lakepond.envs.market.panel import Panel, last_trade

FEATURES = ("open", "close", "high", "low", "rsi", "macd", "macd_signal", "trix", "distance_to_mean")

WARM_UP = 43
"""days after an instrument's first trade until all nine features are finite"""

Table: TypeAlias = npt.NDArray[np.float64]  # (days, instruments)


def features(panel: Panel) -> npt.NDArray[np.float32]:
    """The nine `FEATURES` of every day and instrument, as (days, instruments, 9) float32."""
    traded = panel.traded
    close = np.take_along_axis(panel.close, np.maximum(last_trade(traded), 0), axis=0)  # carried over gaps
    opened, high, low = (np.where(traded, price, close) for price in (panel.open, panel.high, panel.low))

    # Give every instrument its first trade in row 0: then no formula has to know about listings.
    listed = np.where(traded.any(axis=0), traded.argmax(axis=0), len(panel.dates))
    aged = _shift(close, listed)
    macd = _ema(aged, 12) - _ema(aged, 26)
    indicators = (_rsi(aged, 14), macd, _ema(macd, 9, known=25), _trix(aged, 15), _distance_to_mean(aged, 20))
    columns = (opened, close, high, low, *(_shift(indicator, -listed) for indicator in indicators))
    return np.stack(columns, axis=-1, dtype=np.float32, casting="same_kind")


def _shift(table: Table, by: npt.NDArray[np.intp]) -> Table:
    """Row t of column j becomes row t - by[j]; NaN comes in from outside."""
    rows = np.arange(len(table))[:, None] + by
    inside = (rows >= 0) & (rows < len(table))
    return np.where(inside, np.take_along_axis(table, np.where(inside, rows, 0), axis=0), np.nan)


def _ema(values: Table, span: int, *, weight: float | None = None, known: int = 0) -> Table:
    """Exponential mean of `values`, whose first `known` rows are not known yet."""
    out = np.full_like(values, np.nan)
    first = known + span - 1
    if first >= len(values):
        return out
    weight = 2 / (span + 1) if weight is None else weight
    mean = values[known : first + 1].mean(axis=0)
    out[first] = mean
    for day in range(first + 1, len(values)):
        mean = mean + weight * (values[day] - mean)
        out[day] = mean
    return out


def _rsi(close: Table, span: int) -> Table:
    """Relative strength index, 0 to 100."""
    change = np.full_like(close, np.nan)
    change[1:] = close[1:] - close[:-1]
    rise = _ema(np.maximum(change, 0), span, weight=1 / span, known=1)
    fall = _ema(np.maximum(-change, 0), span, weight=1 / span, known=1)
    moved = rise + fall
    flat = np.where(np.isnan(moved), np.nan, 50.0)
    return np.divide(100 * rise, moved, out=flat, where=moved > 0)  # = 100 - 100 / (1 + rise / fall)


def _trix(close: Table, span: int) -> Table:
    """Rate of change of the triple exponential mean, in percent per day."""
    smooth = close
    for times in range(3):
        smooth = _ema(smooth, span, known=times * (span - 1))
    out = np.full_like(close, np.nan)
    out[1:] = 100 * (smooth[1:] / smooth[:-1] - 1)
    return out


def _distance_to_mean(close: Table, span: int) -> Table:
    """Distance of the close above its simple mean, in percent."""
    out = np.full_like(close, np.nan)
    if len(close) < span:
        return out
    total = np.zeros_like(close[span - 1 :])
    for ago in range(span):  # twenty additions in a fixed order: no drift, unlike a running sum
        total += close[span - 1 - ago : len(close) - ago]
    out[span - 1 :] = 100 * (close[span - 1 :] * span / total - 1)
    return out
