"""pond ──pour──▶ lake: submit the steps since the last commit, in milliseconds.

Columns are copied. Rows are pinned in the pond and read in pieces by the thread that writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from lakepond.lake.format.commits import Commit
from lakepond.lake.format.tracks import Layout, covered, runs_of
from lakepond.lake.write.commit_queue import Background
from lakepond.lake.write.handover import HandOver, Windows
from lakepond.pond import Pond
from lakepond.pond.observations import Observations
from lakepond.rows import RowStore
from lakepond.sampling.generators import state_of
from lakepond.sampling.links import CONTINUES
from lakepond.sampling.priorities import Priorities
from lakepond.types import Array

PIECE_BYTES = 8 << 20
"""rows read at a time"""
MOST_CHANGES = 16
"""hand-overs of changed priorities before all are handed over again"""


class Handed:
    """What has been submitted of a pond so far; the rest is new."""

    def __init__(self, next_rows: list[int]) -> None:
        self.next_rows = next_rows
        """the next row number of each leaf"""
        self.weights: Array = np.zeros(0)
        """of each place, as they were handed over last"""
        self.changes = self.changed = 0
        """hand-overs of changed weights since all were handed over, and the number of these weights"""
        self.last = -1
        """number of the last job handed over; if another job is the last, a hand-over was interrupted"""


def hand_over(
    pond: Pond,
    since: int,
    known: Handed,
    to: Background,
    note: dict[str, Any],
    generator: np.random.Generator,
    ends: Mapping[int, tuple[bool, bool]],
) -> Future[Commit]:
    """Submit the steps from `since` on, the priorities that changed, and the state of the replay's generator.

    `ends`: the end flags of earlier steps that changed. They and `generator` are read at once.
    Rows are numbered and pinned last. If that or submitting fails, nothing has changed; after an interrupt
    behind it, everything was handed over.
    """
    with pond.reading():
        if since < pond.oldest:
            raise AssertionError(f"steps [{since}, {pond.oldest}) were evicted before they were committed")
        handed, new = _collect(pond, since, known.next_rows, generator)
        handed = replace(handed, ends=dict(ends))
        changed = None
        if pond.priorities is not None:
            changed = _changed(pond, pond.places(np.arange(since, pond.recorded)), known, to)
        if changed is not None and pond.priorities is not None:
            weights = pond.priorities.weights(pond.places(changed))
            handed = replace(handed, priorities=weights, changed=changed)
        numbered = list(known.next_rows)
        try:
            for i, store, slots in new:
                store.set_row_numbers(slots, numbered[i] + np.arange(len(slots)))
                known.next_rows[i] += len(slots)
                store.pin(slots)  # an interrupt in here only keeps rows too long
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


def copy_of(pond: Pond, generator: np.random.Generator | None = None) -> HandOver:
    """All live steps as a new lake takes them, with rows numbered from 0; the pond's own lake is not changed.

    Rows are not copied: they are held until `release` is called.
    """
    with pond.reading():
        handed, new = _collect(pond, pond.oldest, None, generator)
        for _, store, slots in new:
            store.pin(slots)
        return handed


def _collect(
    pond: Pond, since: int, next_rows: list[int] | None, generator: np.random.Generator | None
) -> tuple[HandOver, list[tuple[int, RowStore, Array]]]:
    """The steps from `since` on with all priorities, and for each leaf the slots of rows that are new.

    `next_rows`: the number of the next new row of each leaf in the pond's lake; None: in a lake of its own.
    """
    pond.update()
    places = pond.places(np.arange(since, pond.recorded))
    columns = {name: _between(column, since, pond.recorded) for name, column in pond.columns.items()}
    columns["follows_previous"] = _between(pond.links.join, since, pond.recorded) == CONTINUES
    parts: list[Windows | Array] = []
    new: list[tuple[int, RowStore, Array]] = []
    for i, leaf in enumerate(pond.leaves):
        if leaf.store is None:
            parts.append(leaf.values(places))
            continue
        windows, slots = _windows(pond, leaf, places, None if next_rows is None else next_rows[i])
        new.append((i, leaf.store, slots))
        parts.append(windows)
    weights, largest, alpha = None, 1.0, None
    if pond.priorities is not None:
        weights = pond.priorities.weights(pond.places(pond.ids()))
        largest, alpha = pond.priorities.largest, pond.priorities.alpha

    def release() -> None:
        with pond.finishing():
            for _, store, slots in new:
                store.unpin(slots)

    state = None if generator is None else state_of(generator)
    oldest, leaves = pond.oldest, tuple(parts)
    return HandOver(since, oldest, columns, leaves, weights, None, largest, alpha, release, state), new


def _between(column: Array, start: int, stop: int) -> Array:
    """A copy of the entries of steps [start, stop) in a ring."""
    first, ring = start % len(column), len(column)
    last = first + stop - start
    return (
        column[first:last].copy() if last <= ring else np.concatenate((column[first:], column[: last - ring]))
    )


def _changed(pond: Pond, new: Array, known: Handed, to: Background) -> Array | None:
    """The live steps whose weight is not what was handed over last; None: hand over all.

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


def _windows(pond: Pond, leaf: Observations, places: Array, next_row: int | None) -> tuple[Windows, Array]:
    """The windows of these steps as parts of one track, and the slots of the rows the lake does not have.

    `next_row`: the number of the next new row in the pond's lake; None: in another, which has no row yet.
    """
    store = leaf.store
    assert store is not None
    length = store.length
    starts = store.starts(places)
    # windows that overlap or touch in the pond's tracks are one range of the segment's track
    positions = covered(starts, length)
    moved = np.searchsorted(positions, starts)
    slots = store.slots_at(positions)
    first = 0 if next_row is None else next_row
    track = np.full(len(slots), -1) if next_row is None else store.row_numbers(slots)
    unnumbered = track < 0
    unknown, at, which = np.unique(slots[unnumbered], return_index=True, return_inverse=True)
    order = np.argsort(at)  # in the order of the track: on disk as in time
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
