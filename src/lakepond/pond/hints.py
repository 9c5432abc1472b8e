"""Hints for observations that would be smaller in another row layout, measured on the newest steps."""

from __future__ import annotations

import numpy as np

from lakepond.pond.observations import Observations
from lakepond.pond.pond import Pond
from lakepond.rows.layouts import bytes_stored, divisors
from lakepond.types import Array, RowLayout, normal_axis

STEPS = 64
"""newest steps that are measured"""
MOST_BYTES = 16 << 20
"""maximum bytes of measured observations; fewer steps are measured if they take more"""
MOST_ROWS = 1024
"""maximum rows per observation of a measured layout"""
WORTH = 1.5
"""minimum factor by which another layout must be smaller for a hint"""


def hints(pond: Pond) -> dict[str, str]:
    """Return a hint for each leaf that another layout would store in less memory. The lock is held."""
    found = {leaf.path: _hint(pond, leaf) for leaf in pond.leaves}
    return {path: hint for path, hint in found.items() if hint}


def _hint(pond: Pond, leaf: Observations) -> str:
    store, nbytes = leaf.store, leaf.field.nbytes
    if store is None or not leaf.layout_chosen or pond.size < STEPS:
        return ""
    if WORTH * store.rows * store.row_bytes <= pond.size * nbytes:  # most rows repeat
        return ""
    if pond.recorded >= leaf.hint[0]:  # not at every call: it takes some 10 ms
        count = max(2, min(STEPS, MOST_BYTES // (2 * nbytes)))
        newest = pond.places(np.arange(pond.recorded - count, pond.recorded))
        leaf.hint = 2 * pond.recorded, _measure(leaf, newest)
    return leaf.hint[1]


def _measure(leaf: Observations, places: Array) -> str:
    """Measure some steps in every layout; return the best one as a hint if it is much smaller."""
    shape = leaf.field.shape
    observations = [np.asarray(obs) for which in (0, 1) for obs in leaf.read(which, places)]
    layouts = [
        RowLayout(normal_axis(shape, axis), size)
        for axis, length in enumerate(shape)
        for size in divisors(length)[:-1]
        if length // size <= MOST_ROWS
    ]
    stored = {layout: bytes_stored(observations, layout) for layout in [None, *layouts]}
    best = min(stored, key=lambda layout: stored[layout])
    gain = bytes_stored(observations, leaf.row_layout) / stored[best]
    return f"declare Field(..., rows={best}) to store it in {gain:.1f} times less" if gain >= WORTH else ""
