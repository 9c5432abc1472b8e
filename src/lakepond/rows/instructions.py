"""Instructions on memory by address, for compiled code: load, compare, copy, prefetch."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lakepond.rows.compiling import native

memcmp = types.ExternalFunction("memcmp", types.int32(types.int64, types.int64, types.int64))
memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
madvise = types.ExternalFunction("madvise", types.int32(types.int64, types.int64, types.int32))

VECTOR_WORDS = 8
"""words that are worked on side by side"""
BLOCK = 8 * VECTOR_WORDS
"""bytes of these"""
WORD = ir.IntType(64)
VECTOR = ir.VectorType(WORD, VECTOR_WORDS)


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
    """Prefetch the page table entry and the first bytes of an address."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, *[ir.IntType(32)] * 3])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, *[ir.Constant(ir.IntType(32), n) for n in (0, 3, 1)]])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _copy_blocks(context: Any, builder: Any, args: Any, non_temporal: bool) -> Any:
    target, source, blocks = args
    with cgutils.for_range(builder, blocks) as loop:
        at = builder.mul(loop.index, ir.Constant(WORD, BLOCK))
        words = builder.load(builder.inttoptr(builder.add(source, at), VECTOR.as_pointer()))
        words.align = 1
        store = builder.store(words, builder.inttoptr(builder.add(target, at), VECTOR.as_pointer()))
        store.align = BLOCK if non_temporal else 1
        if non_temporal:
            yes = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
            store.set_metadata("nontemporal", yes)
    return context.get_dummy_value()


@intrinsic
def copy_blocks(_typing: Any, target: Any, source: Any, blocks: Any) -> Any:
    """Copy blocks from one address to another."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _copy_blocks(context, builder, args, non_temporal=False)

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def stream_blocks(_typing: Any, target: Any, source: Any, blocks: Any) -> Any:
    """The same with non-temporal stores, to an address that is a multiple of `BLOCK`."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _copy_blocks(context, builder, args, non_temporal=True)

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def fence(_typing: Any) -> Any:
    """Make all earlier stores visible to other threads before later ones."""

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


LONG = 32 << 10
"""bytes; what is as long is copied by vector instructions. Up to the size of the second cache the C library
may take one of its own (`rep movsb`) that is slower between odd addresses: 62 KB at 15 GB/s instead of 20"""


@native
def copy(target: int, source: int, size: int) -> None:
    """memcpy, also where that of the C library is slow."""
    blocks = size // BLOCK if size >= LONG else 0
    copy_blocks(target, source, blocks)
    memcpy(target + blocks * BLOCK, source + blocks * BLOCK, size - blocks * BLOCK)


STREAMED = 4 << 10
"""bytes; shorter copies do not profit from non-temporal stores"""


@native
def copy_bypassing_cache(target: int, source: int, size: int) -> None:
    """Copy with non-temporal stores: the target is not read into the cache before it is written.

    26 µs for 450 KB where memcpy takes 41. Other threads may read it after a `fence`.
    """
    if size < STREAMED:
        memcpy(target, source, size)
        return
    head = -target & (BLOCK - 1)
    blocks = (size - head) // BLOCK
    tail = head + blocks * BLOCK
    memcpy(target, source, head)
    stream_blocks(target + head, source + head, blocks)
    memcpy(target + tail, source + tail, size - tail)
