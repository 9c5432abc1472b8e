"""Several writers of one lake: each has commits, segments and a lock of its own, and shares only `lake.json`.

    lake/
      lake.json                                      of all
      commits/, segments/, lock                      of the writer without a name: the only one, in most lakes
      writers/<name>/commits/, segments/, lock       of each other one
      writers/<name>/incarnation                     12 hex digits, once the writer is used with a bucket
      writers/<name>.<incarnation>/...               a copy of another machine's writer, from a bucket

The chain of a writer is its history. In a bucket that of a named writer is called `<name>.<incarnation>`: a
machine that lost its disk starts a new incarnation, and so a new chain. The writer without a name has none.

No writer ever changes or deletes a file of another. In lakes of format 1 all segments were in the lake's own
folder; a writer that continues such a lake first links its files to a folder of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lakepond.errors import LakeCorrupt, SpecError
from lakepond.lake.files import make_folders, sync_folder, write_bytes, write_path
from lakepond.lake.format.names import CHAIN, WRITER, entries
from lakepond.lake.write.disk_guard import named_errors

FOLDER = "writers"
INCARNATION = "incarnation"


def home(lake: Path, writer: str) -> Path:
    """The folder with a writer's commits, segments and lock."""
    if not writer:
        return lake
    if not WRITER.fullmatch(writer):
        raise SpecError(
            f"{writer!r} cannot name a writer; take up to 64 letters, digits and '.', '_', '-': 'worker-3'."
        )
    return lake / FOLDER / writer


def names(lake: Path) -> list[str]:
    """The names of all writers, sorted; the one without a name is the first, even if it never wrote."""
    named = (entry.name for entry in entries(lake / FOLDER, WRITER))
    return ["", *sorted(name for name in named if (lake / FOLDER / name / "commits").is_dir())]


def is_copy(writer: str) -> bool:
    """Whether a name is that of a chain in a bucket, whose copies on disk are not written."""
    return CHAIN.fullmatch(writer) is not None


def check_own(writer: str) -> None:
    """Raise `SpecError` if a name is that of a chain in a bucket."""
    if is_copy(writer):
        raise SpecError(
            f"writer={writer!r} is the name of a chain in a bucket, and a copy of it is only read; give the "
            "writer a name of its own."
        )


def chain_of(lake: Path, writer: str) -> str:
    """The name of a writer's chain in a bucket; its incarnation is made, durably, when it is first needed."""
    if not writer or CHAIN.fullmatch(writer):
        return writer
    folder = home(lake, writer)
    found = _incarnation(folder)
    if found is None:
        made = f"{int(time.time()):08x}{os.urandom(2).hex()}"
        with named_errors(lake, creating=True), suppress(FileExistsError):  # another process was faster
            make_folders(folder)
            write_bytes(folder, INCARNATION, made.encode(), existing="refuse")
        found = _incarnation(folder)
    return f"{writer}.{found}"


def folder_of(lake: Path, chain: str) -> str:
    """The writer's folder that has a chain: this disk's own writer, or else the one of the copy."""
    match = CHAIN.fullmatch(chain)
    if match is not None and _incarnation(home(lake, match[1])) == match[2]:
        return match[1]
    return chain


def find(writer: str, among: Iterable[str]) -> list[str]:
    """The writers that a name stands for: the one of that name, or all of its incarnations."""
    among = list(among)
    exact = [name for name in among if name == writer]
    matches = ((name, CHAIN.fullmatch(name)) for name in among)
    return exact or [name for name, match in matches if match is not None and match[1] == writer]


def _incarnation(folder: Path) -> str | None:
    """The incarnation that a writer's folder has; None if it has none yet."""
    try:
        found = (folder / INCARNATION).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not re.fullmatch(r"[0-9a-f]{12}", found):
        raise LakeCorrupt(
            f"{folder / INCARNATION} is damaged; delete it, and the writer starts a new chain in the bucket."
        )
    return found


def adopt(lake: Path, writer: str, files: Iterable[str]) -> None:
    """Make the writer's folder of segments, with its files from the lake's own folder, as in format 1.

    files: of all its commits. The folder appears when it is complete: until then no other writer deletes a
    file of the lake's own folder.
    """
    own, shared = home(lake, writer) / "segments", lake / "segments"
    new = own.with_name("segments.new")
    make_folders(new)
    for name in files:
        if (new / name).exists() or not (shared / name).exists():
            continue
        try:
            os.link(shared / name, new / name)
        except OSError:  # another disk, or a file system without links

            def copy(temporary: Path, source: Path = shared / name) -> None:
                shutil.copyfile(source, temporary)

            write_path(new / name, copy)
    sync_folder(new)
    new.rename(own)
    sync_folder(own.parent)
