"""The memory rows lie in: one slab that grows without copying."""

from __future__ import annotations

import mmap
import sys
import time
from contextlib import suppress

import numpy as np

from lakepond.types import Array

PAGE = mmap.PAGESIZE
LARGE_PAGE = 2 << 20
LARGE_FROM = 32 << 20
"""a slab of so many bytes may have large pages: a few of them half used are no waste then"""
POPULATE = 23 if sys.platform == "linux" else -1
"""MADV_POPULATE_WRITE: have memory now instead of when it is touched; what does not know it says so"""
SLOW = 1e9
"""bytes a second; who provides large pages slower than this is asked for small ones"""


def address_of(array: Array) -> int:
    """Where a contiguous array starts."""
    address: int = array.__array_interface__["data"][0]
    return address


class Slab:
    """`rows[slot]` is one row of `row_bytes` bytes, in an anonymous mapping.

    Growing moves pages, not bytes (mremap), and untouched pages take no memory, so capacity is cheap.
    Large pages are had four times as fast as small ones and are found faster, unless the host of a virtual
    machine has yet to provide them: then up to twenty times slower. So the first one of each growth is timed.
    """

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.rows: Array = np.empty((0, row_bytes), np.uint8)
        self.address = 0
        self._map: mmap.mmap | None = None
        self._large_pages = True

    def __len__(self) -> int:
        return len(self.rows)

    def grow(self, slots: int) -> None:
        """Make room for so many slots in all. Nobody may be reading: the rows may move."""
        size, held = _rounded_up(slots * self.row_bytes, LARGE_PAGE), len(self.rows)
        before = 0 if self._map is None else len(self._map)
        self.rows = np.empty((0, self.row_bytes), np.uint8)  # a mapping with views does not resize
        try:
            if self._map is None:
                self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            else:
                self._map.resize(size)
            held = slots
            self._ask_for_large_pages(self._map, before)
        except OSError as error:
            raise MemoryError(
                f"The system refused {size:,} bytes for rows ({error.strerror}); "
                "lower the replay's capacity, or give the process more memory."
            ) from error
        finally:
            if self._map is not None:
                self._view(self._map, held)

    def _ask_for_large_pages(self, memory: mmap.mmap, before: int) -> None:
        """For the whole slab, as long as they are quick to be had; `before`: how large it was."""
        if not self._large_pages or len(memory) < max(LARGE_FROM, before + LARGE_PAGE):
            return
        began = time.perf_counter()
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory.madvise(POPULATE, before, LARGE_PAGE)
            quick = (time.perf_counter() - began) * SLOW < LARGE_PAGE
        except OSError:  # a system that has none
            quick = False
        if not quick:
            self._take_small_pages(memory)

    def _take_small_pages(self, memory: mmap.mmap) -> None:
        self._large_pages = False
        with suppress(OSError):  # a system that has no others
            memory.madvise(mmap.MADV_NOHUGEPAGE)

    def _view(self, memory: mmap.mmap, slots: int) -> None:
        flat = np.frombuffer(memory, np.uint8, count=slots * self.row_bytes)
        self.rows = flat.reshape(slots, self.row_bytes)
        self.address = address_of(flat)

    def give_back(self, first: int, count: int) -> None:
        """Return the memory of free slots to the system; they read as zeros when used again."""
        start = _rounded_up(first * self.row_bytes, PAGE)
        stop = (first + count) * self.row_bytes // PAGE * PAGE
        if self._map is not None and stop > start:
            if self._large_pages:  # or the system would make large ones again of what is left
                self._take_small_pages(self._map)
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def spans(slots: Array) -> list[list[int]]:
    """The runs of consecutive slots, each as [first slot, count]."""
    breaks = np.flatnonzero(slots[1:] != slots[:-1] + 1) + 1
    starts = [0, *breaks.tolist()]
    first = slots[starts].tolist()
    return [
        [slot, stop - start]
        for slot, start, stop in zip(first, starts, [*starts[1:], len(slots)], strict=True)
    ]
