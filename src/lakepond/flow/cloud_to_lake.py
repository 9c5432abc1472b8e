"""cloud ──pull──▶ lake: the newest intact commit of each writer; all segments, or each when it is read."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lakepond.cloud.chains import ChainCopy, chain_names
from lakepond.cloud.fetching import Fetcher, bring_commits, bring_segments, commit_of
from lakepond.cloud.leases import Lease
from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.errors import CloudNotFound, SpecError
from lakepond.lake import writers
from lakepond.lake.elsewhere import Segments
from lakepond.lake.format import description
from lakepond.lake.format.checksum import digest_of
from lakepond.lake.format.commits import Commit
from lakepond.lake.read.lake import Lake, newest_intact, one_writer
from lakepond.types import Spec

log = logging.getLogger("lakepond")


class Pulled(NamedTuple):
    """A lake in the cloud and its copy on this disk: the commit of each writer, and how its files come."""

    path: Path
    spec: Spec
    heads: dict[str, Commit]
    segments: dict[str, Segments]


def pull(path: str | Path, cloud: str | Cloud, *, commit: int | None = None, lazy: bool = False) -> Lake:
    """Download a lake to `path` and open it at the newest intact commit of each of its writers.

    commit: open the lake at the commit with this number, if it has one writer. lazy: download segments when
    they are read; by default all are downloaded before the call returns. An interrupted pull resumes with the
    next call. A lake that already exists at `path` is updated.

    Raises `CloudNotFound` if the lake or commit does not exist, `CloudConflict` if `path` contains another
    lake or conflicting commits, `CloudCorrupt` if a downloaded file does not match its checksum, and
    `CloudUnreachable` without network.
    """
    return Lake(*_pull(Path(path), Cloud.of(cloud), commit, None, lazy))


def open_in_cloud(url: str, commit: int | None, writer: str | None, cache: Path | None) -> Pulled:
    """A lake in the cloud with files that are downloaded to a folder when they are read; see `Lake.open`."""
    cloud = Cloud.of(url)
    path = cache if cache is not None else cache_folder(cloud)
    return _pull(path, cloud, commit, writer, lazy=True, wait=cloud.patience)


def open_again(url: str, path: Path, numbers: dict[str, int]) -> Lake:
    """Open such a lake at these commits; used for unpickling."""
    store = Store(Cloud.of(url))
    copies = {writer: ChainCopy(path, store, writers.chain_of(path, writer)) for writer in numbers}
    heads = {writer: commit_of(copies[writer], number) for writer, number in numbers.items()}
    segments = {writer: _segments(copy) for writer, copy in copies.items()}
    lake = Lake(path, description.read(path), heads, segments)
    lake.url = url
    return lake


def cache_folder(cloud: Cloud) -> Path:
    """The folder for the files of a lake in the cloud, unless the user names one."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "lakepond" / digest_of(cloud.url.rstrip("/").encode())


def _pull(
    path: Path, cloud: Cloud, commit: int | None, writer: str | None, lazy: bool, wait: float = 0.0
) -> Pulled:
    """`wait`: seconds for other processes that pull to the same folder."""
    store = Store(cloud)
    copies = [ChainCopy(path, store, chain) for chain in _chains(store, commit, writer)]
    heads: dict[str, Commit] = {}
    errors: list[CloudNotFound] = []
    fetchers = {copy.writer: Fetcher(copy) for copy in copies}
    with ThreadPoolExecutor(cloud.workers, "lakepond-pull") as pool:
        brought = [(copy, pool.submit(_bring, copy, commit, wait)) for copy in copies]
        for copy, each in brought:
            try:
                heads[copy.writer] = each.result()
            except CloudNotFound as error:
                errors.append(error)
                if len(copies) > 1:
                    log.warning("%s: skipping a writer: %s", cloud, error)
    if not heads:
        raise errors[0]
    for copy in copies:
        if copy.writer in heads and not lazy:
            bring_segments(copy, heads[copy.writer], fetchers[copy.writer])
    segments = {copy.writer: _segments(copy, fetchers[copy.writer]) for copy in copies}
    return Pulled(path, description.read(path), heads, segments)


def _chains(store: Store, commit: int | None, writer: str | None) -> list[str]:
    """The chains to pull: all, or the one of a writer."""
    if writer == "":
        return [""]
    found = chain_names(store)
    if writer is not None:
        chain = one_writer(Path(str(store.cloud)), writer, found)
        if chain not in found:
            raise CloudNotFound(
                f"{store.cloud} has no writer {writer!r}; it has {', '.join(found) or 'none'}."
            )
        return [chain]
    if commit is not None and len(found) > 1:
        raise SpecError(
            f"{store.cloud} has {len(found)} writers, and each numbers its own commits; name one: "
            "Lake.open(url, commit, writer=...)."
        )
    return found or [""]  # which raises if no lake exists


def _bring(copy: ChainCopy, commit: int | None, wait: float) -> Commit:
    """The newest intact commit of a chain, or the one with that number; this disk's own are not pulled."""
    if copy.writer != copy.chain:
        mine = newest_intact(copy.path, copy.writer) if commit is None else commit_of(copy, commit)
        if mine is not None:
            return mine
    return bring_commits(copy, commit, wait=wait)


def _segments(copy: ChainCopy, fetcher: Fetcher | None = None) -> Segments:
    return Segments(
        copy.path,
        copy.writer,
        bring=fetcher if fetcher is not None else Fetcher(copy),
        pin=Lease(copy.store, copy.home).pin,
        commit=partial(commit_of, copy),
    )
