"""`lakepond ls`: list the lakes and runs below a folder, or the commits of one lake."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import where, words
from lakepond.cli.options import Json, at_least
from lakepond.errors import LakeNotFound

if TYPE_CHECKING:
    from lakepond.flow.following.chains import Chains

DEPTH = 6
"""levels of folders to search"""


@dataclass(frozen=True)
class Ls:
    """List the lakes and runs below a folder, or the commits of one of them.

    Example: lakepond ls runs

    Example: lakepond ls gs://my-bucket/demo
    """

    path: Annotated[Positional[str], arg(metavar="[PATH|URL]")] = "."
    """a folder to search for runs and lakes; or a run or a lake, here or in a bucket, to list its commits"""
    limit: int = 20
    """number of commits to show of each writer, newest last; 0 shows all"""
    json: Json = False

    def run(self) -> None:
        at_least(0, limit=self.limit)
        path = Path(self.path)
        if not where.is_url(self.path):
            if not path.exists():  # an error, not an empty list
                raise LakeNotFound(f"{path} does not exist; give a folder that contains runs or lakes.")
            run = where.is_run(path) and (path / "lake" / where.LAKE).exists()
            if not run and not (path / where.LAKE).exists():
                self._found(path)
                return
        with closing(where.open_lake(self.path)) as chains:
            self._commits(chains)

    def _found(self, path: Path) -> None:
        found = [_summary(folder) for folder in _below(path)]
        if self.json:
            words.print_json({"path": self.path, "found": found})
        elif not found:
            words.talk(f"{self.path} has no lakes and no runs; `lakepond train` creates a run.")
        else:
            rows = [
                (
                    each["path"],
                    each["trainer"] or "lake",
                    formats.count(each["steps"]),
                    formats.size(each["bytes_on_disk"]),
                    formats.ratio(each["ratio"]),
                    _last_commit(each),
                )
                for each in found
            ]
            columns = ("path", "what", "steps", "on disk", "smaller", "last commit")
            words.console().print(words.NumberTable("", columns, rows, text=(0, 1, 5)))

    def _commits(self, chains: Chains) -> None:
        from lakepond.errors import LakeCorrupt

        known = {name: chains.numbers(name) for name in chains.names()}
        shown: list[dict[str, Any]] = []
        newest = slice(-self.limit or None, None)  # 0: all
        for writer, number in [(w, n) for w, numbers in known.items() for n in numbers[newest]]:
            try:
                commit = chains.commit(writer, number)
            except LakeCorrupt as error:
                shown.append({"writer": writer, "number": number, "problem": str(error)})
                continue
            shown.append(
                {
                    "writer": writer,
                    "number": number,
                    "parent": commit.parent,
                    "time": commit.time,
                    "steps": commit.recorded - commit.oldest,
                    "recorded": commit.recorded,
                    "bytes_written": commit.bytes_written,
                    "bytes_on_disk": commit.totals.bytes,
                    "seconds": commit.seconds,
                    "note": commit.note,
                    "problem": None,
                }
            )
        kept = sum(map(len, known.values()))
        if self.json:
            words.print_json({"lake": str(chains), "commits_kept": kept, "commits": shown})
            return
        if not shown:
            words.talk(f"{chains} has no commit yet; `replay.commit()` creates one.")
            return
        rows: list[tuple[str, ...]] = [
            (
                str(each["number"]),
                each["time"][:19].replace("T", " "),
                formats.count(each["steps"]),
                formats.size(each["bytes_written"]),
                formats.size(each["bytes_on_disk"]),
                note_text(each["note"]),
            )
            if each["problem"] is None
            else (str(each["number"]), "damaged", "–", "–", "–", "see `lakepond repair`")
            for each in shown
        ]
        columns: tuple[str, ...] = ("commit", "time (UTC)", "steps", "new", "in all", "note")
        if any(each["writer"] for each in shown):
            rows = [(*row, each["writer"] or "–") for row, each in zip(rows, shown, strict=True)]
            columns = (*columns, "writer")
        words.console().print(words.NumberTable("", columns, rows, text=(5, 6)[: len(columns) - 5]))
        if kept > len(shown):
            words.talk(f"{kept - len(shown):,} older commits are not shown; --limit 0 shows all.")


def _last_commit(found: dict[str, Any]) -> str:
    if found["problem"]:
        return str(found["problem"])
    return formats.age(found["last_commit"], time.time()) if found["last_commit"] else "–"


def note_text(note: dict[str, Any]) -> str:
    """The note of a commit on one line."""
    return ", ".join(f"{name} {value}" for name, value in note.items()) or "–"


def _below(path: Path) -> Iterator[Path]:
    """Runs, and lakes that are not part of a run, sorted by name."""
    base = len(path.parts)
    for folder, inner, files in os.walk(path):
        here = Path(folder)
        inner.sort()
        inner[:] = [name for name in inner if not name.startswith(".")]
        if where.LAKE in files or (where.RUN in files and where.is_run(here)):
            inner.clear()
            yield here
        elif len(here.parts) - base >= DEPTH:
            inner.clear()


def _summary(folder: Path) -> dict[str, Any]:
    from lakepond.errors import LakeError
    from lakepond.lake.read.lake import Lake
    from lakepond.runs import Run

    run = Run.open(folder) if where.is_run(folder) and not (folder / where.LAKE).exists() else None
    found: dict[str, Any] = {"path": str(folder), "trainer": run.trainer if run else None}
    found |= dict.fromkeys(("commit", "steps", "bytes_on_disk", "ratio", "last_commit", "problem"))
    lake_folder = folder / "lake" if run else folder
    if not (lake_folder / where.LAKE).exists():
        return found
    try:
        with Lake.open(lake_folder) as lake:
            stats = lake.stats()
            moment = datetime.fromisoformat(lake.commit.time).timestamp()
    except LakeError as error:
        return found | {"problem": str(error)}
    known = {name: getattr(stats, name) for name in ("commit", "steps", "bytes_on_disk", "ratio")}
    return found | known | {"last_commit": moment}
