"""A tree of sums, 16 wide, in one array: compiled.

Level 0 holds the weights; each number of a level above is the sum of 16 neighbours of the level below, always
computed from them and never adjusted by a difference, so rounding errors do not accumulate::

    offsets[2]   [ sum ]
    offsets[1]   [ sum sum sum ... ]
    offsets[0]   [ weight weight weight ... ]
"""

from __future__ import annotations

import numpy as np

from lakepond.rows.compiling import native
from lakepond.types import Array

WIDTH = 16
"""neighbours that are added up; 64 took twice as long to draw from and to update"""


def new_tree(places: int) -> tuple[Array, Array]:
    """The tree and the offsets of its levels, all weights 0."""
    sizes = [places]
    while sizes[-1] > 1 or len(sizes) == 1:
        sizes.append(-(-sizes[-1] // WIDTH))
    padded = [-(-size // WIDTH) * WIDTH for size in sizes[:-1]] + [1]
    return np.zeros(sum(padded)), np.cumsum([0, *padded[:-1]]).astype(np.int64)


@native(cache=True)
def assign(tree: Array, offsets: Array, places: Array, weights: Array) -> None:
    """Set the weights at some places; the last one wins where a place comes twice."""
    for i in range(len(places)):
        tree[places[i]] = weights[i]
    width = 1
    for level in range(1, len(offsets)):
        width *= WIDTH
        done = -1
        for i in range(len(places)):
            node = places[i] // width
            if node != done:
                done = node
                first, total = offsets[level - 1] + node * WIDTH, 0.0
                for k in range(first, first + WIDTH):
                    total += tree[k]
                tree[offsets[level] + node] = total


@native(cache=True)
def find(tree: Array, offsets: Array, points: Array, places: Array) -> None:
    """For each point in [0, total), the place whose share of the sum it falls into; its weight is above 0."""
    for i in range(len(points)):
        rest, node = points[i], 0
        for level in range(len(offsets) - 2, -1, -1):
            first, chosen, before = offsets[level] + node * WIDTH, 0, 0.0
            while chosen < WIDTH and rest >= before + tree[first + chosen]:
                before += tree[first + chosen]
                chosen += 1
            if chosen == WIDTH:  # rounding points beyond the last one: take that
                chosen -= 1
                while chosen > 0 and tree[first + chosen] == 0:
                    chosen -= 1
                before = rest
            rest -= before
            node = node * WIDTH + chosen
        places[i] = node
