"""A pickle machine for one form of file, which hands out each transition and forgets it.

What it accepts, and nothing else (protocols 2 to 5)::

    {"capacity": int, "buffer": deque([{state, action, reward, next_state, done}, ...], maxlen)}
                                       └ handed out at its last key, while its batch of a thousand is still
                                         open on the stack; a stand-in takes its place there

No global is ever imported or called: the few that are known are only recognised. The stack, the memo, the
number of opcodes a transition may take, and every length are bounded, so a hostile file is refused
before it takes memory.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lakepond.adapters import legacy_values as values
from lakepond.adapters.legacy_bytes import LegacyPickleError, Stream
from lakepond.adapters.legacy_memo import Memo
from lakepond.adapters.legacy_values import ArrayAt, Known, Lump, Record, Text, Token

INLINE_BYTES = 512
"""a larger payload is left where it is"""
MAX_DEPTH = 8
"""marks open at once; five are needed"""
MAX_STACK = 4096
"""values between two marks; pickle appends in batches of 1000"""
OPCODES_PER_TRANSITION = 1000
"""at most, on average; about 120 are needed"""
OPCODES_AT_FIRST = 10_000
NAME_BYTES = 256
INT_BYTES = 32


class Unfinished:
    """Something on the stack that later opcodes will complete; its number in the memo, if it has one."""

    number: int | None = None


class Blank(Unfinished):
    """An array or a dtype that waits for its state; `code` of a dtype, None of an array."""

    def __init__(self, code: str | None) -> None:
        self.code = code


class Building(Unfinished):
    """A transition, key by key."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}


class File(Unfinished):
    """The dict around it all."""

    def __init__(self) -> None:
        self.keys: set[str] = set()


class Deque(Unfinished):
    """The buffer, of which only the length is kept."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.length = 0


def is_key(value: Any, key: str) -> bool:
    """Whether it is this text; a dtype may equal a text, too."""
    return isinstance(value, str) and value == key


class Unpickler:
    """Runs over a stream once: `records` yields the transitions; `capacity` is known once it was read."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.capacity: int | None = None
        self.stopped = False
        self._memo = Memo()
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []  # the stacks below each open mark
        self._file: File | None = None
        self._deque: Deque | None = None
        self._ready: Record | None = None
        self._opcodes_left = OPCODES_AT_FIRST
        if stream.byte() != pickle.PROTO[0] or not 2 <= stream.byte() <= 5:
            raise LegacyPickleError("this is no pickle of protocol 2 to 5; is it the replay file?")

    def records(self) -> Iterator[Record]:
        """Each transition as soon as it is whole."""
        while not self.stopped:
            self.step()
            if self._ready is not None:
                record, self._ready = self._ready, None
                yield record

    def step(self) -> None:
        """One opcode."""
        code = self.stream.byte()
        self._opcodes_left -= 1
        if self._opcodes_left < 0:
            raise LegacyPickleError("far more opcodes than its transitions need; this is no replay file")
        run = OPCODES.get(code)
        if run is None:
            named = next((each.name for each in pickletools.opcodes if each.code == chr(code)), hex(code))
            raise LegacyPickleError(f"the opcode {named} has no place in a replay file, and is refused")
        run(self)

    def close(self) -> None:
        """Give the memo's temporary file back."""
        self._memo.close()

    # The stack.

    def push(self, value: Any) -> None:
        """On top."""
        if len(self._stack) >= MAX_STACK:
            raise LegacyPickleError(f"more than {MAX_STACK} values on the stack; this is no replay file")
        self._stack.append(value)

    def pop(self) -> Any:
        """From the top."""
        self.top()
        return self._stack.pop()

    def top(self) -> Any:
        """What is there stays there."""
        if not self._stack:
            raise LegacyPickleError("an opcode without its operand; the file is damaged")
        return self._stack[-1]

    def mark(self) -> None:
        """`(`."""
        if len(self._marked) >= MAX_DEPTH:
            raise LegacyPickleError(f"nested deeper than {MAX_DEPTH}; this is no replay file")
        self._marked.append(self._stack)
        self._stack = []

    def pop_to_mark(self) -> list[Any]:
        """All since the last mark."""
        if not self._marked:
            raise LegacyPickleError("an opcode without its mark; the file is damaged")
        items, self._stack = self._stack, self._marked.pop()
        return items

    def integer(self, count: int, *, signed: bool = False) -> int:
        """The next bytes as a number."""
        return int.from_bytes(self.stream.take(count), "little", signed=signed)

    # Plain values.

    def payload(self, length_bytes: int, text: Text = Text.NO) -> None:
        """Bytes or text: here if small, else where it is."""
        length = self.integer(length_bytes)
        limit = values.MAX_ARRAY_BYTES * 2  # a text takes up to two bytes for one
        if length > limit:
            raise LegacyPickleError(f"a payload of {length} bytes, more than {limit}; the file is damaged")
        if length > INLINE_BYTES:
            self.push(Lump(self.stream.pass_by(length), length, text))
        else:
            data = self.stream.take(length)
            self.push(values.str_of(data) if text is Text.YES else data)

    def long(self, length_bytes: int) -> None:
        """An integer of any size, within reason."""
        length = self.integer(length_bytes)
        if length > INT_BYTES:
            raise LegacyPickleError(f"an integer of {length} bytes; the file is damaged")
        self.push(self.integer(length, signed=True))

    def tuple_from(self, items: list[Any]) -> None:
        """Items as one."""
        self.push(values.tuple_of(items))

    def last(self, count: int) -> list[Any]:
        """The uppermost values, taken off."""
        items = [self.pop() for _ in range(count)]
        return items[::-1]

    def name(self) -> None:
        """A global by its two lines."""
        module, name = self.stream.line(NAME_BYTES), self.stream.line(NAME_BYTES)
        self.push(values.known(values.str_of(module), values.str_of(name)))

    def name_from_stack(self) -> None:
        """A global by two strings."""
        module, name = self.last(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise LegacyPickleError("a global whose name is no text; the file is damaged")
        self.push(values.known(module, name))

    # The memo.

    def put(self, number: int | None = None) -> None:
        """Number what is on top."""
        value = self.top()
        if number is not None and number != self._memo.count:
            raise LegacyPickleError(f"object {self._memo.count} is numbered {number}; the file is damaged")
        if value is Token.PLACED or (isinstance(value, Unfinished) and value.number is not None):
            raise LegacyPickleError("an object is numbered twice; the file is damaged")
        if isinstance(value, Unfinished):
            value.number = self._memo.put(Token.UNFINISHED)
        else:
            self._memo.put(value)

    def get(self, number: int) -> None:
        """What was numbered, again."""
        value = self._memo.get(number)
        if value is Token.UNFINISHED:
            raise LegacyPickleError(f"object {number} is used before it is whole; the file is damaged")
        if isinstance(value, Record):  # the same transition a second time
            self._check_inside_deque()
            self.push(Token.PLACED)
            self._hand_out(value)
        else:
            self.push(value)

    def _complete(self, value: Any) -> None:
        """What was unfinished on top is whole, here and in the memo; a transition leaves only a stand-in."""
        number = self._stack[-1].number
        if number is not None:
            self._memo.replace(number, value)
        self._stack[-1] = Token.PLACED if isinstance(value, Record) else value

    # Objects.

    def reduce(self) -> None:
        """A known global, and its arguments."""
        what, args = self.last(2)
        if type(args) is not tuple:
            raise LegacyPickleError("a call without arguments; the file is damaged")
        match what, args:
            case Known.DEQUE, _:
                self._open_deque(args)
            case Known.RECONSTRUCT, (Known.NDARRAY, (0,), bytes(b"b") | str("b")):
                self.push(Blank(None))
            case Known.FROMBUFFER, (data, dtype, shape, order) | (data, dtype, shape, order, None):
                self.push(values.array_at(dtype, shape, order, data))
            case Known.FROMBUFFER, (data, dtype, shape, order, axes):
                self.push(values.array_at(dtype, shape, order, data, axes))
            case Known.DTYPE, _:
                self.push(Blank(values.dtype_code(args)))
            case Known.SCALAR, _:
                self.push(values.scalar(args))
            case Known.ENCODE, _:
                self.push(values.encoded(args))
            case Known.BYTES, ():
                self.push(b"")  # protocol 2 has no other way to say so
            case _:
                named = what.value if isinstance(what, Known) else "what is no global"
                raise LegacyPickleError(f"a call of {named} that no replay file makes; refused")

    def build(self) -> None:
        """The state of an array or of a dtype."""
        state = self.pop()
        blank = self.top()
        if not isinstance(blank, Blank):
            raise LegacyPickleError("a state for what takes none; the file is damaged")
        if blank.code is not None:
            self._complete(values.dtype_of(blank.code, state))
            return
        match state:
            case (1, shape, dtype, bool(fortran), data):
                self._complete(values.array_at(dtype, shape, "F" if fortran else "C", data))
            case _:
                raise LegacyPickleError("an array whose state is none; the file is damaged")

    def new_dict(self) -> None:
        """The file, or a transition; there are no others."""
        if self._file is None and not self._stack and not self._marked:
            self._file = File()
            self.push(self._file)
        else:
            self._check_inside_deque()
            self.push(Building())

    def _check_inside_deque(self) -> None:
        alone = self._stack[-1:]  # of a buffer of one, which is appended without a mark
        batch = self._marked[-1][-1:] if self._marked else []
        if self._deque is None or not any(below is self._deque for below in alone + batch):
            raise LegacyPickleError("a dict outside of the buffer; this is no replay file")

    def _open_deque(self, args: tuple[Any, ...]) -> None:
        start = args[0] if args else ()
        limit = args[1] if len(args) > 1 else None
        empty = start is Token.EMPTY_LIST or (type(start) is tuple and not start)
        bounded = type(limit) is int and limit >= 0
        if len(args) > 2 or not empty or not (bounded or limit is None):
            raise LegacyPickleError("a deque made as none is made; the file is damaged")
        if self._deque is not None or self._file is None or not is_key(self.top(), "buffer"):
            raise LegacyPickleError('a deque that is not the "buffer" of the file; this is no replay file')
        self._deque = Deque(limit)
        if self._marked:  # {"capacity": n, "buffer": we are here: no need to wait for the end of the dict
            for key, value in zip(self._stack[:-1:2], self._stack[1:-1:2], strict=False):
                if is_key(key, "capacity"):
                    self._set_capacity(value)
        self.push(self._deque)

    def append(self, items: list[Any]) -> None:
        """A batch to the buffer: all were handed out before."""
        if self._deque is None or self.top() is not self._deque:
            raise LegacyPickleError("a list, or a buffer that is no deque; this is no replay file")
        for item in items:
            if isinstance(item, Building):
                missing = ", ".join(key for key in Record._fields if key not in item.fields)
                raise LegacyPickleError(f"a transition without {missing}; this is no replay file")
            if item is not Token.PLACED:
                raise LegacyPickleError("the buffer holds what is no transition; this is no replay file")

    def set_items(self, items: list[Any]) -> None:
        """Keys and values, to a transition or to the file."""
        target = self.top()
        if len(items) % 2 or not isinstance(target, Building | File):
            raise LegacyPickleError("keys for what takes none; the file is damaged")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise LegacyPickleError("a key that is no text; this is no replay file")
            if isinstance(target, Building):
                self._set_field(target, key, value)
            else:
                self._set_top(target, key, value)
        if isinstance(target, Building) and len(target.fields) == len(Record._fields):
            record = Record(**target.fields)
            self._complete(record)
            self._hand_out(record)

    def _set_field(self, target: Building, key: str, value: Any) -> None:
        if key not in Record._fields:
            raise LegacyPickleError(
                f"a transition with a key {key!r}; only {', '.join(Record._fields)} are read"
            )
        array = isinstance(value, ArrayAt)
        if not array and ("state" in key or not isinstance(value, bool | int | float | np.generic)):
            raise LegacyPickleError(f"a transition whose {key} is neither an array nor a number")
        target.fields[key] = value

    def _set_top(self, target: File, key: str, value: Any) -> None:
        if key == "buffer" and (self._deque is None or value is not self._deque):
            raise LegacyPickleError('a "buffer" that is no deque; this is no replay file')
        if key == "capacity":
            self._set_capacity(value)
        target.keys.add(key)

    def _set_capacity(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            raise LegacyPickleError("a capacity that is no number of transitions; this is no replay file")
        self.capacity = int(value)

    def _hand_out(self, record: Record) -> None:
        assert self._deque is not None
        self._deque.length += 1
        self._opcodes_left += OPCODES_PER_TRANSITION
        if self._deque.limit is not None and self._deque.length > self._deque.limit:
            raise LegacyPickleError(
                f"more than the {self._deque.limit} transitions its deque holds; it is damaged"
            )
        self._ready = record

    def stop(self) -> None:
        """The end: everything is in its place, and nothing follows."""
        if self._file is None or self._marked or self._stack != [self._file]:
            raise LegacyPickleError("it ends in the middle of an object; the file is damaged")
        missing = {"capacity", "buffer"} - self._file.keys
        if missing:
            raise LegacyPickleError(f"it has no {' and no '.join(sorted(missing))}; this is no replay file")
        self.stream.finish()
        self.stopped = True


OPCODES: dict[int, Callable[[Unpickler], object]] = {
    pickle.FRAME[0]: lambda m: m.stream.take(8),  # only a hint how much to read ahead
    pickle.STOP[0]: Unpickler.stop,
    pickle.MARK[0]: Unpickler.mark,
    pickle.NONE[0]: lambda m: m.push(None),
    pickle.NEWTRUE[0]: lambda m: m.push(True),
    pickle.NEWFALSE[0]: lambda m: m.push(False),
    pickle.BININT[0]: lambda m: m.push(m.integer(4, signed=True)),
    pickle.BININT1[0]: lambda m: m.push(m.stream.byte()),
    pickle.BININT2[0]: lambda m: m.push(m.integer(2)),
    pickle.LONG1[0]: lambda m: m.long(1),
    pickle.LONG4[0]: lambda m: m.long(4),
    pickle.BINFLOAT[0]: lambda m: m.push(struct.unpack(">d", m.stream.take(8))[0]),
    pickle.SHORT_BINBYTES[0]: lambda m: m.payload(1),
    pickle.BINBYTES[0]: lambda m: m.payload(4),
    pickle.BINBYTES8[0]: lambda m: m.payload(8),
    pickle.BYTEARRAY8[0]: lambda m: m.payload(8),
    pickle.SHORT_BINUNICODE[0]: lambda m: m.payload(1, Text.YES),
    pickle.BINUNICODE[0]: lambda m: m.payload(4, Text.YES),
    pickle.BINUNICODE8[0]: lambda m: m.payload(8, Text.YES),
    pickle.EMPTY_TUPLE[0]: lambda m: m.push(()),
    pickle.TUPLE[0]: lambda m: m.tuple_from(m.pop_to_mark()),
    pickle.TUPLE1[0]: lambda m: m.tuple_from(m.last(1)),
    pickle.TUPLE2[0]: lambda m: m.tuple_from(m.last(2)),
    pickle.TUPLE3[0]: lambda m: m.tuple_from(m.last(3)),
    pickle.EMPTY_LIST[0]: lambda m: m.push(Token.EMPTY_LIST),
    pickle.EMPTY_DICT[0]: Unpickler.new_dict,
    pickle.GLOBAL[0]: Unpickler.name,
    pickle.STACK_GLOBAL[0]: Unpickler.name_from_stack,
    pickle.REDUCE[0]: Unpickler.reduce,
    pickle.BUILD[0]: Unpickler.build,
    pickle.APPEND[0]: lambda m: m.append(m.last(1)),
    pickle.APPENDS[0]: lambda m: m.append(m.pop_to_mark()),
    pickle.SETITEM[0]: lambda m: m.set_items(m.last(2)),
    pickle.SETITEMS[0]: lambda m: m.set_items(m.pop_to_mark()),
    pickle.MEMOIZE[0]: lambda m: m.put(),
    pickle.BINPUT[0]: lambda m: m.put(m.stream.byte()),
    pickle.LONG_BINPUT[0]: lambda m: m.put(m.integer(4)),
    pickle.BINGET[0]: lambda m: m.get(m.stream.byte()),
    pickle.LONG_BINGET[0]: lambda m: m.get(m.integer(4)),
}
