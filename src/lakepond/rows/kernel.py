"""The compiled part of a row store: append windows, evict them, look them up and copy them.

One call handles a batch of steps, without the interpreter lock. A call is never interrupted half-way: Python
handles signals between bytecodes. The windows stored are those of steps [oldest, stop), two counters that a
call advances as its last action.
"""

from __future__ import annotations

import numpy as np

from lakepond.rows.compiling import native
from lakepond.rows.hashing import hash_bytes
from lakepond.rows.instructions import copy, copy_bypassing_cache, fence, memcmp, prefetch
from lakepond.rows.memory import PAGE
from lakepond.rows.slots import drop, enqueue, intern, take_slot
from lakepond.rows.state import ANYWHERE, FREE, USED, SourceWindows, State
from lakepond.rows.tracks import (
    append_row,
    compare,
    neighbours,
    place_window,
    release_entries,
    retire,
    rows_equal,
    search,
    take_extent,
)
from lakepond.types import Array


@native
def idle(s: State) -> int:
    """Number of free slots whose memory can be returned to the system; 0 if less than half are free."""
    free = s.counters[0].resident - s.counters[0].in_use
    return free if free > s.counters[0].in_use else 0


@native(cache=True)
def spare(s: State) -> int:
    """Number of windows that certainly fit without growing; 0 after an interrupted growth."""
    if s.counters[0].address == 0:
        return 0
    rows = (len(s.slots) - s.counters[0].in_use) // s.counters[0].length
    return min(rows, s.counters[0].num_free_extents - 1)


@native(cache=True)
def free_pending(s: State) -> int:
    """Free the slots without references; returns `idle`. There must be no reader."""
    for i in range(s.counters[0].num_pending):
        slot = s.pending_free[i]
        s.slots[slot].waiting = 0
        if s.slots[slot].refs == 0 and s.slots[slot].state == USED:
            s.slots[slot].state = FREE
            s.slots[slot].keys = 0
            s.slots[slot].lake = -1
            s.counters[0].in_use -= 1
            enqueue(s, slot)
    s.counters[0].num_pending = 0
    return idle(s)


@native
def prepare_cursor(s: State, cursor: int) -> None:
    """Assign an extent to a cursor that has none, and reset its newest window."""
    if s.cursors[cursor].extent < 0:
        s.cursors[cursor].floor = take_extent(s, cursor)
        s.cursors[cursor].next = -1
        s.cursors[cursor].source = 0


@native
def store_window(s: State, step: int, cursor: int, obs: int, next_obs: int) -> None:
    """Store the starts of a step's windows, and link the step with the previous one of its cursor."""
    at, previous = step % len(s.windows), s.cursors[cursor].step
    s.windows[at].obs = obs
    s.windows[at].next_obs = next_obs
    s.windows[at].ahead = 0
    s.windows[at].behind = 0
    if previous >= s.counters[0].oldest:
        s.windows[at].behind = step - previous
        s.windows[previous % len(s.windows)].ahead = step - previous
    s.cursors[cursor].step = step


@native
def release_windows(s: State, at: int) -> None:
    """Remove the windows of the step at a place of the ring; free extents without windows."""
    for start in (s.windows[at].obs, s.windows[at].next_obs):
        extent = start // s.counters[0].extent_size
        s.extents[extent].live -= 1
        if s.extents[extent].live == 0:
            retire(s, extent)


@native(cache=True)
def evict(s: State, oldest: int, unread: bool) -> tuple[int, int]:
    """Evict the steps before `oldest`; returns `idle` and how many cursors lost their newest step.

    `unread`: there is no reader, so slots without references are freed immediately.
    """
    size, emptied = s.counters[0].extent_size, 0
    for step in range(s.counters[0].oldest, oldest):
        at = step % len(s.windows)
        extent, ahead = s.windows[at].obs // size, s.windows[at].ahead
        release_windows(s, at)
        emptied += ahead == 0
        # later windows of the cursor start at the next step's obs or after it
        needed = s.windows[(at + ahead) % len(s.windows)].obs
        if needed // size == extent and s.extents[extent].live > 0 and needed > s.extents[extent].head:
            release_entries(s, s.extents[extent].head, needed)
            s.extents[extent].head = needed
    changed = s.counters[0].oldest < oldest
    s.counters[0].oldest = max(s.counters[0].oldest, oldest)
    return free_pending(s) if changed and unread else 0, emptied


@native(cache=True)
def append(
    s: State,
    cursors: Array,
    obs: int,
    next_obs: int,
    sources: SourceWindows,
    first: int,
    oldest: int,
    unread: bool,
) -> tuple[int, int, int]:
    """Evict the steps before `oldest`, then store the windows of steps [first, first + len(cursors)).

    `obs` and `next_obs` are the addresses of the windows, one after another, or of the rows of their sources.
    Returns how many more windows certainly fit, and the two results of `evict`.
    """
    free, emptied = evict(s, oldest, unread)
    length, row, size = s.counters[0].length, s.counters[0].row_bytes, s.counters[0].extent_size
    overlap = (length - 1) * row
    source, stops, next_source, next_stops = sources
    for i in range(len(cursors)):
        cursor = cursors[i]
        prepare_cursor(s, cursor)
        here = obs + (i * length if source == 0 else stops[i] - length) * row
        there = next_obs + (i * length if next_source == 0 else next_stops[i] - length) * row
        newest = s.cursors[cursor].next
        same, moved = compare(
            s,
            newest,
            newest >= 0
            and source > 0
            and source == s.cursors[cursor].source
            and stops[i] == s.cursors[cursor].stop,
            here,
            source > 0 and source == next_source and next_stops[i] == stops[i] + 1,
            there,
        )
        if same:  # obs is the newest next_obs
            start = newest
            s.counters[0].misses = 0
        elif (
            newest >= 0
            and overlap
            and s.extents[s.cursors[cursor].extent].tail == newest + length
            and rows_equal(s, newest + 1, length - 1, here)
        ):  # or that one shifted by a row
            start = append_row(s, cursor, newest + 1, here)
        else:
            start = search(s, cursor, here)
        s.extents[start // size].live += 1
        s.cursors[cursor].floor = start
        s.cursors[cursor].next = start
        if moved and overlap and s.extents[s.cursors[cursor].extent].tail == start + length:
            newest = append_row(s, cursor, start + 1, there)
        else:
            newest = search(s, cursor, there)
        s.extents[newest // size].live += 1
        s.cursors[cursor].next = newest
        s.cursors[cursor].source = next_source
        if next_source > 0:
            s.cursors[cursor].stop = next_stops[i]
        store_window(s, first + i, cursor, start, newest)
    fence()
    s.counters[0].stop = first + len(cursors)
    return spare(s), free, emptied


@native(cache=True)
def append_slots(s: State, cursors: Array, track: Array, starts: Array, first: int) -> int:
    """`append` for windows that are given as slices of a track of slots; `starts` is (steps, 2)."""
    for i in range(len(cursors)):
        cursor = cursors[i]
        prepare_cursor(s, cursor)
        s.cursors[cursor].source = 0
        obs = place_window(s, cursor, track, starts[i, 0])
        s.extents[obs // s.counters[0].extent_size].live += 1
        s.cursors[cursor].floor = obs
        s.cursors[cursor].next = obs
        next_obs = place_window(s, cursor, track, starts[i, 1])
        s.extents[next_obs // s.counters[0].extent_size].live += 1
        s.cursors[cursor].next = next_obs
        store_window(s, first + i, cursor, obs, next_obs)
    s.counters[0].stop = first + len(cursors)
    return spare(s)


@native(cache=True)
def discard(s: State, stop: int) -> None:
    """Remove the steps from `stop` on, which were never published."""
    for step in range(s.counters[0].stop - 1, stop - 1, -1):
        at = step % len(s.windows)
        release_windows(s, at)
        previous, before = step - s.windows[at].behind, -1
        if previous < step and previous >= s.counters[0].oldest:
            before = previous % len(s.windows)
            s.windows[before].ahead = 0
        for cursor in range(len(s.cursors)):
            if s.cursors[cursor].step == step:
                s.cursors[cursor].step = previous if before >= 0 else -1
                s.cursors[cursor].next = -1
                s.cursors[cursor].source = 0
                extent = s.cursors[cursor].extent
                if before >= 0 and extent >= 0:
                    newest = s.windows[before].next_obs
                    if newest // s.counters[0].extent_size == extent:
                        s.cursors[cursor].next = newest
    s.counters[0].stop = min(s.counters[0].stop, stop)


@native(cache=True)
def look_up(s: State, which: int, places: Array, slots: Array) -> None:
    """Write the slots of the obs (0) or next_obs (1) windows of some steps to `slots`, in order."""
    length = s.counters[0].length
    for i in range(len(places)):
        start = s.windows[places[i]].next_obs if which else s.windows[places[i]].obs
        for k in range(length):
            slots[i * length + k] = s.entries[start + k]


@native(cache=True)
def gather(
    address: int, row: int, length: int, slots: Array, outs: Array, start: int, stop: int, streaming: bool
) -> None:
    """Copy windows [start, stop) of several lists of slots, each to its own address, adjacent slots at once.

    The same window of all lists is copied before the next one: those of obs and next_obs share most rows,
    which are in the cache by then. The pages of the next window are prefetched. `streaming`: the batch is
    larger than any cache, so it is written with non-temporal stores.
    """
    for i in range(start, stop):
        for k in range((i + 1) * length, (i + 2) * length if i + 1 < stop else 0):
            for at in range(0, row, PAGE):
                prefetch(address + np.int64(slots[0, k]) * row + at)
        for which in range(len(outs)):
            k = i * length
            while k < (i + 1) * length:
                n = neighbours(slots[which], k, (i + 1) * length)
                target, source = outs[which] + k * row, address + np.int64(slots[which, k]) * row
                if streaming:
                    copy_bypassing_cache(target, source, n * row)
                else:
                    copy(target, source, n * row)
                k += n
    if streaming:
        fence()


# --- to and from a lake --------------------------------------------------------------------------


@native(cache=True)
def pin(s: State, slots: Array) -> None:
    """Add a reference to rows, so that they stay without a window."""
    for slot in slots:
        s.slots[slot].refs += 1
        s.slots[slot].pins += 1


@native(cache=True)
def unpin(s: State, slots: Array) -> None:
    """Undo `pin`."""
    for slot in slots:
        s.slots[slot].pins -= 1
        drop(s, slot)


@native(cache=True)
def load(s: State, address: int, slots: Array) -> None:
    """Store and pin the rows at an address, one after another; their slots are written to `slots`."""
    after = ANYWHERE
    for k in range(len(slots)):
        after = intern(s, address + k * s.counters[0].row_bytes, after)
        s.slots[after].refs += 1
        s.slots[after].pins += 1
        slots[k] = after


@native(cache=True)
def hash_rows(address: int, row: int, hashes: Array) -> None:
    """Write the hashes of the rows at an address, one after another, to `hashes`."""
    for k in range(len(hashes)):
        hashes[k] = hash_bytes(address + k * row, row)


@native(cache=True)
def find_rows(s: State, slots: Array, address: int, hashes: Array, order: Array, found: Array) -> None:
    """For each slot write to `found` which of the rows at an address it holds, the first one, or -1.

    `hashes` are those of these rows, sorted, and `order` are their numbers.
    """
    row = s.counters[0].row_bytes
    for k in range(len(slots)):
        here = s.counters[0].address + np.int64(slots[k]) * row
        key = hash_bytes(here, row)
        at = np.searchsorted(hashes, key)
        found[k] = -1
        while at < len(hashes) and hashes[at] == key and found[k] < 0:
            if memcmp(here, address + order[at] * row, row) == 0:
                found[k] = order[at]
            at += 1


@native(cache=True)
def reserve(s: State, slots: Array) -> None:
    """Reserve and pin slots for rows that the caller writes there."""
    after = ANYWHERE
    for k in range(len(slots)):
        after = take_slot(s, after)
        s.slots[after].refs += 1
        s.slots[after].pins += 1
        slots[k] = after
