"""Statistics of scores that are reliable with few seeds (Agarwal et al. 2021, arXiv 2108.13264).

`scores` are (seeds, games). The interquartile mean leaves out the best and the worst quarter of all runs; its
interval comes from resampling the seeds within each game.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lakepond.types import Array


class Interval(NamedTuple):
    """A figure and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def iqm(scores: Array) -> float:
    """The mean of the middle half of all scores; a quarter that is not an integer is cut in part."""
    ordered, count = np.sort(scores, axis=None), np.size(scores)
    place = np.arange(count)  # a score covers [place, place + 1) and counts as far as that is in the middle
    weight = np.clip(np.minimum(place + 1, 0.75 * count) - np.maximum(place, 0.25 * count), 0, 1)
    return float(np.average(ordered, weights=weight))


def interval(
    *samples: Array, figure: Callable[..., float] = iqm, draws: int = 2000, seed: int = 0
) -> Interval:
    """`figure(*samples)` with its stratified bootstrap interval; the samples are resampled independently."""
    rng = np.random.default_rng(seed)

    def resampled(scores: Array) -> Array:
        return np.take_along_axis(scores, rng.integers(len(scores), size=scores.shape), axis=0)

    found = [figure(*map(resampled, samples)) for _ in range(draws)]
    low, high = np.percentile(found, [2.5, 97.5])
    return Interval(figure(*samples), float(low), float(high))


def chance_of_improvement(ours: Array, theirs: Array) -> float:
    """The probability that a run of ours beats one of theirs on a random game; a tie counts half."""
    above = (ours[:, None, :] > theirs[None, :, :]).mean((0, 1))
    same = (ours[:, None, :] == theirs[None, :, :]).mean((0, 1))
    return float((above + 0.5 * same).mean())
