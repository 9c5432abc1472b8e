"""The two checksums of a file in the lake that are not xxh3.

`Tally`   names a file by its content: SHA-256, the first 20 bytes. A name has to hold against accident and
          intent, which xxh3 does not promise; CPUs have instructions for SHA-256, so it costs the least.
`crc32c`  guards the index of a shard, because the Zarr format says so. An index is 16 bytes a block, so NumPy
          is fast enough (64 KB in under a millisecond) and no further library is needed.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from functools import cache
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

DIGEST, DIGEST_BYTES = "sha256-160", 20
"""how files are named: SHA-256, cut to 160 bits"""
PIECE_BYTES = 256 << 10  # written in one go
UNHASHED_BYTES = 4 << 20  # that are held for the end
_POLYNOMIAL = 0x82F63B78  # Castagnoli, lowest bit first


class Digest:
    """The hash that names a file: feed it the file's bytes, its `hexdigest()` is the name."""

    def __init__(self, data: bytes = b"") -> None:
        self._sha256 = hashlib.sha256(data)
        self.update = self._sha256.update

    def copy(self, data: bytes) -> Digest:
        """Another one, of the same bytes followed by these."""
        found = Digest()
        found._sha256 = self._sha256.copy()
        found.update = found._sha256.update
        found.update(data)
        return found

    def hexdigest(self) -> str:
        """The name of what was fed so far: as many digits as two for each of DIGEST_BYTES."""
        return self._sha256.hexdigest()[: 2 * DIGEST_BYTES]


def digest_of(data: bytes) -> str:
    """The name of these bytes."""
    return Digest(data).hexdigest()


class Tally:
    """A file being written: whole writes only, counted and hashed.

    A thread hashes large pieces while they and later ones are written and synced.
    """

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = Digest()
        self._small = bytearray()
        self._unhashed: list[memoryview] = []
        self._hashing: threading.Thread | None = None
        self.bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Take all of `data`, which must not change before `hash_pending` or `finish`."""
        view = memoryview(data).cast("B")
        self.bytes += len(view)
        if len(view) < PIECE_BYTES // 4:
            self._small += view  # copied: a few bytes may hold a large buffer
            if len(self._small) >= PIECE_BYTES:
                self._pass_on_small()
        else:
            self._pass_on_small()
            self._pass_on(view)
        return len(view)

    def tell(self) -> int:
        """Bytes taken so far, whatever the file held before."""
        return self.bytes

    def flush(self) -> None:
        """Nothing to do: `finish` writes all buffered bytes."""

    def hash_pending(self) -> None:
        """Hash what has been written: it may change from now on."""
        if self._hashing is not None:
            self._hashing.join()
            self._hashing = None
        self._hash(self._unhashed)
        self._unhashed = []

    def finish(self, *, sync: bool) -> str:
        """Write all that is held back, and sync the file; returns the name of what is in it."""
        self._pass_on_small()
        if sync:
            try:
                os.fsync(self._file.fileno())
            finally:
                self.hash_pending()
        else:
            self.hash_pending()
        return self._digest.hexdigest()

    def _hash(self, pieces: list[memoryview]) -> None:
        for data in pieces:
            self._digest.update(data)

    def _pass_on_small(self) -> None:
        small, self._small = self._small, bytearray()
        if small:
            self._pass_on(memoryview(small))

    def _pass_on(self, data: memoryview) -> None:
        self._unhashed.append(data)
        unhashed = sum(map(len, self._unhashed))
        if unhashed > UNHASHED_BYTES:
            self.hash_pending()
        elif unhashed >= PIECE_BYTES and (self._hashing is None or not self._hashing.is_alive()):
            hashing = threading.Thread(target=self._hash, args=(self._unhashed,))
            with suppress(RuntimeError):  # at interpreter exit, or no thread can be started: hashed later
                hashing.start()
                self._hashing, self._unhashed = hashing, []
        while data:
            data = data[self._file.write(data) :]  # an unbuffered file takes a part at a time


def crc32c(data: bytes | memoryview) -> int:
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
