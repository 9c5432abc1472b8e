"""Repair a lake: move damaged commits and files to `quarantine/`, so that the intact commits remain."""

from __future__ import annotations

import errno
import logging
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lakepond.errors import LakeCorrupt
from lakepond.lake import writers
from lakepond.lake.elsewhere import known
from lakepond.lake.files import is_damage, make_folders, sync_folder, write_path
from lakepond.lake.format import commits, description, manifests
from lakepond.lake.format.entries import Entry, Manifest
from lakepond.lake.format.names import SOURCES, is_shared, segment_files
from lakepond.lake.format.steps import StepsInfo
from lakepond.lake.lock import WriterLock
from lakepond.lake.read.reader import Head, LakeReader
from lakepond.lake.read.verify import Check, FileChecks, rows_first, run_all
from lakepond.lake.read.weights import never_recorded
from lakepond.lake.segments import Segments
from lakepond.lake.write.disk_guard import named_errors
from lakepond.paths import on_disk
from lakepond.types import Spec

log = logging.getLogger("lakepond")


@dataclass(frozen=True)
class Repaired:
    """Result of `repair`."""

    newest: int | None
    """the newest intact commit, which the lake now shows"""
    quarantined: tuple[str, ...]
    """files that were moved to the folder `quarantine`"""


def repair(path: str | Path, *, progress: Callable[[int, int], None] | None = None) -> Repaired:
    """Check every byte of every commit; move damaged commits and damaged files to the folder `quarantine`.

    Each file is read once, on two threads, however many commits name it. Nothing is deleted. progress: called
    as `progress(done, total)` after each file, in bytes. Raises `LakeNotFound` if `path` is not a lake,
    `LakeLocked` while a process writes it, `LakeTooNew` if a later version wrote a part of it, and OSError,
    before anything is moved, if a file cannot be read for a reason that may pass, as too many open files.
    """
    path = on_disk(path)
    spec = description.read(path)
    homes = {writer: writers.home(path, writer) for writer in writers.names(path)}
    with named_errors(path, rest="nothing was deleted"), ExitStack() as locks:
        for home in homes.values():
            locks.enter_context(WriterLock(home / "lock"))
        files = _FilesOfCommits(path, spec, list(homes))
        folders = [path / SOURCES, *(home / "segments" for home in homes.values())]
        done, total = 0, sum(status.st_size for each in folders for status in segment_files(each).values())
        newest = None
        moves: list[tuple[Path, Path]] = []  # a file, and the quarantine it goes to

        def finish(each: Check | _CheckedCommit, error: LakeCorrupt | OSError | None) -> None:
            nonlocal done, newest
            if isinstance(each, Check):
                files.note(each.name, error)
                done = min(total, done + each.bytes)
                if progress is not None:
                    progress(done, total)
            elif files.is_intact(each):
                newest = each.number if newest is None else max(newest, each.number)
            else:
                home = homes[each.writer]
                moves.append((home / "commits" / commits.file_name(each.number), home / "quarantine"))

        run_all(files.checks(), finish)
        if progress is not None:
            progress(total, total)  # files that no commit names are not read
        moves += [(file, writers.home(path, writer) / "quarantine") for writer, file in files.unneeded()]
        _quarantine(moves)
    return Repaired(newest, tuple(file.name for file, _ in moves))


def _quarantine(moves: list[tuple[Path, Path]]) -> None:
    """Move each file to its folder `quarantine`."""
    for home in {to.parent for _, to in moves}:
        (home / "commits" / commits.NEWEST).unlink(missing_ok=True)  # first: a move may fail
    for file, to in moves:
        make_folders(to)
        _move(file, _unused(to / file.name))
    for changed in {folder for file, to in moves for folder in (to, to.parent, file.parent)}:
        sync_folder(changed)


@dataclass
class _CheckedCommit:
    """A commit whose files are being checked."""

    writer: str
    number: int
    recorded: int = 0
    keys: list[str] = field(default_factory=list)
    """of its files, and of manifests with all files below them"""
    error: str | None = None
    """why its file is damaged"""

    def run(self) -> None:
        """Do nothing: it is judged when the checks of its files, which come before it, are done."""


class _FilesOfCommits:
    """The files of all commits. Each is checked once, so time follows the number of files and commits.

    A key is the name of a file after that of the writer in whose folder it is, or stands for several keys.
    Memory: about 500 bytes per file.
    """

    def __init__(self, path: Path, spec: Spec, names: Sequence[str]) -> None:
        self._path, self._spec, self._writers = path, spec, names
        self._file_checks, self._elsewhere = FileChecks(path, spec), known(path)
        self._segments = {writer: Segments(path, writer) for writer in {"", *names}}
        self._own = {writer: each.folder.is_dir() for writer, each in self._segments.items()}
        """the writers that have a folder of segments; in a lake of format 1 all share that of the lake"""
        self._here: dict[str, bool] = {}
        """the files that were found in a commit; False: the file is elsewhere, and not checked"""
        self._groups: dict[str, list[str]] = {}
        """keys that stand for several ones: of a manifest with all below it, or of a file of priorities"""
        self._complete: dict[str, bool] = {}
        """for those of a manifest, whether all manifests below it can be read"""
        self._rows_unknown: set[str] = set()
        """files of steps that were checked in commits only whose rows are not known"""
        self._damaged: dict[str, str] = {}
        """the reason for each damaged key"""
        self._recorded: dict[str, int] = {}
        """for files of priorities, the least number of recorded steps of a commit that can name it"""
        self._suspects: set[str] = set()
        """keys of damaged commits"""
        self._needed: set[str] = set()
        """keys of intact commits"""

    def checks(self) -> Iterator[Check | _CheckedCommit]:
        """The checks of all files; each commit follows the checks of its files."""
        for writer in self._writers:
            home = writers.home(self._path, writer)
            for number in commits.numbers(home / "commits"):
                found = _CheckedCommit(writer, number)
                try:
                    commit = commits.read(home / "commits", number)
                    segments = {writer: self._segments[writer]}
                    (head,) = LakeReader(self._path, {writer: commit}, self._spec, segments).heads
                except (LakeCorrupt, OSError) as error:
                    if not is_damage(error):
                        raise
                    found.error = str(error)
                else:
                    found.recorded, rows_known = commit.recorded, True
                    for leaf, listed in rows_first(commit):
                        complete = yield from self._below(head, leaf, listed, found.keys, rows_known)
                        rows_known = rows_known and complete
                    for info in commit.weights:
                        yield from self._weights(head, info, found.keys)
                yield found

    def _below(
        self, head: Head, leaf: int | None, entries: Iterable[Entry], keys: list[str], rows_known: bool
    ) -> Generator[Check, None, bool]:
        """The checks of files that were not found before; adds the keys of all to `keys`.

        Returns whether all manifests among them can be read. `rows_known`: the same for the commit's rows; if
        not, its files of steps are looked at again in a commit whose rows are known.
        """
        complete = True
        for entry in entries:
            if not head.catalog.is_live(leaf, entry):
                continue
            key, new = self._find(head, entry.name)
            group = f"all of {key}"
            all_live = isinstance(entry, Manifest) and rows_known and head.catalog.all_live(leaf, entry)
            if all_live and group in self._groups:
                keys.append(group)
                complete = complete and self._complete[group]
            elif not isinstance(entry, Manifest):
                if self._here[key]:
                    keys.append(key)
                    if key not in self._damaged and (new or (rows_known and key in self._rows_unknown)):
                        if rows_known:
                            self._rows_unknown.discard(key)
                        elif leaf is None:
                            self._rows_unknown.add(key)
                        yield Check(
                            key, entry.bytes, partial(self._file_checks.check, head, entry, rows_known)
                        )
            else:
                members = self._groups.setdefault(group, []) if all_live else keys
                if all_live:
                    keys.append(group)
                listed = None
                if self._here[key]:
                    members.append(key)
                    listed = self._listed(head, leaf, entry, key, new)
                below_is_complete = listed is not None
                if listed is not None:
                    below_is_complete = yield from self._below(head, leaf, listed, members, rows_known)
                complete = complete and below_is_complete
                if all_live:
                    self._complete[group] = below_is_complete
        return complete

    def _listed(
        self, head: Head, leaf: int | None, entry: Manifest, key: str, new: bool
    ) -> Sequence[Entry] | None:
        """The files in a manifest: from its file, later from memory; None if it is damaged."""
        if key in self._damaged:
            return None
        try:
            if new:
                return manifests.read(head.segments, entry, leaf, len(head.commit.rows))
            return head.catalog.read(entry, leaf)
        except (LakeCorrupt, OSError) as error:
            if not is_damage(error):
                raise
            self._damaged[key] = str(error)
            return None

    def _weights(self, head: Head, info: StepsInfo, keys: list[str]) -> Iterator[Check]:
        """The check of a file of priorities, if it was not found before; adds its key to `keys`."""
        key, _ = self._find(head, f"{info.digest}.steps")
        if self._here[key]:
            changes = info is not head.commit.priorities
            keys.append(f"{info.steps} {'changes' if changes else 'priorities'} in {key}")
            if keys[-1] not in self._groups:
                self._groups[keys[-1]] = [key]
                if key not in self._damaged:
                    yield Check(keys[-1], info.bytes, partial(self._check_weights, head, info, keys[-1]))

    def _check_weights(self, head: Head, info: StepsInfo, key: str) -> None:
        self._recorded[key] = self._file_checks.check_weights(head, info)

    def _find(self, head: Head, name: str) -> tuple[str, bool]:
        """The key of a file, and whether it was not found before."""
        file = None if is_shared(name) or self._own[head.writer] else head.segments.local(name)
        writer = head.writer if file is None or file.parent == head.segments.folder else ""  # as in format 1
        key = sys.intern(name if is_shared(name) else f"{writer}/{name}")
        if key in self._here:
            return key, False
        here = head.segments.local(name) is not None
        self._here[key] = here or name not in self._elsewhere
        if self._here[key] and not here:
            self._damaged[key] = f"{name} is missing"
        return key, True

    def note(self, key: str, error: Exception | None) -> None:
        """Note the result of a check; without its traceback, which refers to the bytes of the file."""
        if error is not None:
            if not is_damage(error):
                raise error
            self._damaged[key] = str(error)

    def is_intact(self, commit: _CheckedCommit) -> bool:
        """Whether a commit and all its files are intact, once these are checked; reports the first error."""
        errors = [commit.error, *map(self._error, commit.keys)]
        for key in commit.keys:
            if self._recorded.get(key, 0) > commit.recorded:
                errors.append(str(never_recorded(self._place(self._groups[key][0])[1])))
        first = next(filter(None, errors), None)
        if first is not None:
            home = writers.home(self._path, commit.writer)
            log.warning("commit %d of %s is damaged: %s", commit.number, home, first)
        self._mark(commit.keys, self._needed if first is None else self._suspects)
        return first is None

    def _error(self, key: str) -> str | None:
        """Why a file, or one of several, is damaged; None if it is intact."""
        judged = key in self._damaged or key in self._needed or key in self._suspects
        if not judged and (found := [*filter(None, map(self._error, self._groups.get(key, ())))]):
            self._damaged[key] = found[0]
        return self._damaged.get(key)

    def _mark(self, keys: Iterable[str], marked: set[str]) -> None:
        for key in keys:
            if key not in marked:
                marked.add(key)
                self._mark(self._groups.get(key, ()), marked)

    def unneeded(self) -> list[tuple[str, Path]]:
        """The files of damaged commits that no intact one needs, each with its writer; shared ones last."""
        unneeded = [key for key in self._suspects - self._needed if key in self._here]
        found = [self._place(key) for key in sorted(unneeded, key=lambda key: (is_shared(key), key))]
        return [(writer, file) for writer, file in found if file.exists()]

    def _place(self, key: str) -> tuple[str, Path]:
        writer, _, name = key.rpartition("/")
        return writer, self._segments[writer].place(name)


def _unused(file: Path) -> Path:
    """A name that no file has: earlier files in the quarantine are not overwritten."""
    others = (file.with_name(f"{file.name}.{n}") for n in range(1, 1 << 20))
    return file if not file.exists() else next(other for other in others if not other.exists())


def _move(file: Path, to: Path) -> None:
    """Rename a file, or copy it and then delete it if `segments/` is a link to another disk."""
    try:
        file.rename(to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise

        def copy(temporary: Path) -> None:
            shutil.copyfile(file, temporary)

        write_path(to, copy)
        file.unlink()
