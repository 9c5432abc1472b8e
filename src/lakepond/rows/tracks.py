"""Tracks, compiled: how a window becomes a part of its stream's, and what its extents hold."""

from __future__ import annotations

from lakepond.rows.books import (
    ADDRESS,
    ANYWHERE,
    BARREN,
    EXTENT,
    FREE_EXTENTS,
    IN_USE,
    LENGTH,
    PATIENCE,
    ROW_BYTES,
    Books,
)
from lakepond.rows.hashing import fetch_for_probe, is_probe
from lakepond.rows.instructions import copy_past_caches, memcmp, native
from lakepond.rows.slots import drop, intern, take_mapped
from lakepond.types import Array

AT_ONCE = 4096
"""bytes of a window that are compared before those of another: what the nearest cache holds of both"""


@native
def unname(b: Books, start: int, stop: int) -> None:
    """Entries no longer name their slots."""
    for position in range(start, stop):
        drop(b, b.entries[position])


@native
def take_extent(b: Books, lane: int) -> int:
    """A free extent, now the lane's."""
    b.counts[FREE_EXTENTS] -= 1
    extent = b.free_extents[b.counts[FREE_EXTENTS]]
    start = extent * b.counts[EXTENT]
    b.extents[extent].head = start
    b.extents[extent].tail = start
    b.extents[extent].owner = lane
    b.lanes[lane].extent = extent
    return start


@native
def retire(b: Books, extent: int) -> None:
    """No live step has a window there any more."""
    unname(b, b.extents[extent].head, b.extents[extent].tail)
    if b.extents[extent].owner >= 0:
        b.lanes[b.extents[extent].owner].extent = -1
        b.lanes[b.extents[extent].owner].next = -1
    b.extents[extent].head = b.extents[extent].tail
    b.extents[extent].owner = -1
    b.free_extents[b.counts[FREE_EXTENTS]] = extent
    b.counts[FREE_EXTENTS] += 1


@native
def room(b: Books, lane: int, start: int, more: int) -> int:
    """Make sure that `more` entries fit behind those from `start` on; returns where these lie now."""
    extent = b.lanes[lane].extent
    end = b.extents[extent].tail
    if end + more <= (extent + 1) * b.counts[EXTENT]:
        return start
    b.extents[extent].owner = -1
    moved = take_extent(b, lane)
    for k in range(end - start):
        slot = b.entries[start + k]
        b.entries[moved + k] = slot
        b.slots[slot].refs += 1
    b.extents[b.lanes[lane].extent].tail = moved + end - start
    b.lanes[lane].floor = moved
    return moved


@native
def append(b: Books, lane: int, slot: int) -> None:
    """One more entry at the end of a lane's track, where there is room."""
    extent = b.lanes[lane].extent
    b.entries[b.extents[extent].tail] = slot
    b.extents[extent].tail += 1
    b.slots[slot].refs += 1


@native
def neighbours(slots: Array, at: int, stop: int) -> int:
    """How many slots of a list lie side by side, from `at` on."""
    n = 1
    while at + n < stop and slots[at + n] == slots[at] + n:
        n += 1
    return n


@native
def holds(b: Books, start: int, rows: int, address: int) -> bool:
    """Whether the rows of some entries are, byte for byte, those at an address; neighbours at once."""
    row = b.counts[ROW_BYTES]
    base = b.counts[ADDRESS]
    k = 0
    while k < rows:
        n = neighbours(b.entries, start + k, start + rows)
        if memcmp(base + b.entries[start + k] * row, address + k * row, n * row) != 0:
            return False
        k += n
    return True


@native
def compare(b: Books, start: int, same: bool, here: int, moved: bool, there: int) -> tuple[bool, bool]:
    """Whether the rows from entry `start` on are those of obs, and whether next_obs is obs moved on by a row.

    `same` and `moved` say what is known without looking; no `start` is told as -1. Both are looked at a few
    rows at a time, so that obs comes from memory once.
    """
    length, row = b.counts[LENGTH], b.counts[ROW_BYTES]
    few = max(1, AT_ONCE // row)
    look_same, look_moved = not same and start >= 0, not moved and length > 1
    k = 0
    while k < length and (look_same or look_moved):
        n = min(few, length - k)
        look_same = look_same and holds(b, start + k, n, here + k * row)
        first = max(k, 1)
        there_first, rows = there + (first - 1) * row, k + n - first
        look_moved = look_moved and memcmp(here + first * row, there_first, rows * row) == 0
        k += n
    return same or look_same, moved or look_moved


@native
def append_row(b: Books, lane: int, start: int, address: int) -> int:
    """A window that is what the track ends with from `start` on, and one row more."""
    b.counts[BARREN] = 0
    end = b.extents[b.lanes[lane].extent].tail
    slot = intern(b, address + (b.counts[LENGTH] - 1) * b.counts[ROW_BYTES], b.entries[end - 1])
    start = room(b, lane, start, 1)
    append(b, lane, slot)
    return start


@native
def spell(b: Books, lane: int, slots: Array, first: int) -> int:
    """A window given by its slots: use what the track's newest entries already spell, append the rest."""
    length = b.counts[LENGTH]
    end = b.extents[b.lanes[lane].extent].tail
    start = end
    if b.lanes[lane].next >= 0:
        for at in range(b.lanes[lane].floor, end):
            k = 0
            while k < length and at + k < end and b.entries[at + k] == slots[first + k]:
                k += 1
            if k == length or at + k == end:
                start = at
                break
    have = end - start
    if have < length:
        start = room(b, lane, start, length - have)
        for k in range(have, length):
            append(b, lane, slots[first + k])
    return start


@native
def search(b: Books, lane: int, address: int) -> int:
    """Look up every row of a window; use what the track's newest entries already spell."""
    length, row = b.counts[LENGTH], b.counts[ROW_BYTES]
    end = b.extents[b.lanes[lane].extent].tail
    after = ANYWHERE if b.lanes[lane].next < 0 else b.entries[end - 1]
    if b.counts[BARREN] >= PATIENCE and not is_probe(address, length * row):
        fetch_for_probe(address + length * row, length * row)  # if it is one of many, of the one behind it
        start = room(b, lane, end, length)
        for _ in range(length):
            after = take_mapped(b, after)
            append(b, lane, after)
        run = 0
        while run < length:  # copy neighbours at once
            n = neighbours(b.entries, start + run, start + length)
            copy_past_caches(b.counts[ADDRESS] + b.entries[start + run] * row, address + run * row, n * row)
            run += n
        return start
    before = b.counts[IN_USE]
    for k in range(length):
        after = intern(b, address + k * row, after)
        b.spelling[k] = after
    found = b.counts[IN_USE] - before < length
    b.counts[BARREN] = 0 if found else b.counts[BARREN] + 1
    return spell(b, lane, b.spelling, 0)
