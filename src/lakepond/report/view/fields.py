"""The fields of a step: their shapes, how each observation is shown, and observations as numbers.

frames     (k, H, W) or (H, W, k) uint8         a stack of pictures, in colour if a row has 3 slices; the
                                                newest is shown, or all
picture    (H, W), (H, W, 3), (k, H, W, 3)      one picture
channels   (H, W, C) with a small board         MinAtar and the like: one colour per channel
window     (T, N, F) or (T, F) of real numbers  a market: curves over time, one instrument at a time
vector     anything else                        numbers, one bar each
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lakepond.formats import json_numbers
from lakepond.lake.read.lake import Lake
from lakepond.types import Array, Field, leaves

BOARD = 32
"""cells on the longer side of an observation that is shown as a board with channels"""
MARKET_FEATURES = ("open", "close", "high", "low", "rsi", "macd", "macd_signal", "trix", "distance_to_mean")
MOST_NUMBERS = 4096
"""numbers of an observation that are shown"""


@dataclass(frozen=True)
class Kind:
    """How an observation is shown."""

    kind: Literal["frames", "picture", "channels", "window", "vector"]
    height: int = 0
    width: int = 0
    depth: int = 1
    """pictures in a stack, or channels of a board"""
    axis: Literal[0, -1] = 0
    """axis of the pictures in a stack"""
    rgb: bool = False
    """whether each picture of a stack has three slices: red, green and blue"""
    columns: int = 1
    """instruments of a window"""
    features: tuple[str, ...] = ()


def kind_of(field: Field, rows_axis: int | None, row_size: int = 1) -> Kind:
    """How to show a field whose rows are along that axis (None: the observation is one row).

    `row_size`: slices along the axis that form one row.
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
            return Kind("channels", a, b, c)
        if c == 3 and rows_axis is None and dtype == np.uint8:
            return Kind("picture", a, b)
        rgb = rows_axis is not None and row_size == 3
        if a <= 16 and min(b, c) > 4 and rows_axis != -1:
            return Kind("frames", b, c, a // 3 if rgb else a, 0, rgb)
        if c <= 16:
            return Kind("frames", a, b, c // 3 if rgb else c, -1, rgb)
    if len(shape) == 2 and min(shape) > 4:
        return Kind("picture", *shape)
    return Kind("vector")


def kinds(lake: Lake) -> list[tuple[str, Field, Kind]]:
    """Each observation of a step: its path, its field, and how it is shown."""
    found = []
    for (path, field), rows in zip(leaves(lake.spec.obs, "obs"), lake.reader.layouts(), strict=True):
        axis = None if rows is None else rows.axis
        size = 1 if rows is None or axis is None else field.shape[axis] // rows.length
        found.append((path, field, kind_of(field, axis, size)))
    return found


def columns_of(lake: Lake) -> dict[str, Field]:
    """The small columns of numbers: reward, actions, extras."""
    fields = {"reward": lake.spec.reward, **dict(leaves(lake.spec.action, "action")), **lake.spec.extras}
    return {name: field for name, field in fields.items() if np.dtype(field.dtype).kind in "buif"}


def is_market(lake: Lake) -> bool:
    """Whether an action is a coefficient and a sale target for each of many instruments."""
    action = lake.spec.action
    return isinstance(action, Field) and len(action.shape) == 2 and action.shape[1] == 2


def describe_field(field: Field) -> dict[str, Any]:
    """Shape, dtype and size of a field."""
    return {"shape": list(field.shape), "dtype": np.dtype(field.dtype).name, "bytes": field.nbytes}


def describe_window(values: Array, kind: Kind, column: int) -> dict[str, Any]:
    """One instrument of a window, (T, N, F) or (T, F): a curve for each feature, oldest first."""
    table = values[:, column] if values.ndim == 3 else values
    curves = {name: json_numbers(table[:, i].tolist()) for i, name in enumerate(kind.features)}
    return {"column": column, "curves": curves}


def describe_vector(values: Array) -> dict[str, Any]:
    """The first `MOST_NUMBERS` numbers of an observation, flat, and how many there are."""
    flat = np.asarray(values).reshape(-1)
    some = flat[:MOST_NUMBERS].tolist()
    numbers = json_numbers(some) if flat.dtype.kind in "buif" else [str(value) for value in some]
    return {"numbers": numbers, "of": flat.size}
