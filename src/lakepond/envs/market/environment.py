"""The market as a Gymnasium environment, in plain NumPy: one decision a day, the rules of `rules.py`.

    obs       {"window": (context, instruments, features), "position": (instruments, 4)}
    action    (instruments, 2): coefficient in 0..1, sale target in percent
    reward    percent of the stake of one position
    info      {"day": index, "date": ..., "trade": Trade, if a position was opened}

An episode ends after a number of days that the observation does not contain, so its end is `truncated`, never
`terminated`: the market goes on, and a learner bootstraps from the last observation.
`position` holds, for each instrument: whether it is held, its unrealised profit in tens of percent, the share
of `max_holding` that has passed, and whether it trades today. `functional.py` is the same in JAX.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from lakepond.envs.market.history import History, Part
from lakepond.envs.market.observe import CLIP
from lakepond.envs.market_rules import Rules
from lakepond.errors import MarketDataError
from lakepond.types import Array, RowSource, WindowRef

POSITION_BOUNDS = ([0.0, -10.0, 0.0, 0.0], [1.0, 1e4, 1e2, 1.0])
"""least and most of: held, unrealised profit, time passed, trades today"""


class Trade(NamedTuple):
    """One position from entry to exit."""

    instrument: int
    entry_day: int
    exit_day: int
    entry_price: float
    exit_price: float
    target: float
    """percent above the entry price"""
    profit: float
    """percent of the stake, after costs"""
    reason: str


class MarketEnv(gymnasium.Env[dict[str, Array], Array]):
    """Trade on one part of a history; each episode begins on a random day of it, or on `options["start"]`."""

    def __init__(self, history: History, rules: Rules | None = None, part: Part = "train") -> None:
        self.history, self.rules, self.part = history, rules or Rules(), part
        _, instruments, width = history.shape
        self.source = RowSource(history.rows)
        """to record windows by reference: see `window_ref`"""
        self.observation_space = spaces.Dict(
            {
                "window": spaces.Box(-CLIP, CLIP, (self.rules.context, instruments, width), np.float32),
                "position": _box(*POSITION_BOUNDS, instruments),
            }
        )
        least, most = [0.0, self.rules.target_low], [1.0, self.rules.target_high]
        self.action_space = _box(least, most, instruments)
        self._day = self._start = self._last_day = -1
        self._trades: list[Trade] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begin an episode; `options={"start": day}` sets its first day."""
        super().reset(seed=seed)
        starts = self.history.splits.starts(self.part, self.rules)
        start = (options or {}).get("start")
        if start is None:
            start = int(self.np_random.integers(starts.start, starts.stop))
        if start not in starts:
            raise MarketDataError(
                f"an episode on {self.part} days may start on days {starts.start}..{starts.stop - 1}, "
                f"not on {start}."
            )
        self._day = self._start = start
        self._last_day = start + self.rules.episode_days - 1
        self._trades = []
        return self._obs(), self._info()

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Decide at today's close, then continue with tomorrow, or with the end of the episode."""
        if self._day < 0:
            raise MarketDataError("the environment has not been reset; call reset() before step().")
        action = np.asarray(action, np.float32)
        if action.shape != self.action_space.shape or not np.isfinite(action).all():
            raise MarketDataError(
                f"an action is {self.action_space.shape} finite numbers, but is {action.shape}"
                f"{'' if np.isfinite(action).all() else ' with NaN or infinity'}."
            )
        rules, day = self.rules, self._day
        best = int(action[:, 0].argmax())
        held = any(trade.instrument == best and trade.exit_day > day for trade in self._trades)
        buys = bool(action[best, 0] > rules.threshold and not held and self.history.traded[day, best])
        if buys:
            self._trades.append(self._open(best, action[best, 1]))
        last = day == self._start + rules.trading_days - 1
        self._day = self._last_day if last else day + 1
        if rules.credit == "entry":
            reward = np.float32(self._trades[-1].profit if buys else 0.0)
        else:
            closed = [t.profit for t in self._trades if day < t.exit_day <= self._day]
            reward = np.float32(sum(closed))
        if not buys:
            reward -= np.float32(rules.inaction_penalty)
        if last and not self._trades:
            reward -= np.float32(rules.zero_trade_penalty)
        info = self._info() | ({"trade": self._trades[-1]} if buys else {})
        observed = self._obs()
        if last:
            self._day = -1
        return observed, float(reward), False, last, info

    @property
    def trades(self) -> list[Trade]:
        """All positions opened in this episode, in order."""
        return list(self._trades)

    def window_ref(self, day: int) -> WindowRef:
        """The window that ends with a day, by reference: nothing is copied to record it."""
        return WindowRef(self.source, day + 1)

    def _open(self, instrument: int, target: Any) -> Trade:
        """Buy at today's close and find the exit, day by day."""
        rules, known, entry = self.rules, self.history, self._day
        percent = np.clip(np.float32(target), np.float32(rules.target_low), np.float32(rules.target_high))
        one, hundred = np.float32(1), np.float32(100)
        cost, slip = np.float32(rules.cost) / hundred, np.float32(rules.slippage) / hundred
        price = known.close[entry, instrument] * (one + slip)
        goal = price * (one + percent / hundred)
        exit_day, reason, left = self._last_day, "end", one - slip
        for day in range(entry + 1, self._last_day + 1):
            if known.traded[day, instrument]:
                if known.high[day, instrument] >= goal * (one + slip):
                    exit_day, reason = day, "target"
                    break
                if day - entry >= rules.max_holding:
                    exit_day, reason = day, "time"
                    break
            elif known.idle[day, instrument] >= rules.delisted_after:
                exit_day, reason, left = day, "delisted", one - np.float32(rules.delisting_loss) / hundred
                break
        exit_price = goal if reason == "target" else known.close[exit_day, instrument] * left
        profit = (exit_price * (one - cost) / (price * (one + cost)) - one) * hundred
        numbers = float(price), float(exit_price), float(percent), float(profit)
        return Trade(instrument, entry, exit_day, *numbers, reason)

    def _obs(self) -> dict[str, Array]:
        day, known = self._day, self.history
        position = np.zeros((known.shape[1], 4), np.float32)
        for trade in self._trades:
            if trade.exit_day > day:
                gain = known.close[day, trade.instrument] / np.float32(trade.entry_price) - np.float32(1)
                passed = np.float32(day - trade.entry_day) / np.float32(self.rules.max_holding)
                position[trade.instrument, :3] = 1, gain * np.float32(10), passed
        position[:, 3] = known.traded[day]
        return {"window": known.rows[day + 1 - self.rules.context : day + 1].copy(), "position": position}

    def _info(self) -> dict[str, Any]:
        return {"day": self._day, "date": str(self.history.dates[self._day])}


def _box(low: list[float], high: list[float], instruments: int) -> spaces.Box:
    """These bounds for each instrument."""
    least, most = (np.tile(np.array(bound, np.float32), (instruments, 1)) for bound in (low, high))
    return spaces.Box(least, most, dtype=np.float32)
