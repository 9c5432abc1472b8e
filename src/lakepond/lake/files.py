"""Whole, then named: write aside, sync, rename, sync the folder. And a lock that dies with its process."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

from lakepond.errors import LakeLocked, LakeReadOnly

T = TypeVar("T")
ASIDE = ".aside"
"""the ending of a file that is not whole yet; the next writer deletes those of one that was killed"""


def sync_folder(path: Path) -> None:
    """Make renames and deletions in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(
    folder: Path,
    write: Callable[[BinaryIO], T],
    name: Callable[[T], str],
    *,
    needs: Path | None = None,
    once: bool = False,
    sync: bool = True,
) -> T:
    """Let `write` fill and sync a new file; it appears in `folder`, durable, as `name(what write returned)`.

    Whatever goes wrong, nothing appears and nothing stays behind. `needs` is a folder that is made durable
    before the file appears. With `once` a file of that name that is there already stays as it is. With
    `sync=False` the caller syncs the folder: until then a power cut may undo the name, never the content.
    """
    aside = folder / f"{os.getpid()}-{os.urandom(4).hex()}{ASIDE}"
    try:
        with aside.open("xb", buffering=0) as file:
            written = write(file)
        if needs is not None:
            sync_folder(needs)
        if not once:
            aside.rename(folder / name(written))
        else:
            try:
                os.link(aside, folder / name(written))
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                aside.rename(folder / name(written))
            aside.unlink(missing_ok=True)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(folder)  # or a power cut undoes the rename
    return written


def write_bytes(
    folder: Path, name: str, data: bytes, *, needs: Path | None = None, once: bool = False
) -> None:
    """`write_whole` for bytes."""

    def fill(file: BinaryIO) -> None:
        write_all(file, data)
        os.fsync(file.fileno())

    write_whole(folder, fill, lambda _: name, needs=needs, once=once)


def write_all(file: BinaryIO | RawIOBase, data: bytes) -> None:
    """Write all of `data` to an unbuffered file, which may take it in parts."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def make_folders(path: Path) -> None:
    """A folder and those above it that are not there, durably."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:  # or a power cut loses the folder with all that is in it
        sync_folder(folder.parent)


@contextmanager
def flocked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of a file, which is made for it; waits until other processes release it."""
    owner = os.getpid()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if os.getpid() == owner:  # a forked child must not release its parent's lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def write_path(path: Path, write: Callable[[Path], None]) -> None:
    """`write_whole` for what wants a path to write to."""
    aside = path.with_name(f".{path.name}.{os.getpid()}{ASIDE}")
    try:
        write(aside)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.rename(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


class WriterLock:
    """At most one process, and one place in it, writes a lake."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise LakeReadOnly(
                f"{path.parent} may not be written by this user; Lake.open reads it."
            ) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise LakeLocked(
                f"{path.parent} is being written by another process; close that, or open the lake to read."
            ) from None

    def close(self) -> None:
        """Let others write."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a forked child may hold the descriptor, too
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
