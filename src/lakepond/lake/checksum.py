"""The two checksums of a file in the lake that are not xxh3.

`Tally`   names a file by its content: BLAKE2b, 20 bytes. A name has to hold against accident and intent,
          which xxh3 does not promise; BLAKE2b is in the standard library and needs no SHA instructions.
`crc32c`  guards the index of a shard, because the Zarr format says so. An index is 16 bytes a block, so NumPy
          is fast enough (64 KB in under a millisecond) and no further library is needed.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 20
_POLYNOMIAL = 0x82F63B78  # Castagnoli, lowest bit first


def new_digest() -> hashlib.blake2b:
    """The hash that names a file: feed it the file's bytes, its `hexdigest()` is the name."""
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


class Tally:
    """A file being written: counts and hashes the bytes that go through it, whole writes only."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = new_digest()
        self.bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`, also to an unbuffered file that takes a part at a time."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self.bytes += len(view)
        length = len(view)
        while view:
            view = view[self._file.write(view) :]
        return length

    def tell(self) -> int:
        """Bytes written so far, whatever the file held before."""
        return self.bytes

    def flush(self) -> None:
        """Nothing to do: nothing is held back."""

    closed = False

    def digest(self) -> str:
        """The name of what was written so far."""
        return self._digest.hexdigest()


def crc32c(data: bytes) -> int:
    """CRC-32C of `data`, whose length is a multiple of four.

    A CRC is linear, so neighbours are joined pairwise, all pairs at once, until one word is left:
    `[a b c d] -> [shift(a) ^ b, shift(c) ^ d] -> [shift(shift(..)) ^ ..]`.
    """
    words = np.frombuffer(data, "<u4")
    if not len(words):
        return 0
    joined = np.zeros(1 << (len(words) - 1).bit_length(), np.uint32)  # leading zeros leave a CRC as it is
    joined[-len(words) :] = words
    joined[-len(words)] ^= 0xFFFFFFFF
    width = 1
    while len(joined) > 1:
        joined = _shift(joined[0::2], _table(width)) ^ joined[1::2]
        width *= 2
    return int(_shift(joined, _table(1))[0]) ^ 0xFFFFFFFF


def _shift(registers: NDArray[np.uint32], table: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """What these registers become after as many zero words as the table is for."""
    low = table[0][registers & 255] ^ table[1][registers >> 8 & 255]
    shifted: NDArray[np.uint32] = low ^ table[2][registers >> 16 & 255] ^ table[3][registers >> 24]
    return shifted


@cache
def _table(words: int) -> NDArray[np.uint32]:
    """Entry [j, b]: the register `b << 8 * j` after `words` zero words; `words` is a power of two."""
    if words > 1:
        half = _table(words // 2)
        return _shift(half, half)
    one_byte: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one_byte = np.where(one_byte & 1, one_byte >> 1 ^ np.uint32(_POLYNOMIAL), one_byte >> 1)
    table = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)
    for _ in range(4):
        table = one_byte[table & 255] ^ (table >> 8)
    return table
