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
        place = text if "://" in text else f"{url[1]}://{text[url.end() :]}"
        raise SpecError(
            f"the path must be on this disk; pass a bucket as cloud={re.sub('//[^/@]*@', '//', place)!r} to "
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
