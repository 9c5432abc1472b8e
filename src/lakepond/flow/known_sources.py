"""The row sources of one leaf that a pond's lake stores, and rows of the pond that are in them.

A lake stores a source once, complete, for all its writers. Rows are found by their content, so it does not
matter how they came into the pond, and a row that left the pond and came back is not stored again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from lakepond.lake.format.entries import Source
from lakepond.lake.write.handover import SourceRows
from lakepond.lake.write.sources import digest_of_rows
from lakepond.pond.observations import Observations
from lakepond.rows import RowStore
from lakepond.rows.store import SortedRows
from lakepond.types import Array, RowSource

LEAST_BYTES = 1 << 20
"""smaller sources are not shared: their rows are stored with the steps that use them"""
MOST_SOURCES = 64
"""sources of a leaf that a writer shares: a commit lists them all"""


class Prepared(NamedTuple):
    """A source in this process."""

    digest: str
    rows: SortedRows


class KnownSources:
    """The sources of one leaf."""

    def __init__(self, stored: Iterable[Source]) -> None:
        """`stored`: those that the writer's last commit lists."""
        self.firsts = {source.digest: source.first for source in stored}
        """the number of the first row of each source that was handed over, by its digest"""
        self._prepared: WeakKeyDictionary[RowSource, Prepared] = WeakKeyDictionary()

    def prepare(self, leaf: Observations) -> None:
        """Hash the sources that windows were recorded from since the last call: takes a second per GB."""
        for source in list(leaf.sources.values()):
            if source not in self._prepared and source.rows.nbytes >= LEAST_BYTES:
                rows = source.rows.reshape(len(source), -1).view(np.uint8)
                self._prepared[source] = Prepared(digest_of_rows(rows), SortedRows(rows))

    def find(self, store: RowStore, slots: Array, first: int) -> tuple[tuple[SourceRows, ...], Array]:
        """The sources that are new to the lake, and the number of the row in each slot, -1 if in no source.

        Rows of new sources are numbered from `first` on. A source of which no slot holds a row is left out.
        """
        numbers = np.full(len(slots), -1, np.int64)
        new: list[SourceRows] = []
        firsts = dict(self.firsts)
        for digest, rows in {prepared.digest: prepared.rows for prepared in self._prepared.values()}.items():
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
