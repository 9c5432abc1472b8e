"""Checking every byte of a lake: files on two threads, each file once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lakepond.errors import LakeCorrupt
from lakepond.lake.format import manifests
from lakepond.lake.format.checksum import Digest
from lakepond.lake.format.entries import Manifest, RowsFile
from lakepond.lake.format.names import is_shared
from lakepond.lake.format.shard import Shard
from lakepond.lake.read.assemble import PART_STEPS
from lakepond.lake.read.reader import Head, LeafPart, Stored
from lakepond.lake.read.weights import read_weights
from lakepond.types import leaves

if TYPE_CHECKING:
    from lakepond.lake.read.lake import Lake

THREADS = 2
QUEUED = 8
"""files that wait to be checked"""


class Check(NamedTuple):
    """One file to check: `run` raises `LakeCorrupt` if it is damaged."""

    name: str
    bytes: int
    run: Callable[[], None]


def verify(lake: Lake, *, progress: Callable[[int, int], None] | None = None) -> None:
    """Read and check every byte of an open lake; raise `LakeCorrupt` with the first damaged file.

    Memory: a few files per thread, whatever the lake holds.
    """
    done, total = 0, sum(head.catalog.totals().bytes for head in lake.reader.heads)
    waiting: list[tuple[Check, Future[None]]] = []

    def finish() -> None:
        nonlocal done
        check, future = waiting.pop(0)
        future.result()
        done = min(total, done + check.bytes)
        if progress is not None:
            progress(done, total)

    with ThreadPoolExecutor(THREADS, "lakepond-verify") as pool:
        try:
            for check in checks(lake):
                waiting.append((check, pool.submit(check.run)))
                if len(waiting) >= QUEUED:
                    finish()
            while waiting:
                finish()
        finally:
            pool.shutdown(cancel_futures=True)
    for head in lake.reader.heads:
        read_weights(head.commit, head.segments, reachable=True)


def checks(lake: Lake) -> Iterator[Check]:
    """One check for every file of a lake that can be read, in the order of a commit's lists."""
    shared: set[str] = set()
    for head in lake.reader.heads:
        for leaf, listed in head.commit.lists():
            for entry in _entries(head, leaf, listed):
                if entry.name in shared or not head.segments.reachable(entry.name):
                    continue
                if is_shared(entry.name):
                    shared.add(entry.name)
                if isinstance(entry, Manifest):
                    yield Check(entry.name, 0, partial(_check_manifest, head, entry, leaf))
                elif isinstance(entry, RowsFile):
                    yield Check(entry.name, entry.bytes, partial(_check_rows, lake, head, entry))
                else:
                    yield Check(entry.name, entry.bytes, partial(_check_steps, lake, Stored(head, entry)))
        for info in head.commit.weights:
            name = f"{info.digest}.steps"
            if head.segments.reachable(name):
                yield Check(name, info.bytes, partial(_check_digest, head, name, info.digest))


def _entries(head: Head, leaf: int | None, listed: tuple) -> Iterator:  # type: ignore[type-arg]
    for entry in listed:
        if head.catalog.is_live(leaf, entry):
            yield entry
            if isinstance(entry, Manifest) and head.segments.reachable(entry.name):
                yield from _entries(head, leaf, head.catalog.read(entry, leaf))


def _check_manifest(head: Head, manifest: Manifest, leaf: int | None) -> None:
    manifests.read(head.segments, manifest, leaf, len(head.commit.rows))


def _check_rows(lake: Lake, head: Head, file: RowsFile) -> None:
    sizes = [field.nbytes for _, field in leaves(lake.spec.obs)]
    if file.shard.row_bytes > sizes[file.leaf]:
        raise LakeCorrupt(
            f"{file.name} of {lake.path} has rows of {file.shard.row_bytes:,} bytes for observation "
            f"{file.leaf}, which has {sizes[file.leaf]:,}; run `lakepond repair`."
        )
    with head.segments.using(file.name) as there, Shard(there, file.shard) as shard:
        shard.verify()


def _check_steps(lake: Lake, stored: Stored) -> None:
    _check_digest(stored.head, stored.name, stored.segment.steps.digest)
    reader = lake.reader
    for first in range(stored.first, stored.stop, PART_STEPS):
        part = reader.read(stored, np.arange(first, min(first + PART_STEPS, stored.stop)))
        if first == stored.first:
            for i, leaf in enumerate(part.leaves):
                if isinstance(leaf, LeafPart):
                    runs = leaf.track.runs - [stored.head.shift[i], 0]
                    reader.check_rows(stored.head, i, runs)


def _check_digest(head: Head, name: str, digest: str) -> None:
    with head.segments.using(name) as file:
        check_digest(file, digest)


def check_digest(file: Path, digest: str) -> None:
    """Raise `LakeCorrupt` unless a file's bytes are those it is named after."""
    found = Digest()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            found.update(piece)
    if found.hexdigest() != digest:
        raise LakeCorrupt(
            f"{file} is damaged: its content does not match the digest in its name; run `lakepond repair`."
        )
