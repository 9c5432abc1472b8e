"""Which step follows which in its stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lakepond.rows.calling import compiled
from lakepond.rows.instructions import native
from lakepond.types import Array


@native(cache=True)
def advance(
    oldest: int,
    gone: int,
    first: int,
    lanes: Array,
    lane_of: Array,
    newest: Array,
    following: Array,
    rewards: Array,
    linked: bool,
) -> tuple[int, bool]:
    """Unlink so many of the oldest steps, and link each new one to the one before it in its stream.

    Returns how many lanes lost their newest step, and whether a new reward is NaN.
    """
    capacity = len(following)
    emptied = 0
    for step in range(oldest, oldest + gone):
        lane = lane_of[step % capacity]
        if newest[lane] == step:
            newest[lane] = -1
            emptied += 1
    strange = False
    for i in range(len(lanes)):
        step = first + i
        place = step % capacity
        lane = lanes[i]
        lane_of[place] = lane
        following[place] = 0
        before = newest[lane]
        if before >= 0:
            following[before % capacity] = step - before
        newest[lane] = step if linked else -1
        for k in range(rewards.shape[1]):
            strange |= rewards[place, k] != rewards[place, k]
    return emptied, strange


def advancer(lane_of: Array, newest: Array, following: Array, rewards: Array) -> Callable[..., Any]:
    """`advance` for arrays like these, which calls to come are not checked against."""
    return compiled(advance, 0, 0, 0, np.zeros(0, np.int64), lane_of, newest, following, rewards, True)
