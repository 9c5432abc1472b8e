"""Work beside the commits, on a thread of its own: delete old commits and files, merge small files.

opening   ──────────▶ deletes temporary files of killed processes: listing a large folder takes long
commit 31 ──start──▶ deletes what is not kept; merges files that commit 31 names, however long it takes
commit 32, 33 ...    do not wait
commit 34 ──take───▶ the large file replaces the small ones, if they are all still listed

Nothing here can fail a commit: errors are logged once and counted. A file that is being written for a commit
is claimed before it gets its name, and claimed files are never deleted.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

from lakepond import background
from lakepond.errors import LakepondError
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.entries import Entry, File, Manifest
from lakepond.lake.format.names import delete_temporary
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.segments import Segments
from lakepond.lake.write.merge import GrowingList, Merged, Stopped, all_small, merge
from lakepond.lake.write.reasons import Reasons
from lakepond.lake.write.retention import Retention

log = logging.getLogger("lakepond")


class Maintenance:
    """Retention and merging of one writer. Its methods are called by the thread that commits."""

    def __init__(
        self,
        lake: Path,
        writer: str,
        segments: Segments,
        *,
        keep_last: int | None,
        keep_every: int | None,
        merge_after: int | None,
    ) -> None:
        """`merge_after`: small files that start a merge; None: never."""
        self._segments, self._merge_after = segments, merge_after
        self._retention = Retention(lake, writer, segments, keep_last, keep_every)
        self._pool = ThreadPoolExecutor(1, "lakepond-maintenance")
        self._work: Future[None] | None = None
        self._growing: dict[int | None, GrowingList] = {}  # by leaf; None: steps
        self._merged: list[Merged] = []
        self._reasons: dict[str, Reasons] = {}
        self._damaged: set[str] = set()  # files that could not be merged, and are not tried again
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._newest: Commit | None = None
        self._busy = False
        self.failures = 0
        """tasks that failed"""

    def claim(self, name: str, number: float) -> None:
        """Keep a file that commit `number` will name, until that commit is published."""
        self._retention.claim(name, number)

    def delete_temporary(self, *folders: Path) -> None:
        """Delete in the background what processes that were killed have left in these folders."""
        tasks = [partial(delete_temporary, folder) for folder in folders]
        self._submit(partial(self.guarded, "temporary files", "deleted", *tasks))

    def start(self, commit: Commit) -> None:
        """After a commit: delete and merge in the background, after what is in progress there."""
        with self._lock:
            self._newest = commit
            if not self._busy and not self._stop.is_set():
                self._busy = self._submit(self._maintain)  # may fail to start its thread; then next time

    def _submit(self, work: Callable[[], None]) -> bool:
        """Whether the thread will do this; not while the interpreter exits: the next writer does it."""
        try:
            self._work = self._pool.submit(work)
        except RuntimeError as error:
            if not background.is_exiting(error):
                raise
            return False
        return True

    def take(self) -> list[Merged]:
        """Files that replace others; the same again until they are `published`."""
        return list(self._merged)

    def published(self, commit: Commit, merged: Sequence[Merged]) -> None:
        """Note that a commit was published that took these files; it may not list all of them."""
        self._retention.published(commit, [each.new for each in merged])
        if merged:
            self._merged = []

    def merge_all(self, commit: Commit) -> list[Merged]:
        """Merge all small files of a commit, here and now."""
        self._wait()
        catalog = Catalog(commit, self._segments)
        lists = (catalog.segments() if leaf is None else catalog.rows(leaf) for leaf, _ in commit.lists())
        for files in lists:
            self._collect(self._merge(all_small(files), lambda: False))
        return self.take()

    def sweep(self, commit: Commit) -> None:
        """Delete what is not kept, and all files that no commit names, here and now."""
        self._wait()
        self._retention.sweep(commit)

    def close(self, commit: Commit | None) -> None:
        """Stop merging, delete what is not kept, and end the thread."""
        self._stop.set()
        self._wait()
        if commit is not None:
            self._retention.published(commit, [each.new for each in self._merged])  # which names none of them
            self.guarded("old files", "deleted", lambda: self._retention.apply(commit, now=True))
        self._pool.shutdown()

    def _wait(self) -> None:
        if self._work is not None:
            self._work.exception()

    # --- on the thread ---------------------------------------------------------------------------

    def _maintain(self) -> None:
        done: Commit | None = None
        while (commit := self._next(done)) is not None:
            self.guarded("old files", "deleted", partial(self._retention.apply, commit))
            if self._merge_after is not None and not self._merged:  # those of before are not taken yet
                self._collect(self._merge_newest(commit, max(2, self._merge_after)))
            done = commit

    def _next(self, done: Commit | None) -> Commit | None:
        """The newest commit, if it is another one than that; None: the thread is idle from now on."""
        with self._lock:
            self._busy = self._newest is not done
            return self._newest if self._busy else None

    def _merge_newest(self, commit: Commit, least: int) -> list[Merged]:
        """Merge one group of small files of each list."""
        found: list[Merged] = []
        tasks = [partial(self._merge_list, commit, leaf, least, found) for leaf, _ in commit.lists()]
        self.guarded("small files", "merged", *tasks)
        return found

    def _merge_list(self, commit: Commit, leaf: int | None, least: int, found: list[Merged]) -> None:
        """Merge small files of a list, newer ones than the newest that is damaged or not here."""
        catalog, errors = Catalog(commit, self._segments), list[BaseException]()
        listed = commit.segments if leaf is None else commit.rows[leaf]

        def intact() -> Iterator[File]:
            try:
                yield from takewhile(self._can_be_read, _newest_first(catalog, leaf, listed))
            except (LakepondError, OSError) as error:  # a manifest of older files cannot be read
                errors.append(error)

        growing = self._growing.get(leaf)
        if growing is None:
            growing = self._growing[leaf] = GrowingList(least, keeps_all=self._retention.keeps_all)
        found += islice(self._merge(growing.groups(intact()), self._stop.is_set), 1)
        if errors:
            raise errors.pop()

    def _can_be_read(self, file: File) -> bool:
        """Whether a file is on this disk and not known to be damaged."""
        return file.name not in self._damaged and self._segments.local(file.name) is not None

    def _collect(self, merges: Iterable[Merged]) -> None:
        """Take over what was merged, also before an error: no commit may name it, so `close` deletes it.

        All of it at once, because `published` forgets all that `take` returned.
        """
        found: list[Merged] = []
        try:
            for each in merges:
                found.append(each)
        finally:
            self._merged = [*self._merged, *found]

    def _merge(self, groups: Iterable[list[File]], stop: Callable[[], bool]) -> Iterator[Merged]:
        """Merge each group, in several parts if one file cannot have all of it, the newest part first."""
        segments = self._segments
        with suppress(Stopped):
            for group in groups:
                paths = [path for file in group if (path := segments.local(file.name)) is not None]
                left = len(group) if len(paths) == len(group) else 0  # files in the cloud are not fetched
                while left > 1:
                    merged = merge(
                        segments.folder,
                        paths[:left],
                        group[:left],
                        stop,
                        lambda name: self.claim(name, math.inf),
                        self._damaged.add,
                    )
                    left -= 1 if merged is None else merged.count
                    if merged is not None:
                        yield merged

    def guarded(self, what: str, done: str, *tasks: Callable[[], None]) -> None:
        """Do each task; log why it failed, once for each reason until all of them succeed."""
        reasons, failed = self._reasons.setdefault(f"{what} {done}", Reasons()), False
        for task in tasks:
            try:
                task()
            except BaseException as error:
                failed = True
                self.failures += 1
                if reasons.is_new(error):
                    log.warning(
                        "%s of %s could not be %s and are kept: %s: %s",
                        what,
                        self._segments.folder.parent,
                        done,
                        type(error).__name__,
                        error,
                    )
        if not failed:
            reasons.clear()


def _newest_first(catalog: Catalog, leaf: int | None, entries: Iterable[Entry]) -> Iterator[File]:
    """The files that belong to a commit; those that do not may have been deleted."""
    for entry in reversed(list(entries)):
        if not catalog.is_live(leaf, entry):
            continue
        if isinstance(entry, Manifest):
            yield from _newest_first(catalog, leaf, catalog.read(entry, leaf))
        else:
            yield entry
