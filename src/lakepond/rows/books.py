"""The books of a row store, as arrays that compiled code works on.

A *slot* is a place for one row in the slab. A *track* is a stream's windows as overlapping slices of one
sequence of slots; its entries lie in *extents*, blocks of one size that belong to one stream at a time,
so that streams can interleave and leave in any order. Within an extent the starts of windows never go
back: when the oldest step leaves, everything before its observation is free. A *lane* is a live stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lakepond.types import Array

# What `Books.counts` counts.
LENGTH, ROW_BYTES, EXTENT = 0, 1, 2  # rows of a window, bytes of a row, entries of an extent
ADDRESS = 3  # of the slab
IN_USE, RESIDENT = 4, 5  # slots that hold a row; slots that take memory
FRESH = 6  # slots from here on were never handed out in lanes
QUEUE_AT, QUEUE_LENGTH, LIMBO_LENGTH, FREE_EXTENTS = 7, 8, 9, 10
BARREN = 11  # windows since a repeat was last found
LANE = 12  # slots set apart for a stream when the slab is fresh, so that its rows lie side by side
UNTIL = 13  # the id after the newest step that was kept: tells whether an interrupted turn was done
COUNTS = 14

USED, FREE, UNTOUCHED = 0, 1, 2  # what a slot can be; an untouched one is free and takes no memory
ANYWHERE = 1 << 60
PROBES = 8  # places of the index in which a hash may stand
PATIENCE = 16  # windows in which nothing was found before the search backs off


SLOT_BOOK = np.dtype(
    [
        ("lake", np.int64),  # the number of its row in the lake, or -1
        ("keys", np.uint64),  # the hash of its row; 0 if it was never looked for
        ("refs", np.int32),  # track entries that name it
        ("state", np.uint8),
        ("queued", np.uint8),  # whether it stands in the queue
        ("waiting", np.uint8),  # whether it stands in limbo
    ]
)
EXTENT_BOOK = np.dtype(
    [
        ("head", np.int64),  # the oldest entry still held
        ("tail", np.int64),  # the position after the newest
        ("live", np.int32),  # windows that live steps have there
        ("owner", np.int32),  # the lane that writes there, or -1
    ]
)
LANE_BOOK = np.dtype(
    [
        ("floor", np.int64),  # the lowest start a new window may have: that of the newest obs
        ("next", np.int64),  # the start of the newest next_obs, or -1
        ("source", np.int64),  # if that came from a source: which, and where it stopped
        ("stop", np.int64),
        ("extent", np.int64),  # the extent it writes to, or -1
    ]
)


class Books(NamedTuple):
    """Everything a store knows."""

    counts: Array
    slots: Array
    queue: Array
    """free slots in the order they came free, a ring; some have been taken meanwhile"""
    limbo: Array
    """slots that nothing names any more, not yet free because somebody may be reading them"""
    table: Array
    """which slots may hold a row, by its hash; may point to what is no longer there, so it is checked"""
    entries: Array
    extents: Array
    free_extents: Array
    lanes: Array
    spelling: Array
    """the slots of the window that is being looked up"""


class Sources(NamedTuple):
    """Which windows are parts of the rows of a source, and where each stops; others lie one after another."""

    obs: int
    """the source, or 0: from none"""
    obs_stops: Array
    next_obs: int
    next_obs_stops: Array


NO_STOPS = np.zeros(0, np.int64)
NO_SOURCES = Sources(0, NO_STOPS, 0, NO_STOPS)
