"""The old replay file written opcode by opcode (protocol 4), one transition at a time.

`pickle.dump` keeps all it has written, to refer to it again. Here only names, keys and dtypes are numbered,
and arrays are written by value, so that nothing is kept; the names are those that NumPy 1 and 2 both know.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable
from gzip import GzipFile
from typing import Any, BinaryIO

import numpy as np

from lakepond.adapters.legacy_bytes import LegacyPickleError
from lakepond.adapters.legacy_values import DTYPES, MAX_ARRAY_BYTES, Record
from lakepond.types import Array

BATCH = 1000
"""transitions appended at a time, as pickle does it"""


def write_pickle(
    out: BinaryIO | GzipFile, transitions: Iterable[tuple[Any, ...]], capacity: int
) -> tuple[int, int]:
    """Write the whole file; how many transitions, how many bytes."""
    if isinstance(capacity, bool) or capacity < 0:
        raise LegacyPickleError(f"a capacity of {capacity} is no number of transitions")
    writer = Writer(out)
    writer.emit(pickle.PROTO + b"\x04", pickle.EMPTY_DICT, pickle.MARK)
    writer.text("capacity")
    writer.number(capacity)
    writer.text("buffer")
    writer.name("collections", "deque")
    writer.emit(pickle.EMPTY_TUPLE)
    writer.number(capacity)
    writer.emit(pickle.TUPLE2, pickle.REDUCE, pickle.MARK)
    count = 0
    for transition in transitions:
        if count == capacity:
            raise LegacyPickleError(
                f"there are more transitions than the capacity of {capacity}: the old project would drop"
                " the oldest on loading; hand over the newest, or name a larger capacity"
            )
        if count and count % BATCH == 0:
            writer.emit(pickle.APPENDS, pickle.MARK)
        writer.emit(pickle.EMPTY_DICT, pickle.MARK)
        for key, value in zip(Record._fields, transition, strict=True):
            writer.text(key)
            writer.value(value, f"{key} of transition {count}")
        writer.emit(pickle.SETITEMS)
        count += 1
    writer.emit(pickle.APPENDS, pickle.SETITEMS, pickle.STOP)
    return count, writer.written


class Writer:
    """Opcodes by hand: only names, keys and dtypes are numbered, so that nothing is kept."""

    def __init__(self, out: BinaryIO | GzipFile) -> None:
        self.written = 0
        self._out = out
        self._numbers: dict[object, int] = {}

    def emit(self, *parts: bytes | memoryview) -> None:
        """Opcodes and their arguments."""
        for part in parts:
            self._out.write(part)
            self.written += len(part)

    def value(self, value: Any, where: str) -> None:
        """Whatever a transition may hold."""
        match value:
            case np.ndarray():
                self.array(value, where)
            case np.generic():
                self.name("numpy.core.multiarray", "scalar")
                self.dtype(value.dtype, where)
                self.payload(memoryview(value.tobytes()))
                self.emit(pickle.TUPLE2, pickle.REDUCE)
            case bool():
                self.emit(pickle.NEWTRUE if value else pickle.NEWFALSE)
            case int():
                self.number(value)
            case float():
                self.emit(pickle.BINFLOAT + struct.pack(">d", value))
            case _:
                raise LegacyPickleError(f"{where} is a {type(value).__name__}, neither an array nor a number")

    def array(self, array: Array, where: str) -> None:
        """As NumPy reduces it below protocol 5: a blank and its state."""
        if array.nbytes > MAX_ARRAY_BYTES:
            raise LegacyPickleError(
                f"{where} has {array.nbytes} bytes, more than the {MAX_ARRAY_BYTES} we read"
            )
        fortran = array.flags.f_contiguous and not array.flags.c_contiguous
        self.name("numpy.core.multiarray", "_reconstruct")
        self.name("numpy", "ndarray")
        self.emit(pickle.BININT1 + b"\0", pickle.TUPLE1, pickle.SHORT_BINBYTES + b"\x01b")
        self.emit(pickle.TUPLE3, pickle.REDUCE, pickle.MARK, pickle.BININT1 + b"\x01", pickle.MARK)
        for size in array.shape:
            self.number(size)
        self.emit(pickle.TUPLE)
        self.dtype(array.dtype, where)
        self.emit(pickle.NEWTRUE if fortran else pickle.NEWFALSE)
        rows = np.ascontiguousarray(array.T if fortran else array)
        self.payload(rows.reshape(-1).view(np.uint8).data)
        self.emit(pickle.TUPLE, pickle.BUILD)

    def payload(self, data: memoryview) -> None:
        """Bytes."""
        if len(data) < 256:
            self.emit(pickle.SHORT_BINBYTES + struct.pack("<B", len(data)), data)
        else:
            self.emit(pickle.BINBYTES + struct.pack("<I", len(data)), data)

    def number(self, value: int) -> None:
        """An integer."""
        if -(1 << 31) <= value < 1 << 31:
            self.emit(pickle.BININT + struct.pack("<i", value))
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.emit(pickle.LONG1 + struct.pack("<B", len(data)), data)

    def text(self, text: str) -> None:
        """A short text, by its number from the second time on."""
        if self._seen(text):
            return
        data = text.encode()
        self.emit(pickle.SHORT_BINUNICODE + struct.pack("<B", len(data)), data)
        self._keep(text)

    def name(self, module: str, name: str) -> None:
        """A global."""
        if self._seen((module, name)):
            return
        self.text(module)
        self.text(name)
        self.emit(pickle.STACK_GLOBAL)
        self._keep((module, name))

    def dtype(self, dtype: np.dtype[Any], where: str) -> None:
        """A dtype with its byte order."""
        if self._seen(dtype.str):
            return
        order, code = dtype.str[0], dtype.str[1:]
        if code not in DTYPES:
            raise LegacyPickleError(f"{where} has dtype {dtype}; only numbers and bools can be written")
        self.name("numpy", "dtype")
        self.text(code)
        self.emit(pickle.NEWFALSE, pickle.NEWTRUE, pickle.TUPLE3, pickle.REDUCE)
        self.emit(pickle.MARK, pickle.BININT1 + b"\x03")
        self.text(order)
        self.emit(pickle.NONE * 3)
        for field in (-1, -1, 0):  # no size, no alignment, no flags of its own
            self.number(field)
        self.emit(pickle.TUPLE, pickle.BUILD)
        self._keep(dtype.str)

    def _seen(self, key: object) -> bool:
        number = self._numbers.get(key)
        if number is None:
            return False
        self.emit(pickle.BINGET + struct.pack("<B", number))
        return True

    def _keep(self, key: object) -> None:
        self._numbers[key] = len(self._numbers)
        self.emit(pickle.MEMOIZE)
