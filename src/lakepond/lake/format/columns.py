"""What a column of steps is in Arrow, and back: `steps.py` has the table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from lakepond.errors import SpecError

BATCH_STEPS, BATCH_BYTES = 8192, 2 << 20
NOTE = b"lakepond.note."
ARROW_MAX = 2**31 - 1
"""values of a list, or bytes of a value"""
_TYPED = {"|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"}

Array = NDArray[Any]


@dataclass(frozen=True)
class Column:
    """One column: its values a step have this dtype and shape."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many values a step."""
        return math.prod(self.shape)

    def describe(self) -> list[Any]:
        """Name, dtype and shape, for JSON."""
        return [self.name, self.dtype.str, list(self.shape)]

    def empty(self, steps: int) -> Array:
        """An array for `steps` values."""
        return np.empty((steps, *self.shape), self.dtype)

    @cached_property
    def prefix(self) -> str:
        """The same as JSON, without the closing bracket."""
        return json.dumps(self.describe(), allow_nan=False)[:-1]

    @cached_property
    def type(self) -> Any:
        """The Arrow type."""
        import pyarrow as pa

        typed = self.dtype.str in _TYPED
        if self.size * (1 if typed else self.dtype.itemsize) > ARROW_MAX:
            raise SpecError(f"column {self.name!r} has {self.size:,} values per step, too many for Arrow.")
        if not typed:
            return pa.binary(self.dtype.itemsize * self.size)
        value = pa.from_numpy_dtype(self.dtype)
        return pa.list_(value, self.size) if self.shape else value

    @cached_property
    def field(self) -> Any:
        """The Arrow field, with dtype and shape in its metadata."""
        import pyarrow as pa

        return pa.field(
            self.name, self.type, False, {"lakepond.column": json.dumps(self.describe()[1:], allow_nan=False)}
        )

    def to_arrow(self, part: Array) -> Any:
        """An Arrow array over the same memory; bools are packed."""
        import pyarrow as pa

        plain = np.packbits(part, bitorder="little") if part.dtype == bool else raw_bytes(part)
        data, kind = [None, pa.py_buffer(plain)], self.type
        if not self.shape or self.dtype.str not in _TYPED:
            return pa.Array.from_buffers(kind, len(part), data)
        values = pa.Array.from_buffers(kind.value_type, part.size, data)
        return pa.Array.from_buffers(kind, len(part), [None], children=[values])

    def from_arrow(self, array: Any, steps: int) -> Array:
        """What was given to `to_arrow`, over the memory of `array`; ValueError if that is too short."""
        data = array.buffers()[-1]
        count = steps * self.size
        if not count:
            return self.empty(steps)
        if self.dtype == bool:
            bits = np.frombuffer(data, np.uint8, -(-count // 8))
            return np.unpackbits(bits, count=count, bitorder="little").view(bool).reshape(steps, *self.shape)
        plain = np.frombuffer(data, np.uint8, count * self.dtype.itemsize)
        return plain.view(self.dtype).reshape(steps, *self.shape)


@dataclass(frozen=True)
class StepFileLayout:
    """The description of the content of a file; sealed by a checksum in the schema."""

    columns: tuple[Column, ...]
    steps: int
    batch: int
    """steps a batch, but for the last"""
    notes: tuple[tuple[str, bytes], ...] = ()
    """further entries of the writer, in the schema's metadata"""

    @classmethod
    def of(cls, columns: Mapping[str, Array], notes: Mapping[str, bytes] | None = None) -> StepFileLayout:
        """The layout of what is about to be written."""
        for name, column in columns.items():
            if (
                not column.dtype.itemsize
                or column.dtype.hasobject
                or np.dtype(column.dtype.str) != column.dtype
            ):
                raise SpecError(
                    f"column {name!r} has dtype {column.dtype}, which has no fixed width or no name."
                )
        found = tuple(_column(name, array.dtype, array.shape[1:]) for name, array in columns.items())
        steps = len(next(iter(columns.values())))
        batch = min(BATCH_STEPS, max(1, BATCH_BYTES // max(1, _width(found))))
        return cls(found, steps, batch, tuple(sorted((notes or {}).items())))

    @property
    def width(self) -> int:
        """Bytes per step, uncompressed."""
        return _width(self.columns)

    @classmethod
    def from_schema(cls, schema: Any) -> StepFileLayout:
        """The layout of a file; any exception means that the schema is broken."""
        summary = json.loads(schema.metadata[b"lakepond.steps"])
        columns = []
        for field in schema:
            dtype, shape = json.loads(field.metadata[b"lakepond.column"])
            columns.append(_column(field.name, np.dtype(dtype), tuple(shape)))
        noted = {key: value for key, value in schema.metadata.items() if key.startswith(NOTE)}
        notes = tuple(sorted((key[len(NOTE) :].decode(), value) for key, value in noted.items()))
        layout = cls(tuple(columns), summary["steps"], summary["batch"], notes)
        layout.check()
        if not layout.schema().equals(schema, check_metadata=True):
            raise ValueError("its schema does not match the checksum of the schema")
        return layout

    def check(self) -> None:
        """ValueError unless batches have a size that `of` gives them and values are not objects."""
        if type(self.steps) is not int or type(self.batch) is not int or self.steps < 0 or self.batch < 1:
            raise ValueError(f"it says that it has {self.steps!r} steps in batches of {self.batch!r}")
        if any(column.dtype.hasobject for column in self.columns):
            raise ValueError("a column of Python objects")
        if self.batch > BATCH_STEPS or (self.batch > 1 and self.batch * self.width > BATCH_BYTES):
            raise ValueError(f"batches of {self.batch:,} steps of {self.width:,} bytes are too large")

    def schema(self) -> Any:
        """The Arrow schema of this layout."""
        import pyarrow as pa

        fields = [column.field for column in self.columns]
        summary: dict[str, Any] = {"steps": self.steps, "batch": self.batch}
        sums = [[name, xxhash.xxh3_64_hexdigest(note)] for name, note in self.notes]
        sealed = json.dumps(
            [summary, *(column.describe() for column in self.columns), *sums], allow_nan=False
        )
        summary["xxh3"] = xxhash.xxh3_64_hexdigest(sealed.encode())
        notes = {NOTE + name.encode(): note for name, note in self.notes}
        return pa.schema(fields, {b"lakepond.steps": json.dumps(summary, allow_nan=False).encode(), **notes})

    def checksum(self, column: Column, start: int, part: Array) -> str:
        """Of the values of a column from step `start` on, and of what they mean."""
        digest = xxhash.xxh3_64(f"{column.prefix}, {start}, {len(part)}, {self.steps}]".encode())
        digest.update(raw_bytes(part).data)
        return digest.hexdigest()


def _width(columns: Sequence[Column]) -> int:
    return sum(column.dtype.itemsize * column.size for column in columns)


@lru_cache(1024)
def _column(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Column:
    """The same one again, which remembers its Arrow type: every commit has the same columns."""
    return Column(name, dtype, shape)


def raw_bytes(part: Array) -> NDArray[np.uint8]:
    """The bytes of a contiguous array."""
    return part.reshape(-1).view(np.uint8)
