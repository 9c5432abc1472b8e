"""cloud ──pull──▶ lake: the newest whole commit, or one by number; segments all at once, or when touched.

    LIST ──▶ lake.json ──▶ commits, newest first, until one is whole ──▶ its segments, four at a time

Every segment is compared with its name before it appears; what is here already is not fetched again, so a
pull that was cut off goes on. Memory: a few megabytes a worker, whatever a segment's size.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakepond import forks
from lakepond.cloud.bucket import Listed
from lakepond.cloud.pace import patiently
from lakepond.cloud.place import Cloud
from lakepond.cloud.status import in_words
from lakepond.cloud.store import Store
from lakepond.errors import CloudConflict, CloudCorrupt, CloudNotFound, LakeCorrupt, LakeFull
from lakepond.flow.layout import KNOWN, commit_name, commit_numbers
from lakepond.flow.leases import Lease
from lakepond.lake import commits, description
from lakepond.lake.checksum import Digest
from lakepond.lake.commits import Commit
from lakepond.lake.elsewhere import FOLDER, Elsewhere, Segments
from lakepond.lake.files import WriterLock, make_folders, write_bytes, write_whole
from lakepond.lake.lake import Lake
from lakepond.lake.links import check_folders

log = logging.getLogger("lakepond")
TRIES = 3
"""how often a segment that comes back wrong is fetched"""


class Fetcher:
    """Brings segments to this disk, checked; each is fetched once, however many ask for it."""

    def __init__(self, path: Path, store: Store) -> None:
        self._folder, self._store = path / "segments", store
        self.restart_in_child()
        self.segments: Segments | None = None
        """asked to make room before something is brought"""
        forks.register(self)

    def restart_in_child(self) -> None:
        """Nothing is being fetched by another thread."""
        self._lock = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}

    def __call__(self, name: str) -> None:
        """Have this segment here."""
        with self._lock:
            mine = self._busy.setdefault(name, threading.Lock())
        with mine:
            if not (self._folder / name).exists():
                self._bring(name)

    def _bring(self, name: str) -> None:
        patience, cap = self._store.cloud.patience, self._store.cloud.retry_cap
        told = patiently(lambda: self._store.head(f"segments/{name}"), for_seconds=patience, cap=cap)
        if told is None:
            raise CloudNotFound(
                f"segment {name} is not in {self._store.cloud} any more: see `gc`, or open another commit."
            )
        if self.segments is not None:
            self.segments.make_room(told.size)
        for _ in range(TRIES):
            try:
                patiently(lambda: self._fetch(name, told.size), for_seconds=patience, cap=cap)
                return
            except CloudCorrupt as error:
                wrong = error
                log.warning("%s", error)
        raise wrong

    def _fetch(self, name: str, size: int) -> None:
        def fill(file: Any) -> None:
            digest = Digest()
            for piece in self._store.stream(f"segments/{name}", size):
                digest.update(piece)
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) :]
            if digest.hexdigest() != name.partition(".")[0]:
                raise CloudCorrupt(
                    f"segment {name} in {self._store.cloud} is not what was written: its content has another "
                    "name; push it again from a disk that has it, or open an older commit."
                )
            os.fsync(file.fileno())

        check_folders(self._folder)
        write_whole(self._folder, fill, lambda _: name)


@dataclass(frozen=True)
class Remote:
    """What a place in the cloud holds."""

    listed: dict[str, Listed]
    numbers: list[int]
    """of all its commits, whole or not, oldest first"""


def look(store: Store) -> Remote | None:
    """What is there; None if there is no lake. A server that is away is told at once, nearly."""
    listed = patiently(lambda: store.list(known=KNOWN), for_seconds=1.0, cap=store.cloud.retry_cap)
    if description.NAME not in listed:
        return None
    return Remote(listed, commit_numbers(listed))


def pull(path: str | Path, cloud: str | Cloud, *, commit: int | None = None, lazy: bool = False) -> Lake:
    """A lake from the cloud at `path`, open to read: its newest whole commit, or the one with that number.

    `lazy`: segments come when they are touched, and stay. Else all come now; a pull that was cut off goes on
    where it stopped. A lake that is at `path` already goes forward to what the cloud has.
    """
    path, cloud = Path(path), Cloud.of(cloud)
    store = Store(cloud)
    chosen = bring_commits(path, store, Elsewhere(path, str(cloud)), commit)
    fetcher = Fetcher(path, store)
    if not lazy:
        bring_segments(path, chosen, fetcher, cloud)
    segments = Segments(path, bring=fetcher, pin=Lease(store).pin)
    return Lake(path, description.read(path), chosen, segments)


def bring_commits(
    path: Path, store: Store, elsewhere: Elsewhere, number: int | None = None, remote: Remote | None = None
) -> Commit:
    """Have `lake.json`, the newest whole commit, and the one asked for, on this disk; returns the latter."""
    cloud = store.cloud
    remote = remote if remote is not None else look(store)
    if remote is None:
        raise CloudNotFound(f"there is no lake at {cloud}; `replay.push()` makes one.")
    folders = [path / name for name in ("segments", "commits", FOLDER, "quarantine")]
    check_folders(*folders)
    for folder in (path, *folders[:3]):
        make_folders(folder)
    with WriterLock(path / "lock"):
        data = _read(store, description.NAME)
        if not (path / description.NAME).exists():
            write_bytes(path, description.NAME, data)
            description.read(path)
        elif (path / description.NAME).read_bytes() != data:
            raise CloudConflict(f"{path} and {cloud} are different lakes; pull to another folder.")
        newest = _newest_whole(path, store, elsewhere, remote)
        if number is None or number == newest.number:
            return newest
        if number not in remote.numbers:
            raise CloudNotFound(f"{cloud} has no commit {number}; it has {remote.numbers[-8:]}.")
        return _bring_commit(path, store, elsewhere, remote, number)


def _newest_whole(path: Path, store: Store, elsewhere: Elsewhere, remote: Remote) -> Commit:
    """The newest whole commit, brought here; those after it that are not whole go to the quarantine."""
    mine = commits.numbers(path / "commits")
    for number in reversed(remote.numbers):
        if mine and mine[-1] < number:
            _check_pushed(path, store, elsewhere, remote, mine[-1], number)
        try:
            ahead = bool(mine) and mine[-1] > number
            return _bring_commit(path, store, elsewhere, remote, number, ahead=ahead)
        except (LakeCorrupt, CloudCorrupt, CloudNotFound) as error:
            log.warning("%s: skipping unreadable commit %d: %s", store.cloud, number, error)
    raise CloudNotFound(f"{store.cloud} has no complete commit; push again from a disk that has one.")


def _check_pushed(
    path: Path, store: Store, elsewhere: Elsewhere, remote: Remote, here: int, newest: int
) -> None:
    """Raise `CloudConflict` if the newest commit on this disk was never in the cloud, which has a newer one.

    One that was there with all its files, and is not any more, was deleted by a `gc`.
    """
    file = path / "commits" / commits.file_name(here)
    if here in remote.numbers:
        pushed = file.read_bytes() == _read(store, commit_name(here))
    else:
        try:
            pushed = all(name in elsewhere for name in commits.read(file.parent, here).files())
        except LakeCorrupt:
            pushed = False
    if not pushed:
        raise CloudConflict(
            f"{path} has a commit {here} that was never pushed, and another machine has published commit "
            f"{newest} in {store.cloud}: pull to a fresh folder to continue from that one, or push this one "
            "to another place."
        )


def _bring_commit(
    path: Path, store: Store, elsewhere: Elsewhere, remote: Remote, number: int, *, ahead: bool = False
) -> Commit:
    """One commit, checked, with the list of its files; `CloudCorrupt` unless all that it names is there.

    `ahead`: this disk has a newer commit, which continues this one only if its files are known here.
    """
    name = commits.file_name(number)
    data = _read(store, commit_name(number))
    file = path / "commits" / name
    if file.exists() and file.read_bytes() != data:
        raise CloudConflict(
            f"{path} and {store.cloud} have different commits {number}: two runs wrote them. Pull to another "
            "folder, or push this one elsewhere."
        )
    try:
        commit = Commit.from_json(data, name)
        for segment, size in commit.files().items():
            told = remote.listed.get(f"segments/{segment}")
            if told is None or told.size != size:
                raise CloudCorrupt(
                    f"{store.cloud} does not have {segment} of {size:,} bytes, which it names."
                )
    except (LakeCorrupt, CloudCorrupt):
        if not file.exists():  # kept, so that its number is not given again
            make_folders(path / "quarantine")
            write_bytes(path / "quarantine", name, data)
        raise
    if ahead and not file.exists() and not all(segment in elsewhere for segment in commit.files()):
        raise CloudConflict(
            f"another machine has published commit {number} in {store.cloud}, which is not known to {path}, "
            "and there are newer commits here that were never pushed: pull to a fresh folder to continue "
            "from that one, or push this one to another place."
        )
    elsewhere.add(commit.files())
    if not file.exists():
        write_bytes(path / "commits", name, data)
    return commit


def bring_segments(path: Path, commit: Commit, fetcher: Fetcher, cloud: Cloud) -> None:
    """Have all segments of a commit here, some at a time."""
    missing = {n: size for n, size in commit.files().items() if not (path / "segments" / n).exists()}
    needed, free = sum(missing.values()), shutil.disk_usage(path).free
    if needed > free:
        raise LakeFull(
            errno.ENOSPC,
            f"commit {commit.number} of {cloud} needs {in_words(needed)} more at {path}, where "
            f"{in_words(free)} are free; pull it lazily, with a local_budget, or to a larger disk",
        )
    log.info("%s: fetching %d files, %s", cloud, len(missing), in_words(needed))
    with ThreadPoolExecutor(cloud.workers, "lakepond-pull") as pool:
        fetched = [pool.submit(fetcher, name) for name in missing]
        try:
            for each in fetched:
                each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _read(store: Store, name: str) -> bytes:
    """A small file of the cloud; a server that stops answering is waited for."""
    return patiently(lambda: store.read(name), for_seconds=store.cloud.patience, cap=store.cloud.retry_cap)
