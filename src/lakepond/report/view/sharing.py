"""Which rows are shared by whom: how many streams use each row, and which rows each stream uses.

A window is a range of its segment's track, and a track is row numbers; so who uses what is found from the
windows alone, without reading a single row:

    +1 where a window starts, -1 where it stops ──running sum──▶ uses along the track ──▶ uses a row
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lakepond.lake.commits import Segment
from lakepond.lake.lake import Lake
from lakepond.lake.reader import LeafPart
from lakepond.lake.tracks import covered
from lakepond.types import Array

MOST_STEPS = 1 << 18
"""the newest steps that are looked at"""
MOST_STREAMS = 24
"""streams that get a line of their own"""
MOST_TRACK = 1 << 20
"""row numbers of tracks that are looked at"""
BINS = 160


def tell_sharing(lake: Lake, leaf: int) -> dict[str, Any]:
    """Uses of rows by stream, over the newest steps."""
    parts: list[tuple[Array, Windows]] = []
    steps, tracks = 0, 0
    for segment in reversed(lake.commit.segments):
        part = _windows(lake, segment, leaf)
        if part is None:
            return {"leaf": leaf, "kind": "plain", "steps": 0, "of": len(lake)}
        steps, tracks = steps + len(part[0]), tracks + len(part[1].rows)
        parts.append(part)
        if steps >= MOST_STEPS or tracks >= MOST_TRACK:
            break
    if not parts:
        return {"leaf": leaf, "kind": "empty", "steps": 0, "of": 0}
    return {"leaf": leaf, "kind": "rows", "steps": steps, "of": len(lake), **_count(parts)}


class Windows(NamedTuple):
    """The windows of some steps, as slices of the row numbers that they cover."""

    length: int
    rows: Array
    starts: Array


def _windows(lake: Lake, segment: Segment, leaf: int) -> tuple[Array, Windows] | None:
    """The streams and windows of a segment's newest live steps; None if the leaf is stored without rows."""
    first = max(segment.first, lake.commit.oldest, segment.stop - MOST_STEPS)
    part = lake.reader.read(segment, np.arange(first, segment.stop))
    found = part.leaves[leaf]
    if not isinstance(found, LeafPart):
        return None
    positions = covered(found.starts, found.layout.length)
    starts = np.searchsorted(positions, found.starts)
    return part.columns["stream"], Windows(found.layout.length, found.track[positions], starts)


def _count(parts: list[tuple[Array, Windows]]) -> dict[str, Any]:
    known, counts = np.unique(np.concatenate([stream for stream, _ in parts]), return_counts=True)
    shown = np.sort(known[np.argsort(-counts, kind="stable")[:MOST_STREAMS]])
    rows = np.unique(np.concatenate([leaf.rows for _, leaf in parts]))
    uses = np.zeros(len(rows), np.int64)
    by_stream = np.zeros((len(shown), len(rows)), bool)
    table = np.zeros((len(shown), min(BINS, len(rows))))
    bins = np.arange(len(rows)) * table.shape[1] // max(1, len(rows))
    for stream, leaf in parts:
        place = np.searchsorted(rows, leaf.rows)
        uses += np.bincount(place, _along(leaf, leaf.starts.reshape(-1)), len(rows)).astype(np.int64)
        for i, name in enumerate(shown.tolist()):
            along = _along(leaf, leaf.starts[stream == name].reshape(-1))
            by_stream[i][place[along > 0]] = True
            table[i] += np.bincount(bins[place], along, table.shape[1])
    live = uses > 0
    sharers = by_stream.sum(axis=0)[live]
    overlap = (by_stream.astype(np.float32) @ by_stream.T.astype(np.float32)).astype(np.int64)
    return {
        "length": parts[0][1].length,
        "rows": int(live.sum()),
        "uses": int(uses.sum()),
        "streams": shown.tolist(),
        "streams_of": len(known),
        "first_row": int(rows[0]),
        "last_row": int(rows[-1]),
        "shared": [{"by": k, "rows": int((sharers == k).sum())} for k in range(1, len(shown) + 1)],
        "uses_by_stream": table.astype(np.int64).tolist(),
        "overlap": overlap.tolist(),
    }


def _along(leaf: Windows, starts: Array) -> Array:
    """How many windows cover each of the row numbers."""
    change = np.bincount(starts, minlength=len(leaf.rows) + 1)[: len(leaf.rows) + 1].astype(np.int64)
    stops = np.bincount(starts + leaf.length, minlength=len(leaf.rows) + 1)
    return np.cumsum(change - stops[: len(leaf.rows) + 1])[:-1]
