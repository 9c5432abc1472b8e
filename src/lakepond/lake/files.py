"""Atomic files: write to a temporary name, sync, rename, sync the folder."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from lakepond.errors import LakeCorrupt

T = TypeVar("T")
Existing = Literal["replace", "keep", "refuse"]
TEMPORARY_SUFFIX = ".aside"
"""the ending of a temporary file; it is locked while it is written, others may be deleted"""

DAMAGE = (errno.ENOENT, errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)
"""system errors that mean that a file is lost; others, as of too many open files, may pass"""


def is_damage(error: BaseException) -> bool:
    """Whether a file that cannot be read because of this error is damaged or lost."""
    return isinstance(error, LakeCorrupt) or (isinstance(error, OSError) and error.errno in DAMAGE)


def sync_folder(path: Path) -> None:
    """Make renames and deletions in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(
    folder: Path,
    write: Callable[[BinaryIO], T],
    name: Callable[[T], str],
    *,
    needs: Path | None = None,
    existing: Existing = "replace",
    sync: bool = True,
) -> T:
    """Let `write` fill and sync a new file; it appears in `folder`, durable, as `name(what write returned)`.

    If anything fails, nothing appears and nothing stays behind. `needs` is a folder that is made durable
    before the file appears. A file that has that name already is replaced, kept, or refused with
    FileExistsError, as `existing` says. With `sync=False` the caller syncs the folder: until then a power cut
    may undo the name, never the content.
    """
    temporary, file = _temporary(folder)
    try:
        with file:
            written = write(file)
            if needs is not None:
                sync_folder(needs)
            target = folder / name(written)
            if existing == "replace":
                temporary.rename(target)
            else:
                try:
                    _rename_to_new(temporary, target)
                except FileExistsError:
                    if existing == "refuse":
                        raise
                    temporary.unlink()
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(folder)  # or a power cut undoes the rename
    return written


def _temporary(folder: Path) -> tuple[Path, BinaryIO]:
    """A new file with a temporary name, locked, so that `names.delete_temporary` does not delete it.

    The lock is shared: readers of a commit lock it as soon as it has its name, while it is still open here.
    """
    while True:
        temporary = folder / f"{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY_SUFFIX}"
        file = temporary.open("xb", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # deleted before it was locked
            file.close()
            continue
        except OSError:  # a file system without locks, where nobody can lock it to delete it either
            return temporary, file
        if os.fstat(file.fileno()).st_nlink:
            return temporary, file
        file.close()


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
    """`write_atomic` for bytes."""
    write_atomic(
        folder, lambda file: write_all_synced(file, data), lambda _: name, needs=needs, existing=existing
    )


def write_all(file: BinaryIO | RawIOBase, data: bytes) -> None:
    """Write all of `data` to an unbuffered file, which may take it in parts."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def write_all_synced(file: BinaryIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file, durably."""
    write_all(file, data)
    os.fsync(file.fileno())


def make_folders(path: Path) -> None:
    """A folder and those above it that are not there, durably.

    One that is there, but was not synced by the process that made it, becomes durable with the first file in
    it that is synced: ext4, XFS, Btrfs and F2FS never make a name durable without the folders above it.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:  # or a power cut loses the folder with all that is in it
        sync_folder(folder.parent)


def write_path(path: Path, write: Callable[[Path], None]) -> None:
    """`write_atomic` for a function that needs a path to write to; it must not replace the file there."""
    temporary, file = _temporary(path.parent)
    try:
        with file:
            write(temporary)
            os.fsync(file.fileno())
            temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
