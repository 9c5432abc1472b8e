"""The compiled heart of a row store: what is called, to keep windows, let go of them and copy them.

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
    RESIDENT,
    ROW_BYTES,
    UNTIL,
    USED,
    Books,
    Sources,
)
from lakepond.rows.instructions import copy, copy_past_caches, fence, native, prefetch
from lakepond.rows.memory import PAGE
from lakepond.rows.slots import drop, enqueue, intern, take_slot
from lakepond.rows.tracks import (
    append_row,
    compare,
    holds,
    neighbours,
    retire,
    search,
    spell,
    take_extent,
    unname,
)
from lakepond.types import Array

COMPILED_WITH = "9121615dbcb265c0"
"""digest of the files whose functions and constants are compiled into those here. numba keeps compiled code
as long as this file stays as it is, so this file has to change when they do; a test says what to write"""

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
                n = neighbours(slots[which], k, (i + 1) * length)
                target, source = outs[which] + k * row, address + np.int64(slots[which, k]) * row
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
