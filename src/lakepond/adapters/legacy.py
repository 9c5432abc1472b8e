"""Pickled deques of dicts, as eigen2 wrote them: read and written one transition at a time.

The content, plain or gzip (determined by the first two bytes)::

    {"capacity": int,
     "buffer": deque of {"state": array, "action": array, "reward": float, "next_state": array, "done": bool}}

`pickle.load` would need 187 GB of memory, and would run whatever a file asks for. Here a file of any size is
read within 60 MB beside the current transition, and can build only numbers and arrays.
"""

from __future__ import annotations

import gzip
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, cast

import numpy as np

from lakepond.adapters.legacy_source import LegacyPickleError, ReplayFile
from lakepond.adapters.legacy_unpickler import DTYPES, MAX_ARRAY_BYTES, Transition, Unpickler
from lakepond.lake.files import write_path

__all__ = ["LegacyPickleError", "Transition", "Written", "legacy_capacity", "read_legacy", "write_legacy"]

PROGRESS_BYTES = 1 << 20
"""of the file between two calls of `progress`"""
GZIP_LEVEL = 6

PathLike: TypeAlias = str | os.PathLike[str]


class Written(NamedTuple):
    """What `write_legacy` wrote."""

    transitions: int
    plain_bytes: int
    """before compression"""
    file_bytes: int


def read_legacy(
    path: PathLike, *, progress: Callable[[int, int], None] | None = None
) -> Iterator[Transition]:
    """Yield each transition of a replay file, oldest first; its arrays belong to the caller.

    `progress(done, total)` counts bytes of the file. A damaged, incomplete or hostile file raises
    `LegacyPickleError`, at the latest at its end; all transitions before that are correct.
    """
    reported = 0
    with _opened(path) as unpickler:
        source = unpickler.source
        while (transition := unpickler.next_transition()) is not None:
            yield transition
            if progress is not None and source.raw.tell() - reported >= PROGRESS_BYTES:
                reported = source.raw.tell()
                progress(reported, source.size)
    if progress is not None:
        progress(source.size, source.size)


def legacy_capacity(path: PathLike) -> int:
    """The capacity in a replay file; it comes first, so only the beginning is read."""
    with _opened(path) as unpickler:
        return unpickler.find_capacity()


@contextmanager
def _opened(path: PathLike) -> Iterator[Unpickler]:
    source = ReplayFile(path)
    unpickler = Unpickler(source)
    try:
        yield unpickler
    except LegacyPickleError as error:
        raise LegacyPickleError(f"{os.fspath(path)}, byte {source.file.tell()}: {error}") from None
    finally:
        unpickler.memo.close()
        source.close()


def write_legacy(
    path: PathLike, transitions: Iterable[Transition], *, capacity: int, compress: bool = True
) -> Written:
    """Write transitions so that `pickle.load` reads them as a deque of dicts, one at a time; atomic."""
    if isinstance(capacity, bool) or capacity < 0:
        raise LegacyPickleError(f"a capacity of {capacity} is not a number of transitions")
    written: list[int] = []

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as raw:
            out = gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0) if compress else raw
            stream = _Streamed(transitions, capacity)
            Pickler(cast(BinaryIO, out), 4).dump({"capacity": capacity, "buffer": stream})
            written.extend((stream.count, out.tell()))
            if compress:
                out.close()
            written.append(raw.tell())

    write_path(Path(path), write)
    return Written(*written)


class _Streamed:
    """Pickled as the deque of the transitions that it iterates over."""

    def __init__(self, transitions: Iterable[Transition], capacity: int) -> None:
        self.count = 0
        self._transitions, self._capacity = transitions, capacity

    def __reduce__(self) -> Any:
        return deque, ((), self._capacity), None, self._dicts()

    def _dicts(self) -> Iterator[dict[str, Any]]:
        for transition in self._transitions:
            if self.count == self._capacity:
                raise LegacyPickleError(
                    f"there are more transitions than the capacity of {self._capacity}, so loading the file"
                    " would drop the oldest; write the newest, or set a larger capacity"
                )
            fields = dict(zip(Transition._fields, transition, strict=True))
            for key, value in fields.items():
                _check(value, f"{key} of transition {self.count}")
            yield fields
            self.count += 1


def _check(value: Any, name: str) -> None:
    if not isinstance(value, np.ndarray | np.generic | bool | int | float):
        raise LegacyPickleError(f"{name} is a {type(value).__name__}, neither an array nor a number")
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.str[1:] not in DTYPES:
            raise LegacyPickleError(f"{name} has dtype {value.dtype}; only numbers and bools can be written")
        if value.nbytes > MAX_ARRAY_BYTES:
            raise LegacyPickleError(
                f"{name} has {value.nbytes} bytes, more than the {MAX_ARRAY_BYTES} we read"
            )


PythonPickler: Any = pickle._Pickler


class Pickler(PythonPickler):  # type: ignore[misc]
    """Numbers only keys, names and dtypes, so that no transition stays in memory.

    Uses the module names that NumPy 1 and 2 both know.
    """

    _BATCHSIZE = 1

    def memoize(self, obj: Any) -> None:
        """Number what occurs in every transition and nothing else."""
        key = isinstance(obj, str) and obj in Transition._fields
        if key or callable(obj) or (isinstance(obj, np.dtype) and obj.isbuiltin == 1):
            super().memoize(obj)

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Write `numpy._core`, the name in NumPy 2, as `numpy.core`."""
        if not obj.__module__.startswith("numpy._core."):
            super().save_global(obj, name)
            return
        self.save(obj.__module__.replace("numpy._core.", "numpy.core."))
        self.save(obj.__name__)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)
