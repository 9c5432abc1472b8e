"""The compiled heart of a row store: how a window is found, and what becomes of rows nobody names any more.

One call places a whole batch of steps, without the interpreter lock. numba takes 0.3 s to import, and about
ten seconds to compile on a machine that has never done so, so this is imported with the first store.
See docs/design/001-rows.md for the figures that called for it.
"""

from __future__ import annotations

import numpy as np

from lakepond.rows.books import (
    ADDRESS,
    ANYWHERE,
    BARREN,
    EXTENT,
    FREE,
    FREE_EXTENTS,
    IN_USE,
    LENGTH,
    LIMBO_LENGTH,
    PATIENCE,
    RESIDENT,
    ROW_BYTES,
    UNTIL,
    USED,
    Books,
    Sources,
)
from lakepond.rows.hashing import fetch_for_probe, is_probe
from lakepond.rows.instructions import copy, copy_past_caches, fence, memcmp, native, prefetch
from lakepond.rows.memory import PAGE
from lakepond.rows.slots import drop, enqueue, intern, take_mapped, take_slot
from lakepond.types import Array

COMPILED_WITH = "92db4db1cae03cbd"
"""digest of the files whose functions and constants are compiled into those here. numba keeps compiled code
as long as this file stays as it is, so this file has to change when they do; a test says what to write"""

AT_ONCE = 4096
"""bytes of a window that are compared before those of another: what the nearest cache holds of both"""


# --- tracks --------------------------------------------------------------------------------------


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
def holds(b: Books, start: int, rows: int, address: int) -> bool:
    """Whether the rows of some entries are, byte for byte, those at an address; neighbours at once."""
    row = b.counts[ROW_BYTES]
    base = b.counts[ADDRESS]
    k = 0
    while k < rows:
        slot = b.entries[start + k]
        n = 1
        while k + n < rows and b.entries[start + k + n] == slot + n:
            n += 1
        if memcmp(base + slot * row, address + k * row, n * row) != 0:
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
            slot = b.entries[start + run]
            n = 1
            while run + n < length and b.entries[start + run + n] == slot + n:
                n += 1
            copy_past_caches(b.counts[ADDRESS] + slot * row, address + run * row, n * row)
            run += n
        return start
    before = b.counts[IN_USE]
    for k in range(length):
        after = intern(b, address + k * row, after)
        b.spelling[k] = after
    found = b.counts[IN_USE] - before < length
    b.counts[BARREN] = 0 if found else b.counts[BARREN] + 1
    return spell(b, lane, b.spelling, 0)


# --- what is called ------------------------------------------------------------------------------


@native
def idle(b: Books) -> int:
    """How many slots could give their memory back, if that pays."""
    free = b.counts[RESIDENT] - b.counts[IN_USE]
    return free if free > b.counts[IN_USE] else 0


@native(cache=True)
def spare(b: Books) -> int:
    """How many windows are sure to fit as it is; none after a growth that was interrupted."""
    if b.counts[ADDRESS] == 0:
        return 0
    return min((len(b.slots) - b.counts[IN_USE]) // b.counts[LENGTH], b.counts[FREE_EXTENTS] - 1)


@native(cache=True)
def settle(b: Books) -> int:
    """What nothing names is free; returns how many slots could give their memory back, if that pays."""
    for i in range(b.counts[LIMBO_LENGTH]):
        slot = b.limbo[i]
        b.slots[slot].waiting = 0
        if b.slots[slot].refs == 0 and b.slots[slot].state == USED:
            b.slots[slot].state = FREE
            b.slots[slot].keys = 0
            b.slots[slot].lake = -1
            b.counts[IN_USE] -= 1
            enqueue(b, slot)
    b.counts[LIMBO_LENGTH] = 0
    return idle(b)


@native
def begin(b: Books, lane: int) -> None:
    """Give a lane that has no extent one, and let it know of no window."""
    if b.lanes[lane].extent < 0:
        b.lanes[lane].floor = take_extent(b, lane)
        b.lanes[lane].next = -1
        b.lanes[lane].source = 0


@native
def record(
    b: Books, lanes: Array, obs: int, next_obs: int, sources: Sources, first: int, starts: Array
) -> None:
    """Keep windows as steps with the ids from `first` on; where each starts goes to the ring."""
    length, row, size = b.counts[LENGTH], b.counts[ROW_BYTES], b.counts[EXTENT]
    overlap = (length - 1) * row
    source, stops, next_source, next_stops = sources
    for i in range(len(lanes)):
        lane = lanes[i]
        begin(b, lane)
        here = obs + (i * length if source == 0 else stops[i] - length) * row
        there = next_obs + (i * length if next_source == 0 else next_stops[i] - length) * row
        newest = b.lanes[lane].next
        same, moved = compare(
            b,
            newest,
            newest >= 0 and source > 0 and source == b.lanes[lane].source and stops[i] == b.lanes[lane].stop,
            here,
            source > 0 and source == next_source and next_stops[i] == stops[i] + 1,
            there,
        )
        if same:  # obs is the newest next_obs
            start = newest
            b.counts[BARREN] = 0
        elif (
            newest >= 0
            and overlap
            and b.extents[b.lanes[lane].extent].tail == newest + length
            and holds(b, newest + 1, length - 1, here)
        ):  # or that one moved on by a row
            start = append_row(b, lane, newest + 1, here)
        else:
            start = search(b, lane, here)
        b.extents[start // size].live += 1
        b.lanes[lane].floor = start
        b.lanes[lane].next = start
        if moved and overlap and b.extents[b.lanes[lane].extent].tail == start + length:
            newest = append_row(b, lane, start + 1, there)
        else:
            newest = search(b, lane, there)
        b.extents[newest // size].live += 1
        b.lanes[lane].next = newest
        b.lanes[lane].source = next_source
        if next_source > 0:
            b.lanes[lane].stop = next_stops[i]
        starts[(first + i) % len(starts), 0] = start
        starts[(first + i) % len(starts), 1] = newest


@native
def release(b: Books, oldest: int, steps: int, starts: Array, following: Array) -> None:
    """Let go of the windows of the oldest steps, whose ids are those from `oldest` on.

    `following` tells how many places on the next step of the stream lies, or 0.
    """
    size = b.counts[EXTENT]
    for i in range(steps):
        at = (oldest + i) % len(starts)
        extent = starts[at, 0] // size
        for which in range(2):
            e = starts[at, which] // size
            b.extents[e].live -= 1
            if b.extents[e].live == 0:
                retire(b, e)
        # later windows of the stream start where the next step's obs does, or after it
        needed = starts[(at + following[at]) % len(starts), 0]
        if needed // size == extent and b.extents[extent].live > 0 and needed > b.extents[extent].head:
            unname(b, b.extents[extent].head, needed)
            b.extents[extent].head = needed


@native(cache=True)
def turn(
    b: Books,
    oldest: int,
    gone: int,
    unread: bool,
    lanes: Array,
    obs: int,
    next_obs: int,
    sources: Sources,
    first: int,
    starts: Array,
    following: Array,
) -> tuple[int, int]:
    """Let go of so many of the oldest steps, then keep new ones; `oldest` and `first` are their first ids.

    `obs` and `next_obs` are the addresses of their windows, or of the rows of their sources. Returns how many
    windows are sure to fit then, and how many slots could give their memory back.
    """
    release(b, oldest, gone, starts, following)
    if gone and unread:
        settle(b)
    record(b, lanes, obs, next_obs, sources, first, starts)
    fence()
    b.counts[UNTIL] = first + len(lanes)
    return spare(b), idle(b) if gone and unread else 0


@native(cache=True)
def look_up(b: Books, starts: Array, which: int, places: Array, slots: Array) -> None:
    """The slots of the windows of some steps, one window after another."""
    length = b.counts[LENGTH]
    for i in range(len(places)):
        start = starts[places[i], which]
        for k in range(length):
            slots[i * length + k] = b.entries[start + k]


@native(cache=True)
def gather(
    address: int, row: int, length: int, slots: Array, outs: Array, start: int, stop: int, much: bool
) -> None:
    """Copy windows [start, stop) of several lists of slots, each to its own address, neighbours at once.

    The same window of all lists is copied before the next one: those of obs and next_obs have most rows in
    common, which are in the cache by then. Meanwhile the pages of the next window are looked up. `much`: more
    than any cache holds, so none is filled with it.
    """
    for i in range(start, stop):
        for k in range((i + 1) * length, (i + 2) * length if i + 1 < stop else 0):
            for at in range(0, row, PAGE):
                prefetch(address + np.int64(slots[0, k]) * row + at)
        for which in range(len(outs)):
            k = i * length
            while k < (i + 1) * length:
                slot = slots[which, k]
                n = 1
                while k + n < (i + 1) * length and slots[which, k + n] == slot + n:
                    n += 1
                target, source = outs[which] + k * row, address + np.int64(slot) * row
                if much:
                    copy_past_caches(target, source, n * row)
                else:
                    copy(target, source, n * row)
                k += n
    if much:
        fence()


# --- to and from a lake --------------------------------------------------------------------------


@native(cache=True)
def pin(b: Books, slots: Array) -> None:
    """Hold rows, whoever lets go of them."""
    for slot in slots:
        b.slots[slot].refs += 1


@native(cache=True)
def unpin(b: Books, slots: Array) -> None:
    """Hold them no more."""
    for slot in slots:
        drop(b, slot)


@native(cache=True)
def load(b: Books, address: int, slots: Array) -> None:
    """Keep and hold the rows that lie at an address, one after another; `slots` says where they are then."""
    after = ANYWHERE
    for k in range(len(slots)):
        after = intern(b, address + k * b.counts[ROW_BYTES], after)
        b.slots[after].refs += 1
        slots[k] = after


@native(cache=True)
def reserve(b: Books, slots: Array) -> None:
    """Hold slots for rows that are still to be written there."""
    after = ANYWHERE
    for k in range(len(slots)):
        after = take_slot(b, after)
        b.slots[after].refs += 1
        slots[k] = after


@native(cache=True)
def turn_spelled(
    b: Books,
    oldest: int,
    gone: int,
    unread: bool,
    lanes: Array,
    track: Array,
    windows: Array,
    first: int,
    starts: Array,
    following: Array,
) -> tuple[int, int]:
    """`turn` for windows that are given as parts of a track of slots."""
    release(b, oldest, gone, starts, following)
    if gone and unread:
        settle(b)
    for i in range(len(lanes)):
        lane = lanes[i]
        begin(b, lane)
        b.lanes[lane].source = 0
        for which in range(2):
            start = spell(b, lane, track, windows[i, which])
            b.extents[start // b.counts[EXTENT]].live += 1
            b.lanes[lane].next = start
            if which == 0:
                b.lanes[lane].floor = start
            starts[(first + i) % len(starts), which] = start
    b.counts[UNTIL] = first + len(lanes)
    return spare(b), idle(b) if gone and unread else 0
