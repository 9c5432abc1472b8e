"""A history to trade on: normalised rows, prices, and the split of its days by time.

    0            context                train_stop        validation_stop          days
    ├─ warm-up ──┤──── training days ───┤── validation ───┤──────── holdout ───────┤

An episode is within one part, settlement included; only its windows reach back into earlier parts. Rows are
normalised by the days before `train_stop`, so nothing of validation or holdout reaches training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lakepond.envs.market.features import features
from lakepond.envs.market.observe import Floats, normalise, relative
from lakepond.envs.market.panel import Panel, last_trade
from lakepond.envs.market_rules import Rules
from lakepond.errors import MarketDataError

Part = Literal["train", "validation", "holdout"]


@dataclass(frozen=True)
class Splits:
    """The three parts of a history, as ranges of days [start, stop)."""

    train: range
    validation: range
    holdout: range

    def __getitem__(self, part: Part) -> range:
        return {"train": self.train, "validation": self.validation, "holdout": self.holdout}[part]

    def starts(self, part: Part, rules: Rules) -> range:
        """The days on which an episode may start so that it ends within its part."""
        days = self[part]
        return range(days.start, days.stop - rules.episode_days + 1)

    def slices(self, part: Part, rules: Rules, count: int) -> list[int]:
        """`count` first days, evenly from the earliest to the latest: slices that walk forward in time."""
        starts = self.starts(part, rules)
        return [int(day) for day in np.linspace(starts[0], starts[-1], count).round()]


def split(days: int, rules: Rules, validation: float = 0.2, holdout: float = 0.2) -> Splits:
    """Split the days; shares refer to days with a complete window."""
    first = rules.context - 1
    usable = days - first
    late, middle = int(usable * holdout), int(usable * validation)
    parts = (usable - late - middle, middle, late)
    if min(parts) < rules.episode_days:
        # the smallest part must hold one episode; which share that is decides how many days are needed
        least = min(1 - validation - holdout, validation, holdout)
        needed = first + int(np.ceil(rules.episode_days / least)) + 1 if least > 0 else 0
        raise MarketDataError(
            f"The panel has {days:,} days, but windows of {rules.context} days and episodes of "
            f"{rules.episode_days} days in each of training, validation and holdout need about {needed:,}; "
            "take a longer history, a shorter context or shorter episodes."
        )
    return Splits(
        range(first, days - late - middle), range(days - late - middle, days - late), range(days - late, days)
    )


@dataclass(frozen=True, eq=False)
class History:
    """The data of a market environment; every array is (days, instruments) and read-only."""

    dates: npt.NDArray[np.datetime64]
    symbols: tuple[str, ...]
    rows: Floats
    """(days, instruments, features): what an agent sees of a day"""
    close: Floats
    """the close, or the last one before; NaN before the first trade"""
    high: Floats
    """the high; NaN on days without a trade"""
    traded: npt.NDArray[np.bool_]
    idle: npt.NDArray[np.int32]
    """days since the last trade; 0 on a day with one"""
    splits: Splits

    @classmethod
    def of(
        cls,
        panel: Panel,
        rules: Rules,
        *,
        table: npt.NDArray[np.float32] | None = None,
        validation: float = 0.2,
        holdout: float = 0.2,
    ) -> History:
        """Of a panel; `table` are features of your own, the first four being open, close, high, low."""
        never = ~panel.traded.any(axis=0)
        if never.any():
            names = [panel.symbols[i] for i in np.flatnonzero(never)]
            raise MarketDataError(
                f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''} never traded in this panel; "
                "leave such instruments out."
            )
        splits = split(len(panel.dates), rules, validation, holdout)
        known = features(panel) if table is None else table
        traded = panel.traded
        last = last_trade(traded)
        close = np.take_along_axis(panel.close, np.maximum(last, 0), axis=0)
        rows = normalise(relative(known), splits.train.stop)
        carried = np.where(last >= 0, close, np.nan).astype(np.float32)
        high, idle = panel.high.astype(np.float32), (np.arange(len(last))[:, None] - last).astype(np.int32)
        for array in (rows, carried, high, idle):
            array.setflags(write=False)
        return cls(panel.dates, panel.symbols, rows, carried, high, traded, idle, splits)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(days, instruments, features)."""
        days, instruments, width = self.rows.shape
        return days, instruments, width
