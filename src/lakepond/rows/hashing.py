"""Hashes of bytes in memory, compiled. They need not be strong: bytes are compared wherever two are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
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


MULTIPLY = np.uint64(0x9FB21C651E98DF25)
SHIFT = np.uint64(29)


@njit(nogil=True)
def hash_bytes(address: int, size: int) -> Any:
    """A hash of some bytes, never 0; four strands, so that the multiplications overlap."""
    a = np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(size)
    b = np.uint64(0xC2B2AE3D27D4EB4F)
    c = np.uint64(0x165667B19E3779F9)
    d = np.uint64(0x27D4EB2F165667C5)
    at = address
    stop = address + size
    while at + 32 <= stop:
        a = (a ^ load_word(at)) * MULTIPLY
        b = (b ^ load_word(at + 8)) * MULTIPLY
        c = (c ^ load_word(at + 16)) * MULTIPLY
        d = (d ^ load_word(at + 24)) * MULTIPLY
        a ^= a >> SHIFT
        b ^= b >> SHIFT
        c ^= c >> SHIFT
        d ^= d >> SHIFT
        at += 32
    while at + 8 <= stop:
        a = (a ^ load_word(at)) * MULTIPLY
        a ^= a >> SHIFT
        at += 8
    while at < stop:
        b = (b ^ load_byte(at)) * MULTIPLY
        b ^= b >> SHIFT
        at += 1
    h = (a ^ (b << np.uint64(1))) * MULTIPLY
    h = (h ^ (h >> SHIFT) ^ c) * MULTIPLY
    h = (h ^ (h >> SHIFT) ^ d) * MULTIPLY
    h ^= h >> SHIFT
    return h if h != np.uint64(0) else np.uint64(1)


@njit(nogil=True)
def is_probe(address: int, size: int) -> bool:
    """One window in 64, chosen by a few of its bytes, so that the same window is chosen again."""
    h = np.uint64(size)
    for k in range(16):
        h = (h ^ load_byte(address + k * (size - 1) // 15)) * MULTIPLY
        h ^= h >> SHIFT
    return h & PROBE_MASK == np.uint64(0)
