"""A new lake is built in a temporary folder beside its target and renamed when it is verified."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lakepond.errors import SpecError
from lakepond.lake.files import TEMPORARY_SUFFIX, make_folders, sync_folder
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk


def refuse_existing(target: str | Path) -> Path:
    """`target` as a path on this disk; `SpecError` if there is anything."""
    path = on_disk(target)
    if os.path.lexists(path):
        raise SpecError(f"{path} already exists; import to a new lake.")
    return path


@contextmanager
def new_lake(target: str | Path) -> Iterator[Path]:
    """Yield the path of a lake to make; when the block ends, verify the lake and rename it to `target`.

    It is in a temporary folder, which is deleted in any case: if the block or the verification fails, nothing
    appears at `target`. What an import that was killed has left in that folder is deleted first. A flock on
    the folder makes a second import to the same target fail at once.
    """
    target = refuse_existing(target)
    make_folders(target.parent)
    folder = target.with_name(f".{target.name}{TEMPORARY_SUFFIX}")
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _lock(descriptor, target)
        built = folder / "lake"
        try:
            shutil.rmtree(built, ignore_errors=True)
            yield built
            with Lake.open(built) as lake:
                lake.verify()
            refuse_existing(target)
            built.rename(target)
            sync_folder(target.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, target: Path) -> None:
    """Lock the folder of an import; `SpecError` if another import has it, or has just deleted it."""
    free = True
    with suppress(OSError):  # a file system without locks: a lake cannot be written there either
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
    if not free or not os.fstat(descriptor).st_nlink:
        raise SpecError(f"another import to {target} is running; wait for it, or name another folder.")
