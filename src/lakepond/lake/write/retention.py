"""Which commits are kept, and which files are deleted with those that are not.

One rule for `keep_last`/`keep_every`, `compact` and the cloud's `gc`: a commit is kept while it is one of the
newest `keep_last`, its number is a multiple of `keep_every`, a finished checkpoint of the run around the lake
names it (`checkpoints/<number>/state.json`), a snapshot of a follower does (`snapshots/<number>.json`), or a
reader has it open, in any process. Without `keep_last` all commits are kept.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from lakepond.errors import CloudCorrupt, CloudNotFound, LakeCorrupt, LakepondError, SpecError
from lakepond.lake import writers
from lakepond.lake.files import is_damage, sync_folder
from lakepond.lake.format import commits, names, snapshots
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.entries import Entries, File, Manifest
from lakepond.lake.lock import unread
from lakepond.lake.read.catalog import Catalog, new_files
from lakepond.lake.segments import Segments
from lakepond.untrusted import parse_json

log = logging.getLogger("lakepond")
CHECKPOINT = re.compile(r"[0-9]+")
"""the name of a finished checkpoint's folder; those with an ending are being written, or were dropped"""

TOGETHER = 16
"""commits are deleted when at least one in 16 can be, because the commits that are kept must be read to find
the files that no commit needs any more"""


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
        number = parse_json(state)["state"].get("lake_commit")
    except (KeyError, TypeError, AttributeError) as error:
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


class Snapshotted:
    """The commits of one chain that the snapshots of a lake on disk name."""

    def __init__(self, lake: Path, chain: str) -> None:
        self._lake, self._chain = lake, chain
        self._named: dict[str, set[int]] = {}  # by file: a snapshot never changes

    def __call__(self) -> set[int]:
        """The commits that are named now; `LakeCorrupt` if a snapshot cannot be read."""
        for name in snapshots.on_disk(self._lake):
            if name not in self._named and snapshots.SNAPSHOT.fullmatch(name):
                with suppress(FileNotFoundError):  # deleted in the meantime
                    data = (self._lake / snapshots.FOLDER / name).read_bytes()
                    self._named[name] = snapshots.commits_named(data, name).get(self._chain, set())
        there = set(snapshots.on_disk(self._lake)) if self._named else set()
        self._named = {name: named for name, named in self._named.items() if name in there}
        return set().union(*self._named.values())


class Retention:
    """Deletes the commits of one writer that are not kept, and the files that none of its commits names.

    Checkpoints name commits of the writer without a name only; snapshots name those of all writers. The
    commit that the writer continues from is always kept. `claim` and `published` may be called while another
    thread lists and deletes, and do not wait for it: the lock is not held while a folder is listed or a file
    deleted. Only `claim` of the very file that is being deleted waits for that.
    """

    def __init__(
        self,
        lake: Path,
        writer: str,
        segments: Segments,
        keep_last: int | None = None,
        keep_every: int | None = None,
    ) -> None:
        check_kept(keep_last, keep_every)
        self._lake, self._segments = lake, segments
        self._commits = writers.home(lake, writer) / "commits"
        self._checkpoints = not writer
        self._snapshotted = Snapshotted(lake, writer)
        self.keep_last, self.keep_every = keep_last, keep_every
        self._lock = threading.Lock()
        self._deleted = threading.Condition(self._lock)
        self._deleting: str | None = None  # the file that is being deleted, without the lock
        self._claimed: dict[str, float] = {}
        self._merged: set[str] = set()  # new files of merges that no commit has named so far
        self._taken: list[tuple[Commit, File]] = []  # commits, and files of merges that they may name
        self._numbers: list[int] | None = None
        self._unlisted: set[int] = set()  # commits that were published before the folder was listed
        self._read: dict[int, Commit] = {}
        self._below: dict[str, frozenset[str]] = {}  # names below manifests of kept commits
        self._gone: list[Commit] = []  # deleted commits whose files are still there, after an error
        self._warned = False
        self._warned_of_manifests = False

    @property
    def keeps_all(self) -> bool:
        """Whether no commit is ever deleted."""
        return self.keep_last is None

    def claim(self, name: str, number: float) -> None:
        """Never delete a file until commit `number` has been taken into account; infinite: a merge's file."""
        with self._lock:
            self._claimed[name] = number
            while name == self._deleting:  # or it would be deleted after it was written again
                self._deleted.wait()
            if number < math.inf:
                self._merged.discard(name)
            elif not (self._segments.folder / name).exists():
                self._merged.add(name)

    def published(self, commit: Commit, merged: Sequence[File] = ()) -> None:
        """Note a new commit, and files that were merged for it, of which it may list none."""
        with self._lock:
            for file in merged:
                self._claimed[file.name] = commit.number
            self._taken += [(commit, file) for file in merged]
            if self.keep_last is None:
                return
            self._read[commit.number] = commit
            while len(self._read) > self.keep_last:
                del self._read[min(self._read)]
            if self._numbers is None:
                self._unlisted.add(commit.number)
            elif not self._numbers or self._numbers[-1] < commit.number:
                self._numbers.append(commit.number)

    def apply(self, last: Commit, *, now: bool = False) -> None:
        """Delete the commits that are not kept and the files that only they named.

        While many are kept, this waits for enough commits to delete, unless `now`.
        """
        self._delete(self._release_claims(last))
        if self.keeps_all:
            return
        self.published(last)
        going = self._deletable(last)
        if not (now or TOGETHER * len(going) >= len(self._numbers or ())):
            going = []
        hint = commits.hint(self._commits) if going else None
        if (
            hint is not None and hint < going[-1]
        ):  # a reader would take the commit before the gap for the newest
            raise LakeCorrupt(
                f"{self._commits / commits.NEWEST} is that of an old commit and can neither be replaced nor "
                "deleted; delete it by hand"
            )
        if going or self._gone:
            self._delete_commits(going)

    def sweep(self, last: Commit) -> None:
        """Delete what is not kept, and every file that no commit names.

        `LakeCorrupt` if a commit is damaged: the files that it needs are not known then.
        """
        self.apply(last, now=True)
        if shared_by_others(self._lake, self._segments):
            return
        named: dict[str, int] = {}
        for number in commits.numbers(self._commits):
            new_files(self._catalog(commits.read(self._commits, number)), named)
        self._delete(names.segment_files(self._segments.folder).keys() - named.keys())

    def _release_claims(self, last: Commit) -> set[str]:
        """Forget claims of commits up to `last`; returns the files of merges that no commit names."""
        with self._lock:
            self._claimed = {name: number for name, number in self._claimed.items() if number > last.number}
            taken = [each for each in self._taken if each[0].number <= last.number]
        named = {file.name for commit, file in taken if self._may_list(commit, file)}
        with self._lock:
            self._taken = [each for each in self._taken if each[0].number > last.number]
            unneeded = {file.name for _, file in taken} & self._merged - named
            self._merged -= {file.name for _, file in taken}
        return unneeded

    def _may_list(self, commit: Commit, file: File) -> bool:
        """Whether a commit names a file; also True if a manifest is lost: the file is left for `sweep`."""
        try:
            return self._catalog(commit).lists(file)
        except (LakepondError, OSError) as error:
            if not _is_lost(error):
                raise
            return True

    def _warn_of_manifest(self, error: BaseException) -> None:
        if not self._warned_of_manifests:
            self._warned_of_manifests = True
            log.warning(
                "%s: files of deleted commits stay until `compact`, because a manifest that lists them "
                "cannot be read (reported once): %s",
                self._lake,
                error,
            )

    def _deletable(self, last: Commit) -> list[int]:
        listed = commits.numbers(self._commits) if self._numbers is None else []
        with self._lock:
            if self._numbers is None:  # a commit that was published meanwhile may not be listed
                self._numbers = sorted(self._unlisted.union(listed))
                self._unlisted.clear()
            numbers = [number for number in self._numbers if number <= last.number]
        found = deletable(numbers, self.keep_last, self.keep_every, {last.number})
        if not found:
            return found
        try:
            named = (checkpointed(self._lake) if self._checkpoints else set()) | self._snapshotted()
        except LakeCorrupt as error:
            if not self._warned:
                self._warned = True
                log.warning("all commits of %s are kept: %s", self._lake, error)
            return []
        return [number for number in found if number not in named]

    def _delete_commits(self, going: Sequence[int]) -> None:
        """Delete commits, then the files that they name and no other commit does."""
        for number in going:
            with suppress(LakeCorrupt, FileNotFoundError):  # a damaged commit is left for `repair`
                commit = self._commit(number)
                with unread(self._file(number)) as free:  # a snapshot is written by one who reads it
                    if free and number not in self._snapshotted() and names.delete(self._file(number)):
                        self._gone.append(commit)
        if not self._gone:
            return
        sync_folder(self._commits)  # a commit must not reappear after its files were deleted
        numbers = {commit.number for commit in self._gone}
        with self._lock:
            self._numbers = [n for n in self._numbers or () if n not in numbers]
            kept = list(self._numbers)
        if kept and not shared_by_others(self._lake, self._segments):
            self._delete(self._only_in(self._gone, kept))
        self._gone = []

    def _only_in(self, gone: Sequence[Commit], kept: Sequence[int]) -> set[str]:
        """The files of deleted commits that no kept commit names.

        The newest commit names most of them, and those next to the deleted ones most of the rest: other
        commits are read only for files that are about to be deleted.
        """
        names = self._names_of(kept[-1])
        self._below = {name: below for name, below in names.items() if name}  # 160 bytes per file of the lake
        found: set[str] = set()
        for commit in gone:
            catalog = _OfDeleted(commit, self._segments, self._warn_of_manifest)
            for leaf, entries in commit.lists():  # what a manifest lists stays if all of it stays
                found.update(name for name, _ in catalog.files_below(leaf, entries, skip=names.__contains__))
            found.update(f"{info.digest}.steps" for info in commit.weights)
        nearest = sorted(kept[:-1], key=lambda number: abs(number - gone[-1].number))
        for number in (kept[-1], *nearest):
            names = self._names_of(number)
            found = {name for name in found if not any(name in below for below in names.values())}
            if not found:
                break
        return found

    def _names_of(self, number: int) -> dict[str, frozenset[str]]:
        """The names of all files of a commit: those below a manifest by its name, the others under ""."""
        rest: set[str] = set()
        found: dict[str, frozenset[str]] = {}
        try:
            catalog = self._catalog(self._commit(number))
        except (LakeCorrupt, FileNotFoundError):  # a damaged commit needs nothing
            return {}
        for leaf, entries in catalog.commit.lists():
            for entry, whole in catalog.live(leaf, entries):  # raises if a manifest cannot be read
                rest.add(entry.name)
                if whole and entry.name not in found:
                    found[entry.name] = self._below.get(entry.name) or frozenset(
                        name for name, _ in catalog.files_below(leaf, [entry])
                    )
        rest.update(f"{info.digest}.steps" for info in catalog.commit.weights)
        return {**found, "": frozenset(rest)}

    def _delete(self, files: Collection[str]) -> None:
        """Delete files that are not claimed."""
        for name in files:
            with self._lock:  # a file with the same content may be about to be written
                if name in self._claimed:
                    continue
                self._deleting = name
            try:
                names.delete(self._segments.folder / name)
            finally:
                with self._lock:
                    self._deleting = None
                    self._deleted.notify_all()

    def _catalog(self, commit: Commit) -> Catalog:
        return Catalog(commit, self._segments)

    def _commit(self, number: int) -> Commit:
        return self._read.get(number) or commits.read(self._commits, number)

    def _file(self, number: int) -> Path:
        return self._commits / commits.file_name(number)


class _OfDeleted(Catalog):
    """The files of a deleted commit that can be found; a manifest that is damaged or lost lists none."""

    def __init__(self, commit: Commit, segments: Segments, warn: Callable[[BaseException], None]) -> None:
        super().__init__(commit, segments)
        self._warn = warn

    def read(self, manifest: Manifest, leaf: int | None) -> Entries:
        try:
            return super().read(manifest, leaf)
        except (LakepondError, OSError) as error:
            if not _is_lost(error):
                raise
            self._warn(error)
            return ()


def _is_lost(error: BaseException) -> bool:
    """Whether a manifest is damaged or lost, here or in the cloud; trying again later would not help."""
    return is_damage(error) or isinstance(error, (CloudCorrupt, CloudNotFound))


def shared_by_others(lake: Path, segments: Segments) -> bool:
    """Whether writers of format 1 without a folder of their own may use the files in this folder."""
    if segments.folder.parent != lake:
        return False
    homes = [writers.home(lake, name) for name in writers.names(lake)[1:]]
    return any(not (home / "segments").is_dir() and commits.numbers(home / "commits") for home in homes)
