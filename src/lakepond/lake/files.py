"""Whole, then named: write aside, sync, rename, sync the folder. And a lock that dies with its process."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO, Literal, Self, TypeVar
from weakref import WeakSet

from lakepond import forks
from lakepond.errors import LakeLocked, LakeReadOnly

T = TypeVar("T")
Existing = Literal["replace", "keep", "refuse"]
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
    existing: Existing = "replace",
    sync: bool = True,
) -> T:
    """Let `write` fill and sync a new file; it appears in `folder`, durable, as `name(what write returned)`.

    Whatever goes wrong, nothing appears and nothing stays behind. `needs` is a folder that is made durable
    before the file appears. A file that has that name already is replaced, kept, or refused with
    FileExistsError, as `existing` says. With `sync=False` the caller syncs the folder: until then a power cut
    may undo the name, never the content.
    """
    aside = folder / f"{os.getpid()}-{os.urandom(4).hex()}{ASIDE}"
    try:
        with aside.open("xb", buffering=0) as file:
            written = write(file)
        if needs is not None:
            sync_folder(needs)
        if existing == "replace":
            aside.rename(folder / name(written))
        else:
            try:
                _rename_to_new(aside, folder / name(written))
            except FileExistsError:
                if existing == "refuse":
                    raise
                aside.unlink()
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(folder)  # or a power cut undoes the rename
    return written


def _rename_to_new(source: Path, target: Path) -> None:
    """Rename a file to a name that no file has: FileExistsError if one does, whichever process made it."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: creating an empty file claims the name
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        try:
            source.rename(target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
    else:
        source.unlink()


def write_bytes(
    folder: Path, name: str, data: bytes, *, needs: Path | None = None, existing: Existing = "replace"
) -> None:
    """`write_whole` for bytes."""

    def fill(file: BinaryIO) -> None:
        write_all(file, data)
        os.fsync(file.fileno())

    write_whole(folder, fill, lambda _: name, needs=needs, existing=existing)


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


class FileLock:
    """A file opened to be locked with flock, until `close`.

    A forked child does not inherit it: flock belongs to the open file, so an unlock in the child would take
    the parent's lock away, and a child that outlives its parent would keep the file locked.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        _open_locks.add(self)
        forks.register(self)

    def lock(self, how: int) -> None:
        """Lock the file as `fcntl.flock` does: LOCK_SH or LOCK_EX, with LOCK_NB to not wait."""
        fcntl.flock(self.descriptor, how)

    def try_lock(self, how: int, wait: float = 0.0) -> bool:
        """`lock` within `wait` seconds; whether the file was free."""
        until, pause = time.monotonic() + wait, 0.0005
        while True:
            try:
                self.lock(how | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= until:
                    return False
            time.sleep(pause)
            pause = min(2 * pause, 0.004)

    def close(self) -> None:
        """Unlock and close the file."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            _open_locks.discard(self)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked without Python has a copy, too
            finally:
                os.close(descriptor)

    def restart_in_child(self) -> None:
        """Close the child's copy, which leaves the parent's lock as it is."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_open_locks: WeakSet[FileLock] = WeakSet()


class WriterLock(FileLock):
    """At most one process, and one place in it, writes a lake."""

    def __init__(self, path: Path) -> None:
        place = path.resolve()
        here = any(lock.path.resolve() == place and lock.descriptor >= 0 for lock in list(_open_locks))
        try:
            super().__init__(path, create=True)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise LakeReadOnly(
                f"{path.parent} may not be written by this user; Lake.open reads it."
            ) from None
        try:
            self.lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            who = "this process already" if here else "another process"
            raise LakeLocked(
                f"{path.parent} is being written by {who}; close that, or open the lake to read."
            ) from None
