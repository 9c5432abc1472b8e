"""`lakepond verify`: check every byte of a lake against its checksums."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import DAMAGED, DONE, where, words
from lakepond.cli.options import Flag, Json, optional

if TYPE_CHECKING:
    from lakepond.flow.following.chains import Chains


@dataclass(frozen=True)
class Verify:
    """Read every byte of a lake and check it against its checksum; exit code 3 if a file is damaged.

    Objects in a bucket are read as a stream, and nothing is stored on this disk.

    Example: lakepond verify runs/demo --all

    Example: lakepond verify gs://my-bucket/demo
    """

    path: Annotated[Positional[str], arg(metavar="PATH|URL")]
    """a lake or a run, here or in a bucket"""
    commit: Annotated[int | None, optional("N", "the newest")] = None
    """number of the commit to check"""
    writer: Annotated[str | None, optional("NAME", "each")] = None
    """one of the writers of the lake"""
    all: Flag = False
    """check every commit that is kept"""
    json: Json = False

    def run(self) -> int:
        checked = []
        with closing(where.open_lake(self.path)) as chains:
            chosen = self._chosen(chains)
            for i, (writer, number) in enumerate(chosen, 1):
                which = f"verify commit {number}" + (f" ({i} of {len(chosen)})" if len(chosen) > 1 else "")
                with words.progress(which) as progress:
                    checked.append(_check(chains, number, writer, progress))
        intact = all(each["intact"] for each in checked)
        if self.json:
            words.print_json({"lake": str(chains), "intact": intact, "commits": checked})
            return DONE if intact else DAMAGED
        for each in checked:
            name = f"commit {each['number']}" + (f" of {each['writer']}" if "writer" in each else "")
            if each["intact"]:
                size, files = formats.size(each["bytes"]), each["files"]
                print(f"{name}: intact ({size} in {files:,} files, {formats.duration(each['seconds'])})")
            else:
                print(f"{name}: damaged. {words.printable(each['why'])}")
        if not intact and chains.folder is not None:
            words.talk(
                f"`lakepond repair {self.path}` restores the newest intact commit and deletes nothing."
            )
        return DONE if intact else DAMAGED

    def _chosen(self, chains: Chains) -> list[tuple[str, int]]:
        """Whose commits to check, and their numbers; the newest one of a writer may be damaged."""
        known = where.commits_of(chains, self.writer)
        if self.commit is not None and not self.all:
            return [(where.only(chains, known), self.commit)]
        return [(name, n) for name, numbers in known.items() for n in (numbers if self.all else numbers[-1:])]


def _check(chains: Chains, number: int, writer: str, progress: Callable[[int, int], None]) -> dict[str, Any]:
    from lakepond.errors import LakeCorrupt
    from lakepond.lake.read.catalog import Catalog

    began, which = time.perf_counter(), {"writer": writer} if writer else {}
    try:
        commit = chains.commit(writer, number)
        chains.verify(writer, commit, progress)
        totals = Catalog(commit, chains.segments(writer)).totals()
    except LakeCorrupt as error:
        return {**which, "number": number, "intact": False, "why": str(error)}
    seconds = time.perf_counter() - began
    read = {"files": totals.files, "bytes": totals.bytes, "seconds": seconds}
    return {**which, "number": number, "intact": True, "why": None, **read}
