"""RowStore: stores windows as references to rows, and each distinct row once.

A new window is matched in this order, cheapest first:

1. it equals the newest next_obs of its stream: one comparison, nothing is stored;
2. it is the previous window shifted by one row: one comparison, one row is looked up;
3. every row is hashed and looked up; bytes are compared on a hit.

After `PATIENCE` consecutive misses, only one window in 64 is looked up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lakepond.rows.memory import Slab, address_of, spans
from lakepond.rows.state import (
    COUNTERS,
    CURSOR,
    EXTENT,
    FREE,
    NO_SOURCES,
    NO_STOPS,
    PROBES,
    SLOT,
    UNTOUCHED,
    USED,
    WINDOW,
    SourceWindows,
    State,
)
from lakepond.types import Array

TRIM_BYTES = 16 << 20
"""less free memory than this is not worth returning to the system"""
CURSOR_BYTES = 256 << 10
"""memory reserved for a stream while the slab is fresh"""
STREAMING_BYTES = 32 << 20
"""a batch as large as this is written with non-temporal stores: no cache would hold it until it is used"""


class RowStore:
    """The obs and next_obs windows of a ring of steps: `length` rows of `row_bytes` bytes each.

    Not thread-safe: the caller holds the lock of the pond, except during `gather` and `copy_rows`.
    """

    def __init__(self, length: int, row_bytes: int, dtype: np.dtype[Any], ring: int) -> None:
        """`dtype`: of the arrays that windows are copied from and to. `ring`: places in the ring."""
        from lakepond.rows import compiling, kernel  # numba, not before it is needed

        self._kernel = kernel
        self.length = length
        self.row_bytes = row_bytes
        self.slab = Slab(row_bytes)
        self._address_of = compiling.address_of if compiling.knows(dtype) else address_of
        self.readers = 0
        """number of gathers in progress; while there are any, slots without references are not reused"""
        counters = np.zeros(1, COUNTERS)
        counters["length"], counters["row_bytes"] = length, row_bytes
        counters["extent_size"] = max(256, 4 * length)
        counters["cursor_slots"] = max(1, min(16, CURSOR_BYTES // row_bytes))
        ints = np.zeros(0, np.int32)
        self.state = State(
            counters=counters,
            slots=np.zeros(0, SLOT),
            queue=ints,
            pending_free=ints,
            table=np.full(1, -1, np.int32),
            entries=ints,
            extents=np.zeros(0, EXTENT),
            free_extents=ints,
            cursors=np.zeros(0, CURSOR),
            found_slots=np.zeros(length, np.int32),
            windows=np.zeros(ring, WINDOW),
        )
        self._append = compiling.compiled(kernel.append, self.state, NO_STOPS, 0, 0, NO_SOURCES, 0, 0, True)
        self._evict = compiling.compiled(kernel.evict, self.state, 0, True)

    def counter(self, name: str) -> int:
        """Return the value of one of `COUNTERS`."""
        return int(self.state.counters[name][0])

    def _set(self, name: str, value: int) -> None:
        self.state.counters[name] = value

    # --- recording -------------------------------------------------------------------------------

    @property
    def oldest(self) -> int:
        """The id of the oldest step whose windows are stored."""
        return self.counter("oldest")

    def start_at(self, step: int) -> None:
        """Set the id of the first step; the store must be empty."""
        self._set("oldest", step)
        self._set("stop", step)

    def spare(self) -> int:
        """Number of windows that certainly fit without growing."""
        return int(self._kernel.spare(self.state))

    def has_rows(self, rows: int) -> bool:
        """Whether there is room for that many new rows."""
        return self.counter("in_use") + rows <= len(self.state.slots) and self.counter("address") != 0

    def grow_rows(self, rows: int) -> None:
        """Make room for that many new rows. There must be no reader."""
        if self.has_rows(rows):
            return
        state, held = self.state, len(self.state.slots)
        total = max(self.counter("in_use") + rows, held * 4 // 3)
        self._set("address", 0)  # until all arrays are replaced: an interrupted growth is repeated
        try:
            self.slab.grow(total)
        except MemoryError:
            self._set("address", self.slab.address)  # as it was
            raise
        more = total - held
        slots = _longer(state.slots, more)
        slots["state"][held:] = UNTOUCHED
        slots["lake"][held:] = -1
        # a ring does not grow in place: copied from its head on
        queue = _longer(np.roll(state.queue, -self.counter("queue_start")), more)
        counters = state.counters.copy()
        counters["address"], counters["queue_start"] = self.slab.address, 0
        self.state = state._replace(
            counters=counters,
            slots=slots,
            queue=queue,
            pending_free=_longer(state.pending_free, more),
            table=_table(slots),
        )

    def grow(self, windows: int, cursors: int) -> None:
        """Make room for that many new windows, and for cursors [0, cursors). There must be no reader."""
        self.grow_rows(windows * self.length)
        state, free = self.state, self.counter("num_free_extents")
        if free < windows + 1:
            held = len(state.extents)
            more = max(windows + 1, held // 4)
            extents = _longer(state.extents, more)
            extents["owner"][held:] = -1
            free_extents = _longer(state.free_extents, more)
            free_extents[free : free + more] = np.arange(held + more - 1, held - 1, -1)
            entries = _longer(state.entries, more * self.counter("extent_size"))
            counters = state.counters.copy()
            counters["num_free_extents"] += more
            state = state._replace(
                counters=counters, extents=extents, free_extents=free_extents, entries=entries
            )
        if cursors > len(state.cursors):
            held = len(state.cursors)
            longer = _longer(state.cursors, max(cursors - held, held // 2))
            longer["extent"][held:] = longer["step"][held:] = -1
            state = state._replace(cursors=longer)
        self.state = state

    def append(
        self, cursors: Array, obs: int, next_obs: int, sources: SourceWindows, first: int, oldest: int
    ) -> tuple[int, int]:
        """Evict the steps before `oldest`; store the windows at two addresses as those of steps from `first`.

        Returns how many more windows certainly fit, and how many cursors lost their newest step by eviction.
        """
        spare, idle, emptied = self._append(
            self.state, cursors, obs, next_obs, sources, first, oldest, self.readers == 0
        )
        if idle * self.row_bytes > TRIM_BYTES:
            self._give_back()
        return spare, emptied

    def append_slots(self, cursors: Array, track: Array, starts: Array, first: int) -> int:
        """`append` for windows that are given as slices of a track of slots; `starts` is (steps, 2)."""
        return int(self._kernel.append_slots(self.state, cursors, track, starts, first))

    def evict(self, oldest: int) -> int:
        """Evict the steps before `oldest`; returns how many cursors lost their newest step. Idempotent."""
        idle, emptied = self._evict(self.state, oldest, self.readers == 0)
        if idle * self.row_bytes > TRIM_BYTES:
            self._give_back()
        return int(emptied)

    def discard(self, stop: int) -> None:
        """Remove the steps from `stop` on: an append that was interrupted never published them."""
        self._kernel.discard(self.state, stop)

    def reserve(self, count: int) -> Array:
        """Slots for rows that are known to be new, pinned; a later repeat of such a row is not found."""
        slots = np.empty(count, np.int32)
        self._kernel.reserve(self.state, slots)
        return slots

    def load(self, rows: Array, numbers: Array | None) -> Array:
        """Store rows, (n, row_bytes) uint8; returns their pinned slots. `numbers`: those in the lake."""
        slots = np.empty(len(rows), np.int32)
        self._kernel.load(self.state, address_of(rows), slots)
        if numbers is not None:
            self.set_row_numbers(slots, numbers)
        return slots

    def pin(self, slots: Array) -> None:
        """Add a reference to rows, so that they stay without a window."""
        self._kernel.pin(self.state, slots)

    def unpin(self, slots: Array) -> None:
        """Undo `pin`."""
        self._kernel.unpin(self.state, slots)
        self.free_pending()

    def free_pending(self) -> None:
        """Free the slots without references, unless a gather is in progress; trim the slab."""
        if not self.readers and self._kernel.free_pending(self.state) * self.row_bytes > TRIM_BYTES:
            self._give_back()

    def _give_back(self) -> None:
        free = np.flatnonzero(self.state.slots["state"] == FREE)
        for slot, slots in spans(free):
            self.slab.give_back(slot, slots)
        self.state.slots["state"][free] = UNTOUCHED
        self.state.counters["resident"] -= len(free)

    # --- to a lake -------------------------------------------------------------------------------

    def starts(self, places: Array) -> Array:
        """Where the windows of steps start in the track, (steps, 2)."""
        found = self.state.windows[places]
        return np.stack([found["obs"], found["next_obs"]], axis=-1)

    def slots_at(self, positions: Array) -> Array:
        """The slots at positions of the track."""
        found: Array = self.state.entries[positions]
        return found

    def row_numbers(self, slots: Array) -> Array:
        """The number of each row in the lake, or -1."""
        found: Array = self.state.slots["lake"][slots]
        return found

    def set_row_numbers(self, slots: Array, numbers: Array | int) -> None:
        """Set the numbers of these rows in the lake; -1: none."""
        self.state.slots["lake"][slots] = numbers

    def find(self, slots: Array, among: SortedRows) -> Array:
        """Which of some rows each slot holds, byte for byte; -1: none."""
        found = np.empty(len(slots), np.int64)
        address = address_of(among.rows)
        self._kernel.find_rows(self.state, slots, address, among.hashes, among.order, found)
        return found

    # --- reading ---------------------------------------------------------------------------------

    def follows(self, places: Array, previous: Array) -> Array:
        """Whether the obs of each step is the next_obs of a previous one, by their places in the ring."""
        windows = self.state.windows
        found: Array = windows["obs"][places] == windows["next_obs"][previous]
        return found

    def look_up(self, which: int, places: Array) -> Array:
        """The slots of the obs (0) or next_obs (1) of the steps at these places, one window after another."""
        slots = np.empty(len(places) * self.length, np.int32)
        self._kernel.look_up(self.state, which, places, slots)
        return slots

    def gather(self, slots: Array, *outs: Array, part: tuple[int, int] | None = None) -> None:
        """Copy the windows in these slots, (outs, rows), into contiguous arrays of that size.

        `part`: only windows [start, stop). Other threads run meanwhile.
        """
        start, stop = part or (0, slots.shape[1] // self.length)
        addresses = np.array([self._address_of(out) for out in outs])
        streaming = sum(out.nbytes for out in outs) >= STREAMING_BYTES
        base, row = self.slab.address, self.row_bytes
        self._kernel.gather(base, row, self.length, slots, addresses, start, stop, streaming)

    def copy_rows(self, slots: Array, out: Array) -> None:
        """Copy the rows in these slots into `out`, (rows, row_bytes) uint8; other threads run meanwhile."""
        addresses = np.array([address_of(out)])
        row, base = self.row_bytes, self.slab.address
        self._kernel.gather(base, row, 1, slots[np.newaxis], addresses, 0, len(slots), False)

    @property
    def rows(self) -> int:
        """Distinct rows stored."""
        return self.counter("in_use")

    def nbytes(self, used: float) -> int:
        """Resident memory: rows and state; `used` is the fraction of the ring that was ever written."""
        ring = self.state.windows.nbytes
        rest = sum(array.nbytes for array in self.state) - ring
        return self.counter("resident") * self.row_bytes + rest + int(ring * used)

    def check(self) -> None:
        """Recount everything and raise AssertionError where the state is inconsistent; for tests."""
        from lakepond.rows.hashing import hash_bytes

        s = self.state
        state, refs, keys = s.slots["state"], s.slots["refs"], s.slots["keys"]
        named = np.zeros(len(s.slots), np.int32)
        for head, tail in zip(s.extents["head"].tolist(), s.extents["tail"].tolist(), strict=True):
            np.add.at(named, s.entries[head:tail], 1)
        assert np.array_equal(named, refs), "references"
        waiting = set(s.pending_free[: self.counter("num_pending")].tolist())
        for slot in range(len(s.slots)):
            assert (state[slot] == USED) == (named[slot] > 0 or slot in waiting), f"slot {slot}"
        assert self.rows == np.count_nonzero(state == USED), "slots in use"
        assert self.counter("resident") == np.count_nonzero(state != UNTOUCHED), "resident slots"
        for slot in np.flatnonzero(keys).tolist():
            assert hash_bytes(address_of(self.slab.rows[slot]), self.row_bytes) == keys[slot], "hash"
        owned, writing = np.flatnonzero(s.extents["owner"] >= 0), s.cursors["extent"]
        assert np.array_equal(owned, np.sort(writing[writing >= 0])), "owners"


class SortedRows:
    """Rows, (n, row_bytes) uint8, that can be found by their content. Memory: 16 bytes per row."""

    def __init__(self, rows: Array) -> None:
        from lakepond.rows import kernel  # numba, not before it is needed

        self.rows = rows
        hashes = np.empty(len(rows), np.uint64)
        kernel.hash_rows(address_of(rows), rows.shape[1], hashes)
        self.order = np.argsort(hashes, kind="stable")
        self.hashes = hashes[self.order]


def _longer(array: Array, more: int) -> Array:
    return np.concatenate([array, np.zeros(more, array.dtype)])


def _table(slots: Array) -> Array:
    """A hash table with at least two places per slot, in which all slots in use are registered."""
    table = np.full(1 << (2 * len(slots) - 1).bit_length(), -1, np.int32)
    known = np.flatnonzero((slots["state"] == USED) & (slots["keys"] != 0)).astype(np.int32)
    home = (slots["keys"][known] >> np.uint64(16)).astype(np.int64)
    for i in range(PROBES):  # a slot that loses a place to another tries the next one
        at = (home + i) & (len(table) - 1)
        free = table[at] < 0
        table[at[free]] = known[free]
        lost = table[at] != known
        known, home = known[lost], home[lost]
    return table
