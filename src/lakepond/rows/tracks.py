"""Tracks, compiled: place a window in the track of its stream, take and free extents."""

from __future__ import annotations

from lakepond.rows.compiling import native
from lakepond.rows.hashing import fetch_for_probe, is_probe
from lakepond.rows.instructions import copy_bypassing_cache, memcmp
from lakepond.rows.slots import drop, intern, take_mapped
from lakepond.rows.state import ANYWHERE, PATIENCE, State
from lakepond.types import Array

AT_ONCE = 4096
"""bytes of two windows that are compared at a time: both fit the first-level cache"""


@native
def release_entries(s: State, start: int, stop: int) -> None:
    """Remove the references of entries [start, stop) to their slots."""
    for position in range(start, stop):
        drop(s, s.entries[position])


@native
def take_extent(s: State, cursor: int) -> int:
    """Assign a free extent to a cursor; returns its first position."""
    s.counters[0].num_free_extents -= 1
    extent = s.free_extents[s.counters[0].num_free_extents]
    start = extent * s.counters[0].extent_size
    s.extents[extent].head = start
    s.extents[extent].tail = start
    s.extents[extent].owner = cursor
    s.cursors[cursor].extent = extent
    return start


@native
def retire(s: State, extent: int) -> None:
    """Free an extent in which no live step has a window."""
    release_entries(s, s.extents[extent].head, s.extents[extent].tail)
    if s.extents[extent].owner >= 0:
        s.cursors[s.extents[extent].owner].extent = -1
        s.cursors[s.extents[extent].owner].next = -1
    s.extents[extent].head = s.extents[extent].tail
    s.extents[extent].owner = -1
    s.free_extents[s.counters[0].num_free_extents] = extent
    s.counters[0].num_free_extents += 1


@native
def make_room(s: State, cursor: int, start: int, more: int) -> int:
    """Make room for `more` entries after those from `start` on; returns their new start."""
    extent = s.cursors[cursor].extent
    end = s.extents[extent].tail
    if end + more <= (extent + 1) * s.counters[0].extent_size:
        return start
    s.extents[extent].owner = -1
    moved = take_extent(s, cursor)
    for k in range(end - start):
        slot = s.entries[start + k]
        s.entries[moved + k] = slot
        s.slots[slot].refs += 1
    s.extents[s.cursors[cursor].extent].tail = moved + end - start
    s.cursors[cursor].floor = moved
    return moved


@native
def append_entry(s: State, cursor: int, slot: int) -> None:
    """Append an entry to a cursor's track, which has room for it."""
    extent = s.cursors[cursor].extent
    s.entries[s.extents[extent].tail] = slot
    s.extents[extent].tail += 1
    s.slots[slot].refs += 1


@native
def neighbours(slots: Array, at: int, stop: int) -> int:
    """The number of adjacent slots in a list, from `at` on."""
    n = 1
    while at + n < stop and slots[at + n] == slots[at] + n:
        n += 1
    return n


@native
def rows_equal(s: State, start: int, rows: int, address: int) -> bool:
    """Whether the rows of some entries equal those at an address, byte for byte; adjacent slots at once."""
    row = s.counters[0].row_bytes
    base = s.counters[0].address
    k = 0
    while k < rows:
        n = neighbours(s.entries, start + k, start + rows)
        if memcmp(base + s.entries[start + k] * row, address + k * row, n * row) != 0:
            return False
        k += n
    return True


@native
def compare(s: State, start: int, same: bool, here: int, moved: bool, there: int) -> tuple[bool, bool]:
    """Whether the rows from entry `start` on equal obs, and whether next_obs is obs shifted by one row.

    `same` and `moved`: results that are already known; `start` is -1 if there is no entry. Both are compared
    a few rows at a time, so that obs is read from memory once.
    """
    length, row = s.counters[0].length, s.counters[0].row_bytes
    few = max(1, AT_ONCE // row)
    look_same, look_moved = not same and start >= 0, not moved and length > 1
    k = 0
    while k < length and (look_same or look_moved):
        n = min(few, length - k)
        look_same = look_same and rows_equal(s, start + k, n, here + k * row)
        first = max(k, 1)
        there_first, rows = there + (first - 1) * row, k + n - first
        look_moved = look_moved and memcmp(here + first * row, there_first, rows * row) == 0
        k += n
    return same or look_same, moved or look_moved


@native
def append_row(s: State, cursor: int, start: int, address: int) -> int:
    """Place a window that consists of the entries from `start` to the end of the track and one more row."""
    s.counters[0].misses = 0
    end = s.extents[s.cursors[cursor].extent].tail
    slot = intern(s, address + (s.counters[0].length - 1) * s.counters[0].row_bytes, s.entries[end - 1])
    start = make_room(s, cursor, start, 1)
    append_entry(s, cursor, slot)
    return start


@native
def place_window(s: State, cursor: int, slots: Array, first: int) -> int:
    """Place a window given by its slots: reuse the newest entries of the track, append the rest."""
    length = s.counters[0].length
    end = s.extents[s.cursors[cursor].extent].tail
    start = end
    if s.cursors[cursor].next >= 0:
        for at in range(s.cursors[cursor].floor, end):
            k = 0
            while k < length and at + k < end and s.entries[at + k] == slots[first + k]:
                k += 1
            if k == length or at + k == end:
                start = at
                break
    have = end - start
    if have < length:
        start = make_room(s, cursor, start, length - have)
        for k in range(have, length):
            append_entry(s, cursor, slots[first + k])
    return start


@native
def search(s: State, cursor: int, address: int) -> int:
    """Place a window by looking up every row of it."""
    length, row = s.counters[0].length, s.counters[0].row_bytes
    end = s.extents[s.cursors[cursor].extent].tail
    after = ANYWHERE if s.cursors[cursor].next < 0 else s.entries[end - 1]
    if s.counters[0].misses >= PATIENCE and not is_probe(address, length * row):
        fetch_for_probe(address + length * row, length * row)  # of the next window, in a batch
        start = make_room(s, cursor, end, length)
        for _ in range(length):
            after = take_mapped(s, after)
            append_entry(s, cursor, after)
        run = 0
        while run < length:  # copy neighbours at once
            n = neighbours(s.entries, start + run, start + length)
            copy_bypassing_cache(
                s.counters[0].address + s.entries[start + run] * row, address + run * row, n * row
            )
            run += n
        return start
    before = s.counters[0].in_use
    for k in range(length):
        after = intern(s, address + k * row, after)
        s.found_slots[k] = after
    found = s.counters[0].in_use - before < length
    s.counters[0].misses = 0 if found else s.counters[0].misses + 1
    return place_window(s, cursor, s.found_slots, 0)
