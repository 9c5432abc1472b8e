"""The rows of one segment: a Zarr v3 shard file.

    block 0 │ block 1 │ ... │ block n-1 │ sums       │ index                  │ crc32c
    block_rows rows each, the last one   8 bytes a    offset and size of each   of the index,
    padded with zeros; zstd or plain     block, u64   block, u64 little-endian  u32

A block is one zstd frame (`codec="zstd"`) or the bytes themselves (`codec="none"`). A sum is the xxh3-64 of
the block as it is stored and is checked before decoding, so a broken block never reaches the decoder. Zarr
readers find the blocks through the index alone and step over the sums. What the file does not contain
(how many rows, how long a row is, its name by content) is in its `ShardInfo`, which the commit keeps.

With `codec="none"` blocks lie end to end, so any range of rows is one array in the mapped file.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, wait
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zstandard
from numpy.typing import DTypeLike, NDArray

from lakepond.errors import LakeCorrupt, SpecError
from lakepond.lake.format.blocks import Blocks, ShardInfo, block_rows_for
from lakepond.lake.format.shard_writer import write_shard

__all__ = ["LakeCorrupt", "Shard", "ShardInfo", "block_rows_for", "run", "write_shard", "zarr_metadata"]

GROUP_BYTES = 2 << 20  # plain bytes decoded in one go: long enough that threads seldom meet at the GIL
_WORKERS = min(8, os.cpu_count() or 1)

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


class _Group(NamedTuple):
    """Blocks decoded in one go, and the places [start, stop) that their rows have in the sorted request."""

    blocks: Ints
    start: int
    stop: int
    whole: bool
    """every row of these blocks is wanted, in order: they are decoded straight into the destination"""


class Shard:
    """A shard file, open for reading by any number of threads.

    Opening checks length, index and bounds; reading checks every block it touches. What is not as it was
    written raises `LakeCorrupt`; wrong rows are never returned. Memory: 2 MiB a thread, or a block if larger.
    """

    def __init__(self, path: str | os.PathLike[str], info: ShardInfo, *, held: bool = False) -> None:
        """`held`: the file is kept in memory, as it is stored."""
        self.path, self.info = Path(path), info
        self._blocks = Blocks(path, info, held=held)

    @property
    def held_bytes(self) -> int:
        """Bytes in memory."""
        return self._blocks.held_bytes

    def __len__(self) -> int:
        """How many rows."""
        return self.info.rows

    def read(self, indices: Ints, out: Bytes, pool: Executor | None = None) -> Bytes:
        """The rows at `indices`, in that order, into `out`; every block touched is decoded once.

        Any order, with repeats; sorted is fastest. The threads of `pool` help, the caller's works too.
        """
        run(self.jobs(indices, out), pool)
        return out

    def jobs(self, indices: Ints, out: Bytes) -> list[Job]:
        """The same as jobs for `run`, which may be joined with those of other files."""
        indices = self._checked_request(indices, out)
        if self.info.codec == "none":
            return [lambda _: self._copy(indices, out)]
        if not len(indices):
            return []
        order = None
        if np.any(indices[1:] < indices[:-1]):
            order = np.argsort(indices, kind="stable")
            indices = indices[order]
        groups = self._groups(indices, in_order=order is None)
        return [partial(self._decode, group, indices, order, out) for group in groups]

    def _copy(self, indices: Ints, out: Bytes) -> None:
        self._blocks.check_plain(np.unique(indices // self.info.block_rows))
        if len(indices) and np.all(np.diff(indices) == 1):
            out[:] = self._plain()[indices[0] : indices[-1] + 1]
        else:
            np.take(self._plain(), indices, axis=0, out=out, mode="clip")  # "raise" would copy twice

    def rows(self, start: int, stop: int, out: Bytes, pool: Executor | None = None) -> Bytes:
        """Rows [start, stop) into `out`."""
        return self.read(np.arange(start, stop), out, pool)

    def view(self, start: int, stop: int, *, check: bool = True) -> Bytes:
        """Rows [start, stop) of a plain shard where they lie in the mapped file: read-only, nothing copied.

        The first view of a block reads it to check it; `check=False` leaves that to `verify`.
        """
        if self.info.codec != "none":
            raise SpecError("only a shard written with codec='none' has views; use rows(start, stop, out).")
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"{self.path} has rows [0, {len(self)}); [{start}, {stop}) is not among them.")
        if check and start < stop:
            size = self.info.block_rows
            self._blocks.check_plain(np.arange(start // size, (stop - 1) // size + 1))
        return self._plain()[start:stop]

    def verify(self) -> None:
        """Read the file once and decode it; `LakeCorrupt` unless it is, byte for byte, what was written.

        No other thread may use the object meanwhile.
        """
        with self._blocks.checking_digest():
            if self.info.codec == "none":
                self._blocks.check_stored()
            else:
                self._decode_all()

    def _decode_all(self) -> None:
        size = max(1, GROUP_BYTES // self._blocks.block_bytes)
        starts = range(0, self.info.blocks, size)
        groups = [_Group(np.arange(at, min(at + size, self.info.blocks)), 0, 0, False) for at in starts]
        none, nowhere = np.empty(0, np.int64), np.empty((0, self.info.row_bytes), np.uint8)
        run([partial(self._decode, group, none, None, nowhere) for group in groups])

    def close(self) -> None:
        """Close the file; views handed out stay valid."""
        self._blocks.close()

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _plain(self) -> Bytes:
        if self._blocks.plain is None:
            raise ValueError(f"{self.path} is closed.")
        return self._blocks.plain.reshape(-1, self.info.row_bytes)[: self.info.rows]

    def _checked_request(self, indices: Ints, out: Bytes) -> Ints:
        wanted = (len(indices), self.info.row_bytes)
        if out.dtype != np.uint8 or out.shape != wanted or not out.flags.c_contiguous:
            raise ValueError(f"out must be contiguous uint8 of {wanted}, not {out.dtype} of {out.shape}.")
        if len(indices) and not (indices.min() >= 0 and indices.max() < len(self)):
            requested = f"{indices.min()} to {indices.max()}"
            raise IndexError(f"{self.path} has rows [0, {len(self)}); requested were {requested}.")
        return indices.astype(np.int64, casting="same_kind", copy=False)

    def _groups(self, indices: Ints, in_order: bool) -> list[_Group]:
        blocks = indices // self.info.block_rows
        first = np.flatnonzero(np.diff(blocks, prepend=-1))
        touched, edges = blocks[first], np.append(first, len(indices))
        whole = np.zeros(len(touched), bool)
        if in_order and np.all(indices[1:] > indices[:-1]):
            whole = np.diff(edges) == self.info.block_rows
        size = max(1, min(GROUP_BYTES // self._blocks.block_bytes, -(-len(touched) // (2 * _WORKERS))))
        turns = [0, *(np.flatnonzero(whole[1:] != whole[:-1]) + 1).tolist(), len(touched)]
        groups: list[_Group] = []
        for begin, end in pairwise(turns):
            for at in range(begin, end, size):
                to = min(at + size, end)
                groups.append(_Group(touched[at:to], int(edges[at]), int(edges[to]), bool(whole[at])))
        return groups

    def _decode(self, group: _Group, indices: Ints, order: Ints | None, out: Bytes, own: Own) -> None:
        blocks, start, stop, whole = group
        if whole:
            self._blocks.decode(blocks.tolist(), out[start:stop].reshape(-1), own.zstd)
            return
        plain = own.room(len(blocks) * self._blocks.block_bytes)
        self._blocks.decode(blocks.tolist(), plain, own.zstd)
        rows, wanted = plain.reshape(-1, self.info.row_bytes), indices[start:stop]
        slot = np.searchsorted(blocks, wanted // self.info.block_rows)
        local = slot * self.info.block_rows + wanted % self.info.block_rows
        if order is None:
            np.take(rows, local, axis=0, out=out[start:stop], mode="clip")
        else:
            out[order[start:stop]] = rows[local]


class Own:
    """What a thread needs for itself to decode."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()
        self._scratch: Bytes = np.empty(0, np.uint8)

    def room(self, size: int) -> Bytes:
        """An array of `size` bytes, valid until the next call."""
        if len(self._scratch) < size:
            self._scratch = np.empty(size, np.uint8)
        return self._scratch[:size]


Job = Callable[[Own], None]


def run(jobs: Iterable[Job], pool: Executor | None = None) -> None:
    """Do all jobs; the threads of `pool` help, the caller's works too. The first error is raised."""
    waiting = deque(jobs)

    def work() -> None:
        own = Own()
        while waiting:
            try:
                job = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            job(own)

    helpers = min(_WORKERS, len(waiting)) - 1 if pool is not None else 0
    futures = [pool.submit(work) for _ in range(helpers)] if pool is not None else []
    try:
        work()
    finally:
        waiting.clear()
        started = [future for future in futures if not future.cancel()]  # a busy pool may not have started
        wait(started)  # they write to the caller's array
    for future in started:
        future.result()


def zarr_metadata(
    info: ShardInfo, row_shape: tuple[int, ...] | None = None, dtype: DTypeLike = np.uint8
) -> dict[str, Any]:
    """The zarr.json with which any Zarr v3 reader opens the shard as an array of (rows, *row_shape).

    The file is the array's only chunk: `c/0/0...`, a zero a dimension. Without a shape rows are bytes.
    """
    shape, kind = row_shape if row_shape is not None else (info.row_bytes,), np.dtype(dtype).newbyteorder("<")
    if np.prod(shape, dtype=np.int64) * kind.itemsize != info.row_bytes or kind.kind not in "biufc":
        raise SpecError(f"rows of {info.row_bytes} bytes are not arrays of {shape} {kind}.")
    blocks: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if info.codec == "zstd":
        blocks.append({"name": "zstd", "configuration": {"level": 1, "checksum": False}})
    sharding = {
        "chunk_shape": [info.block_rows, *shape],
        "codecs": blocks,
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "index_location": "end",
    }
    whole = [max(1, info.blocks) * info.block_rows, *shape]
    zero: Any = {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(kind.kind, 0)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [info.rows, *shape],
        "data_type": kind.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": whole}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": zero,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
    }
