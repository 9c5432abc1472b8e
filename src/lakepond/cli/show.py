"""`lakepond show`: what one commit of a lake holds."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from lakepond.cli import where, words
from lakepond.cli.ls import note_text

if TYPE_CHECKING:
    from lakepond.lake.lake import Lake


@dataclass(frozen=True)
class Show:
    """Tell what a lake holds: steps, rows, files, and what a step looks like.

    Example: lakepond show runs/demo --commit 17
    """

    path: Positional[Path]
    """a lake, or a run"""
    commit: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the newest)")] = None
    """which commit"""
    json: bool = False
    """print JSON instead of a table"""

    def run(self) -> None:
        """Open, tell."""
        from lakepond.lake.lake import Lake

        with Lake.open(where.lake_folder(self.path), self.commit) as lake:
            told = _summary(lake)
        if self.json:
            words.print_json(told)
            return
        moment = datetime.fromisoformat(told["time"]).timestamp()
        rows = [
            ("lake", words.literal(told["lake"])),
            ("commit", f"{told['commit']} of {told['commits_kept']} kept, {words.age(moment, time.time())}"),
            ("note", note_text(told["note"])),
            ("steps", f"{told['steps']:,} live: [{told['oldest']:,}, {told['recorded']:,})"),
            ("rows", f"{told['rows']:,} distinct"),
            ("on disk", f"{words.size(told['bytes_on_disk'])} in {told['files']:,} files"),
            ("plainly", f"{words.size(told['bytes_plain'])}, {words.ratio(told['ratio'])} as much"),
            ("this commit", f"{words.size(told['bytes_written'])} in {words.duration(told['seconds'])}"),
            *((words.literal(name), words.literal(text)) for name, text in told["spec"].items()),
        ]
        words.console().print(words.facts(rows))


def _summary(lake: Lake) -> dict[str, Any]:
    from lakepond.types import leaves

    stats, commit, spec = lake.stats(), lake.commit, lake.spec
    fields = {
        path: str(field) for name in ("obs", "action") for path, field in leaves(getattr(spec, name), name)
    }
    extras = {name: str(field) for name, field in spec.extras.items()}
    return {
        "lake": str(lake.path),
        **asdict(stats),
        "ratio": stats.ratio,
        "commits_kept": len(lake.commits()),
        "parent": commit.parent,
        "time": commit.time,
        "note": commit.note,
        "oldest": commit.oldest,
        "segments": len(commit.segments),
        "bytes_written": commit.bytes_written,
        "seconds": commit.seconds,
        "spec": {**fields, "reward": str(spec.reward), **extras},
    }
