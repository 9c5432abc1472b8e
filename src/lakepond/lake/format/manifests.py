"""Manifests: files that list up to 1,024 files each, so that a commit stays small whatever a lake holds.

    {"format": 2, "requires": [], "leaf": null, "entries": [...], "checksum": "..."}

A manifest is immutable and named by its content, as segments are. The most recently used ones are kept in
memory, for all lakes of the process together.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from lakepond import forks
from lakepond.lake.format.checksum import digest_of
from lakepond.lake.format.entries import (
    Entries,
    Entry,
    Manifest,
    RowsFile,
    check,
    from_json,
    to_json,
)
from lakepond.lake.format.ranges import Ranges, contains, joined_needs
from lakepond.lake.format.sealed import parse, reader, seal, unseal
from lakepond.lake.format.version import SOURCES, check_version, version

FLAT_LEVEL = 3
"""manifests up to this level list files, those above list manifests of the level below"""
MOST_ENTRIES = 1024
MOST_BYTES = 64 << 20
"""size of a manifest's file; one of 1,024 files of observations with up to 16 leaves has less than 1 MB"""
KEPT = 64
"""manifests that are kept in memory, of up to a megabyte each"""


def encode(entries: Sequence[Entry], level: int, leaf: int | None) -> tuple[Manifest, bytes]:
    """A manifest of these entries, and its file. `leaf`: of the rows; None for steps."""
    shared = any(isinstance(entry, RowsFile) and entry.source for entry in entries)
    requires = version(SOURCES) if shared else version()
    data = seal({**requires, "leaf": leaf, "entries": [to_json(entry) for entry in entries]})
    manifest = describe(entries, level, data, joined_needs(_needs(entries)))
    _kept.put(manifest.digest, tuple(entries))
    return manifest, data


@reader("{manifest.name} is damaged: {error}; run `lakepond repair`.")
def decode(manifest: Manifest, data: bytes, leaf: int | None, leaves: int) -> Entries:
    """The entries of a manifest; `LakeCorrupt` unless its file is the one that was written."""
    if len(data) != manifest.size or digest_of(data) != manifest.digest:
        check_version(parse(data) or {}, manifest.name)
        raise ValueError("its content does not match the digest in its name")
    content = unseal(data)
    check_version(content, manifest.name)
    entries = tuple(from_json(entry, leaf) for entry in content["entries"])
    check(entries, leaves)
    lower = [entry.level for entry in entries if isinstance(entry, Manifest)]
    if content["leaf"] != leaf or not 1 <= len(entries) <= MOST_ENTRIES:
        raise ValueError(f"it lists {len(entries)} files of observation {content['leaf']}")
    if any(level >= manifest.level for level in lower) or (lower and len(lower) != len(entries)):
        raise ValueError("it lists manifests that are not below it")
    needs = zip(*_needs(entries), strict=True)
    covered = len(manifest.needs) == (leaves if leaf is None else 0)
    covered = covered and all(map(contains, manifest.needs, needs))
    if not covered or describe(entries, manifest.level, data, manifest.needs) != manifest:
        raise ValueError("it does not list what the commit says")
    return entries


def describe(entries: Sequence[Entry], level: int, data: bytes, needs: tuple[Ranges, ...]) -> Manifest:
    """The description of a manifest with these entries in a commit or in another manifest."""
    return Manifest(
        level=level,
        first=entries[0].first,
        stop=entries[-1].stop,
        files=sum(entry.files for entry in entries),
        count=sum(entry.count for entry in entries),
        bytes=sum(entry.bytes for entry in entries),
        digest=digest_of(data),
        size=len(data),
        needs=needs,
    )


def _needs(entries: Sequence[Entry]) -> list[tuple[Ranges, ...]]:
    return [entry.needs for entry in entries if not isinstance(entry, RowsFile)]


def kept(manifest: Manifest) -> Entries | None:
    """The entries of a manifest, if they are in memory."""
    return _kept.get(manifest.digest)


def read(source: ManifestSource, manifest: Manifest, leaf: int | None, leaves: int) -> Entries:
    """The entries of a manifest, from its file; from now on in memory."""
    entries = decode(manifest, source.data(manifest.name, MOST_BYTES), leaf, leaves)
    _kept.put(manifest.digest, entries)
    return entries


class ManifestSource(Protocol):
    """Where manifests are: a folder of segments, or a bucket."""

    def data(self, name: str, most: int) -> bytes:
        """The bytes of a file; `LakeCorrupt` if it is missing or has more than `most`."""


class _Kept:
    """Entries by the digest of their manifest, the most recently used ones. Thread-safe."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Entries] = OrderedDict()
        self.restart_in_child()
        forks.register(self)

    def restart_in_child(self) -> None:
        """In a forked child no other thread holds the lock."""
        self._lock = threading.Lock()

    def get(self, digest: str) -> Entries | None:
        with self._lock:
            if digest in self._found:
                self._found.move_to_end(digest)
            return self._found.get(digest)

    def put(self, digest: str, entries: Entries) -> None:
        with self._lock:
            self._found[digest] = entries
            self._found.move_to_end(digest)
            while len(self._found) > KEPT:
                self._found.popitem(last=False)


_kept = _Kept()
