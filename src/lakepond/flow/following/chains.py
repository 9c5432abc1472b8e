"""The chains of a lake, on disk or in a bucket: the commits of each writer, also while it writes them.

`chains_at` opens a lake wherever it is; all commands that read one, and all followers, use it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from lakepond import machine
from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.errors import LakeCorrupt, LakeNotFound
from lakepond.formats import ranges
from lakepond.lake import writers
from lakepond.lake.files import make_folders, write_bytes
from lakepond.lake.format import commits, description, snapshots
from lakepond.lake.format.commits import Commit
from lakepond.lake.lock import CommitLock
from lakepond.lake.read.lake import Lake, check_files, newest_intact
from lakepond.lake.segments import Segments
from lakepond.paths import on_disk
from lakepond.types import Spec

log = logging.getLogger("lakepond")


class Chains(Protocol):
    """The chains of one lake. A chain is the history of one writer. Thread-safe."""

    spec: Spec
    folder: Path | None
    """of the lake; None: it is in a bucket"""
    stop: threading.Event
    """once it is set, no server is waited for"""

    @property
    def store(self) -> Store:
        """The objects of the lake."""

    def names(self) -> list[str]:
        """Discover all chains; "" is that of the writer without a name."""

    def next(self, chain: str, after: int | None) -> Commit | None:
        """The commit that follows commit `after`, or a later one if that is gone; None: there is none yet.

        `after` None: the newest one.
        """

    def numbers(self, chain: str) -> list[int]:
        """The numbers of the commits of a chain, oldest first."""

    def commit(self, chain: str, number: int) -> Commit:
        """A commit by its number; `LakeNotFound` if it does not exist."""

    def check(self, chain: str, commit: Commit) -> None:
        """Raise `LakeCorrupt` if it is known without reading a file that one of a commit is missing."""

    def segments(self, chain: str) -> Segments:
        """The files of a chain."""

    def lake(self, heads: Mapping[str, Commit]) -> Lake:
        """Steps at one commit of each of some chains, to be closed by the caller."""

    def verify(self, chain: str, commit: Commit, progress: Callable[[int, int], None]) -> None:
        """Read and check every byte of a commit; raise `LakeCorrupt` with the first damaged file.

        progress: called as `progress(done, total)` after each file, in bytes.
        """

    def keep(self, chain: str, commit: Commit) -> None:
        """Keep this commit of a chain, in place of an earlier one, until `close`."""

    def keeping(self, named: Iterable[tuple[str, int]]) -> AbstractContextManager[Callable[[], None]]:
        """Keep some commits of chains during a block; `LakeNotFound` if one is gone.

        What it returns raises `LakeNotFound` if that did not work, because this machine was suspended.
        """

    def snapshots(self) -> list[str]:
        """The names of the files in the folder of snapshots."""

    def write(self, name: str, data: bytes) -> bool:
        """Create a file in the folder of snapshots, durably; returns False if there is one of that name."""

    def read(self, name: str) -> bytes:
        """Read a file in the folder of snapshots; `LakeNotFound` if there is none."""

    def remove(self, name: str) -> None:
        """Delete a file in the folder of snapshots."""

    def close(self) -> None:
        """Release everything."""


def chains_at(place: str | Path | Cloud, cache: str | Path | None = None) -> Chains:
    """The chains of the lake in a folder or at a URL; to be closed by the caller.

    cache: folder for the files of a lake in a bucket, by default a temporary one.
    Raises `LakeNotFound` if there is none, `SpecError` if the URL is not valid.
    """
    if not isinstance(place, Cloud) and "://" not in str(place):
        return LocalChains(on_disk(place))
    from lakepond.flow.following.cloud_chains import CloudChains

    return CloudChains(
        place if isinstance(place, Cloud) else str(place), None if cache is None else on_disk(cache)
    )


class LocalChains:
    """The chains of a lake on a disk that its writers share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder: Path | None = path
        self.spec = description.read(path)
        kind = machine.file_system(path)
        if kind.startswith(machine.SHARED):
            log.warning(
                "%s is on %s, which may show new files late and may not support locks between machines; a "
                "bucket is the better place for writers on several machines (docs/howto/many-machines.md)",
                path,
                kind,
            )
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._kept: dict[str, CommitLock] = {}

    @property
    def store(self) -> Store:
        """The files of the lake."""
        return Store.at(self.path)

    def names(self) -> list[str]:
        """All writers."""
        return writers.names(self.path)

    def next(self, chain: str, after: int | None) -> Commit | None:
        """The commit with the next number that exists."""
        if after is None:
            return newest_intact(self.path, chain)
        folder = self._folder(chain)
        try:
            return commits.read(folder, after + 1)
        except FileNotFoundError:
            newest = commits.newest(folder)
        except LakeCorrupt:
            newest = commits.newest(folder)
            if newest is None or newest <= after + 1:
                raise
            log.warning("skipping unreadable commit %d of %s", after + 1, folder.parent)
            return self.next(chain, after + 1)
        if newest is None or newest < after:
            raise LakeNotFound(
                f"{folder.parent} has no commit {after} any more, which has been read: the chain was deleted "
                "or replaced; follow the lake again."
            )
        if newest == after:
            return None
        following = [number for number in commits.numbers(folder) if number > after]
        return None if not following else self.next(chain, following[0] - 1)

    def numbers(self, chain: str) -> list[int]:
        """The commits on disk."""
        return commits.numbers(self._folder(chain))

    def commit(self, chain: str, number: int) -> Commit:
        """A commit by its number."""
        folder = self._folder(chain)
        try:
            return commits.read(folder, number)
        except FileNotFoundError:
            raise LakeNotFound(
                f"{folder.parent} has no commit {number}; it has {ranges(commits.numbers(folder))}."
            ) from None

    def check(self, chain: str, commit: Commit) -> None:
        """The files that a commit itself names have to be there, with their sizes."""
        check_files(self.path, commit, chain)

    def segments(self, chain: str) -> Segments:
        """The files on this disk."""
        return Segments(self.path, chain)

    def lake(self, heads: Mapping[str, Commit]) -> Lake:
        """The lake at these commits; retention keeps them until it is closed."""
        return Lake(self.path, self.spec, dict(heads))

    def verify(self, chain: str, commit: Commit, progress: Callable[[int, int], None]) -> None:
        """Every file, and that the steps in them find their rows."""
        self.check(chain, commit)
        with self.lake({chain: commit}) as lake:
            lake.verify(progress=progress)

    def keep(self, chain: str, commit: Commit) -> None:
        """Lock a commit in place of the one before it."""
        new = CommitLock(self._folder(chain) / commits.file_name(commit.number))
        with self._lock:
            old = self._kept.pop(chain, None)
            self._kept[chain] = new
        if old is not None:
            old.close()

    @contextmanager
    def keeping(self, named: Iterable[tuple[str, int]]) -> Iterator[Callable[[], None]]:
        """Lock commits during a block."""
        with ExitStack() as stack:
            for chain, number in named:
                try:
                    lock = CommitLock(self._folder(chain) / commits.file_name(number))
                except FileNotFoundError:
                    raise LakeNotFound(f"commit {number} of {self._folder(chain).parent} is gone.") from None
                stack.callback(lock.close)
            yield lambda: None

    def snapshots(self) -> list[str]:
        """The files in `snapshots/`."""
        return snapshots.on_disk(self.path)

    def write(self, name: str, data: bytes) -> bool:
        """Create a file there."""
        folder = self.path / snapshots.FOLDER
        make_folders(folder)
        try:
            write_bytes(folder, name, data, existing="refuse")
        except FileExistsError:
            return False
        return True

    def read(self, name: str) -> bytes:
        """Read a file there."""
        try:
            return (self.path / snapshots.FOLDER / name).read_bytes()
        except FileNotFoundError:
            raise LakeNotFound(f"{self.path / snapshots.FOLDER / name} does not exist.") from None

    def remove(self, name: str) -> None:
        """Delete a file there."""
        (self.path / snapshots.FOLDER / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Unlock all commits."""
        with self._lock:
            for lock in self._kept.values():
                lock.close()
            self._kept.clear()

    def _folder(self, chain: str) -> Path:
        return writers.home(self.path, chain) / "commits"

    def __str__(self) -> str:
        return str(self.path)
