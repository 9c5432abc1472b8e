"""Merging while a lake grows: on a thread of its own, beside the commits, which take up what is done.

commit 31 ──begin──▶ merged from what commit 31 names, however long it takes
commit 32, 33 ...    nothing waits
commit 34 ──take───▶ the large file stands in place of the small ones, if they are all there still
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from lakepond.errors import LakeCorrupt
from lakepond.lake.commits import Commit, RowsFile, Segment
from lakepond.lake.merge import File, Merged, Stopped, all_small, merge, newest_small, replaced
from lakepond.lake.writers import sharing

log = logging.getLogger("lakepond")


class Merging:
    """What is being merged for one writer, at most one merge at a time."""

    def __init__(self, folder: Path, after: int | None, *, free: bool) -> None:
        """`after`: so many small files are merged. `free`: the old ones will leave one day."""
        self._folder, self._after, self._free = folder, after, free
        self._pool = ThreadPoolExecutor(1, "lakepond-merge")
        self._work: Future[list[Merged]] | None = None
        self._taken = False
        self._stop = threading.Event()

    def begin(self, commit: Commit) -> None:
        """After a commit: merge what is worth it, in the background, unless that is going on already."""
        if self._taken:
            self._work, self._taken = None, False
        if self._after is None or self._work is not None or self._stop.is_set():
            return
        groups = newest_small(commit, max(2, self._after), free=self._free)
        if groups:
            self._work = self._pool.submit(_merge_groups, self._folder, groups, self._stop.is_set)

    def take(self, commit: Commit | None) -> tuple[list[Segment], list[RowsFile], set[str]]:
        """The files of a commit, merged as far as that is done, and the names of the merged ones."""
        if commit is None:
            return [], [], set()
        if self._work is None or not self._work.done():
            return list(commit.segments), list(commit.rows), set()
        self._taken = True  # and again, should this commit fail
        try:
            merged = self._work.result()
        except (OSError, LakeCorrupt) as error:  # a full disk, say: the small files do as well
            log.warning("files in %s could not be merged: %s", self._folder, error)
            return list(commit.segments), list(commit.rows), set()
        there = [
            each for each in merged if (self._folder / each.new.name).exists()
        ]  # none deletes while we commit
        segments, rows = replaced(commit, there)
        return segments, rows, {each.new.name for each in merged}

    def close(self) -> None:
        """Stop; what is not done is left undone."""
        self._stop.set()
        self._pool.shutdown()


def merge_all(folder: Path, commit: Commit) -> list[Merged]:
    """Merge all that is small in a commit, here and now."""
    return _merge_groups(folder, all_small(commit), lambda: False)


def _merge_groups(folder: Path, groups: list[list[File]], stop: Callable[[], bool]) -> list[Merged]:
    done = []
    with suppress(Stopped):
        for group in groups:
            with sharing(
                folder.parent
            ):  # for each file, so that a writer that waits to delete gets in between
                if not all((folder / file.name).exists() for file in group):
                    continue  # some are elsewhere, and not worth to be fetched for this
                merged = merge(folder, group, stop)
            if merged is not None:
                done.append(merged)
    return done
