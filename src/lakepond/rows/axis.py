"""Along which axis is an observation a sequence of rows? Told from pairs of obs and next_obs.

A pair speaks for an axis if next_obs is obs moved on by one row along it. A pair in which all rows are
alike (an empty screen, a padded stack) would fit any axis and says nothing.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lakepond.types import Array

RowAxis = Literal[0, -1] | None
"""0: rows along the first axis; -1: along the last; None: the whole observation is one row"""

MIN_ROW_BYTES = 16
"""a smaller row costs more to refer to than to keep"""
AGAINST = 32
"""pairs that fit no axis before the whole observation is taken for a row"""
PATIENCE = 4096
"""pairs that say nothing before it is"""


def find_row_axis(obs: Array, next_obs: Array) -> RowAxis | Literal["none", "unclear"]:
    """What one pair says: an axis, "none" (it moved along neither) or "unclear"."""
    unclear = False
    for axis in (0, -1):
        if not is_candidate(obs.shape, obs.nbytes, axis):
            continue
        now, then = np.moveaxis(obs, axis, 0), np.moveaxis(next_obs, axis, 0)
        moved = _same(now[1:], then[:-1]) or _same(now[:-1], then[1:])  # newest row last, or first
        if moved and not _same(now[1:], now[:-1]):
            return 0 if axis == 0 else -1
        unclear = unclear or moved
    return "unclear" if unclear else "none"


def is_candidate(shape: tuple[int, ...], nbytes: int, axis: int) -> bool:
    """Whether rows along this axis could pay: at least two, none of them tiny."""
    if not shape or (axis == -1 and len(shape) == 1):
        return False
    return shape[axis] >= 2 and nbytes // shape[axis] >= MIN_ROW_BYTES


def _same(a: Array, b: Array) -> bool:
    """Bytes, not values: rows hold NaN. A look at the middle row spares most comparisons of the whole."""
    middle = len(a) // 2
    return a[middle].tobytes() == b[middle].tobytes() and a.tobytes() == b.tobytes()
