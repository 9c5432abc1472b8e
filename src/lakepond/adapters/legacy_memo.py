"""The memo of a pickle: every object it ever numbered, in bounded memory.

Any of them may be referred to again at any later time, so none may be forgotten; and all are immutable values
(an array is only the place of its bytes), so pages of them can go to a temporary file and come back without
anybody noticing::

    numbers  0 ......... 255 │ 256 ..... 511 │ ... │ newest page
             in memory,        in the file           in memory
             used all the time
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections import OrderedDict
from typing import Any, BinaryIO, cast

from lakepond.adapters.legacy_bytes import LegacyPickleError


class Memo:
    """Numbers count up from zero, as every pickler has them, so a page is found by division."""

    PAGE = 256
    """entries; one takes about 100 bytes, and 5 KB at most"""
    PAGES = 64
    """in memory"""

    def __init__(self) -> None:
        self.count = 0
        self._newest: list[Any] = []
        self._pages: OrderedDict[int, list[Any]] = OrderedDict()  # least recently used first
        self._dirty: set[int] = set()
        self._places: list[tuple[int, int]] = []  # of each page in the file: offset, length
        self._file: BinaryIO | None = None

    def put(self, value: Any) -> int:
        """Number a value."""
        number = self.count
        self.count += 1
        if number % self.PAGE == 0:
            self._newest = []
            self._places.append((0, 0))
            self._admit(number // self.PAGE, self._newest)
        self._newest.append(value)
        return number

    def get(self, number: int) -> Any:
        """The value of a number."""
        if number >= self.count:
            raise LegacyPickleError(f"a reference to object {number} of {self.count}; the file is damaged")
        return self._page(number // self.PAGE)[number % self.PAGE]

    def replace(self, number: int, value: Any) -> None:
        """What was unfinished is whole."""
        self._page(number // self.PAGE)[number % self.PAGE] = value
        self._dirty.add(number // self.PAGE)

    def close(self) -> None:
        """Give the temporary file back."""
        if self._file is not None:
            self._file.close()

    def _page(self, which: int) -> list[Any]:
        page = self._pages.get(which)
        if page is not None:
            self._pages.move_to_end(which)
            return page
        assert self._file is not None
        offset, length = self._places[which]
        self._file.seek(offset)
        loaded: list[Any] = pickle.loads(self._file.read(length))  # our own bytes, from a file without a name
        self._admit(which, loaded)
        return loaded

    def _admit(self, which: int, page: list[Any]) -> None:
        self._pages[which] = page
        if page is self._newest:
            self._dirty.add(which)
        newest = (self.count - 1) // self.PAGE
        self._pages.move_to_end(newest)  # it grows, so it stays
        while len(self._pages) > self.PAGES:
            self._evict(*self._pages.popitem(last=False))

    def _evict(self, which: int, page: list[Any]) -> None:
        if which not in self._dirty:
            return
        self._dirty.remove(which)
        if self._file is None:
            self._file = cast(BinaryIO, tempfile.TemporaryFile(prefix="lakepond-"))  # noqa: SIM115
        data = pickle.dumps(page, pickle.HIGHEST_PROTOCOL)
        self._places[which] = (self._file.seek(0, os.SEEK_END), len(data))
        self._file.write(data)
