"""The row sources of one leaf that a pond's lake stores, and rows of the pond that are in them.

A lake stores a source once, complete, for all its writers. Rows are found by their content, so it does not
matter how they came into the pond, and a row that left the pond and came back is not stored again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from lakepond.lake.format.entries import Source
from lakepond.lake.write.handover import SourceRows
from lakepond.lake.write.sources import digests_of_rows
from lakepond.pond.observations import Observations
from lakepond.rows import RowStore
from lakepond.rows.store import SortedRows
from lakepond.types import Array, RowSource

LEAST_BYTES = 1 << 20
"""smaller sources are not shared: their rows are stored with the steps that use them"""
MOST_SOURCES = 64
"""sources of a leaf that a writer shares: a commit lists them all"""


class Prepared(NamedTuple):
    """A source in this process, or a part of one."""

    digest: str
    rows: SortedRows


class KnownSources:
    """The sources of one leaf."""

    def __init__(self, stored: Iterable[Source]) -> None:
        """`stored`: those that the writer's last commit lists."""
        stored = list(stored)
        self.firsts = {source.digest: source.first for source in stored}
        """the number of the first row of each source that was handed over, by its digest"""
        self._lengths = {source.digest: source.rows for source in stored}
        self._prepared: WeakKeyDictionary[RowSource, list[Prepared]] = WeakKeyDictionary()

    def prepare(self, leaf: Observations) -> None:
        """Hash the sources that windows were recorded from since the last call: takes a second per GB."""
        for source in list(leaf.sources.values()):
            if source not in self._prepared:
                self._prepared[source] = list(
                    self._parts(source.rows.reshape(len(source), -1).view(np.uint8))
                )

    def _parts(self, rows: Array) -> Iterator[Prepared]:
        """A source as sources that are known, and the rest: a history that has grown is not stored again."""
        while len(rows) and rows.nbytes >= LEAST_BYTES:
            lengths = sorted({length for length in self._lengths.values() if length < len(rows)})
            *shorter, digest = digests_of_rows(rows, [*lengths, len(rows)])
            start, length = digest, len(rows)
            if digest not in self._lengths:
                known = [(n, each) for n, each in zip(lengths, shorter, strict=True) if each in self._lengths]
                length, start = max(known, default=(len(rows), digest))
            self._lengths[start] = length
            yield Prepared(start, SortedRows(rows[:length]))
            rows = rows[length:]

    def find(self, store: RowStore, slots: Array, first: int) -> tuple[tuple[SourceRows, ...], Array]:
        """The sources that are new to the lake, and the number of the row in each slot, -1 if in no source.

        Rows of new sources are numbered from `first` on. A source of which no slot holds a row is left out.
        """
        numbers = np.full(len(slots), -1, np.int64)
        new: list[SourceRows] = []
        firsts = dict(self.firsts)
        prepared = {part.digest: part.rows for parts in self._prepared.values() for part in parts}
        for digest, rows in prepared.items():
            takes = digest in firsts or len(firsts) < MOST_SOURCES
            if not takes or rows.rows.shape[1] != store.row_bytes:
                continue
            left = np.flatnonzero(numbers < 0)
            found = store.find(slots[left], rows)
            here = found >= 0
            if here.any():
                if digest not in firsts:
                    new.append(SourceRows(first, digest, rows.rows))
                    firsts[digest], first = first, first + len(rows.rows)
                numbers[left[here]] = firsts[digest] + found[here]
        return tuple(new), numbers
