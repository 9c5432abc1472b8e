"""The names of a lake's files: what lakepond wrote is recognised by the form of its name alone.

    segments/<40 hex>.rows, .steps, .manifest    commits/<10 digits>.json    elsewhere/<12 hex>.txt
    sources/<40 hex>.source                      of all writers
    <pid>-<8 hex>.aside                       a temporary file, in any of these folders

Everything else in these folders (`lost+found`, a backup, a folder named like a commit) is not part of the
lake: it is never listed, counted, moved or deleted. A folder may be a symbolic link, to a larger disk for
example, and a linked file is read like any other; `delete` never deletes a link.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lakepond.lake.format.checksum import DIGEST_BYTES

DIGEST = f"[0-9a-f]{{{2 * DIGEST_BYTES}}}"
SEGMENT = re.compile(rf"{DIGEST}\.(?:rows|steps|manifest|source)")
SOURCES = "sources"
"""the folder of files that all writers of a lake share"""
COMMIT = re.compile(r"([0-9]{10}|[1-9][0-9]{10,})\.json")
PLACE = re.compile(r"[0-9a-f]{12}\.txt")
TEMPORARY = re.compile(r"[0-9]+-[0-9a-f]{8}\.aside")
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
CHAIN = re.compile(rf"({_NAME})\.([0-9a-f]{{12}})")
"""a named writer in a bucket: the name, and the incarnation of its disk"""
WRITER = re.compile(rf"{_NAME}(?:\.[0-9a-f]{{12}})?")
"""a writer's folder: a name, or a chain from a bucket"""
GONE = "is missing: if its commit was deleted, open the lake again; otherwise run `lakepond repair`."
"""what is said of a segment that is not where it was"""


def is_shared(name: str) -> bool:
    """Whether a segment is in the folder `sources` of its lake, and not in the `segments` of its writer."""
    return name.endswith(".source")


def folder_of(name: str) -> str:
    """The folder that a segment is in."""
    return SOURCES if is_shared(name) else "segments"


def entries(folder: Path, form: re.Pattern[str]) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder whose names have this form, of any type; none if the folder does not exist.

    OSError if the folder cannot be read: an empty answer would make its content look deletable.
    """
    try:
        found = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with found:
        yield from (entry for entry in found if form.fullmatch(entry.name))


def segment_files(folder: Path) -> dict[str, os.stat_result]:
    """The segments that are stored in a folder, by name, links left out."""
    found: dict[str, os.stat_result] = {}
    for entry in entries(folder, SEGMENT):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # deleted in the meantime
            continue
        if stat.S_ISREG(status.st_mode):
            found[entry.name] = status
    return found


def delete(file: Path) -> bool:
    """Delete a file that lakepond wrote; returns whether it is gone.

    False, and nothing is deleted, if it is a link, a folder or another special file. AssertionError if the
    name is not one that lakepond gives.
    """
    if not any(form.fullmatch(file.name) for form in (SEGMENT, COMMIT, TEMPORARY)):
        raise AssertionError(f"{file} is not a file of a lake; nothing was deleted.")
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return False
        file.unlink()
    except FileNotFoundError:
        pass
    return True


def delete_temporary(folder: Path) -> None:
    """Delete the temporary files of processes that were killed; those that are being written are locked."""
    for entry in list(entries(folder, TEMPORARY)):
        with suppress(OSError), (folder / entry.name).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            delete(folder / entry.name)
