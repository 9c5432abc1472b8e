"""Symbolic links inside a lake or a run are not followed: one that was received may link to private files.

The folder that the caller names may itself be a link; what is below it may not.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from lakepond.errors import LakeCorrupt


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file; `LakeCorrupt` if it is a symbolic link or not a file."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise _refused(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        if path.is_symlink():
            raise _refused(path) from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def check_folders(*folders: Path) -> None:
    """Raise `LakeCorrupt` if one of these folders is a symbolic link."""
    for folder in folders:
        if folder.is_symlink():
            raise _refused(folder)


def target_in(folder: Path, name: str) -> Path:
    """The path of `name` below a folder; `LakeCorrupt` if a folder on the way to it is a symbolic link."""
    target = folder / name
    check_folders(*(parent for parent in target.parents if folder in parent.parents))
    return target


def _refused(path: Path) -> LakeCorrupt:
    return LakeCorrupt(
        f"{path} is a symbolic link or a special file; links are not followed: put the file or folder itself "
        "there."
    )
