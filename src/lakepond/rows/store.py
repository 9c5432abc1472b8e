"""RowStore: windows in, references out; each distinct row is kept once.

How a window is looked for, cheapest first:

1. it is the newest next_obs of its stream: one comparison, nothing stored;
2. it is the window before it moved on by a row: one comparison, one row to look up;
3. every row is hashed and looked up; bytes are compared on a hit.

Where the third way finds nothing for long, only a sixty-fourth of the windows go it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lakepond.rows import books as names
from lakepond.rows.books import NO_SOURCES, NO_STOPS, Books, Sources
from lakepond.rows.memory import Slab, address_of, spans
from lakepond.types import Array

TRIM_BYTES = 16 << 20
"""less free memory than this is not worth returning to the system"""
LANE_BYTES = 256 << 10
"""memory set apart for a stream when the slab is fresh"""


MUCH_BYTES = 32 << 20
"""a batch as large as this is copied past the caches, which would not hold it until it is used"""


class RowStore:
    """Windows of `length` rows of `row_bytes` bytes each, of streams that are told apart by a lane number."""

    def __init__(self, length: int, row_bytes: int, dtype: np.dtype[Any]) -> None:
        """`dtype`: of the arrays that windows are taken from and copied to."""
        from lakepond.rows import calling, kernel  # numba, not before it is needed

        self._kernel = kernel
        self.length = length
        self.row_bytes = row_bytes
        self.slab = Slab(row_bytes)
        self._address_of = calling.address_of if calling.knows(dtype) else address_of
        self.readers = 0
        """gathers under way: while there are any, slots that are let go are not used again"""
        count = np.zeros(names.COUNTS, np.int64)
        count[names.LENGTH], count[names.ROW_BYTES] = length, row_bytes
        count[names.EXTENT] = max(256, 4 * length)
        count[names.LANE] = max(1, min(16, LANE_BYTES // row_bytes))
        ints = np.zeros(0, np.int32)
        self.books = Books(
            counts=count,
            slots=np.zeros(0, names.SLOT_BOOK),
            queue=ints,
            limbo=ints,
            table=np.full(1, -1, np.int32),
            entries=ints,
            extents=np.zeros(0, names.EXTENT_BOOK),
            free_extents=ints,
            lanes=np.zeros(0, names.LANE_BOOK),
            spelling=np.zeros(length, np.int32),
        )
        ring = np.zeros((0, 2), np.int64)
        self._turn = calling.compiled(
            kernel.turn, self.books, 0, 0, True, NO_STOPS, 0, 0, NO_SOURCES, 0, ring, NO_STOPS
        )

    # --- recording -------------------------------------------------------------------------------

    def room(self) -> int:
        """How many windows are sure to fit as it is."""
        return int(self._kernel.spare(self.books))

    def has_rows(self, rows: int) -> bool:
        """Whether there is room for so many new rows."""
        counts = self.books.counts
        return int(counts[names.IN_USE]) + rows <= len(self.books.slots) and counts[names.ADDRESS] != 0

    def grow_rows(self, rows: int) -> None:
        """Make room for so many new rows. Nobody may be reading."""
        if self.has_rows(rows):
            return
        books, counts, held = self.books, self.books.counts, len(self.books.slots)
        total = max(int(counts[names.IN_USE]) + rows, held * 3 // 2)
        counts[names.ADDRESS] = (
            0  # until the books are whole again: a growth that is interrupted is begun anew
        )
        try:
            self.slab.grow(total)
        except MemoryError:
            counts[names.ADDRESS] = self.slab.address  # as it was
            raise
        more = total - held
        slots = _longer(books.slots, more)
        slots["state"][held:] = names.UNTOUCHED
        slots["lake"][held:] = -1
        # a ring does not grow in place: laid out from its head on
        queue = _longer(np.roll(books.queue, -int(counts[names.QUEUE_AT])), more)
        counts = counts.copy()
        counts[names.ADDRESS], counts[names.QUEUE_AT] = self.slab.address, 0
        self.books = books._replace(
            counts=counts, slots=slots, queue=queue, limbo=_longer(books.limbo, more), table=_table(slots)
        )

    def grow(self, windows: int, lanes: int) -> None:
        """Make room for so many new windows, and for lanes up to that number. Nobody may be reading."""
        self.grow_rows(windows * self.length)
        books, counts = self.books, self.books.counts
        if counts[names.FREE_EXTENTS] < windows + 1:
            held = len(books.extents)
            more = max(windows + 1, held // 2)
            extents = _longer(books.extents, more)
            extents["owner"][held:] = -1
            free = _longer(books.free_extents, more)
            at = int(counts[names.FREE_EXTENTS])
            free[at : at + more] = np.arange(held + more - 1, held - 1, -1)
            entries = _longer(books.entries, more * int(counts[names.EXTENT]))
            self.books = books = books._replace(extents=extents, free_extents=free, entries=entries)
            counts[names.FREE_EXTENTS] += more
        if lanes > len(books.lanes):
            held = len(books.lanes)
            longer = _longer(books.lanes, max(lanes - held, held // 2))
            longer["extent"][held:] = -1
            books = books._replace(lanes=longer)
        self.books = books

    def turn(
        self,
        oldest: int,
        gone: int,
        lanes: Array,
        obs: int,
        next_obs: int,
        sources: Sources,
        first: int,
        starts: Array,
        following: Array,
    ) -> int:
        """Let go of the windows of so many of the oldest steps, and keep those at two addresses as new ones.

        `starts` is the ring that tells where the windows of each step start, `following` how many places on
        the next step of the stream lies; `oldest` and `first` are ids. Returns how many more windows fit.
        """
        unread = self.readers == 0
        spare, idle = self._turn(
            self.books, oldest, gone, unread, lanes, obs, next_obs, sources, first, starts, following
        )
        if idle * self.row_bytes > TRIM_BYTES:
            self._give_back()
        return int(spare)

    def turn_spelled(
        self,
        oldest: int,
        gone: int,
        lanes: Array,
        track: Array,
        windows: Array,
        first: int,
        starts: Array,
        following: Array,
    ) -> int:
        """`turn` for windows that are given as parts of a track of slots."""
        unread = self.readers == 0
        spare, idle = self._kernel.turn_spelled(
            self.books, oldest, gone, unread, lanes, track, windows, first, starts, following
        )
        if idle * self.row_bytes > TRIM_BYTES:
            self._give_back()
        return int(spare)

    @property
    def until(self) -> int:
        """The id after the newest step whose windows were kept."""
        return int(self.books.counts[names.UNTIL])

    def reserve(self, count: int) -> Array:
        """Slots for rows that are known to be new, held; they will not be found should they come again."""
        slots = np.empty(count, np.int32)
        self._kernel.reserve(self.books, slots)
        return slots

    def load(self, rows: Array, numbers: Array | None) -> Array:
        """Keep rows, (n, row_bytes) uint8; returns their slots, held. `numbers`: theirs in our lake."""
        slots = np.empty(len(rows), np.int32)
        self._kernel.load(self.books, address_of(rows), slots)
        if numbers is not None:
            self.books.slots["lake"][slots] = numbers
        return slots

    def pin(self, slots: Array) -> None:
        """Hold rows, whoever lets go of them."""
        self._kernel.pin(self.books, slots)

    def unpin(self, slots: Array) -> None:
        """Hold them no more."""
        self._kernel.unpin(self.books, slots)
        self.settle()

    def settle(self) -> None:
        """When nobody reads: what was let go may be used again, and the system gets back what is too much."""
        if not self.readers and self._kernel.settle(self.books) * self.row_bytes > TRIM_BYTES:
            self._give_back()

    def _give_back(self) -> None:
        free = np.flatnonzero(self.books.slots["state"] == names.FREE)
        for slot, slots in spans(free):
            self.slab.give_back(slot, slots)
        self.books.slots["state"][free] = names.UNTOUCHED
        self.books.counts[names.RESIDENT] -= len(free)

    # --- reading ---------------------------------------------------------------------------------

    def look_up(self, starts: Array, which: int, places: Array) -> Array:
        """The slots of the obs (0) or next_obs (1) of the steps at these places, one window after another."""
        slots = np.empty(len(places) * self.length, np.int32)
        self._kernel.look_up(self.books, starts, which, places, slots)
        return slots

    def gather(self, slots: Array, *outs: Array, part: tuple[int, int] | None = None) -> None:
        """Copy the windows in these slots, (outs, rows), into arrays, contiguous and of that size.

        All of them, or those that `part` tells, [start, stop); other threads go on.
        """
        start, stop = part or (0, slots.shape[1] // self.length)
        addresses = np.array([self._address_of(out) for out in outs])
        much = sum(out.nbytes for out in outs) >= MUCH_BYTES
        base, row = self.slab.address, self.row_bytes
        self._kernel.gather(base, row, self.length, slots, addresses, start, stop, much)

    def copy_rows(self, slots: Array, out: Array) -> None:
        """Copy the rows in these slots into `out`, (rows, row_bytes) uint8; other threads go on."""
        addresses = np.array([address_of(out)])
        row, base = self.row_bytes, self.slab.address
        self._kernel.gather(base, row, 1, slots[np.newaxis], addresses, 0, len(slots), False)

    @property
    def rows(self) -> int:
        """Distinct rows held."""
        return int(self.books.counts[names.IN_USE])

    @property
    def nbytes(self) -> int:
        """All memory held: rows and books."""
        rows = int(self.books.counts[names.RESIDENT]) * self.row_bytes
        return rows + sum(array.nbytes for array in self.books)

    def check(self) -> None:
        """Count everything anew and raise AssertionError where the books are wrong; for tests."""
        from lakepond.rows.hashing import hash_bytes

        b = self.books
        state, refs, keys = b.slots["state"], b.slots["refs"], b.slots["keys"]
        named = np.zeros(len(b.slots), np.int32)
        for head, tail in zip(b.extents["head"].tolist(), b.extents["tail"].tolist(), strict=True):
            np.add.at(named, b.entries[head:tail], 1)
        assert np.array_equal(named, refs), "references"
        waiting = set(b.limbo[: b.counts[names.LIMBO_LENGTH]].tolist())
        for slot in range(len(b.slots)):
            assert (state[slot] == names.USED) == (named[slot] > 0 or slot in waiting), f"slot {slot}"
        assert b.counts[names.IN_USE] == np.count_nonzero(state == names.USED), "slots in use"
        assert b.counts[names.RESIDENT] == np.count_nonzero(state != names.UNTOUCHED), "resident slots"
        for slot in np.flatnonzero(keys).tolist():
            assert hash_bytes(address_of(self.slab.rows[slot]), self.row_bytes) == keys[slot], "hash"
        owned, writing = np.flatnonzero(b.extents["owner"] >= 0), b.lanes["extent"]
        assert np.array_equal(owned, np.sort(writing[writing >= 0])), "owners"


def _longer(array: Array, more: int) -> Array:
    return np.concatenate([array, np.zeros(more, array.dtype)])


def _table(slots: Array) -> Array:
    """An index with at least two places a slot, that knows all slots in use."""
    table = np.full(1 << (2 * len(slots) - 1).bit_length(), -1, np.int32)
    known = np.flatnonzero((slots["state"] == names.USED) & (slots["keys"] != 0)).astype(np.int32)
    home = (slots["keys"][known] >> np.uint64(16)).astype(np.int64)
    for i in range(names.PROBES):  # whoever loses a place to another tries the next one
        at = (home + i) & (len(table) - 1)
        free = table[at] < 0
        table[at[free]] = known[free]
        lost = table[at] != known
        known, home = known[lost], home[lost]
    return table
