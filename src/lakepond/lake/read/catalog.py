"""The files of one commit, found through its manifests, which are read when they are needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lakepond.lake.format import manifests
from lakepond.lake.format.commits import Commit, Totals
from lakepond.lake.format.entries import Entries, Entry, File, Manifest, RowsFile, Segment
from lakepond.lake.format.ranges import meets
from lakepond.types import Array


class Found(NamedTuple):
    """A file, and the part [start, stop) of the requested numbers that are in it."""

    file: File
    start: int
    stop: int


class Catalog:
    """The files of one commit. Thread-safe. Memory: bounded, whatever the number of files."""

    def __init__(self, commit: Commit, source: manifests.ManifestSource) -> None:
        """`source`: where the manifests are, usually `Segments`."""
        self.commit, self._source = commit, source

    # --- in order --------------------------------------------------------------------------------

    def segments(self, start: int | None = None, stop: int | None = None) -> Iterator[Segment]:
        """The files of live steps, or of the steps in [start, stop), in order."""
        start = self.commit.oldest if start is None else max(start, self.commit.oldest)
        stop = self.commit.recorded if stop is None else stop
        for file in self.files_of(None, self.commit.segments, start, stop):
            assert isinstance(file, Segment)
            yield file

    def rows(self, leaf: int, start: int = 0, stop: int | None = None) -> Iterator[RowsFile]:
        """The files of rows of a leaf, or of those in [start, stop), in order."""
        stop = self.commit.next_rows[leaf] if stop is None else stop
        for file in self.files_of(leaf, self.commit.rows[leaf], start, stop):
            assert isinstance(file, RowsFile)
            if meets(self.commit.live_rows[leaf], file.first, file.stop):
                yield file

    def files_of(self, leaf: int | None, entries: Sequence[Entry], start: int, stop: int) -> Iterator[File]:
        """The files below some entries of one list that have a number in [start, stop), in order."""
        at = max(0, bisect_right(entries, start, key=lambda entry: entry.first) - 1)
        for entry in entries[at:]:
            if entry.first >= stop:
                return
            if entry.stop > start:
                if isinstance(entry, Manifest):
                    yield from self.files_of(leaf, self.read(entry, leaf), start, stop)
                else:
                    yield entry

    def files(self) -> Iterator[tuple[str, int]]:
        """Every file of the commit with its size, manifests included; a name may come twice."""
        for leaf, listed in self.commit.lists():
            yield from self.files_below(leaf, listed)
        for info in self.commit.weights:
            yield f"{info.digest}.steps", info.bytes

    def files_below(
        self, leaf: int | None, entries: Sequence[Entry], skip: Callable[[str], bool] = lambda name: False
    ) -> Iterator[tuple[str, int]]:
        """The files of some entries of one list that belong to the commit, with their sizes.

        `skip`: called with the name of a manifest; if it returns True, that and what it lists is left out.
        """
        for entry in entries:
            if not self.is_live(leaf, entry):
                continue
            if not isinstance(entry, Manifest):
                yield entry.name, entry.bytes
            elif not skip(entry.name):
                yield entry.name, entry.size
                yield from self.files_below(leaf, self.read(entry, leaf), skip)

    def is_live(self, leaf: int | None, entry: Entry) -> bool:
        """Whether an entry belongs to the commit: a step of it is live, or a row may be."""
        if leaf is None:
            return entry.stop > self.commit.oldest
        return meets(self.commit.live_rows[leaf], entry.first, entry.stop)

    def lists(self, file: File) -> bool:
        """Whether the commit names this file."""
        last = file.stop - 1, file.stop
        found = self.rows(file.leaf, *last) if isinstance(file, RowsFile) else self.segments(*last)
        return any(each.name == file.name for each in found)

    def live(self, leaf: int | None, entries: Sequence[Entry]) -> Iterator[tuple[Entry, bool]]:
        """The entries that belong to the commit, and whether one is a manifest of which every file does.

        What other manifests list follows them.
        """
        for entry in entries:
            if self.is_live(leaf, entry):
                whole = isinstance(entry, Manifest) and self.all_live(leaf, entry)
                yield entry, whole
                if isinstance(entry, Manifest) and not whole:
                    yield from self.live(leaf, self.read(entry, leaf))

    def live_files(self, leaf: int | None) -> Iterator[Entry]:
        """The files of a list that belong to the commit, each once: itself, or as part of a manifest.

        Only manifests with files that do not belong to it are read.
        """
        listed = self.commit.segments if leaf is None else self.commit.rows[leaf]
        return (e for e, whole in self.live(leaf, listed) if whole or not isinstance(e, Manifest))

    def totals(self) -> Totals:
        """Files and bytes, manifests not counted."""
        live = [entry for leaf, _ in self.commit.lists() for entry in self.live_files(leaf)]
        files = sum(entry.files for entry in live) + len(self.commit.weights)
        return Totals(files, sum(each.bytes for each in (*live, *self.commit.weights)))

    def rows_count(self, leaf: int) -> int:
        """The rows of a leaf that are in the files of the commit."""
        return sum(entry.count for entry in self.live_files(leaf))

    def all_live(self, leaf: int | None, entry: Manifest) -> bool:
        """Whether every file below a manifest belongs to the commit."""
        if leaf is None:
            return entry.first >= self.commit.oldest
        return any(a <= entry.first and entry.stop <= b for a, b in self.commit.live_rows[leaf])

    # --- by number -------------------------------------------------------------------------------

    def find(self, leaf: int | None, numbers: Array) -> list[Found]:
        """The files that hold sorted numbers: ids of steps (`leaf` None) or rows; LookupError if not."""
        found: list[Found] = []
        listed = self.commit.segments if leaf is None else self.commit.rows[leaf]
        self._find(leaf, listed, numbers, 0, found)
        return found

    def _find(
        self, leaf: int | None, entries: Sequence[Entry], numbers: Array, offset: int, found: list[Found]
    ) -> None:
        firsts = np.array([entry.first for entry in entries], np.int64)
        which = np.searchsorted(firsts, numbers, "right") - 1
        edges = np.flatnonzero(np.diff(which, prepend=-2, append=-2))
        for at, to in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            entry = entries[which[at]] if which[at] >= 0 else None
            if entry is None or numbers[to - 1] >= entry.stop:
                raise LookupError(f"number {numbers[to - 1]} is in no file")
            if isinstance(entry, Manifest):
                self._find(leaf, self.read(entry, leaf), numbers[at:to], offset + at, found)
            else:
                found.append(Found(entry, offset + at, offset + to))

    def covers(self, leaf: int, start: int, stop: int) -> bool:
        """Whether all rows [start, stop) of a leaf are in files of the commit."""
        at = start
        for file in self.rows(leaf, start, stop):
            if file.first > at:
                return False
            at = file.stop
        return at >= stop

    # --- manifests -------------------------------------------------------------------------------

    def read(self, manifest: Manifest, leaf: int | None) -> Entries:
        """What a manifest lists; fetched from the cloud if it is only there."""
        entries = manifests.kept(manifest)
        if entries is None:
            entries = manifests.read(self._source, manifest, leaf, len(self.commit.rows))
        return entries


def added_files(catalog: Catalog, before: Catalog | None) -> dict[str, int]:
    """The files of a commit that are not files of the one before, with their sizes; of None: all.

    Manifests that both have are not read if every file of them is live in the commit before, so time and
    memory follow the new files. A file that several entries name may be among them although it is not new.
    """
    if before is None:
        return dict(catalog.files())
    whole = {
        entry.name
        for leaf, listed in before.commit.lists()
        for entry in listed
        if isinstance(entry, Manifest) and before.all_live(leaf, entry)
    }
    shared: set[str] = set()

    def skip(name: str) -> bool:
        if name in whole:
            shared.add(name)
        return name in whole

    found = {f"{info.digest}.steps": info.bytes for info in catalog.commit.weights}
    for leaf, listed in catalog.commit.lists():
        found.update(catalog.files_below(leaf, listed, skip))
    for leaf, listed in before.commit.lists():
        for name, _ in before.files_below(leaf, listed, shared.__contains__):
            found.pop(name, None)
    for info in before.commit.weights:
        found.pop(f"{info.digest}.steps", None)
    return found


def new_files(catalog: Catalog, seen: dict[str, int]) -> dict[str, int]:
    """The files of a commit that are not in `seen`, with their sizes; adds them to it.

    A manifest of which every file was seen is not read again, so the time for a further commit follows what
    is new. One with files that are not live is: these may be live in another commit.
    """
    found: dict[str, int] = {f"{info.digest}.steps": info.bytes for info in catalog.commit.weights}
    whole: dict[str, int] = {}
    for leaf, listed in catalog.commit.lists():
        for entry, all_live in catalog.live(leaf, listed):
            if not isinstance(entry, Manifest):
                found[entry.name] = entry.bytes
            elif not all_live:
                found[entry.name] = entry.size
            elif f"all of {entry.name}" not in seen:
                whole[f"all of {entry.name}"] = 0
                found |= dict(catalog.files_below(leaf, [entry]))
    found = {name: size for name, size in found.items() if name not in seen}
    seen |= found | whole
    return found
