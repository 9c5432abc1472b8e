"""Realistic synthetic prices, any size, exact by seed.

One day of instrument i, in log returns:

    shock_i = beta_i * market + gamma_i * sector(i) + own_i
              each of the three with its own GARCH(1,1) variance and fat-tailed innovations
    market  = drift(regime) + scale(regime) * ...     regime: bull, bear, crisis (a Markov chain)

    close(t-1) ──overnight──▶ open(t) ──the rest of the shock + planted drift──▶ close(t)
                                      high, low: extremes of a Brownian bridge from open to close

The planted signal is mean reversion. With d = close / SMA20(close) - 1 on day t (the feature
`distance_to_mean`, as a fraction) and s_i the instrument's usual daily volatility, day t+1 drifts,
between its open and its close, by

    -signal * s_i * tanh(d / (2.5 * s_i))        (2.5 s_i is how far d usually strays without signal)

so `signal=0.1` moves a typical day by up to a tenth of its volatility. With 0 nothing is planted:
what then distinguishes one instrument from another today predicts nothing about tomorrow (the regimes still
drift, for all of them together). Each day is made from earlier days and its own draws only; a
longer panel begins with the prices of the shorter one.

Every kind of draw has its own PCG64 stream, and prices are rounded to 0.0001, which swallows the
last-bit differences between machines: the same arguments give the same bytes, as long as NumPy
keeps its streams (a test holds them to a frozen digest; NumPy may change them in a new release).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lakepond.envs.market.panel import Panel
from lakepond.errors import MarketDataError

FIRST_DAY = np.datetime64("2010-01-04")
TICK_DIGITS = 4  # prices are whole multiples of 0.0001
MEAN_DAYS = 20

REGIME_DRIFT = np.array([6e-4, -6e-4, -3e-3])  # bull, bear, crisis: log return a day
REGIME_SCALE = np.array([0.85, 1.3, 2.8])  # times the market's usual volatility
REGIME_STAY = np.array([[0.995, 0.004, 0.001], [0.012, 0.985, 0.003], [0.01, 0.04, 0.95]])

MARKET_VOLATILITY = 0.008  # a day
SECTOR_VOLATILITY = 0.006
INSTRUMENTS_A_SECTOR = 12

SHOCK, PERSISTENCE = 0.08, 0.90  # GARCH(1,1): h' = (1 - SHOCK - PERSISTENCE) + SHOCK * e² + PERSISTENCE * h
TAIL = 6  # degrees of freedom of the innovations
OVERNIGHT = 0.25  # share of a day's variance between close and open

LATE_LISTED, DELISTED = 0.15, 0.10  # shares of the instruments
RARELY_MISSING, STAYS_MISSING = 0.05, 0.4  # highest chance to miss a day; chance to miss one more

Table: TypeAlias = npt.NDArray[np.float64]


class _Streams(NamedTuple):
    """One random stream per purpose, so that no draw depends on the number of other draws."""

    traits: np.random.Generator
    regime: np.random.Generator
    shocks: np.random.Generator
    overnight: np.random.Generator
    highs: np.random.Generator
    lows: np.random.Generator
    listing: np.random.Generator
    missing: np.random.Generator


def synthetic(days: int = 2500, instruments: int = 108, *, seed: int = 0, signal: float = 0.0) -> Panel:
    """A panel of made-up prices: `days` business days from 2010-01-04, `instruments` symbols SYN000 ...

    `signal` from 0 (none) to 1 is the strength of the planted, learnable drift described above.
    """
    if days < 1 or instruments < 1:
        raise MarketDataError(
            f"A panel needs at least one day and one instrument, not {days} x {instruments}."
        )
    if not 0 <= signal <= 1:
        raise MarketDataError(f"signal is {signal}, but must be from 0 (none) to 1 (as large as the noise).")
    if seed < 0:
        raise MarketDataError(f"seed is {seed}, but must be 0 or more.")
    children = np.random.SeedSequence(seed).spawn(len(_Streams._fields))
    streams = _Streams(*(np.random.Generator(np.random.PCG64(child)) for child in children))

    usual, start, shock, volatility = _shocks(days, instruments, streams)
    noise = np.sqrt(OVERNIGHT * (1 - OVERNIGHT)) * streams.overnight.standard_normal((days, instruments))
    overnight = OVERNIGHT * shock + noise * volatility
    drift, log_close = _closes(start, shock, usual, signal)
    log_open = log_close - (shock - overnight) - drift

    # The highest and lowest point of a Brownian bridge from open to close, drawn exactly.
    move = log_close - log_open
    spread = 2 * (1 - OVERNIGHT) * volatility**2
    up = streams.highs.standard_exponential((days, instruments))
    down = streams.lows.standard_exponential((days, instruments))
    log_high = log_open + (move + np.sqrt(move**2 + spread * up)) / 2
    log_low = log_open + (move - np.sqrt(move**2 + spread * down)) / 2

    traded = _presence(days, instruments, streams)
    opened, high, low, close = (
        np.where(traded, _to_tick(log_price), np.nan)
        for log_price in (log_open, log_high, log_low, log_close)
    )
    return Panel(
        dates=np.busday_offset(np.full(days, FIRST_DAY), np.arange(days)),
        symbols=tuple(f"SYN{i:03d}" for i in range(instruments)),
        open=opened,
        high=np.maximum(high, np.maximum(opened, close)),
        low=np.minimum(low, np.minimum(opened, close)),
        close=close,
    )


def _shocks(days: int, instruments: int, streams: _Streams) -> tuple[Table, Table, Table, Table]:
    """Usual volatility and first log price of each instrument; shock and volatility of each day."""
    sectors = -(-instruments // INSTRUMENTS_A_SECTOR)
    beta = streams.traits.uniform(0.5, 1.5, instruments)
    gamma = streams.traits.uniform(0.5, 1.5, instruments)
    own_volatility = streams.traits.uniform(0.008, 0.025, instruments)
    start = np.log(streams.traits.uniform(5, 200, instruments))
    sector = np.arange(instruments) % sectors
    usual = np.sqrt((beta * MARKET_VOLATILITY) ** 2 + (gamma * SECTOR_VOLATILITY) ** 2 + own_volatility**2)

    unit, scale = _garch(days, 1 + sectors + instruments, streams.shocks)
    regime = _regimes(days, streams.regime)
    calm = MARKET_VOLATILITY * REGIME_SCALE[regime][:, None]
    market, market_volatility = REGIME_DRIFT[regime][:, None] + calm * unit[:, :1], calm * scale[:, :1]
    by_sector = 1 + sector
    shock = (
        beta * market
        + gamma * SECTOR_VOLATILITY * unit[:, by_sector]
        + own_volatility * unit[:, 1 + sectors :]
    )
    variance = (
        (beta * market_volatility) ** 2
        + (gamma * SECTOR_VOLATILITY * scale[:, by_sector]) ** 2
        + (own_volatility * scale[:, 1 + sectors :]) ** 2
    )
    return usual, start, shock, np.sqrt(variance)


def _regimes(days: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """0 bull, 1 bear, 2 crisis, day by day; begins in a bull market."""
    thresholds = REGIME_STAY.cumsum(axis=1)[:, :2]
    regime = np.zeros(days, dtype=np.intp)
    for day, draw in enumerate(rng.random(days)[1:], start=1):
        regime[day] = (draw >= thresholds[regime[day - 1]]).sum()
    return regime


def _garch(days: int, columns: int, rng: np.random.Generator) -> tuple[Table, Table]:
    """Returns of usual variance 1 with clustering volatility, and that volatility."""
    # A normal over the root of a chi-square is Student's t; divided so that its variance is 1.
    normal, chi_square = np.empty((days, columns)), np.empty((days, columns))
    for day in range(days):  # by the day, so that a longer panel begins with the draws of a shorter one
        normal[day] = rng.standard_normal(columns)
        chi_square[day] = rng.chisquare(TAIL, columns)
    innovation = np.clip(normal * np.sqrt((TAIL - 2) / chi_square), -8, 8)
    variance = np.ones((days, columns))
    for day in range(1, days):
        last = variance[day - 1]
        variance[day] = (1 - SHOCK - PERSISTENCE) + last * (SHOCK * innovation[day - 1] ** 2 + PERSISTENCE)
    volatility = np.sqrt(variance)
    return volatility * innovation, volatility


def _closes(start: Table, shock: Table, usual: Table, signal: float) -> tuple[Table, Table]:
    """Planted drift and log close of every day, each from the closes before it."""
    drift, log_close = np.zeros_like(shock), np.empty_like(shock)
    if signal == 0:
        log_close[:] = start + shock.cumsum(axis=0)
        return drift, log_close
    recent = np.zeros((MEAN_DAYS, shock.shape[1]))  # the last closes, in a ring
    last = start
    for day in range(len(shock)):
        if day >= MEAN_DAYS:
            distance = recent[(day - 1) % MEAN_DAYS] / recent.mean(axis=0) - 1
            drift[day] = -signal * usual * np.tanh(distance / (2.5 * usual))
        last = last + shock[day] + drift[day]
        log_close[day] = last
        recent[day % MEAN_DAYS] = np.exp(last)
    return drift, log_close


def _presence(days: int, instruments: int, streams: _Streams) -> npt.NDArray[np.bool_]:
    """Which instruments trade on which days: late listings, delistings, and runs of missing days."""
    kind = streams.listing.random(instruments)
    when = streams.listing.random(instruments)
    first = np.where(kind < LATE_LISTED, (0.5 * when * days).astype(int), 0)
    stop = np.where(kind > 1 - DELISTED, np.ceil((0.6 + 0.4 * when) * days).astype(int), days)
    day = np.arange(days)[:, None]
    listed = (day >= first) & (day < stop)

    chance = RARELY_MISSING * streams.missing.random(instruments) ** 2  # most instruments trade nearly daily
    draws = streams.missing.random((days, instruments))
    missing = draws < chance
    for row in range(1, days):
        missing[row] |= missing[row - 1] & (draws[row] < STAYS_MISSING)
    return listed & ~missing


def _to_tick(log_price: Table) -> Table:
    """Prices in whole ticks, at least one."""
    return np.maximum(np.round(np.exp(log_price), TICK_DIGITS), 10.0**-TICK_DIGITS)
