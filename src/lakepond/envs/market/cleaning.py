"""Clean prices into a valid panel, and count every change.

zero or negative price          not a trade: the day is missing for that instrument
some of the four prices only    the same
close or open outside low, high the same; widening the day would invent a high that a sale
                                target could be reached at
open more than twice, or less   no market move: a split or consolidation. All earlier prices
than half, the last close       are rescaled so that the gap disappears (`rebase`)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakepond.envs.market.panel import Panel, last_trade

SPLIT_FACTOR = 2.0
"""an overnight gap beyond this factor, either way, is taken for a split"""

JUMP = 0.4
"""a close-to-close log return beyond this is counted as a jump, and kept"""


@dataclass(frozen=True)
class Cleaned:
    """What cleaning found; every count is of instrument-days."""

    zeros: int
    """had a price of zero or below; made missing"""
    partial: int
    """had some of their four prices but not all; made missing"""
    contradictions: int
    """broke low <= open, close <= high; made missing"""
    splits: int
    """opened at a gap beyond a factor of two; what came before was rescaled"""
    jumps: int
    """still move by more than 0.4 in log close after all that; kept as they are"""


def clean(
    dates: npt.NDArray[np.datetime64],
    symbols: tuple[str, ...],
    prices: npt.NDArray[np.float64],
    *,
    rebase: bool,
) -> tuple[Panel, Cleaned]:
    """Make a panel of `prices`, (4, days, instruments) in the order open, high, low, close."""
    zero = (prices <= 0).any(axis=0)
    absent = np.isnan(prices)
    partial = absent.any(axis=0) & ~absent.all(axis=0) & ~zero
    opened, high, low, close = prices
    contradiction = (low > np.minimum(opened, close)) | (high < np.maximum(opened, close))
    contradiction &= ~zero & ~partial
    prices = np.where(zero | partial | contradiction, np.nan, prices)

    splits = 0
    if rebase:
        factor = _split_factors(prices)
        splits = int((factor != 1).sum())
        # Day t carries every factor of the days after it: a product from the end of history back to t + 1.
        later = np.cumprod(factor[::-1], axis=0)[::-1]
        prices = prices * np.vstack([later[1:], np.ones_like(later[:1])])

    with np.errstate(invalid="ignore"):
        jumps = np.abs(np.log(prices[3] / _close_before(prices[3]))) > JUMP
    panel = Panel(dates, symbols, *prices)
    return panel, Cleaned(
        zeros=int(zero.sum()),
        partial=int(partial.sum()),
        contradictions=int(contradiction.sum()),
        splits=splits,
        jumps=int(jumps.sum()),
    )


def _split_factors(prices: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Open over the last close on days that open after a split, 1 on all others."""
    gap = prices[0] / _close_before(prices[3])
    return np.where((gap > SPLIT_FACTOR) | (gap < 1 / SPLIT_FACTOR), gap, 1.0)


def _close_before(close: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The last close traded before each day; NaN before the first."""
    carried = np.take_along_axis(close, np.maximum(last_trade(~np.isnan(close)), 0), axis=0)
    return np.vstack([np.full_like(close[:1], np.nan), carried[:-1]])
