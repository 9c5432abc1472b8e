"""The rules of the market environment, and its calendar.

                 start                                    start + trading_days        last day
    ── context ──┤ one decision a day, entry at the close ├── settlement: no entries ─┤

Of all instruments the one with the highest coefficient is bought at the close, if that coefficient is above
`threshold`, the instrument traded that day and is not held already. A position closes

    at its sale target       on the first day whose high reaches it
    at the close             after `max_holding` days, or on the first day after that on which it trades
    at the last close less   once it has not traded for `delisted_after` days: it is taken for delisted
      `delisting_loss`
    at the last close        on the episode's last day

Nothing that is done later changes how a position ends, so its profit may be credited to the day that opened
it (`credit="entry"`): the sum over an episode is the same as with `credit="exit"`, and what an action was
worth need not be found among twenty open positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lakepond.errors import MarketDataError

REASONS = ("target", "time", "delisted", "end")
"""why a position closes, in the order of the table above"""


@dataclass(frozen=True)
class Rules:
    """What may be done, what it costs and when it ends. Percent are of the stake of one position."""

    context: int = 504
    """days an agent sees, today included"""
    trading_days: int = 125
    """days on which a position may be opened; one step each"""
    settlement_days: int = 20
    """days after them on which positions may still close; part of the last step"""
    max_holding: int = 20
    """days after which a position closes at the close"""
    threshold: float = 0.5
    """a coefficient above this buys; coefficients lie in 0..1"""
    target_low: float = 10.0
    """lowest sale target, percent above the entry price"""
    target_high: float = 50.0
    """highest sale target, percent above the entry price"""
    cost: float = 0.1
    """percent of the price, paid at entry and again at exit"""
    inaction_penalty: float = 0.05
    """percent, for each trading day without an entry"""
    zero_trade_penalty: float = 10.0
    """percent, once, for an episode without a single entry"""
    delisted_after: int = 10
    """days in a row without a trade after which an instrument is taken for delisted"""
    delisting_loss: float = 30.0
    """percent of the last close that is lost then"""
    credit: Literal["entry", "exit"] = "entry"
    """the day whose reward is a position's profit: that of its entry, or that of its exit"""

    def __post_init__(self) -> None:
        for name in ("context", "trading_days", "settlement_days", "max_holding", "delisted_after"):
            if getattr(self, name) < 1:
                raise MarketDataError(f"{name} is {getattr(self, name)}, but must be at least 1 day.")
        if not 0 < self.target_low <= self.target_high:
            raise MarketDataError(
                f"sale targets must be above 0 and in order, not {self.target_low}..{self.target_high}."
            )
        if not 0 <= self.cost < 100 or not 0 <= self.delisting_loss <= 100:
            raise MarketDataError(
                f"cost and delisting_loss are percent, but are {self.cost} and {self.delisting_loss}."
            )

    @property
    def episode_days(self) -> int:
        """Days from the first decision to the last day on which a position may close."""
        return self.trading_days + self.settlement_days
