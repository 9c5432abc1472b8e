"""`lakepond compact`: small files of a lake into larger ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from lakepond.cli import where, words

NONE = arg(metavar="N", help_behavior_hint="(default: all are kept)")


@dataclass(frozen=True)
class Compact:
    """Merge the small files of a lake into larger ones, and delete old commits if asked to.

    Commits that checkpoints of the run name are kept, whatever --keep-last says. Only files that lakepond
    wrote are deleted, never a link.

    Example: lakepond compact runs/demo

    Example: lakepond compact runs/demo --keep-last 5 --keep-every 10
    """

    path: Positional[Path]
    """a lake, or a run; nothing may be writing it"""
    keep_last: Annotated[int | None, NONE] = None
    """newest commits to keep; files that no kept one names are deleted"""
    keep_every: Annotated[int | None, NONE] = None
    """and beside them each whose number is a multiple of this"""
    json: bool = False
    """print JSON instead of a line"""

    def run(self) -> None:
        """Merge, tell what it was before and is now."""
        from lakepond.lake.lake import Lake

        folder = where.lake_folder(self.path)
        before = _on_disk(folder)
        with Lake.open(folder) as lake:
            files = len(lake.commit.files())
            lake.compact(keep_last=self.keep_last, keep_every=self.keep_every)
            after = _on_disk(folder)
            told: dict[str, Any] = {
                "lake": folder,
                "commit": lake.commit.number,
                "files_before": files,
                "files": len(lake.commit.files()),
                "bytes_before": before,
                "bytes": after,
            }
        if self.json:
            words.print_json(told)
            return
        print(
            f"{folder}: commit {told['commit']} of {files:,} files is now {told['files']:,}; "
            f"{words.size(before)} on disk, now {words.size(after)}."
        )
        if after > before:
            words.talk("Older commits keep their files; --keep-last deletes them.")

    def interrupted(self) -> str:
        """What to know after Ctrl-C."""
        return "The lake is what it was; run `lakepond compact` again to finish."


def _on_disk(folder: Path) -> int:
    from lakepond.lake.names import segment_files

    return sum(status.st_size for status in segment_files(folder / "segments").values())
