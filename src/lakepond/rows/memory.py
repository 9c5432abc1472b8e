"""The memory rows lie in: one slab that grows without copying."""

from __future__ import annotations

import mmap

import numpy as np

from lakepond.types import Array

PAGE = mmap.PAGESIZE


def address_of(array: Array) -> int:
    """Where a contiguous array starts."""
    address: int = array.__array_interface__["data"][0]
    return address


class Slab:
    """`rows[slot]` is one row of `row_bytes` bytes, in an anonymous mapping.

    Growing moves pages, not bytes (mremap), and untouched pages take no memory, so capacity is cheap.
    """

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.rows: Array = np.empty((0, row_bytes), np.uint8)
        self.address = 0
        self._map: mmap.mmap | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def grow(self, slots: int) -> None:
        """Make room for so many slots in all. Nobody may be reading: the rows may move."""
        size, held = slots * self.row_bytes, len(self.rows)
        self.rows = np.empty((0, self.row_bytes), np.uint8)  # a mapping with views does not resize
        try:
            if self._map is None:
                self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            else:
                self._map.resize(size)
            held = slots
        except OSError as error:
            raise MemoryError(
                f"The system refused {size:,} bytes for rows ({error.strerror}); "
                "lower the replay's capacity, or give the process more memory."
            ) from error
        finally:
            if self._map is not None:
                self._view(self._map, held)

    def _view(self, memory: mmap.mmap, slots: int) -> None:
        flat = np.frombuffer(memory, np.uint8, count=slots * self.row_bytes)
        self.rows = flat.reshape(slots, self.row_bytes)
        self.address = address_of(flat)

    def give_back(self, first: int, count: int) -> None:
        """Return the memory of free slots to the system; they read as zeros when used again."""
        start = -(-first * self.row_bytes // PAGE) * PAGE
        stop = (first + count) * self.row_bytes // PAGE * PAGE
        if self._map is not None and stop > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)


def spans(slots: Array) -> list[list[int]]:
    """The runs of consecutive slots, each as [first slot, count]."""
    breaks = np.flatnonzero(slots[1:] != slots[:-1] + 1) + 1
    starts = [0, *breaks.tolist()]
    first = slots[starts].tolist()
    return [
        [slot, stop - start]
        for slot, start, stop in zip(first, starts, [*starts[1:], len(slots)], strict=True)
    ]
