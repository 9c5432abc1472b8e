"""Epochs over a lake: which steps make which batch, on which rank and in which worker.

An epoch is a sequence of all units of a lake: steps, or sequences of them. Blocks of neighbours are put in
random order, and each rank takes an equal part of the result. It is read in groups of a few blocks, and a
group is shuffled in memory. So a batch has steps from many places, and each row is decoded about once.

    blocks in random order   │ 7 . . . │ 2 . . . │ 9 . . . │ 0 . . . │ ...
    ranks                    └─────── rank 0 ────────┘└─────── rank 1 ─
    groups, shuffled         └ group 0 ┘└ group 1 ┘...

Worker w of W reads the groups g with g % W == w. All is a function of seed, epoch, rank and group number, so
an epoch can be continued from any position, also with another number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lakepond.errors import SampleError
from lakepond.types import Array

LEAST_GROUPS = 16
"""minimum number of groups per epoch, if it has that many batches, so that several workers have work"""


@dataclass(frozen=True)
class Epoch:
    """One epoch of one rank."""

    units: int
    """of the whole lake"""
    batch_size: int
    block: int
    """units that stay neighbours when blocks are shuffled"""
    group: int
    """the most units that are read at a time"""
    seed: int
    number: int
    rank: int = 0
    world_size: int = 1
    replace: bool = False
    """draw units uniformly with replacement, as many as there are"""
    drop_last: bool = False
    """leave out the last units so that all batches are full and all ranks have the same number of them"""

    @property
    def _range(self) -> tuple[int, int]:
        """The units of this rank within the epoch's order."""
        return (self.units * self.rank // self.world_size, self.units * (self.rank + 1) // self.world_size)

    @property
    def batches(self) -> int:
        """Batches of this rank."""
        if self.drop_last:
            return self.units // self.world_size // self.batch_size
        start, stop = self._range
        return -(-(stop - start) // self.batch_size)

    @property
    def group_batches(self) -> int:
        """Batches of a group; the last one may have fewer."""
        return max(1, min(self.group // self.batch_size, self.batches // LEAST_GROUPS))

    @property
    def groups(self) -> int:
        """Groups of this rank."""
        return -(-self.batches // self.group_batches)

    def batches_of(self, group: int) -> int:
        """Batches of one group."""
        return min(self.group_batches, self.batches - group * self.group_batches)

    def units_of(self, group: int, order: Array) -> Array:
        """The units of a group in the order of its batches; `order`: of the blocks, from `block_order`."""
        start, stop = self._range
        size = self.group_batches * self.batch_size
        begin = start + group * size
        end = min(begin + size, stop, start + self.batches * self.batch_size)
        rng = self._rng(self.rank, group)
        if self.replace:
            return rng.integers(self.units, size=end - begin)
        # the last block may be short: positions after it are counted as if it were full
        at = np.arange(begin, end)
        short = int(order.argmax())
        missing = len(order) * self.block - self.units
        at = np.where(at < (short + 1) * self.block - missing, at, at + missing)
        return rng.permutation(order[at // self.block] * self.block + at % self.block)

    def block_order(self) -> Array:
        """The blocks of the lake in the order of this epoch, the same on all ranks."""
        return self._rng().permutation(-(-self.units // self.block))

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.number, *key)))


class EpochPosition:
    """How far an epoch is: the batches of each group that were delivered."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self._first = 0
        """all groups before it are complete"""
        self._delivered: dict[int, int] = {}
        """batches of the groups that are not complete"""

    def add(self, group: int, plan: Epoch) -> None:
        """Count one more batch of a group."""
        self._delivered[group] = self._delivered.get(group, 0) + 1
        while self._delivered.get(self._first, 0) >= plan.batches_of(self._first) > 0:
            del self._delivered[self._first]
            self._first += 1

    def is_complete(self, plan: Epoch) -> bool:
        """Whether all batches of the epoch were delivered."""
        return self._first >= plan.groups

    def remaining(self, plan: Epoch, worker: int = 0, workers: int = 1) -> Iterator[tuple[int, int]]:
        """For each group of a worker that is not complete its number, and the batches delivered of it."""
        for group in range(self._first, plan.groups):
            done = self._delivered.get(group, 0)
            if group % workers == worker and done < plan.batches_of(group):
                yield group, done

    def state_dict(self) -> dict[str, Any]:
        """The position as a dict of numbers."""
        return {"epoch": self.epoch, "first": self._first, "delivered": sorted(self._delivered.items())}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> EpochPosition:
        """The position that `state_dict` returned."""
        try:
            position = cls(int(state["epoch"]))
            position._first = int(state["first"])
            position._delivered = {int(group): int(count) for group, count in state["delivered"]}
        except (KeyError, TypeError, ValueError) as error:
            raise SampleError(f"{state!r} is not a position that state_dict() returned: {error!r}.") from None
        return position
