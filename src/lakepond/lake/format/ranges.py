"""Sorted, disjoint ranges [start, stop) of numbers: which rows some steps refer to, coarsely."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from lakepond.types import Array

Ranges = tuple[tuple[int, int], ...]
GAP = 256
"""ranges that are closer than this are joined"""
MOST_RANGES = 16
"""of one entry, for all leaves together, but at least one each; the smallest gaps are closed until there are
no more"""


def joined(ranges: Array, most: int = MOST_RANGES) -> Ranges:
    """At most `most` ranges that cover all of these, an (n, 2) array of starts and stops in any order."""
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    if not len(ranges):
        return ()
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    stops = np.maximum.accumulate(ranges[:, 1])
    gaps = ranges[1:, 0] - stops[:-1]
    limit = GAP
    if (gaps > limit).sum() >= most:
        limit = int(np.sort(gaps)[-most])
    edges = np.flatnonzero(gaps > limit)
    starts = ranges[np.concatenate([[0], edges + 1]), 0]
    ends = stops[np.append(edges, len(stops) - 1)]
    return tuple(zip(starts.tolist(), ends.tolist(), strict=True))


def most_ranges(leaves: int) -> int:
    """The maximum number of ranges of each leaf in one entry, so that manifests stay small."""
    return max(1, MOST_RANGES // max(1, leaves))


def union(lists: Iterable[Ranges], most: int = MOST_RANGES) -> Ranges:
    """At most `most` ranges that cover all of these."""
    found = [each for ranges in lists for each in ranges]
    return joined(np.array(found, np.int64).reshape(-1, 2), most)


def within(ranges: Ranges, limits: Ranges) -> Ranges:
    """The numbers that are in one of `ranges` and in one of `limits`."""
    found: list[tuple[int, int]] = []
    for first, last in ranges:
        for start, stop in limits:
            start, stop = max(first, start), min(last, stop)
            if found and start == found[-1][1] < stop:
                found[-1] = found[-1][0], stop
            elif start < stop:
                found.append((start, stop))
    return tuple(found)


def joined_needs(needs: Sequence[tuple[Ranges, ...]]) -> tuple[Ranges, ...]:
    """For each leaf, ranges that cover those of all entries."""
    most = most_ranges(len(needs[0])) if needs else 1
    return tuple(union(ranges, most) for ranges in zip(*needs, strict=True))


def meets(ranges: Ranges, start: int, stop: int) -> bool:
    """Whether a number of [start, stop) is in one of the ranges."""
    return any(first < stop and start < last for first, last in ranges)


def contains(ranges: Ranges, lists: Iterable[Ranges]) -> bool:
    """Whether each range of some lists is within one of these."""
    found = np.array([each for other in lists for each in other], np.int64).reshape(-1, 2)
    limits = np.array([(-1, -1), *ranges], np.int64)
    at = np.searchsorted(limits[:, 0], found[:, 0], "right") - 1
    return bool((found[:, 1] <= limits[at, 1]).all())
