"""Rows and columns of a lake as things that NumPy takes for arrays: decoded when they are touched.

Rows that were written with codec "none" are not even copied: a number or a slice is an array in the mapped
file, read-only, as long as it does not go across the border of two files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lakepond.errors import SpecError
from lakepond.types import Array

Key = int | slice | Array | list[int]


class View:
    """One axis of a lake: `view[10]`, `view[10:20]`, `view[[1, 5, 3]]`, `np.asarray(view)`."""

    def __init__(
        self,
        length: int,
        shape: tuple[int, ...],
        dtype: Any,
        read: Callable[[Array], Array],
        mapped: Callable[[int, int], Array | None] = lambda start, stop: None,
    ) -> None:
        """`read` fetches what is at some places, in any order; `mapped` shows a range as it lies, or None."""
        self.shape = (length, *shape)
        self.dtype = np.dtype(dtype)
        self._read, self._mapped = read, mapped

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """Axes."""
        return len(self.shape)

    def __getitem__(self, key: Key) -> Array:
        if isinstance(key, slice) and key.step in (None, 1):
            start, stop, _ = key.indices(len(self))
            found = self._mapped(start, stop) if start < stop else None
            if found is not None:
                return found
        elif isinstance(key, (int, np.integer)):
            at = range(len(self))[key]
            found = self._mapped(at, at + 1)
            if found is not None:
                one: Array = found[0]
                return one
        places = self._places(key)
        if places.ndim > 1:
            raise SpecError(f"a view takes a number, a slice or a list of numbers, not {places.ndim} axes.")
        found = self._read(np.atleast_1d(places))
        return found if places.ndim else found[0]

    def _places(self, key: Key) -> Array:
        """The places that a key selects, as NumPy indexing does; memory for these alone."""
        if isinstance(key, slice):
            return np.arange(*key.indices(len(self)))
        places = np.asarray(key)
        if places.dtype == np.bool_:
            if places.shape != (len(self),):
                raise IndexError(f"a mask of {list(places.shape)} does not fit {len(self):,} entries.")
            return np.flatnonzero(places)
        if places.size and not np.issubdtype(places.dtype, np.integer):
            raise IndexError(f"a view takes integers, not {places.dtype}.")
        places = places.astype(np.int64)
        if places.size and not (places.min() >= -len(self) and places.max() < len(self)):
            raise IndexError(f"{places.min()} to {places.max()} are not all among {len(self):,} entries.")
        return np.where(places < 0, places + len(self), places)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        mapped = self._mapped(0, len(self)) if len(self) else None
        wanted = self.dtype if dtype is None else np.dtype(dtype)
        if copy is False and (mapped is None or wanted != self.dtype):
            raise ValueError("this has to be copied: it is decoded, or is in several files.")
        found = self[:] if mapped is None else mapped
        return found.astype(wanted, copy=bool(copy) and mapped is not None)

    def __repr__(self) -> str:
        return f"View({list(self.shape)}, {self.dtype})"
