"""Priorities: draw in proportion to them, in a tree of sums that is 64 wide.

Each level holds the sums of 64 neighbours of the level below, always added up anew from them and never
adjusted by a difference, so that rounding cannot pile up. What changed is added up when it is next needed.
"""

from __future__ import annotations

import numpy as np

from lakepond.types import Array

WIDTH = 64
SMALLEST = 1e-8
"""a priority of 0 counts as this: rarely drawn, never lost"""


class Priorities:
    """A weight for each place of a ring; 0 for places that hold no step."""

    def __init__(self, capacity: int, alpha: float) -> None:
        self.alpha = alpha
        self.largest = 1.0
        """what a new step gets: the largest priority there has been"""
        self._sums: list[Array] = []
        size = capacity
        while True:
            size = -(-size // WIDTH)
            self._sums.append(np.zeros((size, WIDTH)))
            if size == 1:
                break
        self._least: list[Array] = [np.full(level.shape, np.inf) for level in self._sums]
        self._stale: list[Array] = []

    @property
    def nbytes(self) -> int:
        """All memory held."""
        return 2 * sum(level.nbytes for level in self._sums)

    def add(self, positions: Array) -> None:
        """Give new steps the largest priority so far."""
        self._set(positions, self.largest**self.alpha)

    def remove(self, positions: Array) -> None:
        """Never draw these again."""
        self._set(positions, 0.0)

    def update(self, positions: Array, priorities: Array) -> None:
        """Set priorities, as they were before the exponent alpha."""
        if len(positions):
            self._set(positions, np.maximum(priorities, SMALLEST) ** self.alpha)
            self.largest = max(self.largest, float(priorities.max()))

    def restore(self, positions: Array, weights: Array, largest: float) -> None:
        """Set weights as `weights` told them."""
        self._set(positions, weights)
        self.largest = largest

    def _set(self, positions: Array, weight: Array | float) -> None:
        self._sums[0].reshape(-1)[positions] = weight
        self._least[0].reshape(-1)[positions] = np.where(np.equal(weight, 0), np.inf, weight)
        self._stale.append(positions // WIDTH)
        if len(self._stale) >= 1024:
            self._add_up()

    def _add_up(self) -> None:
        if not self._stale:
            return
        blocks = np.unique(np.concatenate(self._stale))
        self._stale.clear()
        for level in range(1, len(self._sums)):
            self._sums[level].reshape(-1)[blocks] = self._sums[level - 1][blocks].sum(axis=1)
            self._least[level].reshape(-1)[blocks] = self._least[level - 1][blocks].min(axis=1)
            blocks = np.unique(blocks // WIDTH)

    def total(self) -> float:
        """The sum of all weights."""
        self._add_up()
        return float(self._sums[-1].sum())

    def least(self) -> float:
        """The smallest weight of any step."""
        self._add_up()
        return float(self._least[-1].min())

    @property
    def held(self) -> Array:
        """The weight of each place, and some more places: not a copy."""
        found: Array = self._sums[0].reshape(-1)
        return found

    def weights(self, positions: Array) -> Array:
        """The weight, priority ** alpha, of each place."""
        found: Array = self._sums[0].reshape(-1)[positions]
        return found

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Places, each in proportion to its weight; stratified, one from each count-th of the whole."""
        total = self.total()
        rest = (np.arange(count) + rng.random(count)) / count * total
        block = np.zeros(count, np.int64)
        for level in reversed(self._sums):
            sums = level[block]
            upto = np.cumsum(sums, axis=1)
            child = np.minimum((upto <= rest[:, None]).sum(axis=1), WIDTH - 1)
            # rounding may point past the last weight, or between two: step back to one that is there
            while (empty := np.take_along_axis(sums, child[:, None], 1)[:, 0] <= 0).any():
                child = np.where(empty, np.maximum(child - 1, 0), child)
                if not (empty & (child > 0)).any():
                    break
            before = np.take_along_axis(upto, child[:, None], 1)[:, 0]
            before -= np.take_along_axis(sums, child[:, None], 1)[:, 0]
            rest = np.clip(rest - before, 0, None)
            block = block * WIDTH + child
        return block
