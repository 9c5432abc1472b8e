"""Observations as numbers: a market window as curves, a vector as a list; and what was to be bought."""

from __future__ import annotations

from typing import Any

import numpy as np

from lakepond.lake.read.lake import Lake
from lakepond.report.view.kinds import MOST_NUMBERS, Kind
from lakepond.types import Array

HOLDING = 20
"""steps in which an instrument that was entered is taken to be held, as in the market's own rules"""


def observe(lake: Lake, ids: Array, leaf: int, which: int = 0) -> Array:
    """The obs (0) or next_obs (1) of the steps with these sorted ids, of one leaf."""
    return np.concatenate([lake.observations(leaf, part.leaves[leaf], which) for part in lake.parts(ids)])


def tell_window(values: Array, kind: Kind, column: int) -> dict[str, Any]:
    """One instrument of a window, (T, N, F) or (T, F): a curve for each feature, oldest first."""
    table = values[:, column] if values.ndim == 3 else values
    return {"column": column, "curves": {name: numbers(table[:, i]) for i, name in enumerate(kind.features)}}


def tell_vector(values: Array) -> dict[str, Any]:
    """The numbers of an observation, flat; no more than can be looked at."""
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind not in "buif":
        return {"numbers": [str(value) for value in flat[:MOST_NUMBERS]], "of": flat.size}
    return {"numbers": numbers(flat[:MOST_NUMBERS]), "of": flat.size}


def find_entries(actions: Array, threshold: float) -> list[dict[str, Any]]:
    """What (steps, N, 2) actions of a market ask to buy: coefficient, then sale target in percent.

    At each step the instrument with the highest coefficient, if that reaches the threshold; not again within
    `HOLDING` steps, while it may be held. Whether the market filled the order is not in the lake.
    """
    coefficient = np.nan_to_num(actions[:, :, 0].astype("f8"), nan=-np.inf)
    best = coefficient.argmax(axis=1)
    peak = coefficient[np.arange(len(best)), best]
    held: dict[int, int] = {}
    entries = []
    for at in np.flatnonzero(peak >= threshold).tolist():
        column = int(best[at])
        if at - held.get(column, -HOLDING - 1) <= HOLDING:
            continue
        held[column] = at
        target = float(actions[at, column, 1])
        entries.append({"at": at, "column": column, "coefficient": float(peak[at]), "target": target})
    return entries


def numbers(values: Array) -> list[float | None]:
    """For JSON: six digits, and null for NaN and infinity."""
    plain = np.asarray(values, "f8")
    return [
        float(f"{v:.6g}") if finite else None for v, finite in zip(plain, np.isfinite(plain), strict=True)
    ]
