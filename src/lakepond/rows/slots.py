"""Places for rows, compiled: how a free one is taken, and how a row that is there already is found."""

from __future__ import annotations

from typing import Any

import numpy as np

from lakepond.rows.books import (
    ADDRESS,
    FRESH,
    IN_USE,
    LANE,
    LIMBO_LENGTH,
    PROBES,
    QUEUE_AT,
    QUEUE_LENGTH,
    RESIDENT,
    ROW_BYTES,
    UNTOUCHED,
    USED,
    Books,
)
from lakepond.rows.hashing import hash_bytes
from lakepond.rows.instructions import copy, madvise, memcmp, native
from lakepond.rows.memory import PAGE, POPULATE


@native
def take_slot(b: Books, after: int) -> int:
    """A free slot: the one after `after` if it can be had."""
    slot = after + 1
    if slot >= b.counts[FRESH] or b.slots[slot].state == USED:
        slot = -1
        while b.counts[QUEUE_LENGTH] and slot < 0:
            slot = b.queue[b.counts[QUEUE_AT]]
            b.counts[QUEUE_AT] = (b.counts[QUEUE_AT] + 1) % len(b.queue)
            b.counts[QUEUE_LENGTH] -= 1
            b.slots[slot].queued = 0
            if b.slots[slot].state == USED:
                slot = -1
        if slot < 0 and b.counts[FRESH] < len(b.slots):
            slot = b.counts[FRESH]
            b.counts[FRESH] = min(slot + b.counts[LANE], len(b.slots))
        if slot < 0:  # only the unused ends of lanes are left
            for s in range(len(b.slots)):
                if b.slots[s].state != USED:
                    enqueue(b, s)
            if b.counts[QUEUE_LENGTH] == 0:
                raise AssertionError("no slot is free: there was to be room")
            slot = b.queue[b.counts[QUEUE_AT]]
    if b.slots[slot].state == UNTOUCHED:
        b.counts[RESIDENT] += 1
    b.slots[slot].state = USED
    b.counts[IN_USE] += 1
    return slot


@native
def take_mapped(b: Books, after: int) -> int:
    """`take_slot`; if a lane is new its memory is mapped at once, which is cheaper than a fault a page."""
    fresh = b.counts[FRESH]
    slot = take_slot(b, after)
    row = b.counts[ROW_BYTES]
    if b.counts[FRESH] > fresh and (b.counts[FRESH] - fresh) * row >= 8 * PAGE:
        first: Any = (b.counts[ADDRESS] + fresh * row) // PAGE * PAGE
        madvise(first, b.counts[ADDRESS] + b.counts[FRESH] * row - first, POPULATE)
    return slot


@native
def enqueue(b: Books, slot: int) -> None:
    """Let a free slot be found, once."""
    if not b.slots[slot].queued:
        b.slots[slot].queued = 1
        b.queue[(b.counts[QUEUE_AT] + b.counts[QUEUE_LENGTH]) % len(b.queue)] = slot
        b.counts[QUEUE_LENGTH] += 1


@native
def drop(b: Books, slot: int) -> None:
    """One less names this slot."""
    b.slots[slot].refs -= 1
    if b.slots[slot].refs == 0 and not b.slots[slot].waiting:
        b.slots[slot].waiting = 1
        b.limbo[b.counts[LIMBO_LENGTH]] = slot
        b.counts[LIMBO_LENGTH] += 1


@native
def strays(b: Books, at: int, slot: int) -> bool:
    """Whether a place of the index is one where the row in its slot is not looked for: that slot moved on."""
    mask = len(b.table) - 1
    home: Any = np.int64(b.slots[slot].keys >> np.uint64(16)) & mask
    away: bool = (at - home) & mask >= PROBES
    return away


@native
def intern(b: Books, address: int, after: int) -> int:
    """The slot that holds the row at an address; if it is new, kept next to the one before it."""
    row = b.counts[ROW_BYTES]
    base = b.counts[ADDRESS]
    key = hash_bytes(address, row)
    mask = len(b.table) - 1
    home = np.int64(key >> np.uint64(16)) & mask
    place: Any = -1
    for i in range(PROBES):
        at = (home + i) & mask
        slot = b.table[at]
        if slot >= 0 and b.slots[slot].keys == key:
            if b.slots[slot].state == USED and memcmp(base + slot * row, address, row) == 0:
                return slot
            place = at
        elif place < 0 and (slot < 0 or b.slots[slot].state != USED or strays(b, at, slot)):
            place = at
    if place < 0:  # all taken: the one whose turn it is by the hash makes way and will be stored again
        place = (home + np.int64(key & np.uint64(PROBES - 1))) & mask
    slot = take_mapped(b, after)
    copy(base + slot * row, address, row)
    b.slots[slot].keys = key
    b.table[place] = slot
    return slot
