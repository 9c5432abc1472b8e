"""Numbers of write cursors: one for each stream that has live steps."""

from __future__ import annotations

import numpy as np

from lakepond.types import Array


class Cursors:
    """Assigns a cursor to each stream with live steps: the index of its write position in row stores."""

    def __init__(self) -> None:
        self.count = 0
        """all numbers, used and free, are in [0, count)"""
        self._cursors: dict[int, int] = {}
        self._free: list[int] = []
        self._last: tuple[list[int], Array] = ([], np.zeros(0, np.int64))

    def of(self, streams: list[int] | Array, *, shared: bool = False) -> Array:
        """Return the cursors of these streams; `shared`: one cursor for all steps."""
        if shared:
            return np.full(len(streams), self._cursor(-1), np.int64)
        last, cursors = self._last
        if last is not streams:
            cursors = np.array([self._cursor(int(stream)) for stream in streams], np.int64)
            if isinstance(streams, list):
                self._last = (streams, cursors)
        return cursors

    def _cursor(self, stream: int) -> int:
        cursor = self._cursors.get(stream)
        if cursor is None:
            if not self._free:  # an interrupt may lose a number until `free_unused`, never use one twice
                held = self.count
                self.count += max(8, held // 2)
                self._free = list(range(self.count - 1, held - 1, -1))
            cursor = self._free.pop()
            self._cursors[stream] = cursor
        return cursor

    def free_unused(self, newest: Array, oldest: int) -> None:
        """Free the cursors whose newest step is before `oldest`."""
        self._last = ([], np.zeros(0, np.int64))
        used = {stream: cursor for stream, cursor in self._cursors.items() if newest[cursor] >= oldest}
        self._free = sorted(set(range(self.count)) - set(used.values()), reverse=True)
        self._cursors = used
