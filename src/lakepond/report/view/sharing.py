"""How many times each row is used, and by which streams.

A window is a range of its segment's track, and a track is a list of row numbers, so uses are counted from the
windows alone, without reading a row:

    +1 where a window starts, -1 where it stops ──running sum──▶ uses along the track ──▶ uses of a row

The rows of a market are its days: if the run has dates, rows are ordered and labelled by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lakepond.lake.format.tracks import covered
from lakepond.lake.read.lake import Lake
from lakepond.lake.read.reader import LeafPart, Stored
from lakepond.types import Array

MOST_STEPS = 1 << 18
"""the newest steps that are counted"""
MOST_STREAMS = 24
"""streams that are shown, those with the most steps"""
MOST_TRACK = 1 << 20
"""row numbers of tracks that are counted"""
BINS = 160


def describe_sharing(lake: Lake, leaf: int, dates: Sequence[str] = ()) -> dict[str, Any]:
    """Uses of rows by stream, over the newest steps; `dates` are those of the days of a market."""
    parts: list[tuple[Array, SharedWindows]] = []
    steps, tracks, stop = 0, 0, lake.reader.recorded
    while stop > lake.reader.oldest and steps < MOST_STEPS and tracks < MOST_TRACK:
        (segment,) = lake.reader.stored(stop - 1, stop)
        part, stop = _windows(lake, segment, leaf), segment.first
        if part is None:
            return {"leaf": leaf, "kind": "plain", "steps": 0, "of": len(lake)}
        steps, tracks = steps + len(part[0]), tracks + len(part[1].rows)
        parts.append(part)
    if not parts:
        return {"leaf": leaf, "kind": "empty", "steps": 0, "of": 0}
    return {"leaf": leaf, "kind": "rows", "steps": steps, "of": len(lake), **_count(parts, dates)}


class SharedWindows(NamedTuple):
    """The windows of some steps, as slices of the row numbers that they cover."""

    length: int
    rows: Array
    starts: Array
    """(steps, 2): of obs and of next_obs"""
    days: Array | None
    """(steps, 2): the day of the newest row of each, if the steps have it"""


def _windows(lake: Lake, segment: Stored, leaf: int) -> tuple[Array, SharedWindows] | None:
    """The streams and windows of a segment's newest live steps; None if the leaf is stored without rows."""
    first = max(segment.first, lake.reader.oldest, segment.stop - MOST_STEPS)
    part = lake.reader.read(segment, np.arange(first, segment.stop))
    found = part.leaves[leaf]
    if not isinstance(found, LeafPart):
        return None
    positions = covered(found.starts, found.layout.length)
    starts = np.searchsorted(positions, found.starts)
    known = {"day", "next_day"} <= part.columns.keys()
    days = np.stack([part.columns["day"], part.columns["next_day"]], axis=1) if known else None
    return part.columns["stream"], SharedWindows(found.layout.length, found.track[positions], starts, days)


def _count(parts: list[tuple[Array, SharedWindows]], dates: Sequence[str]) -> dict[str, Any]:
    known, counts = np.unique(np.concatenate([stream for stream, _ in parts]), return_counts=True)
    shown = np.sort(known[np.argsort(-counts, kind="stable")[:MOST_STREAMS]])
    rows = np.unique(np.concatenate([leaf.rows for _, leaf in parts]))
    by_stream = np.zeros((len(shown), len(rows)), bool)
    days = _days(parts, rows, dates)
    order = np.arange(len(rows)) if days is None else days - days.min()
    span = int(order.max()) + 1
    table = np.zeros((len(shown), min(BINS, span)))
    bins = order * table.shape[1] // span
    firsts = -(-np.arange(table.shape[1]) * span // table.shape[1])
    labels = (
        [f"row {row:,}" for row in rows[firsts]] if days is None else [dates[days.min() + k] for k in firsts]
    )
    for stream, leaf in parts:
        place = np.searchsorted(rows, leaf.rows)
        for i, name in enumerate(shown.tolist()):
            along = _along(leaf, leaf.starts[stream == name].reshape(-1))
            by_stream[i][place[along > 0]] = True
            table[i] += np.bincount(bins[place], along, table.shape[1])
    sharers = by_stream.sum(axis=0)
    overlap = (by_stream.astype(np.float32) @ by_stream.T.astype(np.float32)).astype(np.int64)
    return {
        "length": parts[0][1].length,
        "rows": len(rows),
        "uses": sum(leaf.starts.size * leaf.length for _, leaf in parts),
        "streams": shown.tolist(),
        "streams_of": len(known),
        "rows_by_stream": int(by_stream.sum()),
        "labels": labels,
        "dates": days is not None,
        "shared": [{"by": k, "rows": int((sharers == k).sum())} for k in range(1, len(shown) + 1)],
        "uses_by_stream": table.astype(np.int64).tolist(),
        "overlap": overlap.tolist(),
    }


def _days(parts: list[tuple[Array, SharedWindows]], rows: Array, dates: Sequence[str]) -> Array | None:
    """The day of each row, from the days of the windows that it is in; None unless all are known."""
    found = np.full(len(rows), -1)
    for _, leaf in parts:
        if leaf.days is None or leaf.starts.shape != leaf.days.shape:
            return None
        ends, first = np.unique(leaf.days.reshape(-1), return_index=True)
        starts, along = leaf.starts.reshape(-1)[first], np.arange(leaf.length)
        places = np.searchsorted(rows, leaf.rows[starts[:, None] + along])
        found[places] = ends[:, None] - leaf.length + 1 + along
    return found if found.min() >= 0 and found.max() < len(dates) else None


def _along(leaf: SharedWindows, starts: Array) -> Array:
    """The number of windows that cover each of the row numbers."""
    places = len(leaf.rows) + 1
    stops = np.bincount(starts + leaf.length, minlength=places)
    return np.cumsum(np.bincount(starts, minlength=places) - stops)[:-1]
