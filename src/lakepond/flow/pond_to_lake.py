"""pond ──pour──▶ lake: hand over the steps since the last commit, in milliseconds.

Columns are copied. Rows are not: they are held where they lie, and read in pieces by whoever writes them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lakepond.lake.handover import HandOver, Layout, Windows
from lakepond.lake.tracks import covered, runs_of
from lakepond.pond import Pond
from lakepond.pond.observations import Observations
from lakepond.rows import RowStore
from lakepond.types import Array

PIECE_BYTES = 8 << 20
"""rows read at a time"""


def hand_over(pond: Pond, since: int, next_rows: list[int]) -> HandOver:
    """The steps from `since` on; `next_rows` tells the next row number of each leaf, and is counted up.

    Rows get their numbers, and are held, after all else has been done: if that fails, nothing has changed.
    """
    with pond.reading():
        if since < pond.oldest:
            raise AssertionError(f"steps [{since}, {pond.oldest}) have left the pond before they were poured")
        places = pond.places(np.arange(since, pond.recorded))
        columns = {name: column[places] for name, column in pond.columns.items()}
        parts: list[Windows | Array] = []
        new: list[tuple[int, RowStore, Array]] = []
        for i, leaf in enumerate(pond.leaves):
            if leaf.store is None:
                parts.append(leaf.plain(places))
                continue
            windows, slots = _windows(pond, leaf, places, next_rows[i])
            new.append((i, leaf.store, slots))
            parts.append(windows)
        priorities, largest, alpha = None, 1.0, None
        if pond.priorities is not None:
            priorities = pond.priorities.weights(pond.places(pond.ids()))
            largest, alpha = pond.priorities.largest, pond.priorities.alpha
        oldest, numbered = pond.oldest, list(next_rows)
        try:
            for i, store, slots in new:
                store.books.slots["lake"][slots] = numbered[i] + np.arange(len(slots))
                next_rows[i] += len(slots)
                store.pin(slots)  # an interrupt in here holds rows too long, no more
        except BaseException:
            for _, store, slots in new:
                store.books.slots["lake"][slots] = -1
            next_rows[:] = numbered
            raise

    def release() -> None:
        with pond.finishing():
            for _, store, slots in new:
                store.unpin(slots)

    return HandOver(since, oldest, columns, tuple(parts), priorities, largest, alpha, release)


def _windows(pond: Pond, leaf: Observations, places: Array, first: int) -> tuple[Windows, Array]:
    """The windows of these steps as parts of one track, and the slots of the rows the lake does not have."""
    store = leaf.store
    assert store is not None
    length, books = store.length, store.books
    starts = leaf.starts(places)
    # windows that overlap or touch in the pond's tracks are one range of the segment's track
    positions = covered(starts, length)
    moved = np.searchsorted(positions, starts)
    slots = books.entries[positions]
    track = books.slots["lake"][slots]
    unnumbered = track < 0
    unknown, at, which = np.unique(slots[unnumbered], return_index=True, return_inverse=True)
    order = np.argsort(at)  # in the order of the track: as in time, so on disk
    track[unnumbered] = first + np.argsort(order)[which]
    new_slots = unknown[order]
    layout = Layout(length, store.row_bytes, leaf.axis)

    def rows() -> Iterator[Array]:
        size = max(1, PIECE_BYTES // store.row_bytes)
        buffer = np.empty((min(size, len(new_slots)), store.row_bytes), np.uint8)
        for start in range(0, len(new_slots), size):
            part = new_slots[start : start + size]
            with pond.reading():
                store.readers += 1
            try:
                store.gather(part, buffer[: len(part)])
            finally:
                with pond.finishing():
                    store.readers -= 1
                    store.settle()
            yield buffer[: len(part)]

    return Windows(layout, runs_of(track), moved, first, len(new_slots), rows), new_slots
