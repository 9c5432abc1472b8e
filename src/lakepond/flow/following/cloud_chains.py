"""The chains of a lake in a bucket. Files are downloaded to a cache when they are read, and leave it again.

Asking for the next commit of a chain is one GET. Names of chains are found by two LISTs. Commits that `gc`
could delete while they are read, because they are old, are protected by a lease in the folder of their chain.

Commits are read from the bucket and files are named by their content, so a cache may be used for any lake.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from lakepond import background
from lakepond.cloud import leases
from lakepond.cloud.bucket import Listed
from lakepond.cloud.chains import SKIP_BYTES, ChainCopy, Skip, chain_names, chain_store, read_slot
from lakepond.cloud.fetching import CloudSegments, Fetcher, check_content
from lakepond.cloud.layout import commit_name, commit_numbers
from lakepond.cloud.leases import Lease
from lakepond.cloud.pace import patiently
from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.errors import CloudConflict, CloudCorrupt, CloudNotFound, LakeCorrupt, LakeNotFound, SpecError
from lakepond.formats import ranges
from lakepond.lake import writers
from lakepond.lake.files import make_folders, write_all, write_atomic
from lakepond.lake.format import commits, description, snapshots
from lakepond.lake.format.checksum import digest_of
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.names import SOURCES, is_shared, segment_files
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.read.lake import Lake, one_writer
from lakepond.lake.segments import Segments

log = logging.getLogger("lakepond")
CACHE_BYTES = 4 << 30
"""bytes of downloaded files on this disk"""
TRIM_BYTES = 256 << 20
"""downloads after which the cache is checked"""
PATIENCE_SECONDS = 10.0
"""how long a start waits for a server that does not answer"""
UNLEASED_SECONDS = 12 * 3600.0
"""`gc` deletes nothing that is younger than a day: a commit up to this age needs no lease"""
ASKED_AT_A_TIME = 16
VERIFIED_AT_A_TIME = 4
SHARED_TRIES = 8
"""how often a lake is opened again because another reader of the same cache deleted its commit there"""


class CloudChains:
    """The chains of a lake in a bucket, read through a cache of its own."""

    folder: Path | None = None

    def __init__(
        self,
        cloud: str | Cloud,
        cache: Path | None = None,
        store: Store | None = None,
        unleased: float | None = None,
    ) -> None:
        """`cache`: folder for downloaded files, default: a temporary one, deleted by `close`.

        `unleased`: age in seconds up to which a commit needs no lease; default: half a day, which suffices if
        each is read at once.
        """
        self.store = Store(Cloud.of(cloud)) if store is None else store
        self._unleased = UNLEASED_SECONDS if unleased is None else unleased
        try:
            data = patiently(lambda: self.store.read(description.NAME), for_seconds=PATIENCE_SECONDS)
        except CloudNotFound as error:
            why = str(error).rstrip(".")
            raise LakeNotFound(
                f"no lake exists at {self.store.cloud} ({why}); a writer with cloud= creates one."
            ) from None
        self.spec = description.parse_spec(data, f"{description.NAME} in {self.store.cloud}")
        self.path = Path(tempfile.mkdtemp(prefix="lakepond-follow-")) if cache is None else cache
        make_folders(self.path)
        self._temporary = cache is None
        self._remove: Callable[[], object] = lambda: None
        if cache is None:  # also if it is dropped, and when the process ends
            self._remove = weakref.finalize(self, _remove, self.path, os.getpid())
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._stores: dict[str, Store] = {}
        self._fetchers: dict[str, Fetcher] = {}
        self._leases: dict[str, Lease] = {}
        self._skips: dict[str, Skip] = {}
        self._verified: dict[str, set[str]] = {}  # files of each chain
        self._intact: set[Path] = set()  # files of a cache of earlier processes that this one has checked
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
        for number in reversed(self.numbers(chain)):
            try:
                slot = read_slot(store, number)
            except LakeCorrupt as error:
                log.warning("%s: skipping unreadable commit %d: %s", store.cloud, number, error)
                continue
            if isinstance(slot, Commit):
                return slot
        return None

    def numbers(self, chain: str) -> list[int]:
        """The commits of a chain: a LIST."""
        listed = self._store(chain).list("commits")
        return [n for n in commit_numbers(listed) if listed[commit_name(n)].size > SKIP_BYTES]

    def commit(self, chain: str, number: int) -> Commit:
        """A commit by its number."""
        store = self._store(chain)
        found = patiently(lambda: read_slot(store, number), for_seconds=PATIENCE_SECONDS, stop=self.stop)
        if not isinstance(found, Commit):
            known = ranges(self.numbers(chain))
            raise LakeNotFound(f"{store.cloud} has no commit {number}; it has {known}.")
        return found

    def check(self, chain: str, commit: Commit) -> None:
        """A commit is published after its files: each is checked when it is read."""

    def segments(self, chain: str, lease: Lease | None = None) -> Segments:
        """The files of a chain, downloaded when they are read."""
        return Segments(
            self.path,
            chain,
            fetch=self._fetcher(chain),
            pin=None if lease is None else lease.pin,
            commit=partial(self.commit, chain),
            numbers=partial(self.numbers, chain),
            stop=self.stop,
            intact=None if self._temporary else self._intact,
        )

    def lake(self, heads: Mapping[str, Commit]) -> Lake:
        """The lake at these commits, whose files are downloaded when they are read."""
        for _ in range(SHARED_TRIES):
            with suppress(FileNotFoundError):
                return self._lake(heads)
        return self._lake(heads)

    def _lake(self, heads: Mapping[str, Commit]) -> Lake:
        """FileNotFoundError if another reader of the cache deletes a commit before it is locked."""
        segments: dict[str, Segments] = {}
        for chain, commit in heads.items():
            home = writers.home(self.path, chain)
            for folder in (home / "segments", home / "commits"):
                make_folders(folder)
            _cache(home / "commits", commit)
            age = time.time() - datetime.fromisoformat(commit.time).timestamp()
            lease = self._lease(chain) if age > self._unleased else None
            segments[chain] = self.segments(chain, lease)
        return Lake(self.path, self.spec, dict(heads), segments)

    def verify(self, chain: str, commit: Commit, progress: Callable[[int, int], None]) -> None:
        """The content of every object, as a stream: nothing is stored. An object is read once per chain."""
        store, verified = self._store(chain), self._verified.setdefault(chain, set())
        try:
            files = dict(Catalog(commit, CloudSegments(store)).files())
            new = [name for name in files if name not in verified]
            total = sum(files.values())
            done = total - sum(files[name] for name in new)
            checked = background.results(
                lambda name: self._check_object(store, name, files[name]),
                new,
                VERIFIED_AT_A_TIME,
                "lakepond-verify",
            )
            for name, _ in zip(new, checked, strict=True):
                verified.add(name)
                done += files[name]
                progress(done, total)
        except (CloudCorrupt, CloudNotFound) as error:
            raise LakeCorrupt(str(error)) from None

    def _check_object(self, chain: Store, name: str, size: int) -> None:
        store = self.store if is_shared(name) else chain
        patiently(lambda: check_content(store, name, size), for_seconds=store.cloud.patience)

    def keep(self, chain: str, commit: Commit) -> None:
        """Forget earlier commits of a chain on this disk, and downloads beyond the size of the cache."""
        folder = writers.home(self.path, chain) / "commits"
        for number in commits.numbers(folder):
            if number != commit.number:
                (folder / commits.file_name(number)).unlink(missing_ok=True)
        self._trim()

    def _trim(self) -> None:
        """Trim the cache after `TRIM_BYTES` of downloads."""
        if self._fetched > TRIM_BYTES:
            self._fetched = 0
            self.trim()

    def trim(self) -> None:
        """Delete the files of the cache that were downloaded first, of any lake, until it has its size.

        A reader that has one of them open continues with it; one that opens it later fetches it again.
        """
        if (self.path / description.NAME).exists():  # a lake, which is not a cache
            return
        homes = [writers.home(self.path, chain) / "segments" for chain in writers.names(self.path)]
        found = [
            (status.st_mtime, status.st_size, folder / name)
            for folder in (*homes, self.path / SOURCES)
            for name, status in segment_files(folder).items()
        ]
        over = sum(size for _, size, _ in found) - CACHE_BYTES
        for _, size, file in sorted(found):
            if over <= 0:
                return
            file.unlink(missing_ok=True)
            self._intact.discard(file)
            over -= size

    @contextmanager
    def keeping(self, named: Iterable[tuple[str, int]]) -> Iterator[Callable[[], None]]:
        """Check that commits exist, and protect old ones by leases; `gc` takes a day to delete the others."""
        wanted, started = set(named), leases.clock()
        now = leases.server_time(self.store)
        old: dict[str, set[int]] = {}
        for (chain, number), found in self._heads(wanted).items():
            if now - found.modified > UNLEASED_SECONDS:
                old.setdefault(chain, set()).add(number)

        def check() -> None:
            if leases.clock() - started > UNLEASED_SECONDS:
                self._heads(wanted)

        with ExitStack() as stack:
            for chain, numbers in old.items():
                stack.enter_context(leases.protecting(self._store(chain), numbers=numbers))
            self._heads({(chain, number) for chain, numbers in old.items() for number in numbers})
            yield check

    def _heads(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Listed]:
        """What the server reports of some commits; `LakeNotFound` if one does not exist."""
        wanted = list(wanted)
        heads = background.results(
            lambda each: self._store(each[0]).head(commit_name(each[1])),
            wanted,
            ASKED_AT_A_TIME,
            "lakepond-head",
        )
        known: dict[tuple[str, int], Listed] = {}
        for (chain, number), found in zip(wanted, heads, strict=True):
            if found is None:
                raise LakeNotFound(f"commit {number} of {self._store(chain).cloud} is gone.")
            known[chain, number] = found
        return known

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

    def remove(self, name: str) -> None:
        """Delete an object there."""
        self.store.delete(f"{snapshots.FOLDER}/{name}")

    def close(self) -> None:
        """Stop downloads, and delete a temporary cache."""
        self.stop.set()
        self._remove()

    def _store(self, chain: str) -> Store:
        with self._lock:
            if chain not in self._stores:
                self._stores[chain] = chain_store(self.store, chain)
            return self._stores[chain]

    def _fetcher(self, chain: str) -> Callable[[str], None]:
        with self._lock:
            if chain not in self._fetchers:
                self._fetchers[chain] = Fetcher(
                    ChainCopy(self.path, self.store, chain),
                    durable=False,
                    stop=self.stop,
                    intact=None if self._temporary else self._intact,
                )
            fetcher = self._fetchers[chain]

        def fetch(name: str) -> None:
            self._fetched += fetcher(name)
            if self._temporary:
                self._trim()

        return fetch

    def _lease(self, chain: str) -> Lease:
        if chain not in self._leases:
            self._leases[chain] = Lease(self._store(chain), writers.home(self.path, chain))
        return self._leases[chain]

    def __str__(self) -> str:
        return str(self.store.cloud)


def _cache(folder: Path, commit: Commit) -> None:
    """Store a commit atomically; it is not synced, because it is read from the bucket after a power cut."""
    name = commits.file_name(commit.number)
    write_atomic(folder, lambda file: write_all(file, commit.to_json()), lambda _: name, sync=False)


def _remove(cache: Path, pid: int) -> None:
    """Delete a temporary cache, unless this is a forked child."""
    if os.getpid() == pid:
        shutil.rmtree(cache, ignore_errors=True)


def open_lake(url: str, commit: int | None, writer: str | None, cache: Path | None) -> Lake:
    """A lake in a bucket, all writers or one; see `Lake.open`."""
    chains = _cached(url, cache)
    found = chains.names()
    if writer is not None:
        name = one_writer(str(chains), writer, found)
        if name not in found:
            known = ", ".join(each or "the one without a name" for each in found)
            raise CloudNotFound(f"{chains} has no writer {writer!r}; it has {known or 'none'}.")
        found = [name]
    elif commit is not None and len(found) > 1:
        raise SpecError(
            f"{chains} has {len(found)} writers, and each numbers its own commits; name one: "
            "Lake.open(url, commit, writer=...)."
        )

    def head(chain: str) -> Commit | None:
        return chains.next(chain, None) if commit is None else chains.commit(chain, commit)

    heads = dict(zip(found, background.results(head, found, ASKED_AT_A_TIME, "lakepond-open"), strict=True))
    return _opened(chains, url, {chain: head for chain, head in heads.items() if head is not None})


def open_again(url: str, cache: Path, numbers: dict[str, int]) -> Lake:
    """Open such a lake at these commits; used for unpickling."""
    chains = _cached(url, cache)
    return _opened(chains, url, {chain: chains.commit(chain, number) for chain, number in numbers.items()})


def _cached(url: str, cache: Path | None) -> CloudChains:
    cloud = Cloud.of(url)
    if cache is None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = Path(caches) / "lakepond" / digest_of(cloud.url.rstrip("/").encode())
    return CloudChains(cloud, cache, unleased=-math.inf)


def _opened(chains: CloudChains, url: str, heads: dict[str, Commit]) -> Lake:
    if not heads:
        raise LakeNotFound(f"{chains} has no commit yet; `replay.push()` uploads those of a replay.")
    chains.trim()
    lake = chains.lake(heads)
    lake.url = url
    return lake
