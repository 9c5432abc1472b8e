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


class SharedWindows(NamedTuple):
    """The windows of some steps, as slices of the row numbers that they cover."""

    streams: Array
    length: int
    rows: Array
    starts: Array
    """(steps, 2): of obs and of next_obs"""
    days: Array | None
    """(steps, 2): the day of the newest row of each, if the steps have it"""

    def uses(self, starts: Array) -> Array:
        """The number of windows from these starts on that cover each of the row numbers."""
        places = len(self.rows) + 1
        stops = np.bincount(starts + self.length, minlength=places)
        return np.cumsum(np.bincount(starts, minlength=places) - stops)[:-1]


def describe_sharing(lake: Lake, leaf: int, dates: Sequence[str] = ()) -> dict[str, Any]:
    """Uses of rows by stream, over the newest steps; `dates` are those of the days of a market."""
    parts: list[SharedWindows] = []
    steps, tracks, stop = 0, 0, lake.reader.recorded
    while stop > lake.reader.oldest and steps < MOST_STEPS and tracks < MOST_TRACK:
        (segment,) = lake.reader.stored(stop - 1, stop)
        part, stop = _windows(lake, segment, leaf), segment.first
        if part is None:
            return {"leaf": leaf, "kind": "plain", "steps": 0, "of": len(lake)}
        steps, tracks = steps + len(part.streams), tracks + len(part.rows)
        parts.append(part)
    if not parts:
        return {"leaf": leaf, "kind": "empty", "steps": 0, "of": 0}
    return {"leaf": leaf, "kind": "rows", "steps": steps, "of": len(lake), **_count(parts, dates)}


def _windows(lake: Lake, segment: Stored, leaf: int) -> SharedWindows | None:
    """The windows of a segment's newest live steps; None if the leaf is stored without rows."""
    first = max(segment.first, lake.reader.oldest, segment.stop - MOST_STEPS)
    part = lake.reader.read(segment, np.arange(first, segment.stop))
    found = part.leaves[leaf]
    if not isinstance(found, LeafPart):
        return None
    length, positions = found.layout.length, covered(found.starts, found.layout.length)
    starts = np.searchsorted(positions, found.starts)
    known = {"day", "next_day"} <= part.columns.keys()
    days = np.stack([part.columns["day"], part.columns["next_day"]], axis=1) if known else None
    return SharedWindows(part.columns["stream"], length, found.track[positions], starts, days)


def _count(parts: list[SharedWindows], dates: Sequence[str]) -> dict[str, Any]:
    known, counts = np.unique(np.concatenate([part.streams for part in parts]), return_counts=True)
    shown = np.sort(known[np.argsort(-counts, kind="stable")[:MOST_STREAMS]])
    rows = np.unique(np.concatenate([part.rows for part in parts]))
    days = _days(parts, rows, dates)
    order = np.arange(len(rows)) if days is None else days - days.min()
    span = int(order.max()) + 1
    used = np.zeros((len(shown), len(rows)), bool)
    table = np.zeros((len(shown), min(BINS, span)), np.int64)
    bins = order * table.shape[1] // span
    for part in parts:
        place = np.searchsorted(rows, part.rows)
        for i, stream in enumerate(shown.tolist()):
            uses = part.uses(part.starts[part.streams == stream].reshape(-1))
            used[i][place[uses > 0]] = True
            np.add.at(table[i], bins[place], uses)
    firsts = -(-np.arange(table.shape[1]) * span // table.shape[1])
    shared = np.bincount(used.sum(axis=0), minlength=len(shown) + 1)
    return {
        "length": parts[0].length,
        "rows": len(rows),
        "uses": sum(part.starts.size * part.length for part in parts),
        "streams": shown.tolist(),
        "streams_of": len(known),
        "rows_by_stream": int(used.sum()),
        "labels": [f"row {rows[k]:,}" if days is None else dates[days.min() + k] for k in firsts],
        "dates": days is not None,
        "shared": [{"by": by, "rows": int(shared[by])} for by in range(1, len(shown) + 1)],
        "uses_by_stream": table.tolist(),
        "overlap": (used.astype(np.float32) @ used.T.astype(np.float32)).astype(np.int64).tolist(),
    }


def _days(parts: list[SharedWindows], rows: Array, dates: Sequence[str]) -> Array | None:
    """The day of each row, from the days of the windows that it is in; None unless all are known."""
    found = np.full(len(rows), -1)
    for part in parts:
        if part.days is None:
            return None
        ends, first = np.unique(part.days.reshape(-1), return_index=True)
        starts, along = part.starts.reshape(-1)[first], np.arange(part.length)
        places = np.searchsorted(rows, part.rows[starts[:, None] + along])
        found[places] = ends[:, None] - part.length + 1 + along
    return found if found.min() >= 0 and found.max() < len(dates) else None
