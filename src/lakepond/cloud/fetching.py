"""Downloads from the cloud: the newest intact commit, or one by number, and its segments.

    LIST ──▶ lake.json ──▶ commits, newest first, until one is intact ──▶ its segments, four at a time

Every segment is compared with its digest before it appears. Existing segments are not downloaded again, so an
interrupted pull resumes. Memory: a few megabytes per worker, for segments of any size.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lakepond import background, forks, formats
from lakepond.cloud.bucket import Listed
from lakepond.cloud.chains import ChainCopy, Skip, parse_slot, read_slot
from lakepond.cloud.layout import LEASES, commit_name, commit_numbers, segment_name
from lakepond.cloud.pace import patiently
from lakepond.cloud.store import Store
from lakepond.errors import (
    CloudConflict,
    CloudCorrupt,
    CloudNotFound,
    LakeCorrupt,
    LakeFull,
    LakeNotFound,
)
from lakepond.formats import ranges
from lakepond.lake.elsewhere import FOLDER
from lakepond.lake.files import is_damage, make_folders, write_atomic, write_bytes
from lakepond.lake.format import commits, description
from lakepond.lake.format.checksum import Digest
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.names import is_shared
from lakepond.lake.links import check_folders
from lakepond.lake.lock import WriterLock
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.segments import Segments
from lakepond.lake.write.disk_guard import named_errors

log = logging.getLogger("lakepond")
TRIES = 3
"""how often a segment that comes back wrong is fetched"""


class Fetcher:
    """Downloads and verifies segments; concurrent requests for a segment share one download."""

    def __init__(
        self,
        copy: ChainCopy,
        *,
        durable: bool = True,
        stop: threading.Event | None = None,
        intact: set[Path] | None = None,
    ) -> None:
        """`durable`: what was fetched survives a power cut; otherwise it is a cache, whose files are checked.

        `intact`: collects the files that were fetched or checked.
        Once `stop` is set, requests that failed are not repeated, and nothing is written: `CancelledError`.
        """
        self.copy, self._durable, self._stop, self._intact = copy, durable, stop, intact
        self.restart_in_child()
        self.segments: Segments | None = None
        """asked to make room before a file is fetched"""
        forks.register(self)

    def restart_in_child(self) -> None:
        """Forget the downloads of the parent's threads."""
        self._lock = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}

    def __call__(self, name: str) -> int:
        """Have this segment here; returns how many bytes were downloaded."""
        with self._lock:
            mine = self._busy.setdefault(name, threading.Lock())
        with mine:
            try:
                size = 0 if self._is_here(name) else self._download(name)
                if self._intact is not None:
                    self._intact.add(self.copy.file(name))
                return size
            finally:
                with self._lock:  # a follower fetches files for weeks
                    self._busy.pop(name, None)

    def _is_here(self, name: str) -> bool:
        """Whether a segment is on this disk; the content of one in a cache is compared with its name."""
        file = self.copy.file(name)
        if self._durable or not file.exists():
            return file.exists()
        digest = Digest()
        try:
            with file.open("rb", buffering=0) as opened:
                while piece := opened.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            if not is_damage(error):
                raise
        if digest.hexdigest() == name.partition(".")[0]:
            return True
        log.warning("%s, a file of a cache, is damaged; it is fetched again", file)
        return False

    def _download(self, name: str) -> int:
        store = self.copy.place(name)
        cloud = store.cloud
        again = partial(patiently, for_seconds=cloud.patience, cap=cloud.retry_cap, stop=self._stop)
        found = again(lambda: store.head(segment_name(name)))
        if found is None:
            raise CloudNotFound(
                f"segment {name} is not in {store.cloud} any more: see `gc`, or open another commit."
            )
        if self.segments is not None:
            self.segments.make_room(found.size)
        for _ in range(TRIES):
            try:
                again(lambda: self._fetch(name, found.size))
                return found.size
            except CloudCorrupt as error:
                wrong = error
                log.warning("%s", error)
        raise wrong

    def _fetch(self, name: str, size: int) -> None:
        store, folder = self.copy.place(name), self.copy.file(name).parent

        def fill(file: Any) -> None:
            for piece in checked(store, name, size):
                background.check(self._stop)
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) :]
            if self._durable:
                os.fsync(file.fileno())

        check_folders(folder)
        background.check(self._stop)  # the cache of a follower that was closed is gone
        with _naming(self.copy.path, creating=True):
            make_folders(folder)
            write_atomic(folder, fill, lambda _: name, sync=self._durable)


def checked(store: Store, name: str, size: int) -> Iterator[bytes]:
    """The bytes of a segment, piece by piece; `CloudCorrupt` at the end if its name is not their digest."""
    digest = Digest()
    for piece in store.stream(segment_name(name), size):
        digest.update(piece)
        yield piece
    if digest.hexdigest() != name.partition(".")[0]:
        raise CloudCorrupt(
            f"segment {name} in {store.cloud} is damaged: its content does not match the digest in its "
            "name; push it again from a disk that has it, or open an older commit."
        )


def check_content(store: Store, name: str, size: int) -> None:
    """Raise `CloudCorrupt` unless the content of a segment in the cloud is the one that it is named after."""
    deque(checked(store, name, size), maxlen=0)


class CloudSegments:
    """The manifests of a lake in the cloud, or on this disk if they are there."""

    def __init__(self, store: Store, path: Path | None = None, stop: threading.Event | None = None) -> None:
        """`path`: of the chain on this disk. Once `stop` is set, reads raise `CancelledError`."""
        self._store, self._folder = store, None if path is None else path / "segments"
        self._stop = stop

    def data(self, name: str, most: int) -> bytes:
        """The bytes of a manifest; `CloudNotFound` if it does not exist."""
        if self._folder is not None and (self._folder / name).is_file():
            return (self._folder / name).read_bytes()[: most + 1]
        return _read(self._store, f"segments/{name}", self._stop)[: most + 1]


@dataclass(frozen=True)
class Remote:
    """A chain in the cloud."""

    listed: dict[str, Listed]
    numbers: list[int]
    """of all its commits, intact or not, and of its skips, oldest first"""


def look(store: Store, lake: Store | None = None, stop: threading.Event | None = None) -> Remote | None:
    """Return the chain at a location, or None without a lake. Fails fast if the server does not answer.

    lake: the location of the lake, if the chain is that of a named writer.
    """

    def ask() -> Remote | None:
        listed = store.list("commits")  # first: it says if the bucket does not exist
        if (store if lake is None else lake).head(description.NAME) is None:
            return None
        return Remote({**listed, **store.list("segments"), **store.list(LEASES)}, commit_numbers(listed))

    return patiently(ask, for_seconds=1.0, cap=store.cloud.retry_cap, stop=stop)


def read_description(lake: Store) -> bytes | None:
    """`lake.json` of the lake at a location; None if there is none. Fails fast like `look`."""
    try:
        return patiently(lambda: lake.read(description.NAME), for_seconds=1.0, cap=lake.cloud.retry_cap)
    except CloudNotFound:
        return None


def keep_description(path: Path, lake: Store, data: bytes) -> None:
    """Have a downloaded `lake.json` at `path`; `CloudConflict` if there is a different lake."""
    if not (path / description.NAME).exists():
        with _naming(path, creating=True):
            make_folders(path)
            write_bytes(path, description.NAME, data)
        description.read(path)
        return
    mine = (path / description.NAME).read_bytes()
    if not _same_lake(mine, data):
        raise CloudConflict(f"{path} and {lake.cloud} are different lakes; pull to another folder.")
    if description.format_of(mine) < description.format_of(data):
        with _naming(path, creating=True):
            write_bytes(path, description.NAME, data)


def locked(copy: ChainCopy) -> WriterLock:
    """Lock the folders of a chain, which are created if they do not exist, for `fetch_commits`."""
    folders = [copy.home / "segments", copy.home / "commits", copy.path / FOLDER, copy.home / "quarantine"]
    check_folders(*folders)
    with _naming(copy.path, creating=True):
        for folder in (copy.path, *folders[:3]):
            make_folders(folder)
    with _naming(copy.path):
        return WriterLock(copy.home / "lock")


def fetch_commits(
    copy: ChainCopy,
    number: int | None = None,
    remote: Remote | None = None,
    stop: threading.Event | None = None,
) -> Commit:
    """Download `lake.json`, the newest intact commit of a chain and the requested one; return the latter.

    The caller has `locked` the chain. `CancelledError` once `stop` is set: nothing is written then.
    """
    remote = remote if remote is not None else look(copy.store, copy.lake, stop)
    if remote is None:
        raise CloudNotFound(f"{copy.lake.cloud} has no lake; `lakepond push` or `replay.push()` uploads one.")
    with _naming(copy.path):
        keep_description(copy.path, copy.lake, _read(copy.lake, description.NAME, stop))
        newest = _newest_intact(copy, remote, stop)
        if number is None or number == newest.number:
            return newest
        if number not in remote.numbers:
            raise CloudNotFound(
                f"{copy.store.cloud} has no commit {number}; it has {ranges(sorted(remote.numbers))}."
            )
        return _fetch_commit(copy, remote, number, stop)


def _naming(path: Path, *, creating: bool = False) -> AbstractContextManager[None]:
    return named_errors(path, creating=creating, rest="what was fetched is kept")


def _newest_intact(copy: ChainCopy, remote: Remote, stop: threading.Event | None) -> Commit:
    """Fetch the newest intact commit; those after it, which are damaged, go to the quarantine."""
    mine = commits.numbers(copy.home / "commits")
    for number in reversed(remote.numbers):
        try:
            if mine and mine[-1] < number:
                _check_pushed(copy, remote, mine[-1], number, stop)
            return _fetch_commit(copy, remote, number, stop, ahead=bool(mine) and mine[-1] > number)
        except Skipped:
            continue
        except (LakeCorrupt, CloudCorrupt, CloudNotFound) as error:
            log.warning("%s: skipping unreadable commit %d: %s", copy.store.cloud, number, error)
    raise CloudNotFound(f"{copy.store.cloud} has no complete commit; push again from a disk that has one.")


class Skipped(Exception):
    """The slot of a number is a skip: no commit has that number."""


def _check_pushed(
    copy: ChainCopy, remote: Remote, here: int, newest: int, stop: threading.Event | None
) -> None:
    """Raise `CloudConflict` if the newest commit on this disk was never in the cloud, which has a newer one.

    One that was there with all its files, and is not any more, was deleted by a `gc`.
    """
    data = (copy.home / "commits" / commits.file_name(here)).read_bytes()
    if here in remote.numbers:
        pushed = data == _read(copy.store, commit_name(here), stop)
    else:
        pushed = copy.was_there(here, data)
    if not pushed:
        raise CloudConflict(
            f"{copy.home} has a commit {here} that was never pushed, and another machine has published "
            f"commit {newest} in {copy.store.cloud}: pull to a fresh folder to continue from that one, or "
            "push this one to another place."
        )


def _fetch_commit(
    copy: ChainCopy, remote: Remote, number: int, stop: threading.Event | None, *, ahead: bool = False
) -> Commit:
    """One commit, checked, with the list of its files; `CloudCorrupt` unless all that it names is there.

    `ahead`: this disk has a newer commit, which continues this one only if it is known here.
    """
    store, name = copy.store, commits.file_name(number)
    data = _read(store, commit_name(number), stop)
    file = copy.home / "commits" / name
    if file.exists():
        _check_same(copy, number, data)
    try:
        commit = parse_slot(data, number)
        if isinstance(commit, Skip):
            raise Skipped
        files = dict(Catalog(commit, CloudSegments(store, copy.home, stop)).files())
        for segment, size in files.items():
            shared = is_shared(segment)
            found = (
                copy.lake.head(segment_name(segment)) if shared else remote.listed.get(segment_name(segment))
            )
            if found is None or found.size != size:
                raise CloudCorrupt(
                    f"{store.cloud} does not have {segment} of {size:,} bytes, which it names."
                )
        background.check(stop)
    except (LakeCorrupt, CloudCorrupt):
        if not file.exists():  # kept, so that its number is not given again
            with _naming(copy.path, creating=True):
                make_folders(copy.home / "quarantine")
                write_bytes(copy.home / "quarantine", name, data)
        raise
    if ahead and not file.exists() and not copy.was_there(number, data):
        raise CloudConflict(
            f"another machine has published commit {number} in {store.cloud}, which does not exist at "
            f"{copy.home}, and there are newer commits here that were never pushed: pull to a fresh folder "
            "to continue from that one, or push this one to another place."
        )
    copy.elsewhere.add(files)
    if not file.exists():
        copy.elsewhere.note_slot(number, data)
        (copy.home / "commits" / commits.NEWEST).unlink(missing_ok=True)  # it finds commits without gaps only
        try:
            with _naming(copy.path, creating=True):
                write_bytes(copy.home / "commits", name, data, existing="refuse")
        except FileExistsError:  # another process has created it in the meantime
            _check_same(copy, number, data)
    return commit


def _check_same(copy: ChainCopy, number: int, data: bytes) -> None:
    """Raise `CloudConflict` unless the commit on this disk has this content."""
    if (copy.home / "commits" / commits.file_name(number)).read_bytes() != data:
        raise CloudConflict(
            f"{copy.home} and {copy.store.cloud} have different commits {number}: two runs wrote them. Pull "
            "to another folder, or push this one elsewhere."
        )


def commit_of(copy: ChainCopy, number: int) -> Commit:
    """A commit of a chain by its number; read from the cloud if it is not on this disk."""
    if (copy.home / "commits" / commits.file_name(number)).is_file():
        return commits.read(copy.home / "commits", number)
    found = patiently(
        lambda: read_slot(copy.store, number),
        for_seconds=copy.store.cloud.patience,
        cap=copy.store.cloud.retry_cap,
    )
    if not isinstance(found, Commit):
        raise LakeNotFound(f"{copy.store.cloud} has no commit {number}.")
    return found


def fetch_segments(copy: ChainCopy, commit: Commit, fetcher: Fetcher) -> None:
    """Download all segments of a commit, several in parallel."""
    path, cloud = copy.home, copy.store.cloud
    files = Catalog(commit, Segments(copy.path, copy.writer, fetch=fetcher)).files()
    missing = {name: size for name, size in files if not copy.file(name).exists()}
    needed, free = sum(missing.values()), shutil.disk_usage(path).free
    if needed > free:
        raise LakeFull(
            errno.ENOSPC,
            f"commit {commit.number} of {cloud} needs {formats.size(needed)} more at {path}, where "
            f"{formats.size(free)} are free; pull it lazily, with a local_budget, or to a larger disk",
        )
    log.info("%s: fetching %d files, %s", cloud, len(missing), formats.size(needed))
    for _ in background.results(fetcher, missing, cloud.workers, "lakepond-pull"):
        pass


def _same_lake(mine: bytes, theirs: bytes) -> bool:
    try:
        return mine == theirs or description.same_lake(mine, theirs)
    except ValueError:
        return False


def _read(store: Store, name: str, stop: threading.Event | None) -> bytes:
    """A small file of the cloud; a server that stops answering is waited for, until `stop` is set."""
    cloud = store.cloud
    data = patiently(lambda: store.read(name), for_seconds=cloud.patience, cap=cloud.retry_cap, stop=stop)
    background.check(stop)
    return data
