"""A new lake is built in a temporary folder beside its target and renamed when it is verified."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lakepond.errors import SpecError
from lakepond.lake.files import ASIDE, make_folders, sync_folder
from lakepond.lake.read.lake import Lake


def refuse_existing(target: Path) -> None:
    """`SpecError` if there is anything at `target`."""
    if os.path.lexists(target):
        raise SpecError(f"{target} already exists; import to a new lake.")


@contextmanager
def new_lake(target: Path) -> Iterator[Path]:
    """Yield a temporary folder for a lake; when the block ends, verify the lake and rename it to `target`.

    If the block or the verification fails, the temporary folder is deleted and nothing appears at `target`.
    The temporary folders of imports to the same target that were killed are deleted first; a flock on its
    folder distinguishes a running import from a dead one.
    """
    refuse_existing(target)
    make_folders(target.parent)
    for left in target.parent.glob(f".{glob.escape(target.name)}.*{ASIDE}"):
        _delete_if_dead(left)
    folder, descriptor = _make_locked(target)
    try:
        yield folder
        with Lake.open(folder) as lake:
            lake.verify()
        refuse_existing(target)
        try:
            folder.rename(target)
        except OSError:
            refuse_existing(target)  # another process has just made it
            raise
        sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def _make_locked(target: Path) -> tuple[Path, int]:
    """A new temporary folder, and the descriptor whose flock shows that its import is running."""
    while True:
        folder = target.with_name(f".{target.name}.{os.urandom(4).hex()}{ASIDE}")
        folder.mkdir()
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another import took the folder for that of a dead one, before it was locked
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        except OSError:
            pass  # a file system without locks: nothing is deleted there either
        if folder.exists():
            return folder, descriptor
        os.close(descriptor)


def _delete_if_dead(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(descriptor)
