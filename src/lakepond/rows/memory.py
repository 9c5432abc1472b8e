"""The memory of the rows: one slab that grows without copying."""

from __future__ import annotations

import mmap

import numpy as np

from lakepond.types import Array

PAGE = mmap.PAGESIZE
POPULATE = 23
"""MADV_POPULATE_WRITE: allocate memory now instead of on first access; needs Linux 5.14"""


def address_of(array: Array) -> int:
    """Memory address of a contiguous array."""
    address: int = array.__array_interface__["data"][0]
    return address


class Slab:
    """`rows[slot]` is one row of `row_bytes` bytes, in an anonymous mapping.

    Growing moves pages, not bytes (mremap), and untouched pages take no memory, so capacity is cheap.
    """

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self._map: mmap.mmap | None = None
        self._rows: Array | None = None

    @property
    def rows(self) -> Array:
        """(slots, row_bytes) uint8; created on access, so that an interrupt cannot leave a stale view."""
        if self._rows is None:
            count = len(self._map or b"") // self.row_bytes
            flat = np.frombuffer(self._map or b"\0", np.uint8, count=count * self.row_bytes)
            self._rows = flat.reshape(count, self.row_bytes)
        return self._rows

    @property
    def address(self) -> int:
        """Memory address of the first row."""
        return address_of(self.rows)

    def grow(self, slots: int) -> None:
        """Grow to a total of `slots` slots. There must be no reader: the rows may move."""
        size = slots * self.row_bytes
        self._rows = None  # a mapping with views does not resize
        try:
            if self._map is None:
                self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            else:
                self._map.resize(size)
        except OSError as error:
            raise MemoryError(
                f"The system refused {size:,} bytes for rows ({error.strerror}); "
                "lower the replay's capacity, or give the process more memory."
            ) from error

    def give_back(self, first: int, count: int) -> None:
        """Return the memory of free slots to the system; they read as zeros when used again."""
        start = -(-first * self.row_bytes // PAGE) * PAGE
        stop = (first + count) * self.row_bytes // PAGE * PAGE
        if self._map is not None and stop > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)


def spans(slots: Array) -> list[list[int]]:
    """The runs of consecutive slots, each as [first slot, count]."""
    breaks = np.flatnonzero(slots[1:] != slots[:-1] + 1) + 1
    starts = [0, *breaks.tolist()] if len(slots) else []
    first = slots[starts].tolist()
    return [
        [slot, stop - start]
        for slot, start, stop in zip(first, starts, [*starts[1:], len(slots)], strict=True)
    ]
