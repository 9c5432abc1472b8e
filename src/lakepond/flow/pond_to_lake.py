"""pond ──pour──▶ lake: hand over the steps since the last commit, in milliseconds.

Columns are copied. Rows are not: they are held where they lie, and read in pieces by whoever writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np

from lakepond.lake.background import Background
from lakepond.lake.commits import Commit
from lakepond.lake.handover import HandOver, Layout, Windows
from lakepond.lake.tracks import covered, runs_of
from lakepond.pond import Pond
from lakepond.pond.links import CONTINUES
from lakepond.pond.observations import Observations
from lakepond.pond.priorities import Priorities
from lakepond.rows import RowStore
from lakepond.types import Array

PIECE_BYTES = 8 << 20
"""rows read at a time"""
MOST_CHANGES = 16
"""hand-overs of changed priorities before all are handed over again"""


class Handed:
    """What the lake has of a pond, or soon will: what is new is what is not in here."""

    def __init__(self, next_rows: list[int]) -> None:
        self.next_rows = next_rows
        """the next row number of each leaf"""
        self.weights: Array = np.zeros(0)
        """of each place, as they were handed over last"""
        self.changes = self.changed = 0
        """hand-overs of changed weights since all were handed over, and how many weights these were"""
        self.last = -1
        """which of all jobs the last hand-over was; another one is the last: it was interrupted"""


def hand_over(pond: Pond, since: int, known: Handed, to: Background, note: dict[str, Any]) -> Future[Commit]:
    """Submit the steps from `since` on, and the priorities that changed.

    Rows get their numbers, and are held, after all else has been done. If that or the submitting fails,
    nothing has changed; interrupted after it, all has.
    """
    with pond.reading():
        if since < pond.oldest:
            raise AssertionError(f"steps [{since}, {pond.oldest}) have left the pond before they were poured")
        pond.update()
        places = pond.places(np.arange(since, pond.recorded))
        columns = {name: column[places] for name, column in pond.columns.items()}
        columns["follows_previous"] = pond.links.join[places] == CONTINUES
        parts: list[Windows | Array] = []
        new: list[tuple[int, RowStore, Array]] = []
        for i, leaf in enumerate(pond.leaves):
            if leaf.store is None:
                parts.append(leaf.values(places))
                continue
            windows, slots = _windows(pond, leaf, places, known.next_rows[i])
            new.append((i, leaf.store, slots))
            parts.append(windows)
        weights, changed, largest, alpha = None, None, 1.0, None
        if pond.priorities is not None:
            changed = _changed(pond, places, known, to)
            weights = pond.priorities.weights(pond.places(pond.ids() if changed is None else changed))
            largest, alpha = pond.priorities.largest, pond.priorities.alpha

        def release() -> None:
            with pond.finishing():
                for _, store, slots in new:
                    store.unpin(slots)

        handed = HandOver(
            since, pond.oldest, columns, tuple(parts), weights, changed, largest, alpha, release
        )
        numbered = list(known.next_rows)
        try:
            for i, store, slots in new:
                store.set_row_numbers(slots, numbered[i] + np.arange(len(slots)))
                known.next_rows[i] += len(slots)
                store.pin(slots)  # an interrupt in here holds rows too long, no more
            done = to.submit(handed, note)
            if pond.priorities is not None:
                _remember(pond.priorities, None if changed is None else pond.places(changed), known)
                known.last = to.submitted
            return done
        except BaseException:
            if to.taken < handed.stop:
                for _, store, slots in new:
                    store.set_row_numbers(slots, -1)
                known.next_rows[:] = numbered
            raise


def _changed(pond: Pond, new: Array, known: Handed, to: Background) -> Array | None:
    """The live steps whose weight is not what was handed over last; None if all are to be told again.

    `new`: the places of steps that were not handed over. A place may hold another step by now.
    """
    if known.last != to.submitted or known.changes == MOST_CHANGES:
        return None
    assert pond.priorities is not None
    known.weights[new] = np.nan
    ids = pond.ids_at(np.flatnonzero(known.weights != pond.priorities.held))
    return np.sort(ids) if 2 * (known.changed + len(ids)) < pond.size else None


def _remember(weights: Priorities, changed: Array | None, known: Handed) -> None:
    """The weights at these places have been handed over, or all."""
    if changed is None:
        known.weights = weights.held.copy()
        known.changes = known.changed = 0
    else:
        known.weights[changed] = weights.held[changed]
        known.changes, known.changed = known.changes + 1, known.changed + len(changed)


def _windows(pond: Pond, leaf: Observations, places: Array, first: int) -> tuple[Windows, Array]:
    """The windows of these steps as parts of one track, and the slots of the rows the lake does not have."""
    store = leaf.store
    assert store is not None
    length = store.length
    starts = store.starts(places)
    # windows that overlap or touch in the pond's tracks are one range of the segment's track
    positions = covered(starts, length)
    moved = np.searchsorted(positions, starts)
    slots = store.slots_at(positions)
    track = store.row_numbers(slots)
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
                store.copy_rows(part, buffer[: len(part)])
            finally:
                with pond.finishing():
                    store.readers -= 1
                    store.free_pending()
            yield buffer[: len(part)]

    return Windows(layout, runs_of(track), moved, first, len(new_slots), rows), new_slots
