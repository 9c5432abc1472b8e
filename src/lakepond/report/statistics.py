"""Statistics of scores that are reliable with few seeds (Agarwal et al. 2021, arXiv 2108.13264).

`scores` are (..., seeds, games), so one call computes a figure of many resampled sets. The interquartile mean
leaves out the best and the worst quarter of all runs; its interval comes from resampling the seeds within
each game.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lakepond.types import Array

Figure = Callable[..., Array]


class Interval(NamedTuple):
    """A figure and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def mean(scores: Array) -> Array:
    """The mean of all scores."""
    return np.asarray(scores.mean((-2, -1)))


def iqm(scores: Array) -> Array:
    """The mean of the middle half of all scores; a quarter that is not an integer is cut in part."""
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1))
    count = ordered.shape[-1]
    place = np.arange(count)  # a score covers [place, place + 1) and counts as far as that is in the middle
    weight = np.clip(np.minimum(place + 1, 0.75 * count) - np.maximum(place, 0.25 * count), 0, 1)
    return np.asarray(np.average(ordered, axis=-1, weights=weight))


def chance_of_improvement(ours: Array, theirs: Array) -> Array:
    """The probability that a run of ours beats one of theirs on a random game; a tie counts half."""
    ours, theirs = ours[..., :, None, :], theirs[..., None, :, :]
    return np.asarray(((ours > theirs) + 0.5 * (ours == theirs)).mean((-3, -2, -1)))


def interval(*samples: Array, figure: Figure = iqm, draws: int = 2000, seed: int = 0) -> Interval:
    """`figure(*samples)` with its stratified bootstrap interval; the samples are resampled independently."""
    rng = np.random.default_rng(seed)
    picks = [[rng.integers(len(each), size=each.shape) for each in samples] for _ in range(draws)]
    drawn = (
        np.take_along_axis(each[None], np.stack(its), axis=1)
        for each, *its in zip(samples, *picks, strict=True)
    )
    low, high = np.percentile(figure(*drawn), [2.5, 97.5])
    return Interval(float(figure(*samples)), float(low), float(high))
