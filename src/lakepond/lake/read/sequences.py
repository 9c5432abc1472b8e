"""Sequences of a lake: the consecutive steps of each episode, cut into pieces of one length.

A piece has up to `length` steps to learn from and up to `burn_in` steps before them, which warm up the state
of a recurrent network. The steps to learn from of all pieces are all live steps, each exactly once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lakepond.errors import SampleError
from lakepond.lake.read.lake import Lake
from lakepond.lake.read.step_files import FOLLOWS
from lakepond.types import Array


class EpisodeIds(NamedTuple):
    """The live steps of a lake, episode after episode."""

    ids: Array
    """of all steps"""
    starts: Array
    """of each episode in `ids`"""
    terminated: Array
    """whether the last step of each episode terminated it"""

    @property
    def sizes(self) -> Array:
        """Steps of each episode."""
        return np.diff(np.append(self.starts, len(self.ids)))


class LakeSequences:
    """All sequences of a lake, in the order of their first steps. Memory: 8 bytes per step of the lake."""

    def __init__(self, lake: Lake, length: int, burn_in: int = 0) -> None:
        if length < 1 or burn_in < 0:
            raise SampleError(
                f"a sequence has at least 1 step and at least 0 to burn in, not {length} and {burn_in}."
            )
        self.length, self.burn_in = length, burn_in
        episodes = episodes_of(lake)
        self._ids, starts, sizes = episodes.ids, episodes.starts, episodes.sizes
        pieces = -(-sizes // length)
        episode = np.repeat(np.arange(len(starts)), pieces)
        number = np.arange(len(episode)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        first = starts[episode] + number * length
        order = np.argsort(self._ids[first], kind="stable") if len(first) else first
        episode, first = episode[order], first[order]
        self._first = first
        self._begin = np.maximum(starts[episode], first - burn_in)
        self._stop = np.minimum(first + length, (starts + sizes)[episode])

    def __len__(self) -> int:
        return len(self._first)

    def steps(self, numbers: Array) -> tuple[Array, Array]:
        """The step ids of some sequences, (n, burn_in + length), and the weight of each step.

        The steps of a sequence are at its front. It is filled up with its last step. The weight is 1 for
        steps to learn from, and 0 for those to burn in and for those that fill it up.
        """
        begin, first, stop = (each[numbers][:, None] for each in (self._begin, self._first, self._stop))
        at = begin + np.arange(self.burn_in + self.length)
        weight = ((at >= first) & (at < stop)).astype(np.float32)
        return self._ids[np.minimum(at, stop - 1)], weight


def episodes_of(lake: Lake) -> EpisodeIds:
    """The ids of all live steps, episode after episode. Memory: 8 bytes per step, and 60 while it works."""
    names = ("stream", "terminated", "truncated", FOLLOWS)
    found: dict[str, list[Array]] = {name: [] for name in (*names, "writer")}
    writers: dict[str, int] = {}
    oldest = lake.reader.oldest
    for stored, _, columns in lake.reader.scan(list(names)):
        for name in names:
            found[name].append(columns[name])
        number = writers.setdefault(stored.writer, len(writers))
        found["writer"].append(np.full(len(columns["stream"]), number, np.int64))
    if not found["stream"]:
        return EpisodeIds(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    columns = {name: np.concatenate(parts) for name, parts in found.items()}
    stream = columns["writer"] << 32 | columns["stream"].astype(np.int64)
    order = np.argsort(stream, kind="stable")
    stream = stream[order]
    ended = (columns["terminated"] | columns["truncated"])[order]
    starts = np.ones(len(order), np.bool_)
    starts[1:] = (stream[1:] != stream[:-1]) | ended[:-1] | ~columns[FOLLOWS][order][1:]
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(order)) - 1
    return EpisodeIds(order + oldest, first, columns["terminated"][order[last]])
