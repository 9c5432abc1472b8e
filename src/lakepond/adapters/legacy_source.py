"""The bytes of a replay file, uncompressed or gzip, and the memo of its pickle; both in bounded memory."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import sqlite3
from collections import OrderedDict
from typing import Any

from lakepond.errors import LakepondError

GZIP_MAGIC = b"\x1f\x8b"
BUFFER_BYTES = 1 << 18
CACHE_BYTES = 32 << 20
"""recent payloads in memory; a payload of more than half of this is read again when it is needed"""
RECENT_ENTRIES = 2_048
"""objects of the memo that are kept in memory"""


class LegacyPickleError(LakepondError, ValueError):
    """A replay file that is damaged, holds more than data, or cannot be written."""


class ReplayFile:
    """A file, decompressed if it is gzip: read forward, and large payloads again by their offset.

    The newest payloads come from a cache, older ones from a second handle. On a gzip file that handle
    decompresses again, once if the payloads are asked for in file order.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.size = path, os.stat(path).st_size
        self.file = self._open()
        self.readline = lambda: self.file.readline(256)
        self._second: io.BufferedReader | None = None
        self._cache: OrderedDict[int, bytearray] = OrderedDict()
        self._cached = 0

    def _open(self) -> io.BufferedReader:
        with open(self.path, "rb") as file:
            packed = file.read(2) == GZIP_MAGIC
        raw: Any = gzip.GzipFile(self.path) if packed else io.FileIO(self.path)
        return io.BufferedReader(raw, BUFFER_BYTES)

    def close(self) -> None:
        """Close both handles."""
        for file in filter(None, (self.file, self._second)):
            file.close()

    def position(self) -> int:
        """How many bytes of the file, as it is on disk, have been read."""
        raw: Any = self.file.raw
        return int(getattr(raw, "fileobj", raw).tell())

    def read(self, count: int) -> bytes:
        """The next few bytes."""
        data = self.file.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def skip(self, count: int) -> int:
        """Advance past a payload and return its offset."""
        offset = self.file.tell()
        if count <= CACHE_BYTES // 2:
            self._remember(offset, _read(self.file, count))
        else:
            for at in range(0, count, BUFFER_BYTES):
                self.read(min(BUFFER_BYTES, count - at))
        return offset

    def load(self, offset: int, count: int) -> bytearray:
        """A copy of a payload that was skipped."""
        data = self._cache.get(offset)
        if data is not None:
            return bytearray(data)
        if self._second is None:
            self._second = self._open()
        self._second.seek(offset)
        data = _read(self._second, count)
        if count <= CACHE_BYTES // 2:
            self._remember(offset, bytearray(data))
        return data

    def _remember(self, offset: int, data: bytearray) -> None:
        self._cache[offset] = data
        self._cached += len(data)
        while self._cached > CACHE_BYTES:
            self._cached -= len(self._cache.popitem(last=False)[1])


def _read(file: io.BufferedReader, count: int) -> bytearray:
    """Grows with the bytes that are there, not with the length that the file claims."""
    data = bytearray()
    while len(data) < count:
        piece = file.read(min(8 * BUFFER_BYTES, count - len(data)))
        if not piece:
            raise EOFError
        data += piece
    return data


class Memo:
    """All numbered objects of a pickle: those used recently in memory, the others in a temporary database."""

    def __init__(self) -> None:
        self._count = 0
        self._recent: OrderedDict[int, Any] = OrderedDict()
        self._old = sqlite3.connect("", check_same_thread=False)  # a file without a name, once it is large
        self._old.execute("CREATE TABLE memo (number INTEGER PRIMARY KEY, value BLOB)")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:
        if number not in self._recent:
            found = self._old.execute("SELECT value FROM memo WHERE number = ?", (number,)).fetchone()
            if found is None:
                raise LegacyPickleError(f"it references object {number}, which does not exist or is not kept")
            self._keep(number, pickle.loads(found[0]))  # written below
        self._recent.move_to_end(number)
        return self._recent[number]

    def __setitem__(self, number: int, value: Any) -> None:
        self._count += 1
        if not isinstance(value, tuple) and not (isinstance(value, bytes) and len(value) > 1):
            self._keep(number, value)  # others are parts of arrays: pickle numbers them, but never uses that

    def _keep(self, number: int, value: Any) -> None:
        self._recent[number] = value
        if len(self._recent) > RECENT_ENTRIES:
            old, value = self._recent.popitem(last=False)
            data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            self._old.execute("INSERT OR REPLACE INTO memo VALUES (?, ?)", (old, data))

    def close(self) -> None:
        """Delete the temporary database."""
        self._old.close()
