"""`lakepond verify`: whether every byte is what was written."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from lakepond.cli import DAMAGED, DONE, where, words


@dataclass(frozen=True)
class Verify:
    """Read and check every byte of a lake; exit code 3 if one is not what was written.

    Example: lakepond verify runs/demo --all
    """

    path: Positional[Path]
    """a lake, or a run"""
    commit: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the newest)")] = None
    """which commit"""
    all: bool = False
    """every commit that is kept"""
    json: bool = False
    """print JSON instead of a line"""

    def run(self) -> int:
        """Check; go on after a damaged commit to tell of all."""
        from lakepond.errors import LakeNotFound
        from lakepond.lake import commits, writers

        folder = where.lake_folder(self.path)
        known = {
            name: commits.numbers(writers.home(folder, name) / "commits") for name in writers.names(folder)
        }
        if not any(known.values()):
            raise LakeNotFound(f"{folder} has no commit yet; there is nothing to verify.")
        chosen = [
            (name, n) for name, numbers in known.items() for n in (numbers if self.all else numbers[-1:])
        ]
        if self.commit is not None and not self.all:
            chosen = [("", self.commit)]
        told = [_check(folder, number, writer) for writer, number in chosen]
        whole = all(each["whole"] for each in told)
        if self.json:
            words.print_json({"lake": folder, "whole": whole, "commits": told})
            return DONE if whole else DAMAGED
        for each in told:
            name = f"commit {each['number']}" + (f" of {each['writer']}" if "writer" in each else "")
            if each["whole"]:
                size, files = words.size(each["bytes"]), each["files"]
                print(f"{name}: whole ({size} in {files:,} files, {each['seconds']:.1f} s)")
            else:
                print(f"{name}: damaged. {each['why']}")
        if not whole:
            words.talk(f"`lakepond repair {self.path}` goes back to what is whole and deletes nothing.")
        return DONE if whole else DAMAGED


def _check(folder: Path, number: int, writer: str) -> dict[str, Any]:
    from lakepond.errors import LakeCorrupt
    from lakepond.lake.lake import Lake

    began, which = time.perf_counter(), {"writer": writer} if writer else {}
    try:
        with Lake.open(folder, number, writer=writer) as lake:
            lake.verify()
            files = lake.commit.files()
    except LakeCorrupt as error:
        return {**which, "number": number, "whole": False, "why": str(error)}
    return {
        **which,
        "number": number,
        "whole": True,
        "why": None,
        "files": len(files),
        "bytes": sum(files.values()),
        "seconds": time.perf_counter() - began,
    }
