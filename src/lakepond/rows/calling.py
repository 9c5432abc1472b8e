"""Calling what numba compiled, without what numba does at each call; imported with the kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import typeof

from lakepond.rows import memory
from lakepond.rows.instructions import native
from lakepond.types import Array


def compiled(function: Any, *like: Any) -> Callable[..., Any]:
    """`function` compiled for arguments like these, which calls to come are not checked against.

    numba looks at the types of every argument of every call, which takes 4 µs for the books of a store.
    Arguments of another dtype or layout would be misread: for callers that always hand over the same.
    """
    entry: Callable[..., Any] = function.compile(tuple(typeof(argument) for argument in like))
    return entry


@native(cache=True)
def address_of(array: Array) -> int:
    """Where an array starts; compiled once for each kind of array, then five times faster than NumPy."""
    address: int = array.ctypes.data
    return address


def knows(dtype: np.dtype[Any]) -> bool:
    """Whether numba has that dtype."""
    return dtype.char in "?bBhHiIlLqQfdFD" and dtype.isnative and dtype.isbuiltin == 1


@cache
def address_taker(dtype: np.dtype[Any], ndim: int) -> Callable[[Array], int]:
    """`address_of` for contiguous arrays of that dtype and so many axes, and no others: twice as fast."""
    if not knows(dtype):
        return memory.address_of
    return compiled(address_of, np.empty((0,) * ndim, dtype))
