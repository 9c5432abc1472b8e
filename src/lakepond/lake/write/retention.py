"""Which commits are kept, and which files are deleted with those that are not.

One rule for `keep_last`/`keep_every`, `compact` and the cloud's `gc`: a commit is kept while it is one of the
newest `keep_last`, its number is a multiple of `keep_every`, or a finished checkpoint of the run around the
lake names it (`checkpoints/<number>/state.json`). Without `keep_last` all commits are kept.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from lakepond.errors import LakeCorrupt, SpecError
from lakepond.lake import writers
from lakepond.lake.files import sync_folder
from lakepond.lake.format import commits, names
from lakepond.lake.format.commits import Commit

log = logging.getLogger("lakepond")
CHECKPOINT = re.compile(r"[0-9]+")
"""the name of a finished checkpoint's folder; those with an ending are being written, or were dropped"""
TRIES = 16
"""how often in a row a writer finds others writing before it waits until it can delete"""
LEAST_BYTES = 1 << 20
"""what may wait to be deleted whatever a lake holds"""
WAIT_SECONDS = 5.0
"""how long it waits then: other writers' commits wait with it"""
MOST_PATIENCE = 64
"""a writer whose wait was in vain tries this many times longer before the next one, at most"""


def check_kept(keep_last: int | None, keep_every: int | None) -> None:
    """Raise `SpecError` unless these are valid."""
    for name, value in (("keep_last", keep_last), ("keep_every", keep_every)):
        if value is not None and value < 1:
            raise SpecError(f"{name} must be at least 1, but is {value!r}.")
    if keep_every is not None and keep_last is None:
        raise SpecError(f"keep_every={keep_every} keeps some of the older commits: give keep_last as well.")


def deletable(
    numbers: Sequence[int], keep_last: int | None, keep_every: int | None, named: Collection[int]
) -> list[int]:
    """The commits that are not kept, oldest first; `numbers` are sorted, `named` are always kept."""
    if keep_last is None:
        return []
    kept = {*numbers[-keep_last:], *named}
    return [n for n in numbers if n not in kept and (keep_every is None or n % keep_every)]


def commit_of_state(state: bytes) -> set[int]:
    """The commit that a checkpoint's `state.json` names, if it names one; ValueError if it cannot be read."""
    try:
        number = json.loads(state)["state"].get("lake_commit")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not the state of a checkpoint: {error!r}") from error
    if number is None:
        return set()
    if type(number) is not int or number < 0:
        raise ValueError(f"its lake_commit is {number!r}")
    return {number}


def checkpointed(lake: Path) -> set[int]:
    """The commits that finished checkpoints of the run around a lake name.

    `LakeCorrupt` if the state of one cannot be read: then the commit that it needs is not known.
    """
    found: set[int] = set()
    for run in {lake.absolute().parent, lake.resolve().parent}:  # the lake may be a link to another disk
        for entry in names.entries(run / "checkpoints", CHECKPOINT):
            state = run / "checkpoints" / entry.name / "state.json"
            try:
                found |= commit_of_state(state.read_bytes())
            except (FileNotFoundError, NotADirectoryError):  # not a checkpoint, or deleted in the meantime
                continue
            except (OSError, ValueError) as error:
                raise LakeCorrupt(
                    f"{state} cannot be read, so the commit that it needs is not known; nothing is deleted. "
                    f"Delete that checkpoint by hand if it is not needed ({error})."
                ) from error
    return found


class Retention:
    """Deletes the commits of one writer that are not kept, and the files that no commit of any writer names.

    Checkpoints name commits of the writer without a name; those of other writers follow `keep_last` and
    `keep_every` alone. The commit that the writer continues from is always kept.
    """

    def __init__(
        self, lake: Path, writer: str, keep_last: int | None = None, keep_every: int | None = None
    ) -> None:
        check_kept(keep_last, keep_every)
        self._lake, self._segments = lake, lake / "segments"
        self._commits = writers.home(lake, writer) / "commits"
        self._checkpoints = not writer
        self.keep_last, self.keep_every = keep_last, keep_every
        self._named: dict[Path, frozenset[str]] = {}
        self._unneeded: set[str] = set()
        self._undeleted = 0  # bytes written since files were last deleted
        self._missed = 0
        self._patience = 1
        self._warned = False

    def wrote(self, commit: Commit, merged: set[str]) -> None:
        """Note a new commit, and the merged files that were made for it: some of them it may not name."""
        files = commit.files()
        self._unneeded |= merged - files.keys()
        self._undeleted += commit.bytes_written + sum(files[name] for name in merged & files.keys())

    def apply(self, last: Commit | None, *, wait: bool = False) -> None:
        """Delete what is not kept; while another writer writes files, leave that to a later call.

        Waits for the other writers with `wait`, after `TRIES` calls in vain, and when more was written since
        files were last deleted than the `last` commit needs. All waits are bounded.
        """
        if last is None or not (self._unneeded or self._deletable(last)):
            return
        needed = max(LEAST_BYTES, sum(last.files().values()))
        self._undeleted += (self._commits / commits.file_name(last.number)).stat().st_size
        wait |= self._missed >= TRIES * self._patience or self._undeleted > needed * self._patience
        with writers.alone(self._lake, WAIT_SECONDS if wait else 0.0) as alone:
            if alone:
                self._delete_commits(last)
                self._delete(self._unneeded)
                self._unneeded = set()
                self._patience = 1
            elif wait:
                self._patience = min(2 * self._patience, MOST_PATIENCE)
                log.warning("old files of %s were not deleted: other writers were busy", self._lake)
        if alone or wait:
            self._missed = self._undeleted = 0
        else:
            self._missed += 1

    def sweep(self, last: Commit) -> None:
        """Delete what is not kept, every file that no commit names, and temporary files.

        Waits for other writers, within bounds. `LakeCorrupt` if a commit is broken: what it names is not
        known then.
        """
        with writers.alone(self._lake, WAIT_SECONDS) as alone:
            if not alone:
                log.warning(
                    "old files of %s were not deleted: other writers were busy; compact again later",
                    self._lake,
                )
                return
            self._delete_commits(last)
            named = {name for folder, number in self._all() for name in self._names(folder, number)}
            for name in names.segment_files(self._segments).keys() - named:
                names.delete(self._segments / name)
            names.delete_temporary(self._segments)

    def _deletable(self, last: Commit) -> list[int]:
        numbers = commits.numbers(self._commits)
        found = deletable(numbers, self.keep_last, self.keep_every, {last.number})
        if not found or not self._checkpoints:
            return found
        try:
            named = checkpointed(self._lake)
        except LakeCorrupt as error:
            if not self._warned:
                self._warned = True
                log.warning("all commits of %s are kept: %s", self._lake, error)
            return []
        return [number for number in found if number not in named]

    def _delete_commits(self, last: Commit) -> None:
        """Delete commits, then the files that they name and no other commit does."""
        gone: set[str] = set()
        for number in self._deletable(last):
            file = self._commits / commits.file_name(number)
            with suppress(LakeCorrupt):  # a broken commit is left for `repair`
                named = self._names(self._commits, number)
                if names.delete(file):
                    gone |= named
        if gone:
            sync_folder(self._commits)  # a commit must not reappear after its files were deleted
            self._delete(gone)

    def _delete(self, files: set[str]) -> None:
        """Delete those of these files that no commit names."""
        if not files:
            return
        kept: set[str] = set()
        for folder, number in self._all():
            with suppress(LakeCorrupt):
                kept |= self._names(folder, number)
        for name in files - kept:
            names.delete(self._segments / name)

    def _all(self) -> list[tuple[Path, int]]:
        """The commits of all writers."""
        folders = [writers.home(self._lake, writer) / "commits" for writer in writers.names(self._lake)]
        found = [(folder, number) for folder in folders for number in commits.numbers(folder)]
        there = {folder / commits.file_name(number) for folder, number in found}
        self._named = {file: named for file, named in self._named.items() if file in there}
        return found

    def _names(self, folder: Path, number: int) -> frozenset[str]:
        file = folder / commits.file_name(number)
        if file not in self._named:
            self._named[file] = frozenset(commits.read(folder, number).files())
        return self._named[file]
