"""How an observation is best shown, told from its shape, its dtype and where its rows lie.

frames     (k, H, W) or (H, W, k) uint8         a stack of pictures, in colour if a row has 3 slices; the
                                                newest is shown, or all
picture    (H, W), (H, W, 3), (k, H, W, 3)      one picture
channels   (H, W, C) with a small board         MinAtar and the like: one colour a channel
window     (T, N, F) or (T, F) of real numbers  a market: curves over time, an instrument at a time
vector     anything else                        numbers, a bar each
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lakepond.types import Field

BOARD = 32
"""cells on the longer side of what is taken for a board with channels"""
MARKET_FEATURES = ("open", "close", "high", "low", "rsi", "macd", "macd_signal", "trix", "distance_to_mean")
MOST_NUMBERS = 4096
"""numbers of an observation that are shown as such"""


@dataclass(frozen=True)
class Kind:
    """What an observation looks like."""

    name: Literal["frames", "picture", "channels", "window", "vector"]
    height: int = 0
    width: int = 0
    depth: int = 1
    """pictures in a stack, or channels of a board"""
    axis: Literal[0, -1] = 0
    """along which a stack lies"""
    colours: bool = False
    """whether each picture of a stack has three slices: red, green and blue"""
    columns: int = 1
    """instruments of a window"""
    features: tuple[str, ...] = ()


def kind_of(field: Field, rows_axis: int | None, row_size: int = 1) -> Kind:
    """How to show a field whose rows lie along that axis (None: the observation is one row).

    `row_size`: slices along it that are one row.
    """
    shape, dtype = field.shape, np.dtype(field.dtype)
    if dtype.kind not in "buif":
        return Kind("vector")
    if dtype.kind == "f" and rows_axis == 0 and len(shape) in (2, 3):
        count = shape[-1]
        named = MARKET_FEATURES if count == len(MARKET_FEATURES) else tuple(f"[{i}]" for i in range(count))
        return Kind("window", shape[0], columns=shape[1] if len(shape) == 3 else 1, features=named)
    if len(shape) == 4 and shape[-1] == 3 and dtype == np.uint8:
        return Kind("picture", shape[1], shape[2])
    if len(shape) == 3:
        a, b, c = shape
        if max(a, b) <= BOARD and c <= 16:
            return Kind("channels", a, b, c, -1)
        if c == 3 and rows_axis is None and dtype == np.uint8:
            return Kind("picture", a, b)
        if a <= 16 and min(b, c) > 4 and rows_axis != -1:
            colours = rows_axis == 0 and row_size == 3
            return Kind("frames", b, c, a // 3 if colours else a, 0, colours)
        if c <= 16:
            colours = rows_axis == -1 and row_size == 3
            return Kind("frames", a, b, c // 3 if colours else c, -1, colours)
    if len(shape) == 2 and min(shape) > 4:
        return Kind("picture", *shape)
    return Kind("vector")
