"""`lakepond show`: the contents of one commit of a lake."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import where, words
from lakepond.cli.ls import note_text
from lakepond.cli.options import Json, optional

if TYPE_CHECKING:
    from lakepond.lake.read.lake import Lake


@dataclass(frozen=True)
class Show:
    """Show the contents of a lake: steps, rows, files, and the fields of a step.

    Example: lakepond show runs/demo --commit 17

    Example: lakepond show gs://my-bucket/demo --writer collector-3
    """

    path: Annotated[Positional[str], arg(metavar="PATH|URL")]
    """a lake or a run, here or in a bucket"""
    commit: Annotated[int | None, optional("N", "the newest")] = None
    """number of the commit to show"""
    writer: Annotated[str | None, optional("NAME", "all together")] = None
    """one of the writers of the lake"""
    json: Json = False

    def run(self) -> None:
        with (
            closing(where.open_lake(self.path)) as chains,
            chains.lake(where.heads(chains, self.writer, self.commit)) as lake,
        ):
            found = _summary(lake) | {"lake": str(chains)}
        size, ratio = formats.size, formats.ratio(found["ratio"])
        age = formats.age(datetime.fromisoformat(found["time"]).timestamp(), time.time())
        shared = f"{size(found['bytes_shared'])} of them in sources, " if found["bytes_shared"] else ""
        other = size(found["bytes_on_disk"] - found["bytes_of_rows"])
        rows = [
            ("lake", found["lake"]),
            ("commit", f"{found['commit']} of {found['commits_kept']} kept, {age}"),
            ("note", note_text(found["note"])),
            ("steps", f"{found['steps']:,} live: [{found['oldest']:,}, {found['recorded']:,})"),
            (
                "rows",
                f"{found['rows']:,} distinct" if found["rows"] else "none; stored without deduplication",
            ),
            ("on disk", f"{size(found['bytes_on_disk'])} in {formats.counted(found['files'], 'file')}"),
            ("of which", f"rows {size(found['bytes_of_rows'])}, {shared}other columns {other}"),
            ("without deduplication", f"{size(found['bytes_plain'])}, {ratio} as much"),
            ("this commit", f"{size(found['bytes_written'])} in {formats.duration(found['seconds'])}"),
            *((f"writer {name}", size(held)) for name, held in found["bytes_by_writer"].items() if name),
            *found["spec"].items(),
        ]
        words.print_result(found, words.facts(rows), as_json=self.json)


def _summary(lake: Lake) -> dict[str, Any]:
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
