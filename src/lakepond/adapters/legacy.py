"""The trading project's replay files: read and written transition by transition, in bounded memory.

The form, plain or gzip (told by the first two bytes, whatever the name says)::

    {"capacity": int,
     "buffer": deque of {"state": array, "action": array, "reward": float, "next_state": array, "done": bool}}

`pickle.load` would need all of its 187 GB at once, and would run whatever a file asks for. Here a file of any
size is read within 10 MB (gzip: 130 MB) beside the transition at hand, and can build only numbers and arrays:

    legacy            read_legacy, legacy_capacity, write_legacy
    legacy_unpickler  the pickle machine
    legacy_memo       what the pickle may refer to again
    legacy_values     what a file may be made of
    legacy_bytes      the file, plain or gzip, any part of it again
    legacy_pickler    the other direction
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lakepond.adapters.legacy_bytes import LegacyPickleError, Stream, stream_of
from lakepond.adapters.legacy_pickler import write_pickle
from lakepond.adapters.legacy_unpickler import Unpickler
from lakepond.adapters.legacy_values import ArrayAt
from lakepond.types import Array

__all__ = ["LegacyPickleError", "Transition", "Written", "legacy_capacity", "read_legacy", "write_legacy"]

PROGRESS_BYTES = 1 << 20
"""of the file between two calls of `progress`"""
GZIP_LEVEL = 6

PathLike: TypeAlias = str | os.PathLike[str]
Scalar: TypeAlias = np.generic | float | int | bool


class Transition(NamedTuple):
    """One step as the old project kept it."""

    state: Array
    action: Array | Scalar
    reward: Array | Scalar
    next_state: Array
    done: Array | Scalar


class Written(NamedTuple):
    """What `write_legacy` wrote."""

    transitions: int
    plain_bytes: int
    """before compression"""
    file_bytes: int


def read_legacy(
    path: PathLike, *, progress: Callable[[int, int], None] | None = None
) -> Iterator[Transition]:
    """Yield each transition of an old file, oldest first; its arrays are new and the caller's own.

    `progress(done, total)` counts bytes of the file. A damaged, cut short or hostile file raises
    `LegacyPickleError`, at the latest where its end should be: until then what came was right.
    """
    with _opened(path) as (stream, unpickler):
        told = 0
        for record in unpickler.records():
            yield Transition(*(_fetched(value, stream) for value in record))
            if progress is not None and stream.consumed - told >= PROGRESS_BYTES:
                told = stream.consumed
                progress(told, stream.size)
        if progress is not None:
            progress(stream.size, stream.size)


def legacy_capacity(path: PathLike) -> int:
    """The capacity an old file names; it comes first, so only the beginning is read."""
    with _opened(path) as (_, unpickler):
        while unpickler.capacity is None:
            unpickler.step()  # raises where the file stops without one
        return unpickler.capacity


@contextmanager
def _opened(path: PathLike) -> Iterator[tuple[Stream, Unpickler]]:
    with open(path, "rb", buffering=0) as file:
        stream = stream_of(file.fileno())
        unpickler = None
        try:
            unpickler = Unpickler(stream)
            yield stream, unpickler
        except LegacyPickleError as error:
            raise LegacyPickleError(f"{os.fspath(path)}, byte {stream.offset}: {error}") from None
        finally:
            if unpickler is not None:
                unpickler.close()


def _fetched(value: Any, stream: Stream) -> Any:
    return value.fetch(stream) if isinstance(value, ArrayAt) else value


def write_legacy(
    path: PathLike, transitions: Iterable[Transition], *, capacity: int, compress: bool = True
) -> Written:
    """Write transitions so that `pickle.load` in the old project reads them, one at a time.

    The file appears under its name whole and synced, or not at all.
    """
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}.aside")
    try:
        with open(aside, "xb") as raw:
            if compress:
                with gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0) as packed:
                    count, plain = write_pickle(packed, transitions, capacity)
            else:
                count, plain = write_pickle(raw, transitions, capacity)
            raw.flush()
            os.fsync(raw.fileno())
            size = raw.tell()
        os.replace(aside, target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # or a power cut undoes the rename
    finally:
        os.close(folder)
    return Written(count, plain, size)
