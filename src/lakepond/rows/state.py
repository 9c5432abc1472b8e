"""The state of a row store, as arrays that compiled code works on.

A *slot* holds one row in the slab. A *track* is the sequence of slots that one stream's windows are slices
of; neighbouring windows overlap in it. Its entries are stored in *extents*, blocks of one size that belong to
one stream at a time, so that streams can interleave and end in any order. Within an extent the starts of
windows never decrease: when the oldest step is evicted, every entry before the next step's observation is
free. A *cursor* is the write position of one stream with live steps; cursors are numbered from 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lakepond.types import Array

USED, FREE, UNTOUCHED = 0, 1, 2  # states of a slot; an untouched one is free and takes no memory
ANYWHERE = 1 << 60
PROBES = 8  # places of the hash table in which a row may be registered
PATIENCE = 16  # windows without a repeat before the search backs off

COUNTERS = np.dtype(
    [
        ("length", np.int64),  # rows of a window
        ("row_bytes", np.int64),
        ("extent_size", np.int64),  # entries of an extent
        ("cursor_slots", np.int64),  # slots reserved for a stream while the slab is fresh
        ("address", np.int64),  # of the slab; 0 while growing
        ("in_use", np.int64),  # slots that hold a row
        ("resident", np.int64),  # slots that take memory
        ("fresh", np.int64),  # slots from here on were never reserved
        ("queue_start", np.int64),
        ("queue_length", np.int64),
        ("num_pending", np.int64),
        ("num_free_extents", np.int64),
        ("misses", np.int64),  # consecutive windows without a repeat
        ("oldest", np.int64),  # the windows of steps [oldest, stop) are stored
        ("stop", np.int64),
    ]
)
SLOT = np.dtype(
    [
        ("lake", np.int64),  # the number of its row in the lake, or -1: see `drop`
        ("keys", np.uint64),  # the hash of its row; 0 if it was never computed
        ("refs", np.int32),  # reference count: track entries and pins
        ("pins", np.int32),  # those of them that are pins
        ("state", np.uint8),
        ("queued", np.uint8),  # whether it is in the queue
        ("waiting", np.uint8),  # whether it is in `pending_free`
    ]
)
EXTENT = np.dtype(
    [
        ("head", np.int64),  # the oldest entry still referenced
        ("tail", np.int64),  # the position after the newest
        ("live", np.int32),  # windows of live steps that start there
        ("owner", np.int32),  # the cursor that writes there, or -1
    ]
)
CURSOR = np.dtype(
    [
        ("floor", np.int64),  # the lowest start a new window may have: that of the newest obs
        ("next", np.int64),  # the start of the newest next_obs, or -1
        ("source", np.int64),  # if that is a window of a source: its token, and the stop of the window
        ("stop", np.int64),
        ("extent", np.int64),  # the extent it writes to, or -1
        ("step", np.int64),  # the id of its newest step, or -1
    ]
)
WINDOW = np.dtype(
    [
        ("obs", np.int64),  # where the window of obs starts in the track
        ("next_obs", np.int64),
        ("ahead", np.int32),  # distance in ids to the next step of the stream, or 0
        ("behind", np.int32),  # distance to the previous one, or 0
    ]
)


class State(NamedTuple):
    """All arrays of a row store."""

    counters: Array
    """one record"""
    slots: Array
    queue: Array
    """a ring of free slots, oldest first; some have been taken since"""
    pending_free: Array
    """slots without references that are not free yet, because a reader may be copying them"""
    table: Array
    """hash table from row hashes to slots; entries may be stale, so bytes are compared"""
    entries: Array
    extents: Array
    free_extents: Array
    cursors: Array
    found_slots: Array
    """temporary: the slots of the window that is being looked up"""
    windows: Array
    """ring: the windows of step `id` are at `id % len(windows)`"""


class SourceWindows(NamedTuple):
    """For windows that are slices of a `RowSource`: its token, and the stop of each window; 0: no source."""

    obs: int
    obs_stops: Array
    next_obs: int
    next_obs_stops: Array


NO_STOPS = np.zeros(0, np.int64)
NO_SOURCES = SourceWindows(0, NO_STOPS, 0, NO_STOPS)
