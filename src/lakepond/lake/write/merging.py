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

from lakepond.lake.format.commits import Commit, RowsFile, Segment
from lakepond.lake.write.merge import File, Merged, Stopped, all_small, merge, newest_small, replaced
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
        self._reported = ""
        self._stop = threading.Event()

    def begin(self, commit: Commit) -> None:
        """After a commit: merge small files in the background if there are enough, one merge at a time."""
        if self._taken:
            self._work, self._taken = None, False
        if self._after is None or self._work is not None or self._stop.is_set():
            return
        groups = newest_small(commit, max(2, self._after), free=self._free)
        if groups:
            self._work = self._pool.submit(_merge_groups, self._folder, groups, self._stop.is_set)

    def take(self, commit: Commit | None) -> tuple[list[Segment], list[RowsFile], set[str]]:
        """The files of a commit, merged ones in place of those they replace, and the names of the merged.

        The same again if the commit that takes them fails. A merge that failed is dropped.
        """
        if commit is None:
            return [], [], set()
        work = self._work
        if work is not None and work.done():
            try:
                merged = work.result()
                # a file that is there stays there: nobody deletes while we commit
                segments, rows = replaced(commit, [m for m in merged if (self._folder / m.new.name).exists()])
                self._taken, self._reported = True, ""
                return segments, rows, {each.new.name for each in merged}
            except BaseException as error:  # the small files serve as well
                self._work = None
                self._report(error)
        return list(commit.segments), list(commit.rows), set()

    def _report(self, error: BaseException) -> None:
        """Log why a merge failed, unless the one before it failed for the same reason."""
        reason = f"{type(error).__name__}: {error}"
        if reason != self._reported:
            log.warning("small files in %s could not be merged and are kept: %s", self._folder, reason)
        self._reported = reason

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
