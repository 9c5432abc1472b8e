"""Hashes of bytes in memory, compiled. They need not be strong: bytes are compared wherever two are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

PROBE_MASK = np.uint64(63)
"""while the search for repeats is backed off, one window in 64 is searched for, chosen by its content"""


@intrinsic
def load_word(_typing: Any, address: Any) -> Any:
    """The eight bytes at an address, which need not be aligned."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(types.int64), codegen


@intrinsic
def load_byte(_typing: Any, address: Any) -> Any:
    """The byte at an address."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return builder.zext(byte, ir.IntType(64))

    return types.uint64(types.int64), codegen


@intrinsic
def prefetch(_typing: Any, address: Any) -> Any:
    """Have the page of an address looked up, and its first bytes fetched, while other work goes on."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, *[ir.IntType(32)] * 3])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, *[ir.Constant(ir.IntType(32), n) for n in (0, 3, 1)]])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


LANES = 8
"""words that are hashed side by side"""


@intrinsic
def strands(_typing: Any, address: Any, blocks: Any) -> Any:
    """Sums over so many blocks of `LANES` words, one for each lane: of words, and of their halves' products.

    A word is mixed with a key of its place before it is halved, so the order of words counts. Written as
    vector instructions, because numba would take one word at a time: five times faster.
    """
    word = ir.IntType(64)
    vector = ir.VectorType(word, LANES)

    def each(value: int) -> Any:
        return ir.Constant(vector, [value] * LANES)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = ir.Constant(vector, [0x9E3779B97F4A7C15 * (2 * i + 1) % 2**64 for i in range(LANES)])
        key, total = (cgutils.alloca_once_value(builder, start) for _ in range(2))
        with cgutils.for_range(builder, args[1]) as loop:
            at = builder.add(args[0], builder.mul(loop.index, ir.Constant(word, 8 * LANES)))
            words = builder.load(builder.inttoptr(at, vector.as_pointer()))
            words.align = 1
            now = builder.load(key)
            mixed = builder.xor(words, now)
            product = builder.mul(builder.and_(mixed, each(2**32 - 1)), builder.lshr(mixed, each(32)))
            builder.store(builder.add(builder.load(total), builder.add(product, words)), total)
            builder.store(builder.add(now, each(0xC2B2AE3D27D4EB4F)), key)
        sums = builder.load(total)
        found = [builder.extract_element(sums, ir.Constant(ir.IntType(32), i)) for i in range(LANES)]
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(types.uint64, LANES)(types.int64, types.int64), codegen


MULTIPLY = np.uint64(0x9FB21C651E98DF25)
SHIFT = np.uint64(29)


@njit(nogil=True)
def hash_bytes(address: int, size: int) -> Any:
    """A hash of some bytes, never 0."""
    h = np.uint64(size)
    blocks = size // (8 * LANES)
    for strand in strands(address, blocks):
        h = (h ^ strand) * MULTIPLY
        h ^= h >> SHIFT
    at = address + blocks * 8 * LANES
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


@njit(nogil=True)
def is_probe(address: int, size: int) -> bool:
    """One window in 64, chosen by a few of its bytes, so that the same window is chosen again."""
    h = np.uint64(size)
    for k in range(16):
        h = (h ^ load_byte(address + k * (size - 1) // 15)) * MULTIPLY
        h ^= h >> SHIFT
    return h & PROBE_MASK == np.uint64(0)
