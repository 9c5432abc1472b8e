"""An unpickler for pickled deques of dicts, which emits each transition and then forgets it.

A subclass of the standard library's Python unpickler. It executes the opcodes that a replay file needs
(protocols 2 to 5) and refuses all others. `find_class` knows eight names and maps each to an object of
this module, so nothing that a file names is imported or called. Payloads over 512 bytes are loaded when their
transition is emitted; until then, and in the memo, an array is an offset in the file (`ArrayAt`). A limit
on the opcodes between two transitions bounds everything else.
"""

from __future__ import annotations

import gzip
import math
import pickle
import pickletools
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
"""transitions on the stack; pickle appends 1,000 at a time"""
MAX_OPCODES = 10_000
"""from one transition to the next, which takes about 120"""
DTYPES = frozenset(
    {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "f16", "c8", "c16", "c32"}
)
PythonUnpickler: Any = pickle._Unpickler
INHERITED = (
    *(pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1),
    *(pickle.BININT2, pickle.LONG1, pickle.BINFLOAT, pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1),
    *(pickle.TUPLE2, pickle.TUPLE3, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.APPEND, pickle.APPENDS),
    *(pickle.MEMOIZE, pickle.BINPUT, pickle.LONG_BINPUT),
)
"""opcodes that the standard library executes"""


class Transition(NamedTuple):
    """One transition: arrays, numbers and NumPy scalars."""

    state: Any
    action: Any
    reward: Any
    next_state: Any
    done: Any


class Lump(NamedTuple):
    """A large payload: its offset and length in the file, and its kind ("bytes", "text" or "latin1")."""

    offset: int
    length: int
    kind: str


class Dtype:
    """A dtype; `build` sets its byte order."""

    def __init__(self, code: Any, align: Any = 0, copy: Any = 1) -> None:
        if code not in DTYPES:
            objects = " (Python objects)" if isinstance(code, str) and code.startswith("O") else ""
            raise LegacyPickleError(f"dtype {code!r}{objects} is refused; only numbers and bools are read")
        self.name = code

    def build(self, state: Any) -> None:
        """Take the state that follows."""
        match state:
            case (3, str("<" | ">" | "|") as order, None, None, None, -1, -1, 0):
                self.name = np.dtype(order + self.name[-3:].lstrip("<>|")).str
            case _:
                raise LegacyPickleError(f"dtype {self.name!r} has fields or an invalid state; it is refused")


class ArrayAt:
    """An array whose bytes are not loaded; `build` completes it."""

    data: bytes | Lump | None = None

    def __init__(self, kind: Any, shape: Any, code: Any) -> None:
        if kind is not ArrayAt or shape != (0,) or code not in (b"b", "b"):
            raise LegacyPickleError("an array is created in a way that NumPy does not write")

    def build(self, state: Any) -> None:
        """Take the state that follows."""
        match state:
            case (1, shape, dtype, bool(fortran), data):
                self._set(data, dtype, shape, "F" if fortran else "C")
            case _:
                raise LegacyPickleError("an array has a state that NumPy does not write")

    @classmethod
    def from_buffer(cls, data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> ArrayAt:
        """As protocol 5 writes it."""
        array = cls(ArrayAt, (0,), "b")
        array._set(data, dtype, shape, order, axes)
        return array

    def _set(self, data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> None:
        if type(shape) is not tuple or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
            raise LegacyPickleError(f"an array {shape!r:.200} where a shape is needed")
        if (
            not isinstance(dtype, Dtype)
            or order not in ("C", "F", "K")
            or (order == "K") != (axes is not None)
        ):
            raise LegacyPickleError("an array has no dtype or memory order")
        if axes is not None and sorted(axes) != list(range(len(shape))):
            raise LegacyPickleError("the axes of an array are not a permutation")
        if not isinstance(data, bytes | Lump) or (isinstance(data, Lump) and data.kind == "text"):
            raise LegacyPickleError("an array has no bytes; Python objects are refused")
        most = least = data.length if isinstance(data, Lump) else len(data)
        if isinstance(data, Lump) and data.kind == "latin1":
            least = (most + 1) // 2  # UTF-8 has one or two bytes for each
        needed = math.prod(shape) * np.dtype(dtype.name).itemsize
        if not least <= needed <= most or needed > MAX_ARRAY_BYTES:
            raise LegacyPickleError(
                f"an array {shape} of {dtype.name} has {most} bytes where {needed} are needed; "
                f"the limit is {MAX_ARRAY_BYTES}"
            )
        self.data, self.form = data, (dtype.name, shape, order, axes)

    def load(self, source: ReplayFile) -> Array:
        """A new, writable array."""
        data, (dtype, shape, order, axes) = self.data, self.form
        flat = source.load(data.offset, data.length) if isinstance(data, Lump) else bytearray(data or b"")
        if isinstance(data, Lump) and data.kind == "latin1":
            flat = bytearray(flat.decode().encode("latin1"))
        array = np.frombuffer(flat, dtype).reshape(shape, order="F" if order == "F" else "C")
        return array if axes is None else array.transpose(axes)


class File(dict[Any, Any]):
    """The outermost dict."""


class Fields:
    """A transition, key by key."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in Transition._fields:
            wanted = ", ".join(Transition._fields)
            raise LegacyPickleError(f"a transition has a key {key!r:.99}; only {wanted} are read")
        array = isinstance(value, ArrayAt) and value.data is not None
        if not array and ("state" in key or not isinstance(value, bool | int | float | np.generic)):
            raise LegacyPickleError(f"the {key} of a transition is neither an array nor a number")
        self.values[key] = value

    def missing(self) -> str:
        """The keys that it lacks."""
        return ", ".join(key for key in Transition._fields if key not in self.values)

    def load(self, source: ReplayFile) -> Transition:
        """The transition, with arrays of its own."""
        values = {k: v.load(source) if isinstance(v, ArrayAt) else v for k, v in self.values.items()}
        return Transition(**values)


class Buffer:
    """Stands for the deque, of which only the length is kept."""

    def __init__(self, start: Any = (), limit: Any = None) -> None:
        if start != () or (limit is not None and not _is_count(limit)):
            raise LegacyPickleError("a deque is not empty when it is created, or its limit is invalid")
        self.limit = limit
        self.length = self.appended = 0

    def append(self, item: Any) -> None:
        """Check that the item is a transition; it was emitted before."""
        if not isinstance(item, Fields):
            raise LegacyPickleError("the buffer holds an object that is not a transition")
        if item.missing():
            raise LegacyPickleError(f"a transition without {item.missing()}")
        self.appended += 1


def _is_count(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | np.integer) and int(value) >= 0


def _scalar(dtype: Any, data: Any) -> np.generic:
    value: np.generic = np.frombuffer(data, dtype.name)[0]
    if len(data) != value.nbytes:
        raise LegacyPickleError("a NumPy scalar does not match its dtype")
    return value


def _encode(text: Any, codec: Any) -> bytes | Lump:
    """How protocol 2 writes bytes."""
    if codec != "latin1":
        raise LegacyPickleError("bytes are encoded in a way that pickle does not write")
    return text._replace(kind="latin1") if isinstance(text, Lump) else bytes(text, "latin1")


def _empty_bytes() -> bytes:
    """How protocol 2 writes empty bytes."""
    return b""


STAND_INS: dict[str, Any] = {
    "collections.deque": Buffer,
    "numpy.ndarray": ArrayAt,
    "numpy.dtype": Dtype,
    "numpy.core.multiarray._reconstruct": ArrayAt,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": ArrayAt.from_buffer,
    "_codecs.encode": _encode,
    "builtins.bytes": _empty_bytes,
}


class Unpickler(PythonUnpickler):  # type: ignore[misc]
    """Reads a file once; see `next_transition`."""

    def __init__(self, source: ReplayFile) -> None:
        super().__init__(source)
        self.source = source
        self.capacity: int | None = None
        self.memo = Memo()
        self.stack: list[Any] = []
        self.metastack: list[list[Any]] = []
        self.append = self.stack.append
        self.read, self.readline = source.read, source.readline
        self._started = self._stopped = False
        self._buffer: Buffer | None = None
        self._ready: Fields | None = None
        self._opcodes = 0

    def next_transition(self) -> Transition | None:
        """The next transition; None after the last one, at the verified end of the file."""
        with self._blaming():
            while self._ready is None and not self._stopped:
                self._step()
            ready, self._ready = self._ready, None
            return None if ready is None else ready.load(self.source)

    def find_capacity(self) -> int:
        """The capacity of the file, which is near its beginning."""
        with self._blaming():
            while self.capacity is None:
                self._step()
            return self.capacity

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        """Convert every failure that the content of a file can cause to one error."""
        try:
            yield
        except LegacyPickleError:
            raise
        except EOFError:
            raise LegacyPickleError("the file ends early; copy it again from where it was saved") from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise LegacyPickleError(f"the gzip data is damaged ({error}); copy the file again") from None
        except Exception as error:
            if isinstance(error, OSError):
                raise
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise LegacyPickleError(f"not a valid replay file ({reason}); {EXPECTED}") from None

    def _step(self) -> None:
        if not self._started:
            self._started = True
            if self.read(1) != pickle.PROTO or not 2 <= self.read(1)[0] <= 5:
                raise LegacyPickleError("this is not a pickle of protocol 2 to 5; name the replay file")
        code = self.read(1)[0]
        self._opcodes += 1
        if self._opcodes > MAX_OPCODES:
            raise LegacyPickleError(f"{MAX_OPCODES} opcodes without a transition; it is refused")
        run = OPCODES.get(code)
        if run is None:
            name = next((each.name for each in pickletools.opcodes if each.code == chr(code)), hex(code))
            raise LegacyPickleError(f"opcode {name} is not used by replay files and is refused")
        run(self)

    def find_class(self, module: str, name: str) -> Any:
        """The object of this module that stands for a name; all other names are refused."""
        plain = "builtins" if module == "__builtin__" else module
        if plain.startswith("numpy._core."):  # NumPy 2 renamed it
            plain = "numpy.core." + plain.removeprefix("numpy._core.")
        if f"{plain}.{name}" not in STAND_INS:
            wanted = f"{module}.{name}"
            raise LegacyPickleError(
                f"the file asks for {wanted if wanted.isprintable() else ascii(wanted)}; only deques, dicts "
                "and NumPy data are read, so it is refused and nothing of it was run"
            )
        return STAND_INS[f"{plain}.{name}"]

    def load_payload(self, length_bytes: int, kind: str = "bytes") -> None:
        """Bytes or text: small ones here, large ones by their offset."""
        length = int.from_bytes(self.read(length_bytes), "little")
        if length > 2 * MAX_ARRAY_BYTES:  # Latin-1 bytes take up to two bytes as text
            raise LegacyPickleError(f"a payload of {length} bytes is over the limit of {2 * MAX_ARRAY_BYTES}")
        if length > INLINE_BYTES:
            self.append(Lump(self.source.skip(length), length, kind))
        else:
            data = self.read(length)
            self.append(data.decode() if kind == "text" else data)

    def load_reduce(self) -> None:
        """Create an object of this module; a deque must be the buffer of the file."""
        super().load_reduce()
        if not isinstance(self.stack[-1], Buffer):
            return
        if self._buffer is not None or not _is_text(self.stack[-2], "buffer"):
            raise LegacyPickleError(f'a deque is not the "buffer" of the file; {EXPECTED}')
        self._buffer = self.stack[-1]
        for key, value in zip(self.stack[:-2:2], self.stack[1:-2:2], strict=False):
            if _is_text(key, "capacity"):  # comes first, as the project writes it
                self.set_capacity(value)

    def load_build(self) -> None:
        """Complete an array or a dtype."""
        state = self.stack.pop()
        self.stack[-1].build(state)

    def load_empty_dict(self) -> None:
        """The file or a transition."""
        outermost = not self.stack and not self.metastack
        self.append(File() if outermost else Fields())

    def load_setitems(self, items: list[Any]) -> None:
        """Set keys of the file or of a transition, which is emitted when it has its last key."""
        target = self.stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[key] = value
        if isinstance(target, File):
            if not isinstance(target.get("buffer", self._buffer), Buffer | None):
                raise LegacyPickleError('the "buffer" is not a deque')
            if "capacity" in target:
                self.set_capacity(target["capacity"])
        elif not target.missing():
            self._emit(target, self.stack[:-1])

    def load_get(self, number: int) -> None:
        """Push a numbered object again; a transition is emitted again."""
        value = self.memo[number]
        if isinstance(value, Fields) and not value.missing():
            self._emit(value, self.stack)
        self.append(value)

    def _emit(self, fields: Fields, batch: list[Any]) -> None:
        """Hand out a transition that is in its place: alone on the buffer, or after others of its batch."""
        below = batch or (self.metastack[-1] if self.metastack else [])
        alone = bool(below) and below[-1] is self._buffer
        if self._buffer is None or not (alone or isinstance(below[-1], Fields)) or len(batch) > MAX_BATCH:
            raise LegacyPickleError(f"a dict outside of the buffer; {EXPECTED}")
        self._buffer.length += 1
        if self._buffer.limit is not None and self._buffer.length > self._buffer.limit:
            raise LegacyPickleError(f"it has more than the {self._buffer.limit} transitions its deque holds")
        self._opcodes = 0
        self._ready = fields

    def load_stop(self) -> None:
        """The end of the pickle, which must be the end of the file."""
        if self.metastack or len(self.stack) != 1 or not isinstance(self.stack[0], File):
            raise LegacyPickleError(f"the pickle ends in the middle of an object; {EXPECTED}")
        missing = [key for key in ("buffer", "capacity") if key not in self.stack[0]]
        if missing:
            raise LegacyPickleError(f"it has no {' and no '.join(missing)}; {EXPECTED}")
        if self._buffer is None or self._buffer.appended != self._buffer.length:
            raise LegacyPickleError("the buffer does not hold the transitions that were read")
        if self.source.file.read(1):
            raise LegacyPickleError("the pickle ends, but the file continues; it is damaged")
        self._stopped = True

    def set_capacity(self, value: Any) -> None:
        """Check and keep the capacity."""
        if not _is_count(value):
            raise LegacyPickleError("the capacity is not a number of transitions")
        self.capacity = int(value)


def _is_text(value: Any, text: str) -> bool:
    return isinstance(value, str) and value == text


OPCODES: dict[int, Callable[[Any], object]] = {
    **{code[0]: PythonUnpickler.dispatch[code[0]] for code in INHERITED},
    pickle.FRAME[0]: lambda u: u.read(8),  # only says how far to read ahead
    pickle.STOP[0]: Unpickler.load_stop,
    pickle.SHORT_BINBYTES[0]: lambda u: u.load_payload(1),
    pickle.BINBYTES[0]: lambda u: u.load_payload(4),
    pickle.BINBYTES8[0]: lambda u: u.load_payload(8),
    pickle.BYTEARRAY8[0]: lambda u: u.load_payload(8),
    pickle.SHORT_BINUNICODE[0]: lambda u: u.load_payload(1, "text"),
    pickle.BINUNICODE[0]: lambda u: u.load_payload(4, "text"),
    pickle.BINUNICODE8[0]: lambda u: u.load_payload(8, "text"),
    pickle.EMPTY_LIST[0]: lambda u: u.append(()),
    pickle.EMPTY_DICT[0]: Unpickler.load_empty_dict,
    pickle.REDUCE[0]: Unpickler.load_reduce,
    pickle.BUILD[0]: Unpickler.load_build,
    pickle.SETITEM[0]: lambda u: u.load_setitems([u.stack.pop(), u.stack.pop()][::-1]),
    pickle.SETITEMS[0]: lambda u: u.load_setitems(u.pop_mark()),
    pickle.BINGET[0]: lambda u: u.load_get(u.read(1)[0]),
    pickle.LONG_BINGET[0]: lambda u: u.load_get(int.from_bytes(u.read(4), "little")),
}
