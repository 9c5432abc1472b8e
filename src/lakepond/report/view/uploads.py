"""What is known to be in the cloud: the lists that `push` keeps beside a lake (`lake/elsewhere.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lakepond.lake.elsewhere import Segments, places
from lakepond.lake.format.commits import Commit
from lakepond.lake.read.catalog import Catalog
from lakepond.runs.status import UPLOAD
from lakepond.untrusted import read_json


def tell_uploads(lake: Path, writer: str, commit: Commit | None) -> dict[str, Any]:
    """For each place: how much of a commit is there, and how much of that is no longer on this disk."""
    listed, found, segments = places(lake), [], Segments(lake, writer)
    files = dict(Catalog(commit, segments).files()) if commit is not None and listed else {}
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
                "ever": len(names),
                "changed": file.stat().st_mtime,
            }
        )
    return {
        "commit": None if commit is None else commit.number,
        "places": found,
        "last_push": _last_push(lake.resolve().parent / UPLOAD),
    }


def _last_push(file: Path) -> dict[str, Any] | None:
    """How the last push of the run around the lake ended; None if there is no word of it."""
    try:
        noted = read_json(file)
        return {"place": noted["url"], "time": noted["time"], "error": noted["last_error"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
