"""Writing a shard file (`shard.py` draws it): one pass, bounded memory, both cores.

rows, as they come ──▶ blocks ──▶ compressed on two threads ──▶ written in order, hashed ──▶ sums, index
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray

from lakepond.errors import SpecError
from lakepond.lake.format.blocks import ShardInfo
from lakepond.lake.format.checksum import Tally, crc32c

_BORROW = 8  # an array of this many blocks is compressed in place; from a smaller one, rows are copied
_TASK_BYTES = 1 << 20  # plain bytes compressed in one go: long enough that threads seldom meet at the GIL

Bytes = NDArray[np.uint8]


def write_shard(
    file: BinaryIO,
    rows: Iterable[Bytes],
    *,
    row_bytes: int,
    block_rows: int,
    codec: str = "zstd",
    enough: int | None = None,
    sync: bool = False,
) -> ShardInfo:
    """Write `rows`, arrays of (n, row_bytes) uint8, to `file`, and sync it if `sync`.

    With `enough` no further array is asked for once that many bytes are written: a caller that passes an
    iterator writes the rest of it to another file. An array is the caller's again as soon as the next one
    is asked for. Memory: that array and 16 MB (about six blocks, if a block is more than 1 MiB), and some
    hundred bytes a block for the index.
    """
    ShardInfo(0, row_bytes, block_rows, codec, 0, "")  # refuses what cannot be
    count = filled = 0
    staged = np.empty((0, row_bytes), np.uint8)
    tally = Tally(file)
    with _Blocks(tally, codec) as blocks:
        for part in rows:
            if part.dtype != np.uint8 or part.shape[1:] != (row_bytes,) or not part.flags.c_contiguous:
                wrong = f"{part.dtype} of {part.shape}"
                raise SpecError(f"rows must be contiguous uint8 arrays of (n, {row_bytes}), not {wrong}.")
            count += len(part)
            at = 0
            while at < len(part):
                if not filled and len(part) >= _BORROW * block_rows and len(part) - at >= block_rows:
                    blocks.add(part[at : at + block_rows])
                    at += block_rows
                    continue
                if not filled:
                    staged = np.empty((block_rows, row_bytes), np.uint8)  # the last one may be in work still
                take = min(block_rows - filled, len(part) - at)
                staged[filled : filled + take] = part[at : at + take]
                at, filled = at + take, filled + take
                if filled == block_rows:
                    blocks.add(staged)
                    filled = 0
            if len(part) >= _BORROW * block_rows:
                blocks.write_pending()
            if enough is not None and tally.bytes >= enough:
                break
        if filled:
            staged[filled:] = 0
            blocks.add(staged)
        blocks.finish()
        digest = tally.finish(sync=sync)
    return ShardInfo(count, row_bytes, block_rows, codec, tally.bytes, digest)


class _Blocks:
    """Blocks on their way to the file: compressed on two threads, written in order."""

    def __init__(self, tally: Tally, codec: str) -> None:
        self._tally, self._codec = tally, codec
        self._sizes: list[int] = []
        self._sums: list[int] = []
        self._pool: ThreadPoolExecutor | None = None  # made when there is enough to do
        self._own = threading.local()
        self._group: list[Bytes] = []
        self._waiting: deque[Future[list[tuple[bytes, int]]]] = deque()

    def __enter__(self) -> _Blocks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def add(self, block: Bytes) -> None:
        if self._codec == "none":
            plain = block.data.cast("B")
            self._write(plain, xxhash.xxh3_64_intdigest(plain))
            return
        self._group.append(block)
        if len(self._group) * block.nbytes >= _TASK_BYTES:
            self._submit()

    def write_pending(self) -> None:
        """What was added may change from now on."""
        if self._codec == "none":
            self._tally.hash_pending()
        elif self._group and self._pool is None:
            self._write_all(self._compress(self._group))  # too little for two
        elif self._group:
            self._submit()
        self._group = []
        while self._waiting:
            self._write_all(self._waiting.popleft().result())

    def _submit(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(2, "lakepond-zstd")
        try:
            task = self._pool.submit(self._compress, self._group)
        except RuntimeError:  # at interpreter exit, or no thread can be started
            task = Future()
            task.set_result(self._compress(self._group))
        self._waiting.append(task)
        self._group = []
        while len(self._waiting) > 3:
            self._write_all(self._waiting.popleft().result())

    def _write_all(self, frames: list[tuple[bytes, int]]) -> None:
        for stored, checksum in frames:
            self._write(stored, checksum)

    def finish(self) -> None:
        self.write_pending()
        sizes = np.array(self._sizes, "<u8")
        index = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1).astype("<u8").tobytes()
        self._tally.write(np.array(self._sums, "<u8").tobytes())
        self._tally.write(index + crc32c(index).to_bytes(4, "little"))

    def _compress(self, group: list[Bytes]) -> list[tuple[bytes, int]]:
        if not hasattr(self._own, "zstd"):  # a compressor serves one thread at a time
            self._own.zstd = zstandard.ZstdCompressor(level=1)
        frames: list[bytes] = [self._own.zstd.compress(block) for block in group]
        return [(frame, xxhash.xxh3_64_intdigest(frame)) for frame in frames]

    def _write(self, stored: bytes | memoryview, checksum: int) -> None:
        self._sizes.append(self._tally.write(stored))
        self._sums.append(checksum)
