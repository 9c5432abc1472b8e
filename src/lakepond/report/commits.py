"""The lake of a run at one commit: its counts and sizes, and how much of it is in the cloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lakepond.lake.elsewhere import places
from lakepond.lake.format.commits import Commit
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.segments import Segments
from lakepond.types import Spec


def summarise(commit: Commit, spec: Spec) -> dict[str, Any]:
    """The counts and sizes of a commit."""
    steps = commit.recorded - commit.oldest
    return {
        "number": commit.number,
        "parent": commit.parent,
        "time": commit.time,
        "note": commit.note,
        "oldest": commit.oldest,
        "recorded": commit.recorded,
        "steps": steps,
        "segments": sum(entry.files for entry in commit.segments),
        "rows": sum(entry.count for listed in commit.rows for entry in listed),
        "bytes": commit.totals.bytes,
        "bytes_plain": steps * spec.step_nbytes,
        "bytes_written": commit.bytes_written,
        "seconds": commit.seconds,
    }


def uploads(lake: Path, commit: Commit, writer: str = "") -> list[dict[str, Any]]:
    """For each destination: how much of a commit is there, and how much of that is not on this disk.

    Read from the lists that `push` writes beside a lake (`lake/elsewhere.py`).
    """
    listed, segments = places(lake), Segments(lake, writer)
    files = dict(Catalog(commit, segments).files()) if listed else {}
    found = []
    for file, url, names in listed:
        there = files.keys() & names
        only_there = [name for name in there if segments.local(name) is None]
        found.append(
            {
                "place": url,
                "files": len(there),
                "files_of": len(files),
                "bytes": sum(files[name] for name in there),
                "bytes_of": sum(files.values()),
                "only_there": len(only_there),
                "only_there_bytes": sum(files[name] for name in only_there),
                "changed": file.stat().st_mtime,
            }
        )
    return found
