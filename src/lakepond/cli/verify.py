"""`lakepond verify`: check every byte of a lake against its checksums."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import DAMAGED, DONE, where, words
from lakepond.cli.flag import Flag


@dataclass(frozen=True)
class Verify:
    """Read every byte of a lake and check it against its checksum; exit code 3 if a file is damaged.

    Example: lakepond verify runs/demo --all
    """

    path: Positional[Path]
    """a lake, or a run"""
    commit: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the newest)")] = None
    """number of the commit to check"""
    all: Flag = False
    """check every commit that is kept"""
    json: Flag = False
    """print JSON instead of a line"""

    def run(self) -> int:
        """Check all chosen commits, also after a damaged one."""
        from lakepond.errors import LakeNotFound
        from lakepond.lake import writers
        from lakepond.lake.format import commits

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
        told = []
        for i, (writer, number) in enumerate(chosen, 1):
            which = f"verify commit {number}" + (f" ({i} of {len(chosen)})" if len(chosen) > 1 else "")
            with words.progress(which) as progress:
                told.append(_check(folder, number, writer, progress))
        intact = all(each["intact"] for each in told)
        if self.json:
            words.print_json({"lake": folder, "intact": intact, "commits": told})
            return DONE if intact else DAMAGED
        for each in told:
            name = f"commit {each['number']}" + (f" of {each['writer']}" if "writer" in each else "")
            if each["intact"]:
                size, files = formats.size(each["bytes"]), each["files"]
                print(f"{name}: intact ({size} in {files:,} files, {formats.duration(each['seconds'])})")
            else:
                print(f"{name}: damaged. {words.printable(each['why'])}")
        if not intact:
            words.talk(
                f"`lakepond repair {self.path}` restores the newest intact commit and deletes nothing."
            )
        return DONE if intact else DAMAGED


def _check(folder: Path, number: int, writer: str, progress: Callable[[int, int], None]) -> dict[str, Any]:
    from lakepond.errors import LakeCorrupt
    from lakepond.lake.read.lake import Lake

    began, which = time.perf_counter(), {"writer": writer} if writer else {}
    try:
        with Lake.open(folder, number, writer=writer) as lake:
            lake.verify(progress=progress)
            stats = lake.stats()
    except LakeCorrupt as error:
        return {**which, "number": number, "intact": False, "why": str(error)}
    return {
        **which,
        "number": number,
        "intact": True,
        "why": None,
        "files": stats.files,
        "bytes": stats.bytes_on_disk,
        "seconds": time.perf_counter() - began,
    }
