"""What an old replay file may be made of, each part checked before it is believed.

Everything here is small and immutable: an array only knows where its bytes are (`ArrayAt`), and becomes an
array when its transition is handed out.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from lakepond.adapters.legacy_bytes import LegacyPickleError, Stream
from lakepond.types import Array

MAX_ARRAY_BYTES = 512 << 20
"""one array at most; the trading project's are 2 MB"""
DTYPES = frozenset(
    {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "f16", "c8", "c16", "c32"}
)
VALUE_BYTES = 48
"""about what a small value takes"""
TUPLE_BYTES = 4096
"""a tuple at most, with all that is in it"""


class Known(Enum):
    """The only globals a file may name, and what we take them for; none of them is imported or called."""

    DEQUE = "collections.deque"
    NDARRAY = "numpy.ndarray"
    DTYPE = "numpy.dtype"
    RECONSTRUCT = "numpy.core.multiarray._reconstruct"
    SCALAR = "numpy.core.multiarray.scalar"
    FROMBUFFER = "numpy.core.numeric._frombuffer"
    ENCODE = "_codecs.encode"
    BYTES = "builtins.bytes"


class Token(Enum):
    """Stand-ins on the stack and in the memo."""

    EMPTY_LIST = "an empty list"
    UNFINISHED = "an object that is not whole yet"
    PLACED = "a transition that was handed out"


class Text(Enum):
    """What a payload is: bytes, a text, or the bytes a text stands for (protocol 2 writes bytes so)."""

    NO = 0
    YES = 1
    LATIN1 = 2


class Lump(NamedTuple):
    """A payload too large to keep: where it is in the stream."""

    offset: int
    length: int
    text: Text


class ArrayAt(NamedTuple):
    """An array whose bytes were not fetched yet."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: str
    axes: tuple[int, ...] | None
    data: bytes | Lump

    def fetch(self, stream: Stream) -> Array:
        """The array itself, new and writable."""
        data = self.data
        if isinstance(data, bytes):
            flat = np.frombuffer(data, np.uint8).copy()
        else:
            flat = stream.load(data.offset, data.length)
            if data.text is Text.LATIN1:
                flat = np.frombuffer(bytearray(latin1(str_of(flat.data))), np.uint8)
        try:
            array = flat.view(self.dtype).reshape(self.shape, order="F" if self.order == "F" else "C")
            return array if self.axes is None else array.transpose(self.axes)
        except ValueError:
            raise LegacyPickleError(
                f"{flat.nbytes} bytes for an array {self.shape} of {self.dtype}; the file is damaged"
            ) from None


class Record(NamedTuple):
    """A transition: arrays as `ArrayAt`, the rest as it is."""

    state: Any
    action: Any
    reward: Any
    next_state: Any
    done: Any


def refuse_global(module: str, name: str) -> LegacyPickleError:
    """The error of a file that wants more than data."""
    asked = f"{module}.{name}"
    return LegacyPickleError(
        f"the file asks for {asked if asked.isprintable() else ascii(asked)}; only deques, dicts and NumPy"
        " data are read, so it is refused and nothing of it was run; unpickle it only if you trust its source"
    )


def known(module: str, name: str) -> Known:
    """The meaning of a global, or a refusal that names it."""
    plain = {"__builtin__": "builtins"}.get(module, module)
    if plain == "numpy._core" or plain.startswith("numpy._core."):  # NumPy 2 renamed it
        plain = "numpy.core" + plain.removeprefix("numpy._core")
    try:
        return Known(f"{plain}.{name}")
    except ValueError:
        raise refuse_global(module, name) from None


def str_of(data: bytes | memoryview) -> str:
    """UTF-8 as text."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise LegacyPickleError("a text that is not UTF-8; the file is damaged") from None


def latin1(text: str) -> bytes:
    """The bytes that a text stands for."""
    try:
        return text.encode("latin1")
    except UnicodeEncodeError:
        raise LegacyPickleError("a text that should stand for bytes does not; the file is damaged") from None


def encoded(args: tuple[Any, ...]) -> bytes | Lump:
    """`_codecs.encode(text, "latin1")`."""
    match args:
        case (str(text), str("latin1")):
            return latin1(text)
        case (Lump(offset, length, Text.YES), str("latin1")):
            return Lump(offset, length, Text.LATIN1)
    raise LegacyPickleError("bytes encoded in no way that pickle uses; the file is damaged")


def dtype_code(args: tuple[Any, ...]) -> str:
    """`numpy.dtype("f4", False, True)`: its code; the byte order follows."""
    match args:
        case (str(code), 0, 1) if code in DTYPES:  # or False, True
            return code
        case (str(code), *_):
            what = " (Python objects)" if code.startswith("O") else ""
            raise LegacyPickleError(
                f"an array of dtype {code!r}{what} is refused; only numbers and bools are read"
            )
    raise LegacyPickleError("a dtype that is none; the file is damaged")


def dtype_of(code: str, state: Any) -> np.dtype[Any]:
    """The dtype, once its byte order is known."""
    match state:
        case (3, str("<" | ">" | "|") as order, None, None, None, -1, -1, 0):  # no fields, no size or flags
            try:
                return np.dtype(order + code)
            except TypeError:
                raise LegacyPickleError(f"this machine has no dtype {code!r}") from None
    raise LegacyPickleError(
        f"a dtype {code!r} with fields, or none at all, is refused; only plain ones are read"
    )


def array_at(dtype: Any, shape: Any, order: Any, data: Any, axes: Any = None) -> ArrayAt:
    """An array, if its parts fit together."""
    if type(shape) is not tuple or not all(type(size) is int and size >= 0 for size in shape):
        raise LegacyPickleError("an array with an impossible shape; the file is damaged")
    if not isinstance(dtype, np.dtype) or not isinstance(order, str) or order not in "CFK":
        raise LegacyPickleError("an array without a dtype or a memory order; the file is damaged")
    if (order == "K") != (axes is not None) or not is_permutation(axes, len(shape)):
        raise LegacyPickleError("an array whose axes are no permutation; the file is damaged")
    needed = math.prod(shape) * dtype.itemsize
    if isinstance(data, Lump) and data.text is not Text.YES:
        most = data.length
        least = (most + 1) // 2 if data.text is Text.LATIN1 else most  # UTF-8: one or two bytes each
    elif isinstance(data, bytes):
        least = most = len(data)
    else:
        raise LegacyPickleError("an array without bytes (Python objects are refused)")
    if not least <= needed <= most or needed > MAX_ARRAY_BYTES:
        raise LegacyPickleError(
            f"an array {shape} of {dtype} with {most} bytes, where {needed} are needed"
            f" and at most {MAX_ARRAY_BYTES} are read; the file is damaged"
        )
    return ArrayAt(dtype, shape, order, axes, data)


def is_permutation(axes: Any, count: int) -> bool:
    """Whether these are all axes, in some order; None is no order at all."""
    if axes is None:
        return True
    whole = type(axes) is tuple and len(axes) == count and all(type(axis) is int for axis in axes)
    return whole and sorted(axes) == list(range(count))


def scalar(args: tuple[Any, ...]) -> np.generic:
    """`scalar(dtype, bytes)`."""
    match args:
        case (np.dtype() as dtype, bytes(data)) if dtype.itemsize == len(data):
            value = np.frombuffer(data, dtype)[0]
            assert isinstance(value, np.generic)
            return value
    raise LegacyPickleError("a NumPy scalar that does not fit its dtype; the file is damaged")


def tuple_of(items: list[Any]) -> tuple[Any, ...]:
    """A tuple of plain values and of tuples of plain values, not too large."""
    size = 0
    for item in items:
        for value in item if type(item) is tuple else (item,):
            kind = type(value)
            if kind is str or kind is bytes:
                size += len(value)
            elif not (kind in PLAIN or value is Token.EMPTY_LIST or isinstance(value, np.dtype)):
                raise LegacyPickleError("a tuple of what no replay file puts into one; refused")
        size += VALUE_BYTES if type(item) is not tuple else VALUE_BYTES * (1 + len(item))
    if size > TUPLE_BYTES:
        raise LegacyPickleError(f"a tuple of {size} bytes, where {TUPLE_BYTES} are plenty; refused")
    return tuple(items)


PLAIN = frozenset({int, float, bool, type(None), Lump, Known})
