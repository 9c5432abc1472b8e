"""Priorities: draw steps in proportion to priority ** alpha.

The weight of a step is `(priority + EPSILON) ** alpha`; a new step gets the largest priority so far. New and
evicted steps are entered when the weights are needed, at the latest after `UNLINKED` steps (see `pond`).
"""

from __future__ import annotations

import numpy as np

from lakepond.types import Array

EPSILON = 1e-6
"""added to every priority, so that a step with a TD error of 0 can still be drawn"""
LEAST = 1e-300
"""weights are at least this: a power may underflow"""
MOST_WEIGHT = 1e290
"""weights are below this, so that their sum is finite"""


class Priorities:
    """A weight for each place of a ring; 0 for places without a live step. The caller holds the lock."""

    def __init__(self, ring: int, alpha: float) -> None:
        from lakepond.rows.compiling import compiled
        from lakepond.sampling import priority_tree  # numba, not before it is needed

        self.ring, self.alpha = ring, alpha
        self.largest = 1.0
        """the priority of a new step: the largest so far"""
        self._tree, self._offsets = priority_tree.new_tree(ring)
        none, zero = np.zeros(0), np.zeros(0, np.int64)
        self._assign = compiled(priority_tree.assign, self._tree, self._offsets, zero, none)
        self._find = compiled(priority_tree.find, self._tree, self._offsets, none, zero)
        self._oldest = self._stop = 0  # weights are those of steps [oldest, stop)
        self._set_aside: list[tuple[Array, Array]] = []  # places and weights that `draw_distinct` removed

    @property
    def nbytes(self) -> int:
        """Memory of the whole ring."""
        return self._tree.nbytes

    def start_at(self, step: int) -> None:
        """Set the id of the first step."""
        self._oldest = self._stop = step

    def sync(self, oldest: int, recorded: int) -> None:
        """Remove steps that were evicted and add new ones, with the largest priority so far. Idempotent."""
        self._put_back()
        if self._oldest < oldest:
            gone = np.arange(self._oldest, min(oldest, self._stop)) % self.ring
            self._assign(self._tree, self._offsets, gone, np.zeros(len(gone)))
            self._oldest = oldest
        if self._stop < recorded:
            new = np.arange(max(self._stop, oldest), recorded) % self.ring
            self._set(new, np.full(len(new), self.weight_of(self.largest)))
            self._stop = recorded

    def weight_of(self, priority: Array | float) -> Array | float:
        """`(priority + EPSILON) ** alpha`."""
        return (priority + EPSILON) ** self.alpha

    def update(self, places: Array, weights: Array, largest: float) -> None:
        """Set weights, as `weight_of` returns them; later entries win. `largest`: of their priorities.

        New steps must have been added by `sync`.
        """
        if len(places):
            self._set(places, weights)
            self.largest = max(self.largest, largest)

    def restore(self, places: Array, weights: Array, largest: float) -> None:
        """Set weights as `weights` returned them."""
        self._set(places, weights)
        self.largest = largest

    def _set(self, places: Array, weights: Array) -> None:
        weights = np.maximum(weights, LEAST)
        self._assign(self._tree, self._offsets, places, np.ascontiguousarray(weights, np.float64))

    def total(self) -> float:
        """The sum of all weights."""
        return float(self._tree[-1])

    @property
    def held(self) -> Array:
        """The weight of each place: a view."""
        return self._tree[: self.ring]

    def weights(self, places: Array) -> Array:
        """The weight of each place."""
        found: Array = self._tree[places]
        return found

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Places in proportion to their weights: stratified, one from each count-th part, in random order."""
        self._put_back()
        return self.find((rng.permutation(count) + rng.random(count)) * (self.total() / count))

    def draw_distinct(self, count: int, rng: np.random.Generator) -> Array:
        """Different places, each in proportion to its weight among those not drawn before it.

        `count` is at most the number of places with a weight. Repeats are skipped, then what was drawn is
        taken out of the tree until enough are found, so the time depends on `count` alone.
        """
        self._put_back()
        drawn: list[Array] = [np.zeros(0, np.int64)]
        missing = count
        try:
            while missing:
                places = self.find(rng.random(missing) * self.total())
                new = places[np.sort(np.unique(places, return_index=True)[1])]  # in the order of the draws
                drawn.append(new)
                missing -= len(new)
                if missing:
                    self._set_aside.append((new, self.weights(new)))
                    self._assign(self._tree, self._offsets, new, np.zeros(len(new)))
        finally:
            self._put_back()
        return np.concatenate(drawn)

    def _put_back(self) -> None:
        """Restore the weights that `draw_distinct` removed; after an interrupt, the next call does."""
        for places, weights in self._set_aside:
            self._assign(self._tree, self._offsets, places, weights)
        self._set_aside = []

    def find(self, points: Array) -> Array:
        """For each point in [0, total), the place whose share of the sum it falls into."""
        places = np.empty(len(points), np.int64)
        self._find(self._tree, self._offsets, points, places)
        return places
