"""The rules of the market environment, and its calendar.

                 start                                    start + trading_days        last day
    ── context ──┤ one decision a day, entry at the close ├── settlement: no entries ─┤

Of all instruments the one with the highest coefficient is bought at the close, if that coefficient is above
`threshold`, the instrument traded that day and is not held already. A position closes on the first day on
which one of these applies; of several, the first in this list:

    target      the day's high reaches the sale target: sold at the target, never above it
    time        `max_holding` days have passed and the instrument trades: sold at the close
    delisted    it has not traded for `delisted_after` days: sold at its last close less `delisting_loss`
    end         the last day of the episode: sold at its last close

With `slippage`, orders at a close are filled that much worse, and a sale target, which is a limit order, only
if the high is that much above it.

Nothing that is done later changes how a position ends, so its profit may be credited to the day that opened
it (`credit="entry"`): the sum over an episode is the same as with `credit="exit"`, and what an action was
worth need not be found among twenty open positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from lakepond.errors import MarketDataError

REASONS = ("target", "time", "delisted", "end")
"""why a position closes, in the order of the list above"""


@dataclass(frozen=True)
class Rules:
    """What may be done, what it costs and when it ends. Percent are of the stake of one position."""

    context: int = 504
    """days that an agent observes, including today"""
    trading_days: int = 125
    """days of an episode on which a position may be opened; one step each"""
    settlement_days: int = 20
    """days after the trading days on which positions may still close; part of the last step"""
    max_holding: int = 20
    """days after which a position is sold at the closing price"""
    threshold: float = 0.5
    """coefficient above which an instrument is bought, at least 0 and less than 1"""
    target_low: float = 10.0
    """lowest sale target, in percent above the purchase price"""
    target_high: float = 50.0
    """highest sale target, in percent above the purchase price"""
    cost: float = 0.1
    """transaction cost in percent of the price, paid when buying and when selling"""
    slippage: float = 0.0
    """percent by which closing prices are missed, and by which a high must exceed a sale target"""
    inaction_penalty: float = 0.05
    """penalty in percent for each trading day without a purchase"""
    zero_trade_penalty: float = 10.0
    """penalty in percent for an episode without any purchase"""
    delisted_after: int = 10
    """consecutive days without a trade after which an instrument counts as delisted"""
    delisting_loss: float = 30.0
    """loss in percent of the last closing price when an instrument is delisted"""
    credit: Literal["entry", "exit"] = "entry"
    """day that is rewarded with the profit of a position: the day of purchase or of sale"""

    def __post_init__(self) -> None:
        for name in ("context", "trading_days", "settlement_days", "max_holding", "delisted_after"):
            if getattr(self, name) < 1:
                raise MarketDataError(f"{name} is {getattr(self, name)}, but must be at least 1 day.")
        if not 0 < self.target_low <= self.target_high < inf:
            raise MarketDataError(
                "sale targets must be above 0, finite and in order, "
                f"not {self.target_low}..{self.target_high}."
            )
        if not 0 <= self.threshold < 1:
            raise MarketDataError(f"threshold is {self.threshold}, but must be at least 0 and less than 1.")
        for name in ("inaction_penalty", "zero_trade_penalty"):
            if not 0 <= getattr(self, name) < inf:
                raise MarketDataError(
                    f"{name} is {getattr(self, name)}, but must be at least 0 percent and finite."
                )
        for name, most in (("cost", 99), ("slippage", 99), ("delisting_loss", 100)):
            if not 0 <= getattr(self, name) <= most:
                raise MarketDataError(f"{name} is {getattr(self, name)}, but must be 0 to {most} percent.")

    @property
    def episode_days(self) -> int:
        """Days from the first decision to the last day on which a position may close."""
        return self.trading_days + self.settlement_days
