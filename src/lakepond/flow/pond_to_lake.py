"""pond ──pour──▶ lake: submit the steps since the last commit, in milliseconds.

Columns are copied. Rows are pinned in the pond and read in pieces by the thread that writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lakepond.flow.known_sources import KnownSources
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.entries import Source
from lakepond.lake.format.tracks import Layout, covered, runs_of
from lakepond.lake.write.commit_queue import Background
from lakepond.lake.write.handover import HandOver, SourceRows, Windows
from lakepond.pond import Pond
from lakepond.rows import RowStore
from lakepond.sampling.generators import state_of
from lakepond.sampling.links import CONTINUES
from lakepond.sampling.priorities import Priorities
from lakepond.types import Array

PIECE_BYTES = 8 << 20
"""rows read at a time"""
KEPT_BYTES = 8 << 20
"""of copied columns, kept for the next copies"""
NOT_SHARED = 3
"""references to memory that nothing else uses: an attribute, a variable, and the counter's argument"""
FOLLOWS = "follows_previous"
MOST_CHANGES = 16
"""hand-overs of changed priorities before all are handed over again"""


class Copies:
    """Copies of columns, in the memory of the last ones if nothing refers to those any more.

    New memory costs more than the copy: the system clears each page at its first use.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def between(self, columns: Mapping[str, Array], start: int, stop: int) -> dict[str, Array]:
        """The entries of steps [start, stop) of each column, which is a ring."""
        offsets = np.cumsum(
            [0, *(-(-column[:1].nbytes * (stop - start) // 64) * 64 for column in columns.values())]
        )
        memory = self._memory
        if len(memory) < offsets[-1] or sys.getrefcount(memory) > NOT_SHARED:
            memory = np.empty(offsets[-1], np.uint8)
            if len(memory) <= KEPT_BYTES:
                self._memory = memory
        copies = {}
        for (name, column), offset in zip(columns.items(), offsets[:-1].tolist(), strict=True):
            copy: Array = np.ndarray((stop - start, *column.shape[1:]), column.dtype, memory, offset)
            first = start % len(column)
            before_end = column[first : first + stop - start]
            copy[: len(before_end)] = before_end
            copy[len(before_end) :] = column[: stop - start - len(before_end)]
            copies[name] = copy
        return copies


class New(NamedTuple):
    """The rows of one leaf that get their numbers with a hand-over."""

    leaf: int
    store: RowStore
    slots: Array
    """slots of rows that are written, and pinned until then"""
    known_slots: Array
    """slots of rows of sources"""
    known_rows: Array
    """their numbers"""
    windows: Windows


class Handed:
    """What has been submitted of a pond so far; the rest is new."""

    def __init__(self, next_rows: list[int], sources: Sequence[Iterable[Source]]) -> None:
        self.next_rows = next_rows
        """the next row number of each leaf"""
        self.sources = [KnownSources(listed) for listed in sources]
        """the sources of each leaf"""
        self.copies = Copies()
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
    for leaf, sources in zip(pond.leaves, known.sources, strict=True):
        sources.prepare(leaf)
    with pond.reading():
        if since < pond.oldest:
            raise AssertionError(f"steps [{since}, {pond.oldest}) were evicted before they were committed")
        pond.evict()  # rows that only evicted steps have lose their numbers: the lake may drop them
        handed, new = _collect(pond, since, known, generator)
        handed = replace(handed, ends=dict(ends))
        changed = None
        if pond.priorities is not None:
            changed = _changed(pond, pond.places(np.arange(since, pond.recorded)), known, to)
        if changed is not None and pond.priorities is not None:
            weights = pond.priorities.weights(pond.places(changed))
            handed = replace(handed, priorities=weights, changed=changed)
        numbered, firsts = list(known.next_rows), [dict(each.firsts) for each in known.sources]
        try:
            for each in new:
                windows = each.windows
                each.store.set_row_numbers(each.slots, windows.first + np.arange(len(each.slots)))
                each.store.set_row_numbers(each.known_slots, each.known_rows)
                known.next_rows[each.leaf] = windows.first + windows.count
                known.sources[each.leaf].firsts |= {source.digest: source.first for source in windows.sources}
                each.store.pin(each.slots)  # an interrupt in here only keeps rows too long
            done = to.submit(handed, note)
            if pond.priorities is not None:
                _remember(pond.priorities, None if changed is None else pond.places(changed), known)
                known.last = to.submitted
            return done
        except BaseException:
            if to.taken < handed.stop:
                for each in new:
                    each.store.set_row_numbers(each.slots, -1)
                    each.store.set_row_numbers(each.known_slots, -1)
                known.next_rows[:] = numbered
                for sources, before in zip(known.sources, firsts, strict=True):
                    sources.firsts = before
            raise


def copy_of(pond: Pond, generator: np.random.Generator | None = None) -> HandOver:
    """All live steps as a new lake takes them, with rows numbered from 0; the pond's own lake is not changed.

    Rows are not copied: they are held until `release` is called.
    """
    with pond.reading():
        handed, new = _collect(pond, pond.oldest, None, generator)
        for each in new:
            each.store.pin(each.slots)
        return handed


def _collect(
    pond: Pond, since: int, known: Handed | None, generator: np.random.Generator | None
) -> tuple[HandOver, list[New]]:
    """The steps from `since` on with all priorities, and for each leaf the slots of rows that are new.

    `known`: what was handed over to the pond's lake; None: the steps go to a lake of their own.
    """
    pond.update()
    places = pond.places(np.arange(since, pond.recorded))
    copies = Copies() if known is None else known.copies
    columns = copies.between({**pond.columns, FOLLOWS: pond.links.join}, since, pond.recorded)
    columns[FOLLOWS] = columns[FOLLOWS] == CONTINUES
    parts: list[Windows | Array] = []
    new: list[New] = []
    for i, leaf in enumerate(pond.leaves):
        if leaf.store is None:
            parts.append(leaf.values(places))
            continue
        new.append(_windows(pond, i, leaf.store, places, known))
        parts.append(new[-1].windows)
    weights, largest, alpha = None, 1.0, None
    if pond.priorities is not None:
        weights = pond.priorities.weights(pond.places(pond.ids()))
        largest, alpha = pond.priorities.largest, pond.priorities.alpha

    def release() -> None:
        with pond.finishing():
            for each in new:
                each.store.unpin(each.slots)

    state = None if generator is None else state_of(generator)
    oldest, leaves = pond.oldest, tuple(parts)
    return HandOver(since, oldest, columns, leaves, weights, None, largest, alpha, release, state), new


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


def _windows(pond: Pond, leaf: int, store: RowStore, places: Array, known: Handed | None) -> New:
    """The windows of these steps as parts of one track, and the slots of the rows the lake does not have.

    `known`: of the pond's lake; None: the windows go to another lake, which has no row yet.
    """
    length = store.length
    starts = store.starts(places)
    # windows that overlap or touch in the pond's tracks are one range of the segment's track
    positions = covered(starts, length)
    moved = np.searchsorted(positions, starts)
    slots = store.slots_at(positions)
    first = 0 if known is None else known.next_rows[leaf]
    track = np.full(len(slots), -1) if known is None else store.row_numbers(slots)
    shared = known_slots = np.zeros(0, np.int32)
    sources: tuple[SourceRows, ...] = ()
    if known is not None:
        unnumbered = np.unique(slots[track < 0])
        sources, shared = known.sources[leaf].find(store, unnumbered, first)
        first += sum(len(source.rows) for source in sources)
        unnumbered, shared = unnumbered[shared >= 0], shared[shared >= 0]
        known_slots = unnumbered
        if len(known_slots):
            at = np.minimum(np.searchsorted(known_slots, slots), len(known_slots) - 1)
            here = (track < 0) & (known_slots[at] == slots)
            track[here] = shared[at[here]]
    unnumbered = track < 0
    unknown, at, which = np.unique(slots[unnumbered], return_index=True, return_inverse=True)
    order = np.argsort(at)  # in the order of the track: on disk as in time
    track[unnumbered] = first + np.argsort(order)[which]
    new_slots = unknown[order]
    layout = Layout(length, store.row_bytes, pond.leaves[leaf].axis)

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

    windows = Windows(layout, runs_of(track), moved, first, len(new_slots), rows, sources)
    return New(leaf, store, new_slots, known_slots, shared, windows)
