"""RowStore: windows in, references out; each distinct row is kept once.

How a window is looked for, cheapest first:

1. it is the newest next_obs of its stream: one comparison, nothing stored;
2. it is the window before it moved on by a row: one comparison, one row to look up;
3. every row is hashed and looked up; bytes are compared on a hit.

Where the third way finds nothing for long, only a sixty-fourth of the windows go it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from lakepond.rows import kernel
from lakepond.rows.kernel import Books, Windows
from lakepond.rows.memory import Slab, address_of, gather, spans
from lakepond.types import Array, RowSource

TRIM_BYTES = 16 << 20
"""less free memory than this is not worth returning to the system"""
NO_STOPS = np.zeros(0, np.int64)


def windows_of(batch: Array) -> Windows:
    """The windows of a contiguous array with a leading batch axis. The array must outlive them."""
    return Windows(address_of(batch), 0, NO_STOPS)


def windows_of_source(source: RowSource, stops: Array) -> Windows:
    """The windows of a source's rows that end before each stop."""
    return Windows(address_of(source.rows), source.token, stops.astype(np.int64))


class RowStore:
    """Windows of `length` rows of `row_bytes` bytes each, of streams that are told apart by a lane number."""

    def __init__(self, length: int, row_bytes: int) -> None:
        self.length = length
        self.row_bytes = row_bytes
        self.slab = Slab(row_bytes)
        self.readers = 0
        """gathers under way: while there are any, slots that are let go are not used again"""
        count = np.zeros(kernel.COUNTS, np.int64)
        count[kernel.LENGTH], count[kernel.ROW_BYTES] = length, row_bytes
        count[kernel.EXTENT] = max(256, 4 * length)
        ints, bytes_, words = np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.int64)
        self.books = Books(
            counts=count,
            refs=ints,
            keys=np.zeros(0, np.uint64),
            state=bytes_,
            queued=bytes_,
            queue=ints,
            limbo=ints,
            table=np.full(1, -1, np.int32),
            entries=ints,
            live=ints,
            head=words,
            tail=words,
            owner=ints,
            free_extents=ints,
            extent=ints,
            floor=words,
            next=words,
            source=words,
            stop=words,
        )
        self._shifts = np.arange(length, dtype=np.int64)

    # --- recording -------------------------------------------------------------------------------

    def must_grow(self, windows: int, lanes: int) -> bool:
        """Whether so many new windows might not fit; then `grow` must be called, with no reader."""
        books = self.books
        in_use, free_extents = books.counts[kernel.IN_USE], books.counts[kernel.FREE_EXTENTS]
        return bool(
            in_use + windows * self.length > len(books.state)
            or free_extents < windows + 1
            or lanes > len(books.extent)
        )

    def grow(self, windows: int, lanes: int) -> None:
        """Make room for so many new windows, and for lanes up to that number."""
        books, count = self.books, self.books.counts
        grown: dict[str, Array] = {}
        needed = int(count[kernel.IN_USE]) + windows * self.length
        if needed > len(books.state):
            slots = max(needed, len(books.state) * 3 // 2)
            self.slab.grow(slots)
            count[kernel.ADDRESS] = self.slab.address
            more = slots - len(books.state)
            grown["refs"] = _longer(books.refs, more, 0)
            grown["keys"] = _longer(books.keys, more, 0)
            grown["state"] = _longer(books.state, more, kernel.UNTOUCHED)
            grown["queued"] = _longer(books.queued, more, 0)
            grown["limbo"] = _longer(books.limbo, more, 0)
            # a ring does not grow in place: laid out from its head on
            grown["queue"] = _longer(np.roll(books.queue, -int(count[kernel.QUEUE_AT])), more, 0)
            count[kernel.QUEUE_AT] = 0
            grown["table"] = _table(slots, books, grown["keys"])
        if count[kernel.FREE_EXTENTS] < windows + 1:
            old = len(books.live)
            more = max(windows + 1, old // 2)
            grown["entries"] = _longer(books.entries, more * int(count[kernel.EXTENT]), 0)
            for name in ("live", "head", "tail"):
                grown[name] = _longer(getattr(books, name), more, 0)
            grown["owner"] = _longer(books.owner, more, -1)
            free = _longer(books.free_extents, more, 0)
            at = int(count[kernel.FREE_EXTENTS])
            free[at : at + more] = np.arange(old + more - 1, old - 1, -1)
            grown["free_extents"] = free
            count[kernel.FREE_EXTENTS] += more
        if lanes > len(books.extent):
            more = max(lanes - len(books.extent), len(books.extent) // 2)
            for name in ("extent", "floor", "next", "source", "stop"):
                grown[name] = _longer(getattr(books, name), more, -1)
        self.books = books._replace(**grown)

    def record(self, lanes: Array, obs: Windows, next_obs: Windows, place: int, starts: Array) -> None:
        """Keep the windows of these steps; where they start is written to the ring, from `place` on."""
        kernel.record(self.books, lanes, obs, next_obs, place, starts)

    # --- letting go ------------------------------------------------------------------------------

    def release(self, place: int, steps: int, starts: Array) -> None:
        """Let go of the windows of the oldest steps; rows that nothing names any more are free."""
        idle = kernel.release(self.books, place, steps, starts, self.readers == 0)
        if idle * self.row_bytes > TRIM_BYTES:
            self._give_back()

    def settle(self) -> None:
        """When nobody reads: what was let go may be used again, and the system gets back what is too much."""
        if not self.readers and kernel.settle(self.books) * self.row_bytes > TRIM_BYTES:
            self._give_back()

    def _give_back(self) -> None:
        free = np.flatnonzero(self.books.state == kernel.FREE)
        for slot, slots in spans(free):
            self.slab.give_back(slot, slots)
        self.books.state[free] = kernel.UNTOUCHED
        self.books.counts[kernel.RESIDENT] -= len(free)

    # --- reading ---------------------------------------------------------------------------------

    def look_up(self, starts: Array) -> Array:
        """The slots of the windows that start there, one window after another."""
        return self.books.entries[starts.reshape(-1, 1) + self._shifts].reshape(-1)

    def gather(self, slots: Array, out: Array, pool: ThreadPoolExecutor | None) -> None:
        """Copy the rows in these slots into `out`, contiguous bytes of the right size."""
        gather(self.slab.rows, slots, out.reshape(-1).view(np.uint8).reshape(len(slots), -1), pool)

    @property
    def rows(self) -> int:
        """Distinct rows held."""
        return int(self.books.counts[kernel.IN_USE])

    @property
    def nbytes(self) -> int:
        """All memory held: rows and books."""
        rows = int(self.books.counts[kernel.RESIDENT]) * self.row_bytes
        return rows + sum(array.nbytes for array in self.books)

    def check(self) -> None:
        """Count everything anew and raise AssertionError where the books are wrong; for tests."""
        b = self.books
        named = np.zeros(len(b.refs), np.int32)
        for head, tail in zip(b.head.tolist(), b.tail.tolist(), strict=True):
            np.add.at(named, b.entries[head:tail], 1)
        assert np.array_equal(named, b.refs), "references"
        waiting = set(b.limbo[: b.counts[kernel.LIMBO_LENGTH]].tolist())
        for slot, state in enumerate(b.state.tolist()):
            assert (state == kernel.USED) == (named[slot] > 0 or slot in waiting), f"slot {slot}"
        assert b.counts[kernel.IN_USE] == np.count_nonzero(b.state == kernel.USED), "slots in use"
        assert b.counts[kernel.RESIDENT] == np.count_nonzero(b.state != kernel.UNTOUCHED), "resident slots"
        for slot in np.flatnonzero(b.keys).tolist():
            assert kernel.hash_bytes(address_of(self.slab.rows[slot]), self.row_bytes) == b.keys[slot], "hash"
        assert np.array_equal(np.flatnonzero(b.owner >= 0), np.sort(b.extent[b.extent >= 0])), "owners"


def _longer(array: Array, more: int, value: int) -> Array:
    return np.concatenate([array, np.full(more, value, array.dtype)])


def _table(slots: int, books: Books, keys: Array) -> Array:
    """A table with at least two places a slot, and what the smaller one knew."""
    table = np.full(1 << (2 * slots - 1).bit_length(), -1, np.int32)
    known = np.flatnonzero(books.state == kernel.USED)
    known = known[keys[known] != 0].astype(np.int32)
    home = (keys[known] >> np.uint64(16)).astype(np.int64) & (len(table) - 1)
    for i in range(kernel.PROBES):  # whoever loses a place to another tries the next one
        at = (home + i) & (len(table) - 1)
        free = table[at] < 0
        table[at[free]] = known[free]
        lost = table[at] != known
        known, home = known[lost], home[lost]
    return table
