"""What compiled code asks of memory, by address: to load, compare, copy, fetch ahead and provide bytes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

memcmp = types.ExternalFunction("memcmp", types.int32(types.int64, types.int64, types.int64))
memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
madvise = types.ExternalFunction("madvise", types.int32(types.int64, types.int64, types.int32))

LANES = 8
"""words that are worked on side by side"""
BLOCK = 8 * LANES
"""bytes of these"""
WORD = ir.IntType(64)
VECTOR = ir.VectorType(WORD, LANES)


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


@intrinsic
def copy_blocks(_typing: Any, target: Any, source: Any, blocks: Any) -> Any:
    """Copy so many blocks from one address to another."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        with cgutils.for_range(builder, args[2]) as loop:
            at = builder.mul(loop.index, ir.Constant(WORD, BLOCK))
            to, source = (builder.inttoptr(builder.add(a, at), VECTOR.as_pointer()) for a in args[:2])
            words = builder.load(source)
            words.align = 1
            builder.store(words, to).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


LONG = 32 << 10
"""bytes; what is as long is copied by vector instructions. Up to the size of the second cache the C library
may take one of its own (`rep movsb`) that is slower between odd addresses: 62 KB at 15 GB/s instead of 20"""


@njit(nogil=True)
def copy(target: int, source: int, size: int) -> None:
    """memcpy, also where that of the C library is slow."""
    blocks = size // BLOCK if size >= LONG else 0
    copy_blocks(target, source, blocks)
    memcpy(target + blocks * BLOCK, source + blocks * BLOCK, size - blocks * BLOCK)
