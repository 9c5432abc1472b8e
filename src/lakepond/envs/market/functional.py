"""The market in JAX: the same rules and numbers as `environment.MarketEnv`, as pure functions.

    prices = Prices.of(history)                     on the device, once
    state = reset(prices, rules, start)
    state, result = step(prices, rules, state, action)     under jit, vmap, scan

A state holds days and positions, not windows: `window` returns one, and the networks read summaries that are
computed once per day (`observe.summaries`).
"""

from __future__ import annotations

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from lakepond.envs.market.history import History
from lakepond.envs.market_rules import Rules

Array = jax.Array


class Prices(NamedTuple):
    """What a history needs to be traded on, each (days, instruments)."""

    close: Array
    high: Array
    traded: Array
    idle: Array

    @classmethod
    def of(cls, history: History) -> Self:
        """Put them on the device. A high of a day without a trade is never reached."""
        close, high = jnp.asarray(history.close), jnp.asarray(history.high)
        return cls(
            jnp.nan_to_num(close, nan=1.0),  # before listing: not traded, so never used
            jnp.nan_to_num(high, nan=0.0),
            jnp.asarray(history.traded),
            jnp.asarray(history.idle),
        )


class MarketState(NamedTuple):
    """The state of an episode; positions by instrument. One with `exit_day` up to `day` is closed."""

    day: Array
    start: Array
    entry_day: Array
    exit_day: Array
    entry_price: Array
    profit: Array
    """percent, of the last position in each instrument"""
    trades: Array


class Result(NamedTuple):
    """The result of a step."""

    reward: Array
    truncated: Array
    instrument: Array
    """the one that was bought, or -1"""
    exit_day: Array
    exit_price: Array
    target: Array
    profit: Array
    reason: Array
    """index into `rules.REASONS`"""


def reset(prices: Prices, rules: Rules, start: Array | int) -> MarketState:
    """The first day of an episode, without positions."""
    instruments = prices.close.shape[1]
    start = jnp.asarray(start, jnp.int32)
    days = jnp.full(instruments, -1, jnp.int32)
    nothing = jnp.zeros(instruments, jnp.float32)
    return MarketState(start, start, days, days, nothing + 1, nothing, jnp.int32(0))


def position(prices: Prices, rules: Rules, state: MarketState) -> Array:
    """What an agent sees of its positions, (instruments, 4): held, unrealised profit, time passed, trades."""
    held = state.exit_day > state.day
    gain = prices.close[state.day] / state.entry_price - 1
    passed = (state.day - state.entry_day).astype(jnp.float32) / rules.max_holding
    seen = jnp.stack([jnp.ones_like(gain), gain * 10, passed], axis=-1)
    traded = prices.traded[state.day].astype(jnp.float32)
    return jnp.concatenate([jnp.where(held[:, None], seen, 0), traded[:, None]], axis=-1)


def window(rows: Array, rules: Rules, day: Array) -> Array:
    """The window that ends with a day, (context, instruments, features)."""
    return jax.lax.dynamic_slice_in_dim(rows, day + 1 - rules.context, rules.context)


def step(prices: Prices, rules: Rules, state: MarketState, action: Array) -> tuple[MarketState, Result]:
    """Decide at today's close, then continue with tomorrow, or with the end of the episode."""
    day = state.day
    best = jnp.argmax(action[:, 0]).astype(jnp.int32)
    held = state.exit_day[best] > day
    buys = (action[best, 0] > rules.threshold) & ~held & prices.traded[day, best]
    last_day = state.start + rules.episode_days - 1
    target = jnp.clip(action[best, 1], rules.target_low, rules.target_high)
    price = prices.close[day, best] * (1 + jnp.float32(rules.slippage) / 100)
    exit_day, exit_price, reason = _exit(prices, rules, day, last_day, best, price, target)
    cost = jnp.float32(rules.cost) / 100
    profit = (exit_price * (1 - cost) / (price * (1 + cost)) - 1) * 100

    def keep(values: Array, new: Array) -> Array:
        return values.at[best].set(jnp.where(buys, new, values[best]))

    truncated = day == state.start + rules.trading_days - 1
    new = MarketState(
        day=jnp.where(truncated, last_day, day + 1),
        start=state.start,
        entry_day=keep(state.entry_day, day),
        exit_day=keep(state.exit_day, exit_day),
        entry_price=keep(state.entry_price, price),
        profit=keep(state.profit, profit),
        trades=state.trades + buys,
    )
    if rules.credit == "entry":
        reward = jnp.where(buys, profit, 0)
    else:
        closed = (new.exit_day > day) & (new.exit_day <= new.day)
        reward = jnp.where(closed, new.profit, 0).sum()
    reward -= jnp.where(buys, 0, rules.inaction_penalty)
    reward -= jnp.where(truncated & (new.trades == 0), rules.zero_trade_penalty, 0)
    return new, Result(
        reward=reward,
        truncated=truncated,
        instrument=jnp.where(buys, best, -1),
        exit_day=exit_day,
        exit_price=exit_price,
        target=target,
        profit=profit,
        reason=reason,
    )


def _exit(
    prices: Prices,
    rules: Rules,
    entry: Array,
    last_day: Array,
    instrument: Array,
    price: Array,
    target: Array,
) -> tuple[Array, Array, Array]:
    """The day, price and reason of an exit: the first day on which one of the rules applies."""
    goal, slip = price * (1 + target / 100), jnp.float32(rules.slippage) / 100
    ahead = jnp.arange(1, rules.max_holding + rules.delisted_after + 1)  # one of the rules applies by then
    days = jnp.minimum(entry + ahead, last_day)
    traded, close = prices.traded[days, instrument], prices.close[days, instrument]
    reached = traded & (prices.high[days, instrument] >= goal * (1 + slip))
    late = traded & (days - entry >= rules.max_holding)
    gone = ~traded & (prices.idle[days, instrument] >= rules.delisted_after)
    over = days == last_day
    first = jnp.argmax(reached | late | gone | over)
    left = 1 - jnp.float32(rules.delisting_loss) / 100
    which = jnp.select([reached[first], late[first], gone[first]], [0, 1, 2], 3)
    sold = close[first] * (1 - slip)
    ways = jnp.stack([goal, sold, close[first] * left, sold])
    return days[first], ways[which], which
