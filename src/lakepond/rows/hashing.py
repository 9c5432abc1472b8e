"""Hashes of bytes in memory, compiled. They need not be strong: bytes are compared wherever two are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lakepond.rows.compiling import native
from lakepond.rows.instructions import BLOCK, VECTOR, VECTOR_WORDS, WORD, load_byte, load_word, prefetch

PROBE_MASK = np.uint64(63)
"""while the search for repeats is backed off, one window in 64 is searched for, chosen by its content"""
PROBED = 16
"""bytes of a window that choose it"""


@intrinsic
def strands(_typing: Any, address: Any, blocks: Any) -> Any:
    """Return `VECTOR_WORDS` sums over `blocks` blocks of that many words, one for each position in a block.

    A sum adds the words and the products of their halves. A word is mixed with a key of its position before
    it is halved, so the order of words matters. Written as vector instructions, because numba would process
    one word at a time: five times faster.
    """

    def each(value: int) -> Any:
        return ir.Constant(VECTOR, [value] * VECTOR_WORDS)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = ir.Constant(VECTOR, [0x9E3779B97F4A7C15 * (2 * i + 1) % 2**64 for i in range(VECTOR_WORDS)])
        key, total = (cgutils.alloca_once_value(builder, start) for _ in range(2))
        with cgutils.for_range(builder, args[1]) as loop:
            at = builder.add(args[0], builder.mul(loop.index, ir.Constant(WORD, BLOCK)))
            words = builder.load(builder.inttoptr(at, VECTOR.as_pointer()))
            words.align = 1
            now = builder.load(key)
            mixed = builder.xor(words, now)
            product = builder.mul(builder.and_(mixed, each(2**32 - 1)), builder.lshr(mixed, each(32)))
            builder.store(builder.add(builder.load(total), builder.add(product, words)), total)
            turned = builder.xor(
                now, builder.lshr(now, each(31))
            )  # otherwise keys of neighbours differ by the same number everywhere
            builder.store(builder.add(turned, each(0xC2B2AE3D27D4EB4F)), key)
        sums = builder.load(total)
        found = [builder.extract_element(sums, ir.Constant(ir.IntType(32), i)) for i in range(VECTOR_WORDS)]
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(types.uint64, VECTOR_WORDS)(types.int64, types.int64), codegen


MULTIPLY = np.uint64(0x9FB21C651E98DF25)
SHIFT = np.uint64(29)


@native
def hash_bytes(address: int, size: int) -> Any:
    """A hash of some bytes, never 0."""
    h = np.uint64(size)
    blocks = size // BLOCK
    for strand in strands(address, blocks):
        h = (h ^ strand) * MULTIPLY
        h ^= h >> SHIFT
    at = address + blocks * BLOCK
    stop = address + size
    while at + 8 <= stop:
        h = (h ^ load_word(at)) * MULTIPLY
        h ^= h >> SHIFT
        at += 8
    while at < stop:
        h = (h ^ load_byte(at)) * MULTIPLY
        h ^= h >> SHIFT
        at += 1
    return h if h != np.uint64(0) else np.uint64(1)


@native
def probed_at(address: int, size: int, k: int) -> int:
    """Address of the k-th byte that `is_probe` reads."""
    return address + k * (size - 1) // (PROBED - 1)


@native
def is_probe(address: int, size: int) -> bool:
    """Whether a window is one of the 1 in 64 that are looked up; depends only on a few of its bytes."""
    h = np.uint64(size)
    for k in range(PROBED):
        h = (h ^ load_byte(probed_at(address, size, k))) * MULTIPLY
        h ^= h >> SHIFT
    return h & PROBE_MASK == np.uint64(0)


@native
def fetch_for_probe(address: int, size: int) -> None:
    """Prefetch the bytes that `is_probe` will read, which are far apart."""
    for k in range(PROBED):
        prefetch(probed_at(address, size, k))
