"""The distribution of a column's values, over all live steps or evenly spaced spans of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from lakepond.errors import SpecError
from lakepond.lake.read.lake import Lake
from lakepond.report.view.episode import read_columns
from lakepond.report.view.fields import columns_of
from lakepond.types import Array

MOST_STEPS = 1 << 18
"""maximum number of steps read; of a larger lake, a sample in evenly spaced spans"""
MOST_BYTES = 64 << 20
SPANS = 64
BINS = 40
MOST_CHOICES = 64
"""most distinct integers with one bar each"""
MOST_PARTS = 8


def describe_distribution(lake: Lake, name: str) -> dict[str, Any]:
    """Bars for each part of a column, and the number of steps they were counted in."""
    known = columns_of(lake)
    if name not in known:
        raise SpecError(f"there is no column {name!r} of numbers; there are {list(known)}.")
    ids = _spread(lake, max(1024, min(MOST_STEPS, MOST_BYTES // max(1, known[name].nbytes))))
    if not len(ids):
        return {"column": name, "steps": 0, "of": 0, "parts": []}
    values = read_columns(lake, ids, [name])[name]
    return {
        "column": name,
        "dtype": np.dtype(known[name].dtype).name,
        "shape": list(known[name].shape),
        "steps": len(ids),
        "of": len(lake),
        "parts": [{"name": label, **bars(part)} for label, part in _parts(values)],
    }


def _spread(lake: Lake, most: int) -> Array:
    """All ids, or `most` of them in `SPANS` spans."""
    if len(lake) <= most:
        return lake.ids()
    size = max(1, most // SPANS)
    starts = np.linspace(lake.commit.oldest, lake.commit.recorded - size, SPANS).astype(np.int64)
    return np.unique(starts[:, None] + np.arange(size))


def _parts(values: Array) -> list[tuple[str, Array]]:
    """One part per last index if these are few, otherwise all values together."""
    if values.ndim == 1:
        return [("", values)]
    if values.shape[-1] > MOST_PARTS:
        return [("all values", values.reshape(-1))]
    lead = "" if values.ndim == 2 else "..., "
    return [(f"[{lead}{i}]", values[..., i].reshape(-1)) for i in range(values.shape[-1])]


def bars(values: Array) -> dict[str, Any]:
    """Counts: of each value if these are few integers, else of about `BINS` ranges of equal width."""
    finite = values[np.isfinite(values)].astype("f8")
    found: dict[str, Any] = {"values": len(values), "not_finite": len(values) - len(finite)}
    if not len(finite):
        return found | {"kind": "none"}
    found |= {
        "low": float(finite.min()),
        "high": float(finite.max()),
        "mean": float(finite.mean()),
        "deviation": float(finite.std()),
    }
    if np.array_equal(finite, np.round(finite)):
        choices, counts = np.unique(finite, return_counts=True)
        if len(choices) <= MOST_CHOICES:
            return found | {"kind": "choices", "at": choices.tolist(), "counts": counts.tolist()}
    counts, edges = np.histogram(finite, BINS)
    return found | {"kind": "ranges", "edges": edges.tolist(), "counts": counts.tolist()}
