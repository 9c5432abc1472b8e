"""Slots for rows, compiled: take a free one, find the one that holds a given row."""

from __future__ import annotations

from typing import Any

import numpy as np

from lakepond.rows.compiling import native
from lakepond.rows.hashing import hash_bytes
from lakepond.rows.instructions import copy, madvise, memcmp
from lakepond.rows.memory import PAGE, POPULATE
from lakepond.rows.state import PROBES, UNTOUCHED, USED, State


@native
def take_slot(s: State, after: int) -> int:
    """Take a free slot: the one after `after` if that is free."""
    slot = after + 1
    if slot >= s.counters[0].fresh or s.slots[slot].state == USED:
        slot = -1
        while s.counters[0].queue_length and slot < 0:
            slot = s.queue[s.counters[0].queue_start]
            s.counters[0].queue_start = (s.counters[0].queue_start + 1) % len(s.queue)
            s.counters[0].queue_length -= 1
            s.slots[slot].queued = 0
            if s.slots[slot].state == USED:
                slot = -1
        if slot < 0 and s.counters[0].fresh < len(s.slots):
            slot = s.counters[0].fresh
            s.counters[0].fresh = min(slot + s.counters[0].cursor_slots, len(s.slots))
        if slot < 0:  # only the unused slots reserved for other streams are left
            for other in range(len(s.slots)):
                if s.slots[other].state != USED:
                    enqueue(s, other)
            if s.counters[0].queue_length == 0:
                raise AssertionError("no slot is free, although the caller made room")
            slot = s.queue[s.counters[0].queue_start]
    if s.slots[slot].state == UNTOUCHED:
        s.counters[0].resident += 1
    s.slots[slot].state = USED
    s.counters[0].in_use += 1
    return slot


@native
def take_mapped(s: State, after: int) -> int:
    """`take_slot`; newly reserved slots get their memory in one call, not by one page fault per page."""
    fresh = s.counters[0].fresh
    slot = take_slot(s, after)
    row = s.counters[0].row_bytes
    if s.counters[0].fresh > fresh and (s.counters[0].fresh - fresh) * row >= 8 * PAGE:
        first: Any = (s.counters[0].address + fresh * row) // PAGE * PAGE
        madvise(first, s.counters[0].address + s.counters[0].fresh * row - first, POPULATE)
    return slot


@native
def enqueue(s: State, slot: int) -> None:
    """Put a free slot into the queue, unless it is in it."""
    if not s.slots[slot].queued:
        s.slots[slot].queued = 1
        s.queue[(s.counters[0].queue_start + s.counters[0].queue_length) % len(s.queue)] = slot
        s.counters[0].queue_length += 1


@native
def drop(s: State, slot: int) -> None:
    """Remove one reference to a slot; without any it waits in `pending_free`.

    Without a window it loses its number: when its steps leave the lake, the lake may drop the row. If it is
    recorded again while it is pinned or waits, it is written again.
    """
    s.slots[slot].refs -= 1
    if s.slots[slot].refs == s.slots[slot].pins:
        s.slots[slot].lake = -1
    if s.slots[slot].refs == 0 and not s.slots[slot].waiting:
        s.slots[slot].waiting = 1
        s.pending_free[s.counters[0].num_pending] = slot
        s.counters[0].num_pending += 1


@native
def is_unreachable(s: State, at: int, slot: int) -> bool:
    """Whether a place of the hash table is out of reach of the row that its slot holds now."""
    mask = len(s.table) - 1
    home: Any = np.int64(s.slots[slot].keys >> np.uint64(16)) & mask
    away: bool = (at - home) & mask >= PROBES
    return away


@native
def intern(s: State, address: int, after: int) -> int:
    """The slot that holds the row at an address; a new row is stored, next to `after` if possible."""
    row = s.counters[0].row_bytes
    base = s.counters[0].address
    key = hash_bytes(address, row)
    mask = len(s.table) - 1
    home = np.int64(key >> np.uint64(16)) & mask
    place: Any = -1
    for i in range(PROBES):
        at = (home + i) & mask
        slot = s.table[at]
        if slot >= 0 and s.slots[slot].keys == key:
            if s.slots[slot].state == USED and memcmp(base + slot * row, address, row) == 0:
                return slot
            place = at
        elif place < 0 and (slot < 0 or s.slots[slot].state != USED or is_unreachable(s, at, slot)):
            place = at
    if place < 0:  # all taken: overwrite one, chosen by the hash; its row will be stored again if it repeats
        place = (home + np.int64(key & np.uint64(PROBES - 1))) & mask
    slot = take_mapped(s, after)
    copy(base + slot * row, address, row)
    s.slots[slot].keys = key
    s.table[place] = slot
    return slot
