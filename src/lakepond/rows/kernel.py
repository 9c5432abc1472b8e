"""The compiled heart: where rows lie, who names them, and how a window is found.

All state is in arrays, the `Books`, so that one call into compiled code places a whole batch of steps;
it runs without the interpreter lock. See docs/design/001-rows.md for the figures that called for it.

A *slot* is a place for one row in the slab. A *track* is a stream's windows as overlapping slices of one
sequence of slots; its entries lie in *extents*, blocks of one size that belong to one stream at a time,
so that streams can interleave and leave in any order. Within an extent the starts of windows never go
back: when the oldest step leaves, everything before its observation is free. A *lane* is a live stream.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from lakepond.types import Array

memcmp = types.ExternalFunction("memcmp", types.int32(types.int64, types.int64, types.int64))
memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))

# What `Books.counts` counts.
LENGTH, ROW_BYTES, EXTENT = 0, 1, 2  # rows of a window, bytes of a row, entries of an extent
ADDRESS = 3  # of the slab
IN_USE, RESIDENT = 4, 5  # slots that hold a row; slots that take memory
FRESH = 6  # slots from here on were never handed out in lanes
QUEUE_AT, QUEUE_LENGTH, LIMBO_LENGTH, FREE_EXTENTS = 7, 8, 9, 10
BARREN = 11  # windows since a repeat was last found
COUNTS = 12

USED, FREE, UNTOUCHED = 0, 1, 2  # what a slot can be; an untouched one is free and takes no memory
ANYWHERE = 1 << 60
SLOT_LANE = 16  # slots set apart for a stream when the slab is fresh, so that its rows lie side by side
PROBES = 8  # places of the index in which a hash may stand
PATIENCE = 16  # windows in which nothing was found before the search backs off
PROBE_MASK = np.uint64(63)  # while it is backed off, one window in 64 is searched for, chosen by its content


class Books(NamedTuple):
    """Everything a store knows."""

    counts: Array
    # slots
    refs: Array
    """track entries that name each slot"""
    keys: Array
    """the hash of the row in each slot; 0 if it was never looked for"""
    state: Array
    queued: Array
    queue: Array
    """free slots in the order they came free, a ring; some have been taken meanwhile"""
    limbo: Array
    """slots that nothing names any more, not yet free because somebody may be reading them"""
    table: Array
    """which slots may hold a row, by its hash; may point to what is no longer there, so it is checked"""
    # tracks
    entries: Array
    live: Array
    """windows that live steps have in each extent"""
    head: Array
    """the oldest entry still held in each extent"""
    tail: Array
    """the position after the newest entry"""
    owner: Array
    """the lane that writes there, or -1"""
    free_extents: Array
    # lanes
    extent: Array
    """the extent a lane writes to, or -1"""
    floor: Array
    """the lowest start a new window may have: that of the newest obs"""
    next: Array
    """the start of the newest next_obs, or -1"""
    source: Array
    stop: Array
    """if the newest next_obs came from a source: which, and where it stopped"""


class Windows(NamedTuple):
    """A batch of windows in memory: one after another, or parts of a source, told by where each stops."""

    address: int
    source: int
    """0: from no source"""
    stops: Array


@intrinsic
def load_word(_typing: Any, address: Any) -> Any:
    """The eight bytes at an address, which need not be aligned."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(types.int64), codegen


@intrinsic
def load_byte(_typing: Any, address: Any) -> Any:
    """The byte at an address."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return builder.zext(byte, ir.IntType(64))

    return types.uint64(types.int64), codegen


MULTIPLY = np.uint64(0x9FB21C651E98DF25)
SHIFT = np.uint64(29)


@njit(nogil=True, cache=True)
def hash_bytes(address: int, size: int) -> Any:
    """A hash of some bytes, never 0; four strands, so that the multiplications overlap."""
    a = np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(size)
    b = np.uint64(0xC2B2AE3D27D4EB4F)
    c = np.uint64(0x165667B19E3779F9)
    d = np.uint64(0x27D4EB2F165667C5)
    at = address
    stop = address + size
    while at + 32 <= stop:
        a = (a ^ load_word(at)) * MULTIPLY
        b = (b ^ load_word(at + 8)) * MULTIPLY
        c = (c ^ load_word(at + 16)) * MULTIPLY
        d = (d ^ load_word(at + 24)) * MULTIPLY
        a ^= a >> SHIFT
        b ^= b >> SHIFT
        c ^= c >> SHIFT
        d ^= d >> SHIFT
        at += 32
    while at + 8 <= stop:
        a = (a ^ load_word(at)) * MULTIPLY
        a ^= a >> SHIFT
        at += 8
    while at < stop:
        b = (b ^ load_byte(at)) * MULTIPLY
        b ^= b >> SHIFT
        at += 1
    h = (a ^ (b << np.uint64(1))) * MULTIPLY
    h = (h ^ (h >> SHIFT) ^ c) * MULTIPLY
    h = (h ^ (h >> SHIFT) ^ d) * MULTIPLY
    h ^= h >> SHIFT
    return h if h != np.uint64(0) else np.uint64(1)


# --- slots ---------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def take_slot(b: Books, after: int) -> int:
    """A free slot: the one after `after` if it can be had."""
    slot = after + 1
    if slot >= b.counts[FRESH] or b.state[slot] == USED:
        slot = -1
        while b.counts[QUEUE_LENGTH] and slot < 0:
            slot = b.queue[b.counts[QUEUE_AT]]
            b.counts[QUEUE_AT] = (b.counts[QUEUE_AT] + 1) % len(b.queue)
            b.counts[QUEUE_LENGTH] -= 1
            b.queued[slot] = 0
            if b.state[slot] == USED:
                slot = -1
        if slot < 0 and b.counts[FRESH] < len(b.state):
            slot = b.counts[FRESH]
            b.counts[FRESH] = min(slot + SLOT_LANE, len(b.state))
        if slot < 0:  # only the unused ends of lanes are left
            for s in range(len(b.state)):
                if b.state[s] != USED:
                    enqueue(b, s)
            slot = b.queue[b.counts[QUEUE_AT]]
    if b.state[slot] == UNTOUCHED:
        b.counts[RESIDENT] += 1
    b.state[slot] = USED
    b.counts[IN_USE] += 1
    return slot


@njit(nogil=True, cache=True)
def enqueue(b: Books, slot: int) -> None:
    """Let a free slot be found, once."""
    if not b.queued[slot]:
        b.queued[slot] = 1
        b.queue[(b.counts[QUEUE_AT] + b.counts[QUEUE_LENGTH]) % len(b.queue)] = slot
        b.counts[QUEUE_LENGTH] += 1


@njit(nogil=True, cache=True)
def unname(b: Books, start: int, stop: int) -> None:
    """Entries no longer name their slots."""
    for position in range(start, stop):
        slot = b.entries[position]
        b.refs[slot] -= 1
        if b.refs[slot] == 0:
            if b.counts[LIMBO_LENGTH] == len(b.limbo):
                settle(b)  # cannot be full of anything but slots that were named again
            b.limbo[b.counts[LIMBO_LENGTH]] = slot
            b.counts[LIMBO_LENGTH] += 1


@njit(nogil=True, cache=True)
def settle(b: Books) -> int:
    """What nothing names is free; returns how many slots could give their memory back, if that pays."""
    for i in range(b.counts[LIMBO_LENGTH]):
        slot = b.limbo[i]
        if b.refs[slot] == 0 and b.state[slot] == USED:
            b.state[slot] = FREE
            b.keys[slot] = 0
            b.counts[IN_USE] -= 1
            enqueue(b, slot)
    b.counts[LIMBO_LENGTH] = 0
    idle = b.counts[RESIDENT] - b.counts[IN_USE]
    return idle if idle > b.counts[IN_USE] else 0


@njit(nogil=True, cache=True)
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
        if slot >= 0 and b.keys[slot] == key:
            if b.state[slot] == USED and memcmp(base + slot * row, address, row) == 0:
                return slot
            place = at
        elif place < 0 and (slot < 0 or b.state[slot] != USED):
            place = at
    if place < 0:  # all taken: the one whose turn it is by the hash makes way and will be stored again
        place = (home + np.int64(key & np.uint64(PROBES - 1))) & mask
    slot = take_slot(b, after)
    memcpy(base + slot * row, address, row)
    b.keys[slot] = key
    b.table[place] = slot
    return slot


# --- tracks --------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def take_extent(b: Books, lane: int) -> int:
    """A free extent, now the lane's."""
    b.counts[FREE_EXTENTS] -= 1
    extent = b.free_extents[b.counts[FREE_EXTENTS]]
    start = extent * b.counts[EXTENT]
    b.head[extent] = start
    b.tail[extent] = start
    b.owner[extent] = lane
    b.extent[lane] = extent
    return start


@njit(nogil=True, cache=True)
def retire(b: Books, extent: int) -> None:
    """No live step has a window there any more."""
    unname(b, b.head[extent], b.tail[extent])
    if b.owner[extent] >= 0:
        b.extent[b.owner[extent]] = -1
        b.next[b.owner[extent]] = -1
    b.head[extent] = b.tail[extent]
    b.owner[extent] = -1
    b.free_extents[b.counts[FREE_EXTENTS]] = extent
    b.counts[FREE_EXTENTS] += 1


@njit(nogil=True, cache=True)
def room(b: Books, lane: int, start: int, more: int) -> int:
    """Make sure that `more` entries fit behind those from `start` on; returns where these lie now."""
    extent = b.extent[lane]
    end = b.tail[extent]
    if end + more <= (extent + 1) * b.counts[EXTENT]:
        return start
    b.owner[extent] = -1
    moved = take_extent(b, lane)
    for k in range(end - start):
        slot = b.entries[start + k]
        b.entries[moved + k] = slot
        b.refs[slot] += 1
    b.tail[b.extent[lane]] = moved + end - start
    b.floor[lane] = moved
    return moved


@njit(nogil=True, cache=True)
def append(b: Books, lane: int, slot: int) -> None:
    """One more entry at the end of a lane's track, where there is room."""
    extent = b.extent[lane]
    b.entries[b.tail[extent]] = slot
    b.tail[extent] += 1
    b.refs[slot] += 1


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def append_row(b: Books, lane: int, start: int, address: int) -> int:
    """A window that is what the track ends with from `start` on, and one row more."""
    b.counts[BARREN] = 0
    end = b.tail[b.extent[lane]]
    slot = intern(b, address + (b.counts[LENGTH] - 1) * b.counts[ROW_BYTES], b.entries[end - 1])
    start = room(b, lane, start, 1)
    append(b, lane, slot)
    return start


@njit(nogil=True, cache=True)
def search(b: Books, lane: int, address: int) -> int:
    """Look up every row of a window; use what the track's newest entries already spell."""
    length, row = b.counts[LENGTH], b.counts[ROW_BYTES]
    end = b.tail[b.extent[lane]]
    after = ANYWHERE if b.next[lane] < 0 else b.entries[end - 1]
    if b.counts[BARREN] >= PATIENCE and not is_probe(address, length * row):
        start = room(b, lane, end, length)
        for _ in range(length):
            after = take_slot(b, after)
            append(b, lane, after)
        run = 0
        while run < length:  # copy neighbours at once
            slot = b.entries[start + run]
            n = 1
            while run + n < length and b.entries[start + run + n] == slot + n:
                n += 1
            memcpy(b.counts[ADDRESS] + slot * row, address + run * row, n * row)
            run += n
        return start
    before = b.counts[IN_USE]
    slots = np.empty(length, np.int32)
    for k in range(length):
        after = intern(b, address + k * row, after)
        slots[k] = after
    found = b.counts[IN_USE] - before < length
    b.counts[BARREN] = 0 if found else b.counts[BARREN] + 1
    start = end
    if found and b.next[lane] >= 0:
        for at in range(b.floor[lane], end):
            k = 0
            while k < length and at + k < end and b.entries[at + k] == slots[k]:
                k += 1
            if k == length or at + k == end:
                start = at
                break
    have = end - start
    if have < length:
        start = room(b, lane, start, length - have)
        for k in range(have, length):
            append(b, lane, slots[k])
    return start


@njit(nogil=True, cache=True)
def is_probe(address: int, size: int) -> bool:
    """One window in 64, chosen by a few of its bytes, so that the same window is chosen again."""
    h = np.uint64(size)
    for k in range(16):
        h = (h ^ load_byte(address + k * (size - 1) // 15)) * MULTIPLY
        h ^= h >> SHIFT
    return h & PROBE_MASK == np.uint64(0)


# --- what is called ------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def record(b: Books, lanes: Array, obs: Windows, next_obs: Windows, place: int, starts: Array) -> None:
    """Keep the obs and next_obs of these steps, and write where each starts to the ring, from `place` on."""
    length, row, size = b.counts[LENGTH], b.counts[ROW_BYTES], b.counts[EXTENT]
    overlap = (length - 1) * row
    for i in range(len(lanes)):
        lane = lanes[i]
        if b.extent[lane] < 0:
            b.floor[lane] = take_extent(b, lane)
            b.next[lane] = -1
            b.source[lane] = 0
        here = obs.address + (i * length if obs.source == 0 else obs.stops[i] - length) * row
        there = next_obs.address + (i * length if next_obs.source == 0 else next_obs.stops[i] - length) * row
        newest = b.next[lane]
        known = obs.source > 0 and obs.source == b.source[lane] and obs.stops[i] == b.stop[lane]
        if newest >= 0 and (known or holds(b, newest, length, here)):  # obs is the newest next_obs
            start = newest
            b.counts[BARREN] = 0
        elif (
            newest >= 0
            and overlap
            and b.tail[b.extent[lane]] == newest + length
            and holds(b, newest + 1, length - 1, here)
        ):  # or that one moved on by a row
            start = append_row(b, lane, newest + 1, here)
        else:
            start = search(b, lane, here)
        b.live[start // size] += 1
        b.floor[lane] = start
        b.next[lane] = start
        known = obs.source > 0 and obs.source == next_obs.source and next_obs.stops[i] == obs.stops[i] + 1
        if (
            overlap
            and b.tail[b.extent[lane]] == start + length
            and (known or memcmp(here + row, there, overlap) == 0)
        ):  # next_obs is obs moved on by a row
            newest = append_row(b, lane, start + 1, there)
        else:
            newest = search(b, lane, there)
        b.live[newest // size] += 1
        b.next[lane] = newest
        b.source[lane] = next_obs.source
        if next_obs.source > 0:
            b.stop[lane] = next_obs.stops[i]
        starts[(place + i) % len(starts), 0] = start
        starts[(place + i) % len(starts), 1] = newest


@njit(nogil=True, cache=True)
def release(b: Books, place: int, steps: int, starts: Array, unread: bool) -> int:
    """Let go of the windows of the oldest steps, which lie in the ring from `place` on; then `settle`."""
    size = b.counts[EXTENT]
    for i in range(steps):
        at = (place + i) % len(starts)
        obs = starts[at, 0]
        extent = obs // size
        for which in range(2):
            e = starts[at, which] // size
            b.live[e] -= 1
            if b.live[e] == 0:
                retire(b, e)
        if b.live[extent] > 0 and obs > b.head[extent]:  # later windows start at obs or after it
            unname(b, b.head[extent], obs)
            b.head[extent] = obs
    return settle(b) if unread else 0
