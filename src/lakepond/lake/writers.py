"""Several writers of one lake: each has commits and a lock of its own, all share the segments.

    lake/
      lake.json, segments/                 of all
      commits/, lock                       of the writer without a name: the only one, in most lakes
      writers/<name>/commits/, lock        of each other one

Nothing is shared but files that are named by their content. What one writer deletes another may be about to
name: so whoever writes segments holds `lake.json` shared until a commit names them, and whoever deletes needs
it alone. Nobody waits to delete: the next commit tidies up.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lakepond.errors import SpecError
from lakepond.lake.commits import Commit, RowsFile, Segment
from lakepond.lake.description import NAME
from lakepond.lake.files import FileLock

FOLDER = "writers"


def home(lake: Path, writer: str) -> Path:
    """The folder with a writer's commits and lock."""
    if not writer:
        return lake
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", writer):
        raise SpecError(
            f"{writer!r} cannot name a writer; take up to 64 letters, digits and '.', '_', '-': 'worker-3'."
        )
    return lake / FOLDER / writer


def names(lake: Path) -> list[str]:
    """All writers there have been, by name; the one without a name is the first, whether it wrote or not."""
    return ["", *sorted(path.name for path in (lake / FOLDER).glob("*") if path.is_dir())]


@contextmanager
def sharing(lake: Path) -> Iterator[None]:
    """Until this ends no writer deletes a file, and files may be written that no commit names yet."""
    with FileLock(lake / NAME) as file:
        file.lock(fcntl.LOCK_SH)
        yield


@contextmanager
def alone(lake: Path) -> Iterator[bool]:
    """Whether nobody writes files: then none is begun until this ends."""
    with FileLock(lake / NAME) as file:
        try:
            file.lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        yield free


def together(heads: Mapping[str, Commit]) -> Commit:
    """Commits of several writers as one: the live steps of the first, then those of the next, from 0 on.

    It is of this reader alone and never written. Rows are numbered anew likewise.
    """
    segments: list[Segment] = []
    rows: list[RowsFile] = []
    leaves = range(len(next(iter(heads.values())).next_rows))
    steps, next_rows = 0, [0 for _ in leaves]
    for writer, commit in heads.items():
        shift = []
        for leaf in leaves:
            mine = [file for file in commit.rows if file.leaf == leaf]
            first = min((file.first for file in mine), default=commit.next_rows[leaf])
            shift.append(next_rows[leaf] - first)
            rows += [replace(file, first=file.first + shift[leaf]) for file in mine]
            next_rows[leaf] += commit.next_rows[leaf] - first
        for segment in commit.segments:
            first = max(segment.first, commit.oldest)
            segments.append(
                replace(
                    segment,
                    first=first - commit.oldest + steps,
                    skip=first - segment.first,
                    shift=tuple(shift),
                    writer=writer,
                )
            )
        steps += commit.recorded - commit.oldest
    return Commit(
        number=max(commit.number for commit in heads.values()),
        parent=None,
        time=max(commit.time for commit in heads.values()),
        note={writer: commit.note for writer, commit in heads.items()},
        oldest=0,
        recorded=steps,
        segments=tuple(segments),
        rows=tuple(rows),
        next_rows=tuple(next_rows),
    )
