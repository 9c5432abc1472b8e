"""The bytes of an old replay file: read forward once, and any large piece of it again later.

A large payload is never kept for its own sake: it is a place in the stream. What lies there is had again from

    plain    the file itself
    gzip     the newest CACHE_BYTES that were inflated, or else by inflating again from the nearest of at most
             SNAPSHOTS copies of the decompressor (about 60 KB each) taken along the way::

                 stream  ├────s────s────s────s────s────s──[ cache ]▶ forward
                                     └─▶ behind: stays where the last piece ended, so that pieces
                                         asked for in their order are inflated again only once

so memory is bounded, no temporary copy is written, and a piece is never forgotten.
"""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict

import numpy as np

from lakepond.errors import LakepondError
from lakepond.types import Array

GZIP_MAGIC = b"\x1f\x8b"
WINDOW_BYTES = 1 << 16
"""plain bytes read ahead at a time"""
PACKED_BYTES = 1 << 14
"""gzip bytes read at a time; a snapshot holds on to up to as many"""
CHUNK_BYTES = 1 << 18
"""inflated at a time"""
CACHE_BYTES = 64 << 20
"""inflated payloads kept at hand"""
ENTRY_BYTES = 200
"""what an entry of the cache takes beside its bytes"""
SNAPSHOTS = 512
SNAPSHOT_EVERY = 8 << 20
"""inflated bytes between snapshots at first; twice as many whenever there are too many snapshots"""


class LegacyPickleError(LakepondError, ValueError):
    """An old replay file that is damaged, asks for more than data, or cannot be written."""


def cut_short() -> LegacyPickleError:
    """The error of a file whose end is missing."""
    return LegacyPickleError("the file ends early: its end is missing; copy it again from where it was saved")


class Stream(ABC):
    """Forward reading of small pieces, the same for both kinds."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.size = os.fstat(file).st_size
        self._buffer = b""
        self._start = 0  # of the buffer, in the stream
        self._next = 0  # in the buffer

    @property
    def offset(self) -> int:
        """Where in the stream the next byte is."""
        return self._start + self._next

    @property
    @abstractmethod
    def consumed(self) -> int:
        """Bytes of the file that were read: what progress counts."""

    def take(self, count: int) -> bytes:
        """The next few bytes."""
        stop = self._next + count
        if stop > len(self._buffer):
            self._buffer, self._start, self._next = self._buffer[self._next :], self.offset, 0
            while len(self._buffer) < count:
                self._buffer += self._more() or self._ended()
            stop = count
        piece = self._buffer[self._next : stop]
        self._next = stop
        return piece

    def byte(self) -> int:
        """The next byte, as fast as it goes: there is one an opcode."""
        if self._next == len(self._buffer):
            return self.take(1)[0]
        byte = self._buffer[self._next]
        self._next += 1
        return byte

    def line(self, limit: int) -> bytes:
        """The next bytes up to a newline, which is left out."""
        line = bytearray()
        while (byte := self.take(1)) != b"\n":
            line += byte
            if len(line) > limit:
                raise LegacyPickleError(f"a name of more than {limit} bytes; this is no replay file")
        return bytes(line)

    @abstractmethod
    def pass_by(self, count: int) -> int:
        """Go past a payload; where it begins, for `load`."""

    @abstractmethod
    def load(self, offset: int, count: int) -> Array:
        """The bytes of a payload that was passed by, the caller's own."""

    def finish(self) -> None:
        """Nothing may follow."""
        if self._next < len(self._buffer) or self._more():
            raise LegacyPickleError(
                "the pickle ends, but the file goes on; it was damaged or holds more than one"
            )

    @abstractmethod
    def _more(self) -> bytes:
        """What follows the buffer; empty at the end."""

    def _ended(self) -> bytes:
        raise cut_short()


class PlainStream(Stream):
    """A plain file: a payload is skipped, and read when it is asked for."""

    @property
    def consumed(self) -> int:
        """Bytes of the file that were read."""
        return self.offset

    def pass_by(self, count: int) -> int:
        """Go past a payload; where it begins."""
        begin = self.offset
        if begin + count > self.size:
            raise cut_short()
        if self._next + count <= len(self._buffer):
            self._next += count
        else:
            self._buffer, self._start, self._next = b"", begin + count, 0
        return begin

    def load(self, offset: int, count: int) -> Array:
        """The bytes of a payload that was passed by."""
        if self._start <= offset and offset + count <= self._start + len(self._buffer):
            return np.frombuffer(self._buffer, np.uint8, count, offset - self._start).copy()
        data = np.empty(count, np.uint8)
        filled = 0
        while filled < count:
            got = os.preadv(self.file, [data[filled:].data], offset + filled)
            if got == 0:  # somebody shortens the file under our eyes
                raise cut_short()
            filled += got
        return data

    def _more(self) -> bytes:
        return os.pread(self.file, WINDOW_BYTES, self._start + len(self._buffer))


class Inflater:
    """A place in a gzip file, with the chunk of the stream that was inflated there."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.start = 0
        """of the chunk, in the stream"""
        self.chunk = b""
        self.packed = 0
        """gzip bytes that were handed to the decompressor"""
        self._inflate = zlib.decompressobj(wbits=31)  # 31: gzip, with its checksum

    def copy(self) -> Inflater:
        """The same place, to go on from it independently; without the chunk, which is before it."""
        twin = Inflater(self.file)
        twin.start = self.start + len(self.chunk)
        twin.packed = self.packed
        twin._inflate = self._inflate.copy()
        return twin

    def advance(self) -> bool:
        """Inflate the next chunk; False at the end."""
        self.start += len(self.chunk)
        self.chunk = b""
        while not self.chunk:
            if self._inflate.eof and not self._next_member():
                return False
            packed = self._inflate.unconsumed_tail
            if not packed:
                packed = os.pread(self.file, PACKED_BYTES, self.packed)
                self.packed += len(packed)
            try:
                self.chunk = self._inflate.decompress(packed, CHUNK_BYTES)
            except zlib.error as error:
                raise LegacyPickleError(f"its gzip data is damaged ({error}); copy it again") from None
            if not (packed or self.chunk or self._inflate.eof):
                raise cut_short()
        return True

    def read(self, offset: int, count: int) -> bytearray:
        """Bytes from here on; grows with what is there, not with what is asked for."""
        data = bytearray()
        while len(data) < count:
            begin = offset + len(data) - self.start
            if begin < len(self.chunk):
                data += self.chunk[begin : begin + count - len(data)]
            elif not self.advance():
                raise cut_short()
        return data

    def _next_member(self) -> bool:
        """Gzip files may be joined, and padded with zeros."""
        begin = self.packed - len(self._inflate.unused_data)
        while (packed := os.pread(self.file, PACKED_BYTES, begin)) and not packed.strip(b"\0"):
            begin += len(packed)
        begin += len(packed) - len(packed.lstrip(b"\0"))
        if not packed:
            return False
        self.packed = begin
        self._inflate = zlib.decompressobj(wbits=31)
        return True


class GzipStream(Stream):
    """A gzip file: a payload is inflated into the cache as it is passed by."""

    def __init__(self, file: int) -> None:
        super().__init__(file)
        self._forward = Inflater(file)
        self._behind: Inflater | None = None
        self._snapshots = [self._forward.copy()]
        self._every = SNAPSHOT_EVERY
        self._cache: OrderedDict[int, bytearray] = OrderedDict()
        self._cached = 0

    @property
    def consumed(self) -> int:
        """Bytes of the file that were read."""
        return self._forward.packed

    def pass_by(self, count: int) -> int:
        """Go past a payload; where it begins."""
        begin = self.offset
        keep = count <= CACHE_BYTES // 4
        data = bytearray()
        left = count
        while left:
            if self._next == len(self._buffer):
                self._start += len(self._buffer)
                self._buffer, self._next = self._more() or self._ended(), 0
            piece = self._buffer[self._next : self._next + left]
            self._next += len(piece)
            left -= len(piece)
            if keep:
                data += piece
        if keep:
            self._remember(begin, data)
        return begin

    def load(self, offset: int, count: int) -> Array:
        """The bytes of a payload that was passed by."""
        data = self._cache.get(offset)
        if data is not None:
            self._cache.move_to_end(offset)
            return np.frombuffer(data, np.uint8).copy()
        nearest = self._snapshots[bisect_right(self._snapshots, offset, key=lambda each: each.start) - 1]
        if self._behind is None or not nearest.start <= self._behind.start <= offset:
            self._behind = nearest.copy()
        data = self._behind.read(offset, count)
        if count <= CACHE_BYTES // 4:
            self._remember(offset, data.copy())
        return np.frombuffer(data, np.uint8)

    def _remember(self, offset: int, data: bytearray) -> None:
        self._cached += len(data) + ENTRY_BYTES
        self._cache[offset] = data
        while self._cached > CACHE_BYTES:
            self._cached -= len(self._cache.popitem(last=False)[1]) + ENTRY_BYTES

    def _more(self) -> bytes:
        if not self._forward.advance():
            return b""
        if self._forward.start - self._snapshots[-1].start >= self._every:
            self._snapshots.append(self._forward.copy())
            if len(self._snapshots) > SNAPSHOTS:
                self._snapshots = self._snapshots[::2]
                self._every *= 2
        return self._forward.chunk


def stream_of(file: int) -> Stream:
    """The stream of an open file, by its first two bytes."""
    return (GzipStream if os.pread(file, 2, 0) == GZIP_MAGIC else PlainStream)(file)
