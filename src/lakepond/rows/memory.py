"""The memory rows lie in: one slab that grows without copying."""

from __future__ import annotations

import mmap
import time
from contextlib import suppress

import numpy as np

from lakepond.types import Array

PAGE = mmap.PAGESIZE
LARGE_PAGE = 2 << 20
LARGE_FROM = 32 << 20
"""a slab of so many bytes may have large pages: one that is half used is no waste then"""
POPULATE = 23
"""MADV_POPULATE_WRITE: have memory now instead of when it is touched; kernels before 5.14 do not know it"""
SLOW = 1e9
"""bytes a second; a machine that provides large pages slower than this is asked for small ones"""


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
        self._map: mmap.mmap | None = None
        self._rows: Array | None = None
        self._gave_back = False

    @property
    def rows(self) -> Array:
        """(slots, row_bytes) uint8; looked up when asked for, so that no interrupt leaves those of before."""
        if self._rows is None:
            count = len(self._map or b"") // self.row_bytes
            flat = np.frombuffer(self._map or b"\0", np.uint8, count=count * self.row_bytes)
            self._rows = flat.reshape(count, self.row_bytes)
        return self._rows

    @property
    def address(self) -> int:
        """Where the first row starts."""
        return address_of(self.rows)

    def grow(self, slots: int) -> None:
        """Make room for so many slots in all. Nobody may be reading: the rows may move."""
        size = _rounded_up(slots * self.row_bytes, LARGE_PAGE)
        before = len(self._map or b"")
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
        if size > before:
            self._choose_pages(self._map, before)

    def _choose_pages(self, memory: mmap.mmap, before: int) -> None:
        """Whether what is touched from now on comes in large pages; `before`: how large the slab was."""
        large = len(memory) >= LARGE_FROM and not self._gave_back
        with suppress(OSError):  # a kernel that has one kind only, or cannot be asked to provide one
            if large:
                memory.madvise(mmap.MADV_HUGEPAGE)
                began = time.perf_counter()
                memory.madvise(POPULATE, before, LARGE_PAGE)
                large = (time.perf_counter() - began) * SLOW < LARGE_PAGE
            if not large:
                memory.madvise(mmap.MADV_NOHUGEPAGE)

    def give_back(self, first: int, count: int) -> None:
        """Return the memory of free slots to the system; they read as zeros when used again.

        What is part of a large page leaves the process, but the system may keep it until it needs it.
        """
        start = _rounded_up(first * self.row_bytes, PAGE)
        stop = (first + count) * self.row_bytes // PAGE * PAGE
        if self._map is None or stop <= start:
            return
        if not self._gave_back:  # or the system would make large pages again of what is left
            self._gave_back = True
            with suppress(OSError):
                self._map.madvise(mmap.MADV_NOHUGEPAGE)
        self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def spans(slots: Array) -> list[list[int]]:
    """The runs of consecutive slots, each as [first slot, count]."""
    breaks = np.flatnonzero(slots[1:] != slots[:-1] + 1) + 1
    starts = [0, *breaks.tolist()] if len(slots) else []
    first = slots[starts].tolist()
    return [
        [slot, stop - start]
        for slot, start, stop in zip(first, starts, [*starts[1:], len(slots)], strict=True)
    ]
