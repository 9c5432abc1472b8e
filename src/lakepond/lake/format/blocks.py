"""The blocks of a shard file, which `shard.py` draws: found through the index, fetched, checked, decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray

from lakepond.errors import LakeCorrupt, SpecError
from lakepond.lake.format.checksum import Digest, crc32c
from lakepond.lake.format.names import GONE
from lakepond.lake.open_files import ReadFile

CODECS = ("zstd", "none")
BLOCK_BYTES = 32 * 84 * 84  # plain bytes a block aims at: 32 Atari frames
MOST_BLOCK_BYTES = 1 << 20
"""uncompressed bytes of a block that has more than one row"""
MOST_RATIO = 1 << 15
"""bytes that one byte of a zstd frame can expand to: a block of 128 KiB that repeats one byte takes 4"""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class ShardInfo:
    """All that is true of a shard file and is not in it."""

    rows: int
    row_bytes: int
    block_rows: int
    codec: str
    bytes: int
    """size of the file"""
    digest: str
    """SHA-256 of the file's bytes, its first 40 hex digits: its name"""

    def __post_init__(self) -> None:
        sound = self.rows >= 0 and self.row_bytes >= 1 and self.block_rows >= 1 and self.codec in CODECS
        if not sound or self.block_rows * self.row_bytes >= 1 << 31:  # what one system call reads at most
            raise SpecError(
                f"no shard has rows={self.rows}, row_bytes={self.row_bytes}, block_rows={self.block_rows}, "
                f"codec={self.codec!r}: sizes are at least 1, a block is under 2 GiB, codecs are {CODECS}."
            )

    @property
    def blocks(self) -> int:
        """How many blocks; the last one may be padded."""
        return -(-self.rows // self.block_rows)

    def check_size(self) -> None:
        """ValueError if a file of this size cannot hold that many rows."""
        block_bytes = self.block_rows * self.row_bytes
        if self.block_rows > 1 and block_bytes > MOST_BLOCK_BYTES:
            raise ValueError(f"blocks of {block_bytes:,} bytes exceed the limit of {MOST_BLOCK_BYTES:,}")
        stored = self.bytes - 24 * self.blocks - 4  # without sums and index
        if self.blocks * block_bytes > stored * (MOST_RATIO if self.codec == "zstd" else 1):
            raise ValueError(
                f"a file of {self.bytes:,} bytes cannot hold {self.rows:,} rows of {self.row_bytes:,} bytes"
            )


def block_rows_for(row_bytes: int) -> int:
    """How many rows make a block: about 220 KB, at least one row."""
    return max(1, BLOCK_BYTES // row_bytes)


class Blocks:
    """An open shard file as blocks; every block is checked before it is used.

    `plain` is the mapped file of a shard with codec "none", without its tail, and None otherwise.
    """

    def __init__(self, path: str | os.PathLike[str], info: ShardInfo, *, held: bool = False) -> None:
        """`held`: the file is read whole, as it is stored, and kept in memory."""
        self.path, self.info = Path(path), info
        self._held: memoryview | None = None
        self._hashed: tuple[Digest, int] | None = None
        self.block_bytes = info.block_rows * info.row_bytes
        self.plain: Bytes | None = None
        self._file = ReadFile(self.path)
        try:
            size = self.path.stat().st_size
            if size != info.bytes:
                raise self.corrupt(f"it has {size} bytes where {info.bytes} were written")
            if held:
                self._held = memoryview(self.path.read_bytes())
                size = len(self._held)
            self._open_index(size)
        except BaseException:
            self._file.close()
            raise

    def _open_index(self, size: int) -> None:
        blocks, step = self.info.blocks, self.block_bytes
        end = size - 24 * blocks - 4  # where the blocks end and the sums begin
        if end < 0:
            raise self.corrupt(f"its {size} bytes are too few for the index of {blocks} blocks")
        tail = self._pread(end, size - end)
        index = tail[8 * blocks : -4]
        if crc32c(index) != int.from_bytes(tail[-4:], "little"):
            raise self.corrupt("its index does not match the checksum of the index")
        offsets, sizes = np.frombuffer(index, "<u8").reshape(blocks, 2).T
        if np.any(offsets > end) or np.any(sizes > end - np.minimum(offsets, end)) or not np.all(sizes):
            raise self.corrupt("its index points outside of it")
        if self.info.codec == "zstd" and np.any(sizes * MOST_RATIO < step):
            raise self.corrupt(f"it has a block of {sizes.min()} bytes, which cannot hold {step:,}")
        self._sums: list[int] = np.frombuffer(tail, "<u8", blocks).tolist()
        self._spans: list[tuple[int, int]] = list(zip(offsets.tolist(), sizes.tolist(), strict=True))
        if self.info.codec == "none":
            if self._spans != [(step * block, step) for block in range(blocks)]:
                raise self.corrupt("its uncompressed blocks are not contiguous")
            self.plain = _mapped(self.path)[: step * blocks]
            self._checked = np.zeros(blocks, bool)

    @property
    def held_bytes(self) -> int:
        """Bytes in memory."""
        return 0 if self._held is None else len(self._held)

    def decode(self, blocks: list[int], out: Bytes, zstd: zstandard.ZstdDecompressor) -> None:
        """These blocks, end to end, into `out`; a decompressor serves one thread at a time."""
        frames = self._frames(blocks)
        try:  # one call for many frames: each is decoded in a single pass, straight into its place
            size = zstd.stream_reader(frames, read_across_frames=True).readinto(out)
        except zstandard.ZstdError as error:
            raise self.corrupt(f"one of the blocks {blocks} is not a zstd frame ({error})") from error
        if size != len(out):
            raise self.corrupt(f"the blocks {blocks} hold {size} bytes, not {len(out)}")

    def check_plain(self, blocks: NDArray[np.int64]) -> None:
        """Check the plain blocks among these that were not checked since the file was opened."""
        if self.plain is None:
            return
        for block in blocks[~self._checked[blocks]].tolist():
            self._check(block, self.plain[block * self.block_bytes : (block + 1) * self.block_bytes].data)
            self._checked[block] = True

    def check_stored(self) -> None:
        """Read all blocks in their order and check them as they are stored."""
        for block, (offset, size) in enumerate(self._spans):
            self._check(block, memoryview(self._pread(offset, size)))

    @contextmanager
    def checking_digest(self) -> Iterator[None]:
        """Hash what one thread reads in the block, in the order of the file; then the rest of the file.

        At the end `LakeCorrupt` is raised unless the digest is that of the file's name.
        """
        self._hashed = Digest(), 0
        try:
            yield
            while (at := self._hashed[1]) < self.info.bytes:
                self._pread(at, min(1 << 20, self.info.bytes - at))
            found = self._hashed[0].hexdigest()
        finally:
            self._hashed = None
        if found != self.info.digest:
            raise self.corrupt(f"its content has the digest {found}, not {self.info.digest}")

    def corrupt(self, what: str) -> LakeCorrupt:
        """The error that says so, and what to do."""
        return LakeCorrupt(
            f"{self.path} is damaged: {what}. Restore it from a copy, or run `lakepond repair`."
        )

    def close(self) -> None:
        """Close the file; arrays that lie in the mapped file stay valid."""
        self.plain = self._held = None
        self._file.close()

    def _frames(self, blocks: list[int]) -> bytes | memoryview:
        """The frames of these blocks, end to end and checked; neighbours are read together."""
        pieces: list[bytes | memoryview] = []
        done = 0
        while done < len(blocks):
            begin, (offset, length) = done, self._spans[blocks[done]]
            done += 1
            while done < len(blocks) and self._spans[blocks[done]][0] == offset + length:
                length += self._spans[blocks[done]][1]
                done += 1
            piece, at = self._pread(offset, length), 0
            view = memoryview(piece)
            for block in blocks[begin:done]:
                stored = view[at : at + self._spans[block][1]]
                self._check(block, stored)
                if zstandard.frame_content_size(stored) != self.block_bytes:
                    raise self.corrupt(f"block {block} does not hold {self.block_bytes} bytes")
                at += len(stored)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _check(self, block: int, stored: memoryview) -> None:
        if xxhash.xxh3_64_intdigest(stored) != self._sums[block]:
            raise self.corrupt(f"block {block} of {self.info.blocks} does not match its checksum")

    def _pread(self, offset: int, size: int) -> bytes | memoryview:
        if self._held is not None:
            data: bytes | memoryview = self._held[offset : offset + size]
        else:
            try:
                with self._file.descriptor() as descriptor:
                    data = os.pread(descriptor, size, offset)
            except FileNotFoundError:  # deleted since it was opened first
                raise LakeCorrupt(f"{self.path} {GONE}") from None
        if len(data) != size:
            raise self.corrupt(f"it was cut off while open, before byte {offset + size}")
        if self._hashed is not None and self._hashed[1] == offset:
            self._hashed[0].update(data)
            self._hashed = self._hashed[0], offset + size
        return data


def _mapped(path: Path) -> Bytes:
    """A file in memory, read-only, for as long as the array is used; Arrow maps without a descriptor."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        return np.frombuffer(file.read_buffer(), np.uint8)
