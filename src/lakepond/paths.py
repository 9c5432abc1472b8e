"""Paths that a caller passes."""

import errno
import os
import re
from pathlib import Path

from lakepond.errors import LakeNotAFolder, SpecError


def on_disk(path: str | os.PathLike[str]) -> Path:
    """A path on this disk, with `~` expanded. Raises `SpecError` for the URL of a bucket."""
    text = os.fspath(path)
    if url := re.match(r"(gs|s3|az|file|memory|\w+(?=://)):/+", text):  # `Path` joins slashes
        raise SpecError(  # without the URL, which may contain a password or a signature
            f"the path must be on this disk; pass the bucket as cloud='{url[1]}://bucket/prefix' to "
            "Replay.open, push or pull."
        )
    return Path(os.path.expanduser(text))


def lake_folder(path: str | os.PathLike[str]) -> Path:
    """`on_disk` for a folder that may be created. Raises `LakeNotAFolder` if a file is in its place."""
    found = on_disk(path)
    nearest = next((each for each in (found, *found.parents) if os.path.exists(each)), Path())
    if not nearest.is_dir():
        raise LakeNotAFolder(errno.ENOTDIR, f"{nearest} is a file, not a folder; choose another path")
    return found
