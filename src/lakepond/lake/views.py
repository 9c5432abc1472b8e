"""Rows and columns of a lake as things that NumPy takes for arrays: decoded when they are touched."""

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
        self, length: int, shape: tuple[int, ...], dtype: Any, read: Callable[[Array], Array]
    ) -> None:
        """`read` fetches what is at some places, in any order."""
        self.shape = (length, *shape)
        self.dtype = np.dtype(dtype)
        self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """Axes."""
        return len(self.shape)

    def __getitem__(self, key: Key) -> Array:
        places = np.arange(len(self))[key]
        if places.ndim > 1:
            raise SpecError(f"a view takes a number, a slice or a list of numbers, not {places.ndim} axes.")
        found = self._read(np.atleast_1d(places))
        return found if places.ndim else found[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("what is in a lake is decoded, and so always a copy.")
        return self[:] if dtype is None else self[:].astype(dtype)

    def __repr__(self) -> str:
        return f"View({list(self.shape)}, {self.dtype})"
