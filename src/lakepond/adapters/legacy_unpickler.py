"""An unpickler for pickled deques of dicts, which emits each transition and then forgets it.

A subclass of the standard library's Python unpickler. It executes the opcodes that a replay file needs
(protocols 3 to 5) and refuses all others. `find_class` knows six names and maps each to an object of
this module, so nothing that a file names is imported or called. Payloads over 512 bytes are loaded when their
transition is emitted; until then, and in the memo, an array is an offset in the file (`ArrayAt`). A limit
on the opcodes between two transitions bounds everything else.
"""

from __future__ import annotations

import gzip
import math
import os
import pickle
import pickletools
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from lakepond.adapters.legacy_source import LegacyPickleError, Memo, ReplayFile
from lakepond.types import Array
from lakepond.untrusted import one_line

INLINE_BYTES = 512
MAX_ARRAY_BYTES = 512 << 20
EXPECTED = (
    'the file must be {"capacity": number, "buffer": deque of dicts}, undamaged. Load any other '
    "pickle with the code that wrote it and record its steps (docs/migrate/pickles.md)"
)
MAX_BATCH = 10_000
"""transitions that are not appended yet; pickle appends 1,000 at a time"""
MAX_OPCODES = 10_000
"""from one transition to the next, which takes about 120"""
DTYPES = frozenset(
    {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "f16", "c8", "c16", "c32"}
)
PythonUnpickler: Any = pickle._Unpickler


class Transition(NamedTuple):
    """One transition: arrays, numbers and NumPy scalars."""

    state: Any
    action: Any
    reward: Any
    next_state: Any
    done: Any


class Lump(NamedTuple):
    """The offset and length of a large payload in the file."""

    offset: int
    length: int


class ArrayAt:
    """An array whose bytes are not loaded; `set` completes it."""

    data: bytes | Lump | None = None

    def set(self, data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> ArrayAt:
        """Take all parts, as protocol 5 writes them, and check that they fit together."""
        if type(shape) is not tuple or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
            raise LegacyPickleError(f"an array {shape!r:.200} where a shape is needed")
        permuted = axes is not None and sorted(axes) == list(range(len(shape)))
        if not isinstance(dtype, np.dtype) or not (permuted if order == "K" else order in ("C", "F")):
            raise LegacyPickleError("an array has no dtype or memory order")
        if not isinstance(data, bytes | Lump):
            raise LegacyPickleError("an array has no bytes; Python objects are refused")
        found = data.length if isinstance(data, Lump) else len(data)
        needed = math.prod(shape) * dtype.itemsize
        if found != needed or needed > MAX_ARRAY_BYTES:
            raise LegacyPickleError(
                f"an array {shape} of {dtype} has {found} bytes where {needed} are needed; "
                f"the limit is {MAX_ARRAY_BYTES}"
            )
        self.data, self.form = data, (dtype, shape, order, axes)
        return self

    def load(self, source: ReplayFile) -> Array:
        """A new, writable array."""
        data, (dtype, shape, order, axes) = self.data, self.form
        flat = source.load(*data) if isinstance(data, Lump) else bytearray(data or b"")
        array = np.frombuffer(flat, dtype).reshape(shape, order="F" if order == "F" else "C")
        return array if order != "K" else array.transpose(axes)


class Fields(dict[str, Any]):
    """A transition, key by key."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in Transition._fields:
            wanted = ", ".join(Transition._fields)
            raise LegacyPickleError(f"a transition has a key {key!r:.99}; only {wanted} are read")
        array = isinstance(value, ArrayAt) and value.data is not None
        if not array and ("state" in key or not isinstance(value, bool | int | float | np.generic)):
            raise LegacyPickleError(f"the {key} of a transition is neither an array nor a number")
        super().__setitem__(key, value)

    def missing(self) -> str:
        """The keys that it lacks."""
        return ", ".join(key for key in Transition._fields if key not in self)

    def load(self, source: ReplayFile) -> Transition:
        """The transition, with arrays of its own."""
        values = {k: v.load(source) if isinstance(v, ArrayAt) else v for k, v in self.items()}
        return Transition(**values)


class Buffer:
    """Stands for the deque, of which only the length is kept; its limit is the capacity of the file."""

    def __init__(self, start: Any = (), limit: Any = None) -> None:
        if start != ():
            raise LegacyPickleError("a deque is not empty when it is created")
        self.length = 0

    def append(self, item: Any) -> None:
        """Check that the item is a transition, and count it; it was emitted before."""
        if not isinstance(item, Fields):
            raise LegacyPickleError("the buffer holds an object that is not a transition")
        if item.missing():
            raise LegacyPickleError(f"a transition without {item.missing()}")
        self.length += 1


def _dtype(code: Any, align: Any = 0, copy: Any = 1) -> np.dtype[Any]:
    """A dtype of its own, whose byte order may follow."""
    if code not in DTYPES:
        objects = " (Python objects)" if isinstance(code, str) and code.startswith("O") else ""
        raise LegacyPickleError(f"dtype {code!r}{objects} is refused; only numbers and bools are read")
    dtype: np.dtype[Any] = np.dtype(code, copy=True)
    return dtype


def _scalar(dtype: Any, data: Any) -> np.generic:
    if not isinstance(dtype, np.dtype):
        raise LegacyPickleError("a number has no dtype")
    (value,) = np.frombuffer(data, dtype)
    return value  # type: ignore[no-any-return]


def _reconstruct(kind: Any, shape: Any, code: Any) -> ArrayAt:
    if kind is not None or shape != (0,) or code not in (b"b", "b"):
        raise LegacyPickleError("an array is created in a way that NumPy does not write")
    return ArrayAt()


def _frombuffer(*parts: Any) -> ArrayAt:
    return ArrayAt().set(*parts)


STAND_INS: dict[str, Any] = {
    "collections.deque": Buffer,
    "numpy.ndarray": None,  # only an argument of _reconstruct
    "numpy.dtype": _dtype,
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _frombuffer,
}
"""what the names in a file stand for; the memo pickles these, so each is a class or a function with a name"""


class Unpickler(PythonUnpickler):  # type: ignore[misc]
    """Reads a file once, for its transitions or for its capacity."""

    def __init__(self, source: ReplayFile) -> None:
        super().__init__(source)
        self.source = source
        self.memo = Memo()
        self.stack: list[Any] = []
        self.metastack: list[list[Any]] = []
        self.append = self.stack.append
        self.read, self.readline = source.read, source.readline
        self._capacity: int | None = None
        self._buffer: Buffer | None = None
        self._emitted = 0
        self._ready: Transition | None = None
        self._opcodes = 0
        """executed since the last transition"""
        self._stopped = False

    def transitions(self) -> Iterator[Transition]:
        """Yield each transition when it is complete; the end of the file is checked."""
        for _ in self._run():
            if self._ready is not None:
                yield self._ready
                self._ready = None

    def capacity(self) -> int:
        """The capacity of the file, which is near its beginning."""
        return next(self._capacity for _ in self._run() if self._capacity is not None)

    def close(self) -> None:
        """Close the file and the memo."""
        self.memo.close()
        self.source.close()

    def _run(self) -> Iterator[None]:
        """Execute the opcodes one by one; every failure that the content can cause becomes one error."""
        try:
            if self.read(1) != pickle.PROTO or not 3 <= self.read(1)[0] <= 5:
                raise LegacyPickleError("this is not a pickle of protocol 3 to 5; name the replay file")
            while not self._stopped:
                self._execute(self.read(1)[0])
                yield
            return
        except LegacyPickleError as error:
            reason = str(error)
        except EOFError:
            reason = "the file ends early; copy it again from where it was saved"
        except (zlib.error, gzip.BadGzipFile) as error:
            reason = f"the gzip data is damaged ({error}); copy the file again"
        except OSError:
            raise
        except Exception as error:
            reason = f"not a valid replay file ({type(error).__name__}: {one_line(error)}); {EXPECTED}"
        raise LegacyPickleError(f"{os.fspath(self.source.path)}, byte {self.source.file.tell()}: {reason}")

    def _execute(self, code: int) -> None:
        self._opcodes += 1
        if self._opcodes > MAX_OPCODES:
            raise LegacyPickleError(f"{MAX_OPCODES} opcodes without a transition; it is refused")
        if code not in OPCODES:
            name = next((each.name for each in pickletools.opcodes if each.code == chr(code)), hex(code))
            raise LegacyPickleError(f"opcode {name} is not used by replay files and is refused")
        OPCODES[code](self)

    def find_class(self, module: str, name: str) -> Any:
        """The object of this module that stands for a name; all other names are refused."""
        known = f"{module.replace('numpy._core.', 'numpy.core.')}.{name}"
        if known not in STAND_INS:
            wanted = f"{module}.{name}"
            raise LegacyPickleError(
                f"the file asks for {wanted if wanted.isprintable() else ascii(wanted)}; only deques, dicts "
                "and NumPy data are read, so it is refused and nothing of it was run"
            )
        return STAND_INS[known]

    def load_bytes(self, length_bytes: int) -> None:
        """Bytes: small ones here, large ones by their offset."""
        length = int.from_bytes(self.read(length_bytes), "little")
        if length > MAX_ARRAY_BYTES:
            raise LegacyPickleError(f"a payload of {length} bytes is over the limit of {MAX_ARRAY_BYTES}")
        small = length <= INLINE_BYTES
        self.append(self.read(length) if small else Lump(self.source.skip(length), length))

    def load_text(self) -> None:
        """Text, as protocol 3 writes it."""
        length = int.from_bytes(self.read(4), "little")
        if length > INLINE_BYTES:
            raise LegacyPickleError(f"a text of {length} characters is refused")
        self.append(self.read(length).decode())

    def load_reduce(self) -> None:
        """Create an object of this module; a deque must be the buffer of the file."""
        super().load_reduce()
        if not isinstance(self.stack[-1], Buffer):
            return
        if self._buffer is not None or self.stack[-2] != "buffer":
            raise LegacyPickleError(f'a deque is not the "buffer" of the file; {EXPECTED}')
        self._buffer = self.stack[-1]
        self._set_capacity(dict(zip(self.stack[:-2:2], self.stack[1:-2:2], strict=False)))

    def load_build(self) -> None:
        """Complete an array, or give a dtype its byte order."""
        state = self.stack.pop()
        target: Any = self.stack[-1]
        match target, state:
            case ArrayAt(), (1, shape, dtype, bool(fortran), data):
                target.set(data, dtype, shape, "F" if fortran else "C")
            case np.dtype(), (3, "<" | ">" | "|" as order, None, None, None, -1, -1, 0):
                if order != "|":
                    target.__setstate__((3, order, None, None, None, -1, -1, 0))  # type: ignore[attr-defined]
            case _:
                raise LegacyPickleError("an array or dtype has fields or a state that NumPy does not write")

    def load_empty_dict(self) -> None:
        """The file or a transition."""
        outermost = not self.stack and not self.metastack
        self.append({} if outermost else Fields())

    def load_setitems(self, items: list[Any]) -> None:
        """Set keys of the file or of a transition, which is emitted when it has its last key."""
        target = self.stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[key] = value
        if isinstance(target, Fields):
            self._emit(target)
        else:
            self._set_capacity(target)

    def load_get(self, number: int) -> None:
        """Push a numbered object again; a transition is emitted again."""
        value = self.memo[number]
        if isinstance(value, Fields):
            self._emit(value)
        self.append(value)

    def _emit(self, fields: Fields) -> None:
        """Hand out a transition, if it is complete; it is about to be appended to the buffer."""
        if fields.missing():
            return
        if self._buffer is None or self._emitted - self._buffer.length >= MAX_BATCH:
            raise LegacyPickleError(f"a dict outside of the buffer; {EXPECTED}")
        self._ready = fields.load(self.source)
        self._emitted += 1
        self._opcodes = 0

    def load_stop(self) -> None:
        """The end of the pickle, which must be the end of the file."""
        whole: Any = self.stack[0] if len(self.stack) == 1 and not self.metastack else None
        complete = type(whole) is dict and {"buffer", "capacity"} <= whole.keys()
        if self._buffer is None or not complete or whole["buffer"] is not self._buffer:
            raise LegacyPickleError(f"it ends without a buffer and a capacity; {EXPECTED}")
        if self._buffer.length != self._emitted:
            raise LegacyPickleError("the buffer does not hold the transitions that were read")
        if self.source.file.read(1):
            raise LegacyPickleError("the pickle ends, but the file continues; it is damaged")
        self._stopped = True

    def _set_capacity(self, items: dict[Any, Any]) -> None:
        if "capacity" in items:
            count = items["capacity"]
            if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
                raise LegacyPickleError("the capacity is not a number of transitions")
            self._capacity = int(count)


STANDARD = (
    *(pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1),
    *(pickle.BININT2, pickle.LONG1, pickle.BINFLOAT, pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1),
    *(pickle.TUPLE2, pickle.TUPLE3, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.APPEND, pickle.APPENDS),
    *(pickle.MEMOIZE, pickle.BINPUT, pickle.LONG_BINPUT, pickle.SHORT_BINUNICODE),
)
OPCODES: dict[int, Callable[[Any], object]] = {
    **{code[0]: PythonUnpickler.dispatch[code[0]] for code in STANDARD},
    pickle.FRAME[0]: lambda u: u.read(8),  # only says how far to read ahead
    pickle.STOP[0]: Unpickler.load_stop,
    pickle.SHORT_BINBYTES[0]: lambda u: u.load_bytes(1),
    pickle.BINBYTES[0]: lambda u: u.load_bytes(4),
    pickle.BINBYTES8[0]: lambda u: u.load_bytes(8),
    pickle.BYTEARRAY8[0]: lambda u: u.load_bytes(8),
    pickle.BINUNICODE[0]: Unpickler.load_text,
    pickle.EMPTY_LIST[0]: lambda u: u.append(()),
    pickle.EMPTY_DICT[0]: Unpickler.load_empty_dict,
    pickle.REDUCE[0]: Unpickler.load_reduce,
    pickle.BUILD[0]: Unpickler.load_build,
    pickle.SETITEM[0]: lambda u: u.load_setitems([u.stack.pop(), u.stack.pop()][::-1]),
    pickle.SETITEMS[0]: lambda u: u.load_setitems(u.pop_mark()),
    pickle.BINGET[0]: lambda u: u.load_get(u.read(1)[0]),
    pickle.LONG_BINGET[0]: lambda u: u.load_get(int.from_bytes(u.read(4), "little")),
}
