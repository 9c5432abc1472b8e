"""`lakepond ls` and `lakepond show`: the lakes below a folder, the commits of a lake, the content of one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import where, words
from lakepond.cli.options import Json, Newest, Place, at_least, optional
from lakepond.errors import LakeCorrupt, LakeError, LakeNotFound

if TYPE_CHECKING:
    from lakepond.flow.following.chains import Chains
    from lakepond.lake.read.lake import Lake

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
        found = [_lake_or_run(folder) for folder in _below(path)]
        if self.json:
            words.print_json({"path": self.path, "found": found})
        elif not found:
            words.talk(f"{self.path} has no lakes and no runs; `lakepond train` creates a run.")
        else:
            rows = [
                (
                    each["path"],
                    each["trainer"] or "lake",
                    formats.number(each["steps"]),
                    formats.size(each["bytes_on_disk"]),
                    formats.ratio(each["ratio"]),
                    each["problem"] or _ago(each["last_commit"]),
                )
                for each in found
            ]
            columns = ("path", "what", "steps", "on disk", "smaller", "last commit")
            words.console().print(words.NumberTable("", columns, rows, text=(0, 1, 5)))

    def _commits(self, chains: Chains) -> None:
        known = {writer: chains.numbers(writer) for writer in chains.names()}
        newest = slice(-self.limit or None, None)  # 0: all
        shown = [_commit(chains, w, number) for w, numbers in known.items() for number in numbers[newest]]
        kept = sum(map(len, known.values()))
        if self.json:
            words.print_json({"lake": str(chains), "commits_kept": kept, "commits": shown})
            return
        if not shown:
            words.talk(f"{chains} has no commit yet; `replay.commit()` creates one.")
            return
        named = any(each["writer"] for each in shown)
        columns = ("commit", "time (UTC)", "steps", "new", "in all", "note", *(["writer"] if named else []))
        rows = [_row(each, named) for each in shown]
        words.console().print(words.NumberTable("", columns, rows, text=(5, 6) if named else (5,)))
        if kept > len(shown):
            words.talk(f"{kept - len(shown):,} older commits are not shown; --limit 0 shows all.")


@dataclass(frozen=True)
class Show:
    """Show the contents of a lake: steps, rows, files, and the fields of a step.

    Example: lakepond show runs/demo --commit 17

    Example: lakepond show gs://my-bucket/demo --writer collector-3
    """

    path: Place
    """a lake or a run, here or in a bucket"""
    commit: Newest = None
    """number of the commit to show"""
    writer: Annotated[str | None, optional("NAME", "all together")] = None
    """one of the writers of the lake"""
    json: Json = False

    def run(self) -> None:
        with (
            closing(where.open_lake(self.path)) as chains,
            chains.lake(where.heads(chains, self.writer, self.commit)) as lake,
        ):
            found = _content(lake) | {"lake": str(chains)}
        size, ratio = formats.size, formats.ratio(found["ratio"])
        age = _ago(datetime.fromisoformat(found["time"]).timestamp())
        shared = f"{size(found['bytes_shared'])} of them in sources, " if found["bytes_shared"] else ""
        other = size(found["bytes_on_disk"] - found["bytes_of_rows"])
        distinct = f"{found['rows']:,} distinct" if found["rows"] else "none; stored without deduplication"
        rows = [
            ("lake", found["lake"]),
            ("commit", f"{found['commit']} of {found['commits_kept']} kept, {age}"),
            ("note", _note(found["note"])),
            ("steps", f"{found['steps']:,} live: [{found['oldest']:,}, {found['recorded']:,})"),
            ("rows", distinct),
            ("on disk", f"{size(found['bytes_on_disk'])} in {formats.counted(found['files'], 'file')}"),
            ("of which", f"rows {size(found['bytes_of_rows'])}, {shared}other columns {other}"),
            ("without deduplication", f"{size(found['bytes_plain'])}, {ratio} as much"),
            ("this commit", f"{size(found['bytes_written'])} in {formats.duration(found['seconds'])}"),
            *((f"writer {name}", size(held)) for name, held in found["bytes_by_writer"].items() if name),
            *found["spec"].items(),
        ]
        words.print_result(found, words.facts(rows), as_json=self.json)


def _ago(moment: float | None) -> str:
    return formats.age(moment, time.time()) if moment else "–"


def _note(note: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in note.items()) or "–"


def _commit(chains: Chains, writer: str, number: int) -> dict[str, Any]:
    found: dict[str, Any] = {"writer": writer, "number": number}
    try:
        commit = chains.commit(writer, number)
    except LakeCorrupt as error:
        return found | {"problem": str(error)}
    return found | {
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


def _row(commit: dict[str, Any], named: bool) -> tuple[str, ...]:
    writer = [commit["writer"] or "–"] if named else []
    if commit["problem"] is not None:
        return (str(commit["number"]), "damaged", "–", "–", "–", "see `lakepond repair`", *writer)
    return (
        str(commit["number"]),
        commit["time"][:19].replace("T", " "),
        formats.number(commit["steps"]),
        formats.size(commit["bytes_written"]),
        formats.size(commit["bytes_on_disk"]),
        _note(commit["note"]),
        *writer,
    )


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


def _lake_or_run(folder: Path) -> dict[str, Any]:
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


def _content(lake: Lake) -> dict[str, Any]:
    from lakepond.types import leaves

    stats, commit, spec = lake.stats(), lake.commit, lake.spec
    fields = {
        path: str(field) for name in ("obs", "action") for path, field in leaves(getattr(spec, name), name)
    }
    extras = {name: str(field) for name, field in spec.extras.items()}
    live = [
        (leaf, entry)
        for head in lake.reader.heads
        for leaf, _ in head.commit.lists()
        for entry in head.catalog.live_files(leaf)
    ]
    sources = [source for head in lake.heads.values() for listed in head.sources for source in listed]
    return {
        **asdict(stats),
        "ratio": stats.ratio,
        "bytes_of_rows": sum(entry.bytes for leaf, entry in live if leaf is not None)
        - sum(source.bytes for source in sources)
        + stats.bytes_shared,
        "commits_kept": sum(len(lake.commits(writer)) for writer in lake.heads),
        "parent": commit.parent,
        "time": commit.time,
        "note": commit.note,
        "oldest": commit.oldest,
        "segments": sum(entry.files for leaf, entry in live if leaf is None),
        "bytes_written": commit.bytes_written,
        "seconds": commit.seconds,
        "spec": {**fields, "reward": str(spec.reward), **extras},
    }
