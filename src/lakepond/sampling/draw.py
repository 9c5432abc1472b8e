"""Choose live steps: uniformly, by priority, without replacement, as sequences.

The caller holds the lock of the source, whose links and priorities are up to date. The time does not depend
on the number of steps, except for `draw_sequences` if hardly any step starts a sequence: then all are tried.
A replay does that in pieces, between which the lock is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from lakepond.errors import TooFewSteps
from lakepond.sampling.links import NextSteps
from lakepond.sampling.priorities import Priorities
from lakepond.types import Array

ROUNDS = 16
"""attempts at drawing sequences before all steps are tried"""
LARGEST_ROUND = 1 << 14
"""starts drawn in one attempt, unless more sequences are asked for"""
CHUNK = 1 << 18
"""ids that are followed at a time while all steps are tried"""
LARGEST_CHOICE = 1 << 20
"""numbers from which `Generator.choice` chooses at a time, for each of which it may allocate 8 bytes"""
SPARSE = 50
"""`Generator.choice` allocates memory for the chosen numbers alone if they are at most one in 50"""


class Steps(Protocol):
    """A source of steps, see `lakepond.sampling`. All steps [oldest, recorded) can be chosen."""

    @property
    def oldest(self) -> int:
        """The id of the oldest live step."""

    @property
    def recorded(self) -> int:
        """The id after the newest one."""

    @property
    def ring(self) -> int:
        """Places of the ring."""

    @property
    def links(self) -> NextSteps:
        """The links between steps."""

    @property
    def priorities(self) -> Priorities | None:
        """The weight of each place; None: all steps are equally likely."""


def draw(steps: Steps, count: int, rng: np.random.Generator) -> Array:
    """Ids of steps, with replacement: uniform, or in proportion to priority ** alpha."""
    if steps.priorities is None:
        return rng.integers(steps.oldest, steps.recorded, size=count)
    return _ids_at(steps, steps.priorities.draw(count, rng))


def draw_distinct(steps: Steps, count: int, rng: np.random.Generator) -> Array:
    """Ids of different steps: uniform, or by priority, each in proportion among those not drawn yet."""
    size = steps.recorded - steps.oldest
    if count > size:
        raise TooFewSteps(
            f"{count:,} different steps were requested, but only {size:,} are stored; "
            "record more, request fewer, or pass replace=True."
        )
    if steps.priorities is None:
        return steps.oldest + distinct(size, count, rng)
    return _ids_at(steps, steps.priorities.draw_distinct(count, rng))


def distinct(size: int, count: int, rng: np.random.Generator, *, shuffle: bool = True) -> Array:
    """`count` different numbers below `size`; every choice of them is equally likely.

    shuffle: False: in no particular order, which is faster. Memory: about 30 bytes per number that is chosen,
    and at most 10 MB.
    """
    if size <= LARGEST_CHOICE or count <= size // SPARSE:
        return rng.choice(size, count, replace=False, shuffle=shuffle)
    found, at = np.empty(count, np.int64), 0
    starts = np.arange(0, size, LARGEST_CHOICE)
    sizes = np.minimum(size - starts, LARGEST_CHOICE)
    counts = split(sizes, count, rng)
    for start, among, part in zip(starts.tolist(), sizes.tolist(), counts.tolist(), strict=True):
        np.add(rng.choice(among, part, replace=False, shuffle=False), start, out=found[at : at + part])
        at += part
    if shuffle:
        rng.shuffle(found)
    return found


def split(sizes: Array, count: int, rng: np.random.Generator) -> Array:
    """How many of `count` different elements are from each group, if every choice of them is equally likely.

    This is the multivariate hypergeometric distribution, of which NumPy draws up to 10^9 elements only. Here
    each element is taken or not by itself, a few too many together, and the surplus is removed at random.
    """
    most = count + 6 * count**0.5
    while True:
        counts = rng.binomial(sizes, min(1.0, most / int(sizes.sum())))
        stops = np.cumsum(counts)
        surplus = int(stops[-1]) - count
        if surplus >= 0:  # almost always
            break
    removed = rng.choice(stops[-1], surplus, replace=False, shuffle=False)
    return counts - np.bincount(np.searchsorted(stops, removed, side="right"), minlength=len(counts))


def _ids_at(steps: Steps, places: Array) -> Array:
    oldest = steps.oldest
    ids: Array = oldest + (places - oldest) % steps.ring
    return ids


def draw_sequences(
    steps: Steps, count: int, length: int, across_episodes: bool, rng: np.random.Generator
) -> Array:
    """Ids (count, length): consecutive steps of one stream; each possible start is drawn as `draw` would."""
    found = try_sequences(steps, count, length, across_episodes, rng)
    if len(found) == count:
        return found
    pieces = pieces_of(steps.oldest, steps.recorded, length)
    starts = [sequences_from(steps, ids, length, across_episodes)[:, 0] for ids in pieces]
    return add_sequences(steps, found, np.concatenate(starts), count, length, across_episodes, rng)


def try_sequences(
    steps: Steps, count: int, length: int, across_episodes: bool, rng: np.random.Generator
) -> Array:
    """Up to `count` sequences: starts are drawn and kept if a sequence starts there, `ROUNDS` times."""
    kept: list[Array] = []
    missing, tries = count, 2 * count
    for _ in range(ROUNDS):
        found = sequences_from(steps, draw(steps, tries, rng), length, across_episodes)[:missing]
        kept.append(found)
        missing -= len(found)
        if missing == 0:
            break
        tries = max(2 * missing, min(2 * tries, LARGEST_ROUND))
    return np.concatenate(kept)


def pieces_of(oldest: int, recorded: int, length: int) -> Iterator[Array]:
    """The ids of all steps, in pieces for which `sequences_from` takes bounded time and memory."""
    size = max(1, CHUNK // length)
    return (np.arange(at, min(at + size, recorded)) for at in range(oldest, recorded, size))


def add_sequences(
    steps: Steps,
    found: Array,
    starts: Array,
    count: int,
    length: int,
    across_episodes: bool,
    rng: np.random.Generator,
) -> Array:
    """Add sequences to those found, up to `count`; `starts`: all steps that start one."""
    if not len(starts):
        raise TooFewSteps(
            f"none of the {steps.recorded - steps.oldest:,} steps starts {length} consecutive steps of one "
            f"stream{'' if across_episodes else ' within an episode'}; record more, or ask for shorter "
            "sequences."
        )
    weights = None
    if steps.priorities is not None:
        weights = steps.priorities.weights(starts % steps.ring)
        weights = weights / weights.sum()
    rest = starts[rng.choice(len(starts), size=count - len(found), p=weights)]
    return np.concatenate([found, sequences_from(steps, rest, length, across_episodes)])


def sequences_from(steps: Steps, ids: Array, length: int, across_episodes: bool) -> Array:
    """Ids (n, length) of the sequences that start at some of these steps, in their order."""
    distance, count = steps.links.follow(ids % steps.ring, length, across_episodes)
    complete = count == length
    found: Array = ids[complete, np.newaxis] + distance[complete]
    return found


def importance(steps: Steps, ids: Array, beta: float) -> Array:
    """Importance weights (N P) ** -beta, divided by the largest of the batch: at most 1."""
    if steps.priorities is None:
        return np.ones(len(ids), np.float32)
    weights = steps.priorities.weights(ids % steps.ring)
    scaled: Array = (weights / weights.min(initial=np.inf)) ** -beta
    return scaled.astype(np.float32)
