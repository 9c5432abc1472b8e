"""cloud ──pull──▶ lake: the newest intact commit of each writer; all segments, or each when it is read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from lakepond import background
from lakepond.cloud.chains import ChainCopy, chain_names
from lakepond.cloud.fetching import Fetcher, Remote, commit_of, fetch_commits, fetch_segments, locked, look
from lakepond.cloud.leases import Lease
from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.errors import CloudNotFound, SpecError
from lakepond.lake import writers
from lakepond.lake.format import description
from lakepond.lake.format.commits import Commit
from lakepond.lake.read.lake import Lake, newest_intact
from lakepond.lake.segments import Segments
from lakepond.paths import lake_folder

log = logging.getLogger("lakepond")


def pull(path: str | Path, cloud: str | Cloud, *, commit: int | None = None, lazy: bool = False) -> Lake:
    """Download a lake to `path` and open it at the newest intact commit of each of its writers.

    commit: open the lake at the commit with this number, if it has one writer. lazy: download segments when
    they are read; by default all are downloaded before the call returns. An interrupted pull resumes with the
    next call. A lake that already exists at `path` is updated.

    Raises `CloudNotFound` if the lake or commit does not exist, `CloudConflict` if `path` contains another
    lake or conflicting commits, `CloudCorrupt` if a downloaded file does not match its checksum, and
    `CloudUnreachable` without network.
    """
    path, cloud = lake_folder(path), Cloud.of(cloud)
    store = Store(cloud)
    chains = chain_names(store) or [""]  # which raises if no lake exists
    if commit is not None and len(chains) > 1:
        raise SpecError(
            f"{cloud} has {len(chains)} writers, and each numbers its own commits: pull it without a number, "
            "or read one commit of a writer by Lake.open(url, commit, writer=...)."
        )
    copies = [ChainCopy(path, store, chain) for chain in chains]
    stop = threading.Event()
    fetchers = {copy.writer: Fetcher(copy, stop=stop) for copy in copies}
    heads = _heads(copies, commit, cloud, stop)
    with _stopping(stop):
        for copy in copies:
            if copy.writer in heads and not lazy:
                fetch_segments(copy, heads[copy.writer], fetchers[copy.writer])
    segments = {copy.writer: _segments(copy, fetchers[copy.writer]) for copy in copies}
    return Lake(path, description.read(path), heads, segments)


def lazy_segments(path: Path, url: str, writer: str) -> Segments:
    """The files of one writer of a lake; those that have left this disk are downloaded when they are read."""
    copy = ChainCopy(path, Store(Cloud(url)), writers.chain_of(path, writer))
    return _segments(copy, Fetcher(copy))


def _heads(
    copies: list[ChainCopy], commit: int | None, cloud: Cloud, stop: threading.Event
) -> dict[str, Commit]:
    """The newest intact commit of each chain, or the one with that number, fetched and stored.

    A writer's own chain is not pulled to its disk.
    """
    own: dict[str, Commit] = {}
    for copy in copies:
        if copy.writer != copy.chain:
            mine = newest_intact(copy.path, copy.writer) if commit is None else commit_of(copy, commit)
            if mine is not None:
                own[copy.chain] = mine

    pulled = [copy for copy in copies if copy.chain not in own]
    remotes: dict[str, Remote | None] = {}

    def ask(copy: ChainCopy) -> Remote | None:
        try:
            return look(copy.store, copy.lake, stop)
        except CloudNotFound:
            return None  # `fetch_commits` raises it again

    def fetch(copy: ChainCopy) -> Commit | CloudNotFound:
        try:
            return own.get(copy.chain) or fetch_commits(copy, commit, remotes[copy.chain], stop)
        except CloudNotFound as error:
            return error

    heads: dict[str, Commit] = {}
    errors: list[CloudNotFound] = []
    with ExitStack() as locks, _stopping(stop):  # here: threads that are left to themselves keep no lock
        asked = background.results(ask, pulled, cloud.workers, "lakepond-pull")
        for copy, remote in zip(pulled, asked, strict=True):
            remotes[copy.chain] = remote
            if remote is not None:  # or nothing is written here
                locks.enter_context(locked(copy))
        fetched = background.results(fetch, copies, cloud.workers, "lakepond-pull")
        for copy, found in zip(copies, fetched, strict=True):
            if isinstance(found, Commit):
                heads[copy.writer] = found
                continue
            errors.append(found)
            if len(copies) > 1:
                log.warning("%s: skipping a writer: %s", cloud, found)
    if not heads:
        raise errors[0]
    return heads


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at an error or Ctrl-C, for threads that wait for the server."""
    try:
        yield
    except BaseException:
        stop.set()
        raise


def _segments(copy: ChainCopy, fetcher: Fetcher) -> Segments:
    return Segments(
        copy.path,
        copy.writer,
        fetch=fetcher,
        pin=Lease(copy.store, copy.home).pin,
        commit=partial(commit_of, copy),
    )
