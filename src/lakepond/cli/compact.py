"""`lakepond compact`: merge the small files of a lake."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from lakepond import formats
from lakepond.cli import where, words
from lakepond.cli.options import Json, optional, retention

NONE = optional("N", "keep all")


@dataclass(frozen=True)
class Compact:
    """Merge the small files of a lake into larger ones, and delete old commits if asked to.

    Commits that a checkpoint of the run refers to are always kept. Only files that lakepond wrote are
    deleted, never a symbolic link.

    Example: lakepond compact runs/demo

    Example: lakepond compact runs/demo --keep-last 5 --keep-every 10
    """

    path: Positional[Path]
    """a lake, or a run; no process may be writing it"""
    keep_last: Annotated[int | None, NONE] = None
    """number of newest commits to keep; older commits and the files only they use are deleted"""
    keep_every: Annotated[int | None, NONE] = None
    """also keep each commit whose number is a multiple of this"""
    json: Json = False

    def run(self) -> None:
        retention(self.keep_last, self.keep_every)
        from lakepond.lake.read.lake import Lake

        folder = where.lake_folder(self.path)
        before = _on_disk(folder)
        with Lake.open(folder) as lake:
            files = lake.stats().files
            lake.compact(keep_last=self.keep_last, keep_every=self.keep_every)
            after = _on_disk(folder)
            number, left = lake.commit.number, lake.stats().files
        result = {"lake": folder, "commit": number, "files_before": files, "files": left}
        words.print_result(
            {**result, "bytes_before": before, "bytes": after},
            f"{folder}: commit {number} had {files:,} files and now has {left:,}; "
            f"the lake had {formats.size(before)} on disk and now has {formats.size(after)}.",
            as_json=self.json,
        )
        if after > before and not self.json:
            words.talk("Older commits still use their own files; --keep-last deletes those.")

    def interrupted(self) -> str:
        return "The lake is unchanged; run `lakepond compact` again to finish."


def _on_disk(folder: Path) -> int:
    from lakepond.lake import writers
    from lakepond.lake.format.names import segment_files

    folders = [writers.home(folder, name) / "segments" for name in writers.names(folder)]
    return sum(status.st_size for each in folders for status in segment_files(each).values())
