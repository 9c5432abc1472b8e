"""The chains of a lake in a bucket. Files are downloaded to a cache when they are read, and leave it again.

Asking for the next commit of a chain is one GET. Names of chains are found by two LISTs. Commits that `gc`
could delete while they are read, because they are old, are protected by a lease in the folder of their chain.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from lakepond.cloud.chains import ChainCopy, Skip, chain_names, chain_store, read_slot
from lakepond.cloud.fetching import Fetcher
from lakepond.cloud.layout import commit_name, commit_numbers
from lakepond.cloud.leases import Lease
from lakepond.cloud.pace import patiently
from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.errors import CloudConflict, CloudNotFound, LakeCorrupt, LakeNotFound
from lakepond.formats import ranges
from lakepond.lake import writers
from lakepond.lake.elsewhere import Segments
from lakepond.lake.files import make_folders
from lakepond.lake.format import commits, description, snapshots
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.names import segment_files
from lakepond.lake.read.lake import Lake

log = logging.getLogger("lakepond")
CACHE_BYTES = 4 << 30
"""bytes of downloaded files on this disk"""
TRIM_BYTES = 256 << 20
"""downloads after which the cache is checked"""
PATIENCE_SECONDS = 10.0
"""how long a start waits for a server that does not answer"""
UNLEASED_SECONDS = 12 * 3600.0
"""`gc` deletes nothing that is younger than a day: a commit up to this age needs no lease"""
LEASE_SECONDS = 10.0
"""how long to wait until a lease is there"""
ASKED_AT_A_TIME = 16


class CloudChains:
    """The chains of a lake in a bucket, read through a cache of its own."""

    def __init__(self, cloud: str | Cloud, cache: Path | None = None, store: Store | None = None) -> None:
        """`cache`: folder for downloaded files, default: a temporary one, deleted by `close`."""
        self.store = Store(Cloud.of(cloud)) if store is None else store
        try:
            data = patiently(lambda: self.store.read(description.NAME), for_seconds=PATIENCE_SECONDS)
        except CloudNotFound as error:
            raise LakeNotFound(
                f"no lake exists at {self.store.cloud} ({error}); a writer with cloud= creates one."
            ) from None
        self.spec = description.parse_spec(data, f"{description.NAME} in {self.store.cloud}")
        self.path = Path(tempfile.mkdtemp(prefix="lakepond-follow-")) if cache is None else cache
        make_folders(self.path)
        self._remove: Callable[[], object] = lambda: None
        if cache is None:  # also if it is dropped, and when the process ends
            self._remove = weakref.finalize(self, _remove, self.path, os.getpid())
        self._lock = threading.Lock()
        self._stores: dict[str, Store] = {}
        self._fetchers: dict[str, Fetcher] = {}
        self._leases: dict[str, Lease] = {}
        self._skips: dict[str, Skip] = {}
        self._fetched = 0  # bytes since the cache was checked

    def names(self) -> list[str]:
        """All chains: two LISTs."""
        return chain_names(self.store)

    def next(self, chain: str, after: int | None) -> Commit | None:
        """The commit after `after`: one GET, two where numbers were skipped; None: a LIST for the newest."""
        if after is None:
            return self._newest(chain)
        store, number = self._store(chain), after + 1
        known = self._skips.get(chain)
        if known is not None and known.number == number:
            number = known.to
        slot = self._readable(store, number)
        while isinstance(slot, Skip):
            self._skips[chain] = Skip(after + 1, slot.to)
            slot = self._readable(store, slot.to)
        return slot

    def _readable(self, store: Store, number: int) -> Commit | Skip | None:
        """A slot; one that is damaged is passed over if there is another one after it."""
        try:
            return read_slot(store, number)
        except LakeCorrupt as error:
            if store.head(commit_name(number + 1)) is None:
                raise
            log.warning("%s: skipping unreadable commit %d: %s", store.cloud, number, error)
            return self._readable(store, number + 1)

    def _newest(self, chain: str) -> Commit | None:
        store = self._store(chain)
        for number in reversed(commit_numbers(store.list("commits"))):
            try:
                slot = read_slot(store, number)
            except LakeCorrupt as error:
                log.warning("%s: skipping unreadable commit %d: %s", store.cloud, number, error)
                continue
            if isinstance(slot, Commit):
                return slot
        return None

    def commit(self, chain: str, number: int) -> Commit:
        """A commit by its number."""
        store = self._store(chain)
        found = read_slot(store, number)
        if not isinstance(found, Commit):
            known = ranges(commit_numbers(store.list("commits")))
            raise LakeNotFound(f"{store.cloud} has no commit {number}; it has {known}.")
        return found

    def lake(self, heads: Mapping[str, Commit]) -> Lake:
        """The lake at these commits, whose files are downloaded when they are read."""
        segments: dict[str, Segments] = {}
        leases: list[Lease] = []
        for chain, commit in heads.items():
            home = writers.home(self.path, chain)
            for folder in (home / "segments", home / "commits"):
                folder.mkdir(parents=True, exist_ok=True)
            (home / "commits" / commits.file_name(commit.number)).write_bytes(commit.to_json())
            age = time.time() - datetime.fromisoformat(commit.time).timestamp()
            lease = self._lease(chain) if age > UNLEASED_SECONDS else None
            if lease is not None:
                leases.append(lease)
            segments[chain] = Segments(
                self.path, chain, bring=self._fetcher(chain), pin=None if lease is None else lease.pin
            )
        lake = Lake(self.path, self.spec, dict(heads), segments)
        for lease in leases:
            lease.wait(LEASE_SECONDS)
        return lake

    def keep(self, chain: str, commit: Commit) -> None:
        """Forget earlier commits of a chain on this disk, and downloads beyond the size of the cache."""
        folder = writers.home(self.path, chain) / "commits"
        for number in commits.numbers(folder):
            if number != commit.number:
                (folder / commits.file_name(number)).unlink(missing_ok=True)
        if self._fetched > TRIM_BYTES:
            self._fetched = 0
            self._trim()

    def _trim(self) -> None:
        """Delete the files that were downloaded first, until the cache has its size."""
        found = [
            (status.st_mtime, status.st_size, folder / name)
            for folder in (writers.home(self.path, chain) / "segments" for chain in self._fetchers)
            for name, status in segment_files(folder).items()
        ]
        over = sum(size for _, size, _ in found) - CACHE_BYTES
        for _, size, file in sorted(found):
            if over <= 0:
                return
            file.unlink(missing_ok=True)
            over -= size

    @contextmanager
    def keeping(self, named: Iterable[tuple[str, int]]) -> Iterator[None]:
        """Check that commits exist; `gc` takes a day before it deletes one."""
        wanted = list(named)
        with ThreadPoolExecutor(ASKED_AT_A_TIME, "lakepond-head") as pool:
            heads = pool.map(lambda each: self._store(each[0]).head(commit_name(each[1])), wanted)
            for (chain, number), found in zip(wanted, heads, strict=True):
                if found is None:
                    raise LakeNotFound(f"commit {number} of {self._store(chain).cloud} is gone.")
        yield

    def snapshots(self) -> list[str]:
        """The objects in `snapshots/`: a LIST."""
        start = f"{snapshots.FOLDER}/"
        return sorted(name.removeprefix(start) for name in self.store.list(snapshots.FOLDER))

    def write(self, name: str, data: bytes) -> bool:
        """Create an object there."""
        try:
            self.store.publish(f"{snapshots.FOLDER}/{name}", data, lambda _: True)
        except CloudConflict:
            return False
        return True

    def read(self, name: str) -> bytes:
        """Read an object there."""
        try:
            return patiently(
                lambda: self.store.read(f"{snapshots.FOLDER}/{name}"), for_seconds=PATIENCE_SECONDS
            )
        except CloudNotFound as error:
            raise LakeNotFound(str(error)) from None

    def close(self) -> None:
        """Delete a temporary cache."""
        self._remove()

    def _store(self, chain: str) -> Store:
        with self._lock:
            if chain not in self._stores:
                self._stores[chain] = chain_store(self.store, chain)
            return self._stores[chain]

    def _fetcher(self, chain: str) -> Callable[[str], None]:
        with self._lock:
            if chain not in self._fetchers:
                self._fetchers[chain] = Fetcher(ChainCopy(self.path, self.store, chain), durable=False)
            fetch = self._fetchers[chain]

        def bring(name: str) -> None:
            fetch(name)
            with suppress(OSError):
                self._fetched += fetch.copy.file(name).stat().st_size

        return bring

    def _lease(self, chain: str) -> Lease:
        if chain not in self._leases:
            self._leases[chain] = Lease(self._store(chain))
        return self._leases[chain]

    def __str__(self) -> str:
        return str(self.store.cloud)


def _remove(cache: Path, pid: int) -> None:
    """Delete a temporary cache, unless this is a forked child."""
    if os.getpid() == pid:
        shutil.rmtree(cache, ignore_errors=True)
