"""The chains of a lake: the commits of each writer, found one after another while they are being written."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
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
from lakepond.lake.read.lake import Lake, newest_intact
from lakepond.types import Spec

log = logging.getLogger("lakepond")
NEW_SECONDS = 0.5
"""how long the file of a new commit may be locked by its writer"""


class Chains(Protocol):
    """The chains of one lake. A chain is the history of one writer. Thread-safe."""

    spec: Spec

    @property
    def store(self) -> Store:
        """The objects of the lake."""

    def names(self) -> list[str]:
        """Discover all chains; "" is that of the writer without a name."""

    def next(self, chain: str, after: int | None) -> Commit | None:
        """The commit that follows commit `after`, or a later one if that is gone; None: there is none yet.

        `after` None: the newest one.
        """

    def commit(self, chain: str, number: int) -> Commit:
        """A commit by its number; `LakeNotFound` if it does not exist."""

    def lake(self, heads: Mapping[str, Commit]) -> Lake:
        """Steps at one commit of each of some chains, to be closed by the caller."""

    def keep(self, chain: str, commit: Commit) -> None:
        """Keep this commit of a chain, in place of an earlier one, until `close`."""

    def keeping(self, named: Iterable[tuple[str, int]]) -> AbstractContextManager[None]:
        """Keep some commits of chains during a block; `LakeNotFound` if one is gone."""

    def snapshots(self) -> list[str]:
        """The names of the files in the folder of snapshots."""

    def write(self, name: str, data: bytes) -> bool:
        """Create a file in the folder of snapshots, durably; returns False if there is one of that name."""

    def read(self, name: str) -> bytes:
        """Read a file in the folder of snapshots; `LakeNotFound` if there is none."""

    def close(self) -> None:
        """Release everything."""


class LocalChains:
    """The chains of a lake on a disk that its writers share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = description.read(path)
        kind = machine.file_system(path)
        if kind.startswith(machine.SHARED):
            log.warning(
                "%s is on %s, which may show new files late and may not support locks between machines; a "
                "bucket is the better place for writers on several machines (docs/howto/many-machines.md)",
                path,
                kind,
            )
        self._lock = threading.Lock()
        self._kept: dict[str, CommitLock] = {}

    @property
    def store(self) -> Store:
        """The files of the lake."""
        return Store(Cloud(f"file://{self.path.absolute()}"))

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

    def commit(self, chain: str, number: int) -> Commit:
        """A commit by its number."""
        folder = self._folder(chain)
        try:
            return commits.read(folder, number)
        except FileNotFoundError:
            raise LakeNotFound(
                f"{folder.parent} has no commit {number}; it has {ranges(commits.numbers(folder))}."
            ) from None

    def lake(self, heads: Mapping[str, Commit]) -> Lake:
        """The lake at these commits; retention keeps them until it is closed."""
        until = time.monotonic() + NEW_SECONDS
        while True:
            try:
                return Lake(self.path, self.spec, dict(heads))
            except FileNotFoundError:
                there = (self._folder(chain) / commits.file_name(c.number) for chain, c in heads.items())
                if time.monotonic() > until or not all(file.exists() for file in there):
                    raise
            time.sleep(0.001)  # its writer has published it and not closed it yet

    def keep(self, chain: str, commit: Commit) -> None:
        """Lock a commit in place of the one before it."""
        new = CommitLock(self._folder(chain) / commits.file_name(commit.number))
        with self._lock:
            old = self._kept.pop(chain, None)
            self._kept[chain] = new
        if old is not None:
            old.close()

    @contextmanager
    def keeping(self, named: Iterable[tuple[str, int]]) -> Iterator[None]:
        """Lock commits during a block."""
        with ExitStack() as stack:
            for chain, number in named:
                try:
                    lock = CommitLock(self._folder(chain) / commits.file_name(number))
                except FileNotFoundError:
                    raise LakeNotFound(f"commit {number} of {self._folder(chain).parent} is gone.") from None
                stack.callback(lock.close)
            yield

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
