"""Several writers of one lake: each has commits and a lock of its own, all share the segments.

    lake/
      lake.json, segments/                 of all
      commits/, lock                       of the writer without a name: the only one, in most lakes
      writers/<name>/commits/, lock        of each other one

Writers share nothing but files that are named by their content. A file that one deletes another may be about
to name: so a writer locks `lake.json` shared while it writes segments, until a commit names them, and
exclusively while it deletes. An exclusive lock would never be free under several busy writers: one that waits
for it holds the lock `turnstile`, which every shared lock passes first, until the others have finished.

The turnstile only keeps the order; `lake.json` alone protects files. All waits for the turnstile and for the
exclusive lock are bounded, so a process that was stopped while it holds one delays the others, no more. All
locks end with their process.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from lakepond.errors import SpecError
from lakepond.lake.files import FileLock
from lakepond.lake.format.commits import Commit, RowsFile, Segment
from lakepond.lake.format.description import NAME
from lakepond.lake.format.names import WRITER, entries

FOLDER = "writers"
TURNSTILE = "turnstile"
PASS_SECONDS = 10.0
"""how long a commit waits behind writers that wait to delete, at most"""


def home(lake: Path, writer: str) -> Path:
    """The folder with a writer's commits and lock."""
    if not writer:
        return lake
    if not WRITER.fullmatch(writer):
        raise SpecError(
            f"{writer!r} cannot name a writer; take up to 64 letters, digits and '.', '_', '-': 'worker-3'."
        )
    return lake / FOLDER / writer


def names(lake: Path) -> list[str]:
    """All writers there have been, by name; the one without a name is the first, whether it wrote or not."""
    named = (entry.name for entry in entries(lake / FOLDER, WRITER))
    return ["", *sorted(name for name in named if (lake / FOLDER / name / "commits").is_dir())]


@contextmanager
def sharing(lake: Path) -> Iterator[None]:
    """Until this ends no writer deletes a file, and files may be written that no commit names yet.

    Must not be nested: the inner one would wait for a writer that waits for the outer one.
    """
    with suppress(FileNotFoundError), FileLock(lake / TURNSTILE) as turnstile:  # made by the first that waits
        turnstile.try_lock(fcntl.LOCK_SH, PASS_SECONDS)
    with FileLock(lake / NAME) as file:
        file.lock(fcntl.LOCK_SH)
        yield


@contextmanager
def alone(lake: Path, wait: float = 0.0) -> Iterator[bool]:
    """Whether no process writes files: then none starts to until this ends.

    With `wait`, new writes are held back for up to that many seconds, until those under way are finished.
    """
    with FileLock(lake / NAME) as file:
        free = file.try_lock(fcntl.LOCK_EX)
        if not free and wait:
            with FileLock(lake / TURNSTILE, create=True) as turnstile:
                free = turnstile.try_lock(fcntl.LOCK_EX, wait) and file.try_lock(fcntl.LOCK_EX, wait)
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
