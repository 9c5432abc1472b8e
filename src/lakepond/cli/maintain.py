"""`lakepond verify`, `repair` and `compact`: commands that keep a lake intact and small."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional

from lakepond import formats
from lakepond.cli import DAMAGED, DONE, NO, where, words
from lakepond.cli.options import Flag, Json, KeepAll, Newest, Place, optional, retention

if TYPE_CHECKING:
    from lakepond.flow.following.chains import Chains


@dataclass(frozen=True)
class Verify:
    """Read every byte of a lake and check it against its checksum; exit code 3 if a file is damaged.

    Objects in a bucket are read as a stream, and nothing is stored on this disk.

    Example: lakepond verify runs/demo --all

    Example: lakepond verify gs://my-bucket/demo
    """

    path: Place
    """a lake or a run, here or in a bucket"""
    commit: Newest = None
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
                size, files = formats.size(each["bytes"]), formats.counted(each["files"], "file")
                print(f"{name}: intact ({size} in {files}, {formats.duration(each['seconds'])})")
            else:
                print(f"{name}: damaged. {words.printable(each['why'])}")
        if not intact and chains.folder is not None:
            restored = "restores the newest intact commit and deletes nothing."
            words.talk(f"`lakepond repair {self.path}` {restored}")
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


@dataclass(frozen=True)
class Repair:
    """Restore the newest intact commit of a damaged lake; damaged files are moved to quarantine/.

    Example: lakepond repair runs/demo
    """

    path: Positional[Path]
    """a lake, or a run; no process may be writing it"""
    json: Json = False

    def run(self) -> int | None:
        from lakepond.lake.repair import repair

        folder = where.lake_folder(self.path)
        with words.progress("checking every commit") as progress:
            found = repair(folder, progress=progress)
        if self.json:
            words.print_json({"lake": folder, **asdict(found)})
        elif found.newest is None:
            print(f"{folder}: no commit is intact. The damaged files are in {folder / 'quarantine'}.")
        elif not found.quarantined:
            print(f"{folder}: intact, nothing to repair; the newest commit is {found.newest}.")
        else:
            print(f"{folder}: commit {found.newest} is the newest intact commit. Moved to quarantine/:")
            print("\n".join(f"  {name}" for name in found.quarantined))
        return NO if found.newest is None else None

    def interrupted(self) -> str:
        return "Nothing was deleted; run `lakepond repair` again to finish."


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
    keep_last: KeepAll = None
    """number of newest commits to keep; older commits and the files only they use are deleted"""
    keep_every: KeepAll = None
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
            f"{folder}: commit {number} had {formats.counted(files, 'file')} and now has {left:,}; "
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
