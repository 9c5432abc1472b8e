"""The bytes of a replay file, plain or gzip, and the memo of its pickle; both in bounded memory."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tempfile
from collections import OrderedDict
from typing import Any

from lakepond.errors import LakepondError

GZIP_MAGIC = b"\x1f\x8b"
BUFFER_BYTES = 1 << 18
CACHE_BYTES = 32 << 20
"""recent payloads in memory; a payload of more than half of this is read again when it is needed"""
PAGE_ENTRIES = 256
PAGES_IN_MEMORY = 64


class LegacyPickleError(LakepondError, ValueError):
    """A replay file that is damaged, holds more than data, or cannot be written."""


class Source:
    """A file, decompressed if it is gzip: read forward, and large payloads again by their offset.

    The newest payloads come from a cache, older ones from a second handle. On a gzip file that handle
    decompresses again, once if the payloads are asked for in file order.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self.raw, self.file = self._open()
        self.size = os.fstat(self.raw.fileno()).st_size
        self.readline = lambda: self.file.readline(256)
        self._second: tuple[Any, io.BufferedReader] | None = None
        self._cache: OrderedDict[int, bytearray] = OrderedDict()
        self._cached = 0

    def _open(self) -> tuple[Any, io.BufferedReader]:
        raw = open(self._path, "rb", buffering=0)  # noqa: SIM115
        packed = os.pread(raw.fileno(), 2, 0) == GZIP_MAGIC
        file: Any = gzip.GzipFile(fileobj=raw, mode="rb") if packed else raw
        return raw, io.BufferedReader(file, BUFFER_BYTES)

    def close(self) -> None:
        """Close both handles."""
        for raw, file in filter(None, ((self.raw, self.file), self._second)):
            file.close()
            raw.close()

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
        file = self._second[1]
        file.seek(offset)
        data = _read(file, count)
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
    """All numbered objects: any may be referenced again, so old pages go to a temporary file."""

    def __init__(self) -> None:
        self._count = 0
        self._pages: OrderedDict[int, dict[int, Any]] = OrderedDict()  # least recently used first
        self._places: dict[int, tuple[int, int]] = {}
        self._file: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:
        page = self._page(number // PAGE_ENTRIES)
        if number not in page:
            raise LegacyPickleError(f"it references object {number}, which does not exist or is not kept")
        return page[number]

    def __setitem__(self, number: int, value: Any) -> None:
        self._count += 1
        if isinstance(value, tuple) or (isinstance(value, bytes) and len(value) > 1):
            return  # part of an array: pickle numbers it, but never references it
        page = self._page(number // PAGE_ENTRIES)
        page[number] = value
        self._places.pop(number // PAGE_ENTRIES, None)  # the copy in the file is out of date

    def close(self) -> None:
        """Delete the temporary file."""
        if self._file is not None:
            self._file.close()

    def _page(self, which: int) -> dict[int, Any]:
        page = self._pages.get(which)
        if page is None:
            page = {}
            if which in self._places:
                offset, length = self._places[which]
                self._file.seek(offset)
                page = pickle.loads(self._file.read(length))  # written below, to a file without a name
            self._pages[which] = page
        self._pages.move_to_end(which)
        if len(self._pages) > PAGES_IN_MEMORY:
            old, entries = self._pages.popitem(last=False)
            if entries and old not in self._places:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(prefix="lakepond-")  # noqa: SIM115
                data = pickle.dumps(entries, pickle.HIGHEST_PROTOCOL)
                self._places[old] = self._file.seek(0, os.SEEK_END), len(data)
                self._file.write(data)
        return page
