"""The steps of one segment: an Arrow IPC file, which anything that knows Arrow opens.

    schema │ batch 0, each column zstd'ed by itself │ batch 1 │ ... │ footer
             and with its xxh3-64 in the metadata

A column is (steps, *shape) of any fixed-width dtype and comes back bit for bit, NaN payloads and all:

    dtype                            Arrow type           with a shape
    bool, (u)int8-64, float16-64     the same             a fixed_size_list of it, flat, in C order
    complex, datetime, S, U, V, >    fixed_size_binary    one value a step

Dtype and shape are in the field's metadata. Arrow has no checksums: here every column of every batch has one,
over its plain bytes and what they mean (name, dtype, shape, place), and so has the schema. A read of some
steps or columns decodes and checks only those. A batch is 8,192 steps, or fewer if they make two megabytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import zstandard
from numpy.typing import NDArray

from lakepond.arrow_sizes import read_batch, read_footer
from lakepond.errors import LakeCorrupt, SpecError
from lakepond.lake.format.blocks import MOST_RATIO
from lakepond.lake.format.checksum import Tally
from lakepond.lake.format.columns import BATCH_STEPS, StepFileLayout

Array = NDArray[Any]
DENSE, QUICK = 1, -1
"""levels of zstd: the first takes nine times as long for numbers that look like noise, and saves a tenth"""
SAMPLE_BYTES = 16 << 10
"""of columns that are compressed both ways to choose the level"""
LEAST_BATCH_BYTES = 256
"""of a batch with its entry in the footer, at least; the smallest that this writer makes has about 600"""


@dataclass(frozen=True)
class StepsInfo:
    """All that is true of a file of steps and that the commit keeps."""

    steps: int
    bytes: int
    """size of the file"""
    digest: str
    """SHA-256 of the file's bytes, its first 40 hex digits: its name"""

    def check_size(self) -> None:
        """ValueError if a file of this size cannot hold that many steps."""
        if self.steps > self.bytes // LEAST_BATCH_BYTES * BATCH_STEPS:
            raise ValueError(f"a file of {self.bytes:,} bytes cannot hold {self.steps:,} steps")


def write_steps(
    file: BinaryIO,
    columns: Mapping[str, Array],
    notes: Mapping[str, bytes] | None = None,
    *,
    sync: bool = False,
) -> StepsInfo:
    """Write columns of equal length to `file`, and sync it if `sync`. Equal columns, equal bytes.

    `notes` are kept in the schema's metadata. Memory: a few batches beside the caller's arrays, which are
    not copied.
    """
    lengths = {name: len(column) if column.ndim else None for name, column in columns.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise SpecError(f"steps are one or more columns of equal length, not of {lengths}.")
    layout = StepFileLayout.of(columns, notes)
    batches = (
        {name: values[start : start + layout.batch] for name, values in columns.items()}
        for start in range(0, max(1, layout.steps), layout.batch)  # no steps: one empty batch
    )
    return write_batches(file, layout, batches, sync=sync, level=_level(columns))


def write_batches(
    file: BinaryIO,
    layout: StepFileLayout,
    batches: Iterable[Mapping[str, Array]],
    *,
    sync: bool = False,
    level: int | None = DENSE,
) -> StepsInfo:
    """`write_steps` for columns that come a batch at a time, each as long as the layout requires."""
    import pyarrow as pa

    schema = layout.schema()
    codec = None if level is None else pa.Codec("zstd", compression_level=level)
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    tally = Tally(file)
    with pa.ipc.new_file(tally, schema, options=options) as writer:
        for number, columns in enumerate(batches):
            sums, arrays = [], []
            for column in layout.columns:
                part = np.ascontiguousarray(columns[column.name])
                if part.dtype == bool:
                    part = part.view(np.uint8) != 0  # a bool may be any byte; an Arrow bool is a bit
                sums.append(layout.checksum(column, number * layout.batch, part))
                arrays.append(column.to_arrow(part))
            batch = pa.record_batch(arrays, schema=schema)
            writer.write_batch(batch, {"lakepond.xxh3": json.dumps(sums, allow_nan=False)})
    digest = tally.finish(sync=sync)
    return StepsInfo(layout.steps, tally.bytes, digest)


def _level(columns: Mapping[str, Array]) -> int | None:
    """The level that is worth its time, by a sample; None: not compressed, it would save a twentieth at most.

    The dense one has to save a seventh more than the quick one.
    """
    steps = max(1, SAMPLE_BYTES // max(1, sum(column[:1].nbytes for column in columns.values())))
    sample = b"".join(column[:steps].tobytes() for column in columns.values())
    sizes = {level: len(zstandard.ZstdCompressor(level=level).compress(sample)) for level in (DENSE, QUICK)}
    if sizes[DENSE] < 6 / 7 * sizes[QUICK]:
        return DENSE
    return QUICK if sizes[QUICK] < 19 / 20 * len(sample) else None


def read_steps(
    source: str | os.PathLike[str] | bytes | memoryview,
    columns: Sequence[str] | None = None,
    start: int | None = None,
    stop: int | None = None,
    *,
    layout: StepFileLayout | None = None,
    name: str | None = None,
) -> dict[str, Array]:
    """Steps [start, stop) of these columns, or of all, as new arrays; every batch that is read is checked.

    layout: as `read_layout` returns it, if it is known. name: of a buffer, for errors. Anything that is not
    as it was written raises `LakeCorrupt`. Memory: the result and one batch.
    """
    import pyarrow as pa

    what, opened = _open(source, name)
    with opened as file:
        if layout is None:
            with _blaming(what):
                layout = StepFileLayout.from_schema(pa.ipc.open_file(file).schema)
        known = [column.name for column in layout.columns]
        wanted = known if columns is None else list(columns)
        begin, end = 0 if start is None else start, layout.steps if stop is None else stop
        if not set(wanted) <= set(known):
            raise SpecError(f"{what} has the columns {known}; requested were {wanted}.")
        if not 0 <= begin <= end <= layout.steps:
            raise IndexError(f"{what} has steps [0, {layout.steps}); requested were [{begin}, {end}).")
        with _blaming(what):
            _check_sizes(file, layout, begin, end)  # before memory is allocated for them
            out = {name: layout.columns[known.index(name)].empty(end - begin) for name in wanted}
            _read_into(out, file, layout, begin, end)
    return out


def read_notes(source: str | os.PathLike[str] | bytes | memoryview) -> dict[str, bytes]:
    """The notes of a file of steps, checked."""
    return dict(read_layout(source).notes)


def read_layout(
    source: str | os.PathLike[str] | bytes | memoryview, *, name: str | None = None
) -> StepFileLayout:
    """The layout in the schema of a file of steps, checked. `name`: of a buffer, for errors."""
    import pyarrow as pa

    what, opened = _open(source, name)
    with opened as file, _blaming(what):
        return StepFileLayout.from_schema(pa.ipc.open_file(file).schema)


def _open(source: str | os.PathLike[str] | bytes | memoryview, name: str | None) -> tuple[str, Any]:
    """What errors call a file or a buffer, and the open file."""
    import pyarrow as pa

    if isinstance(source, str | os.PathLike):
        # not mapped: as fast, and a file cut by another process is an error and not a SIGBUS
        return os.fspath(source), pa.OSFile(os.fspath(source))
    return name or "this buffer", pa.BufferReader(source)


def _check_sizes(file: Any, layout: StepFileLayout, begin: int, end: int) -> None:
    """ValueError unless the batches of [begin, end) declare the sizes of the layout and fit in the file."""
    batches = read_footer(file.read_at, file.size()).batches
    if len(batches) != -(-max(1, layout.steps) // layout.batch):
        raise ValueError(f"{len(batches)} batches cannot hold {layout.steps} steps")
    for number in range(begin // layout.batch, -(-end // layout.batch)):
        steps = min(layout.batch, layout.steps - number * layout.batch)
        declared = read_batch(file.read_at, batches[number])
        expected = steps * layout.width + 64 * len(layout.columns)  # buffers may be padded
        if declared.rows != steps or declared.bytes > min(expected, MOST_RATIO * batches[number][2]):
            raise ValueError(
                f"batch {number} declares {declared.rows} steps and {declared.bytes:,} bytes, expected are "
                f"{steps} steps of {layout.width:,} bytes in {batches[number][2]:,} stored bytes"
            )


def _read_into(out: dict[str, Array], file: Any, layout: StepFileLayout, begin: int, end: int) -> None:
    import pyarrow as pa

    places = [place for place, column in enumerate(layout.columns) if column.name in out]
    reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=places))
    if begin == end or not places:  # Arrow would take "no columns" for "all columns"
        return
    for number in range(begin // layout.batch, -(-end // layout.batch)):
        batch, metadata = reader.get_batch_with_custom_metadata(number)
        sums = json.loads(metadata[b"lakepond.xxh3"])
        first = number * layout.batch
        steps = min(layout.batch, layout.steps - first)
        if batch.num_rows != steps or len(sums) != len(layout.columns):
            raise ValueError(f"batch {number} has {batch.num_rows} steps and {len(sums)} checksums")
        low, high = max(begin, first), min(end, first + steps)
        for place, array in zip(places, batch.columns, strict=True):
            column = layout.columns[place]
            part = column.from_arrow(array, steps)
            if layout.checksum(column, first, part) != sums[place]:
                raise ValueError(f"column {column.name!r} of batch {number} does not match its checksum")
            out[column.name][low - begin : high - begin] = part[low - first : high - first]


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Whatever goes wrong in reading is the file's fault, but for a failing disk and want of memory."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        if isinstance(error, MemoryError):
            bytearray(64 << 20)  # raises when memory is short indeed; else a length in the file is wrong
        raise LakeCorrupt(
            f"{what} is damaged: {error}. Restore it from a copy, or run `lakepond repair`."
        ) from error
