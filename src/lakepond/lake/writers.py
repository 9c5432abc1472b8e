"""Several writers of one lake: each has commits, segments and a lock of its own, and shares only `lake.json`.

    lake/
      lake.json                                      of all
      commits/, segments/, lock                      of the writer without a name: the only one, in most lakes
      writers/<name>/commits/, segments/, lock       of each other one

No writer ever changes or deletes a file of another. In lakes of format 1 all segments were in the lake's own
folder; a writer that continues such a lake first links its files to a folder of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from lakepond.errors import SpecError
from lakepond.lake.files import make_folders, sync_folder, write_path
from lakepond.lake.format.names import WRITER, entries

FOLDER = "writers"


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
