"""What Arrow IPC and Parquet files declare about their own sizes, read before Arrow allocates memory for it.

Arrow trusts a file: it allocates as many bytes as a compressed buffer or page says it expands to. These
functions read those numbers and nothing else, so that a caller can compare them with what it expects.

    Arrow IPC   FlatBuffers: the footer lists batches, each batch lists buffers; a compressed buffer starts
                with its uncompressed length (int64, -1: stored uncompressed)
    Parquet     Thrift compact protocol: each page starts with a header that has its uncompressed size and the
                number of its values
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

MAGIC = b"ARROW1"
ReadAt = Callable[[int, int], bytes]
"""`read_at(size, offset)`, as Arrow's files have it"""
HEADER_BYTES = 1 << 20
"""the largest page header that is read: a few numbers and the statistics of one page"""
MOST_DEPTH = 32
MOST_RATIO = 1032
"""bytes that one byte of a file may expand to, as for deflate"""
FREE_BYTES = 64 << 20
"""a file may always expand to this many bytes"""


class BatchSize(NamedTuple):
    """One record batch or dictionary of an Arrow IPC file."""

    rows: int
    bytes: int
    """of all its buffers, uncompressed"""


class Footer(NamedTuple):
    """Where the dictionaries and batches of an Arrow IPC file are: offset, metadata bytes, body bytes."""

    dictionaries: list[tuple[int, int, int]]
    batches: list[tuple[int, int, int]]


def read_footer(read_at: ReadAt, size: int) -> Footer:
    """The footer of an Arrow IPC file of `size` bytes; ValueError if it is damaged."""
    tail = read_at(10, max(0, size - 10))
    if size < 18 or tail[4:] != MAGIC:
        raise ValueError("it is not an Arrow IPC file (Feather version 2)")
    length = int.from_bytes(tail[:4], "little", signed=True)
    if not 8 <= length <= size - 18:
        raise ValueError(f"its footer cannot have {length} bytes")
    try:
        table = _FlatTable.root(read_at(length, size - 10 - length))
        found = [
            [struct.unpack_from("<qi4xq", table.data, at) for at in table.vector(field, 24)]
            for field in (2, 3)
        ]
    except (struct.error, IndexError) as error:
        raise ValueError(f"its footer is damaged ({error})") from None
    for offset, metadata, body in (*found[0], *found[1]):
        if min(offset, metadata, body) < 0 or offset + metadata + body > size:
            raise ValueError("its footer names a batch outside of the file")
    return Footer(*found)


def read_batch(read_at: ReadAt, block: tuple[int, int, int]) -> BatchSize:
    """The rows and the uncompressed size that one batch declares; ValueError if it is damaged."""
    offset, metadata, body = block
    head = read_at(metadata, offset)
    try:
        start = 8 if head[:4] == b"\xff\xff\xff\xff" else 4
        message = _FlatTable.root(head[start:])
        header = message.table(2)
        if message.number(1, "B") == 2:  # a dictionary wraps a batch
            header = header.table(1)
        total = 0
        compressed = header.offset(3)
        for at in header.vector(2, 16):
            begin, length = struct.unpack_from("<qq", header.data, at)
            if begin < 0 or length < 0 or begin + length > body:
                raise ValueError("a batch has a buffer outside of it")
            declared = length
            if compressed and length >= 8:
                declared = struct.unpack("<q", read_at(8, offset + metadata + begin))[0]
                declared = length if declared == -1 else declared
            if declared < 0:
                raise ValueError(f"a batch has a buffer of {declared} bytes")
            total += declared
        return BatchSize(header.number(0, "q"), total)
    except (struct.error, IndexError) as error:
        raise ValueError(f"the metadata of a batch is damaged ({error})") from None


def check_ipc(path: str | os.PathLike[str], ratio: int = MOST_RATIO) -> int:
    """The rows of an Arrow IPC file; ValueError if it declares more bytes than `ratio` times its size."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size

        def read_at(count: int, offset: int) -> bytes:
            return os.pread(file.fileno(), count, offset)

        dictionaries, batches = (
            [read_batch(read_at, block) for block in blocks] for blocks in read_footer(read_at, size)
        )
    _check_total(sum(batch.bytes for batch in (*dictionaries, *batches)), size, ratio)
    return sum(batch.rows for batch in batches)


def check_parquet(path: str | os.PathLike[str], ratio: int = MOST_RATIO) -> int:
    """The rows of a Parquet file; ValueError if it declares more bytes than `ratio` times its size.

    Its metadata is read here and not by Arrow, which ends the process where some of it is damaged.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        tail = os.pread(file.fileno(), 8, max(0, size - 8))
        length = int.from_bytes(tail[:4], "little")
        if size < 12 or tail[4:] != b"PAR1" or length > size - 12:
            raise ValueError("it is not a Parquet file")
        metadata = _Thrift(os.pread(file.fileno(), length, size - 8 - length)).struct()
        try:
            rows = int(metadata[3])
            chunks = [column[3] for group in metadata[4] for column in group[1]]
            total = 0
            for chunk in chunks:
                total += sum(_pages(file.fileno(), chunk, size))
                _check_total(total, size, ratio)
        except (KeyError, TypeError) as error:
            raise ValueError(f"its metadata is damaged ({error!r})") from None
    return rows


def _check_total(total: int, size: int, ratio: int) -> None:
    if total > FREE_BYTES + ratio * size:
        raise ValueError(f"its {size:,} bytes declare {total:,} bytes of data")


def _pages(descriptor: int, chunk: dict[int, Any], size: int) -> Iterator[int]:
    """The bytes that each page of a column chunk declares: of the page, or of its values."""
    at = min(chunk[9], chunk.get(11, chunk[9]))  # the first data page, or the dictionary before it
    stop = at + chunk[7]
    if not 0 <= at <= stop <= size:
        raise ValueError("it names a column outside of the file")
    while at < stop:
        header = _Thrift(os.pread(descriptor, min(HEADER_BYTES, stop - at), at))
        page = header.struct()
        values = max(page[kind][1] for kind in (5, 7, 8) if kind in page)  # data, dictionary, data version 2
        if min(page[2], page[3], values) < 0:
            raise ValueError("the header of a page has a negative size")
        yield max(page[2], 8 * values)
        at += header.length + page[3]


class _FlatTable:
    """A FlatBuffers table."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self._at = data, at
        self._vtable = at - struct.unpack_from("<i", data, at)[0]
        if not 0 <= self._vtable < len(data):
            raise IndexError("a table outside of its buffer")

    @classmethod
    def root(cls, data: bytes) -> _FlatTable:
        """The root table of a buffer."""
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def offset(self, field: int) -> int:
        """Where a field is, or 0 if it is absent."""
        slot = 4 + 2 * field
        if slot >= struct.unpack_from("<H", self.data, self._vtable)[0]:
            return 0
        relative = struct.unpack_from("<H", self.data, self._vtable + slot)[0]
        return self._at + relative if relative else 0

    def number(self, field: int, kind: str) -> int:
        """A scalar field, 0 if absent."""
        at = self.offset(field)
        return int(struct.unpack_from(f"<{kind}", self.data, at)[0]) if at else 0

    def table(self, field: int) -> _FlatTable:
        """A field that is a table."""
        at = self.offset(field)
        if not at:
            raise IndexError(f"no field {field}")
        return _FlatTable(self.data, at + struct.unpack_from("<I", self.data, at)[0])

    def vector(self, field: int, width: int) -> range:
        """The offsets of the elements of a vector of structs of `width` bytes."""
        at = self.offset(field)
        if not at:
            return range(0)
        at += struct.unpack_from("<I", self.data, at)[0]
        count = struct.unpack_from("<I", self.data, at)[0]
        if at + 4 + count * width > len(self.data):
            raise IndexError("a vector outside of its buffer")
        return range(at + 4, at + 4 + count * width, width)


class _Thrift:
    """A struct in Thrift's compact protocol; `length` is how many bytes it took."""

    def __init__(self, data: bytes) -> None:
        self._data, self.length = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields of a struct by their numbers; texts are left out. ValueError if it is damaged."""
        if depth > MOST_DEPTH:
            raise ValueError("its metadata is nested too deeply")
        found: dict[int, Any] = {}
        field = 0
        try:
            while kind := self._byte():
                field = field + (kind >> 4) if kind >> 4 else self._zigzag()
                found[field] = self._value(kind & 15, depth)
        except IndexError:
            raise ValueError("its metadata is cut off") from None
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # a bool, which is in the kind itself
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind in (7, 8):  # a double, or bytes
            return self._skip(8 if kind == 7 else self._varint())
        if kind in (9, 10):  # a list, or a set
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            inner = 3 if head & 15 in (1, 2) else head & 15
            return [self._value(inner, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"its metadata has a field of unknown type {kind}")

    def _skip(self, count: int) -> None:
        self.length += count
        if self.length > len(self._data):
            raise IndexError

    def _byte(self) -> int:
        value = self._data[self.length]
        self.length += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("its metadata has a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
