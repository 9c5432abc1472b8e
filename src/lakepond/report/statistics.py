"""Statistics of scores with few seeds.

The mean of the differences of paired runs has a t interval: with five seeds a percentile bootstrap excludes
the true mean in 15 % of cases. Other figures are those of Agarwal et al. 2021 (arXiv 2108.13264): `scores`
are (..., seeds, games), so one call computes a figure of many resampled sets. The interquartile mean leaves
out the best and the worst quarter of all runs; its interval comes from resampling the seeds within each game.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


def t_interval(values: Array) -> tuple[Interval, float]:
    """The mean of independent values with its t interval, and the p-value of a mean of 0.

    Values that are all equal have an interval without width; a single one has no interval and no p-value.
    """
    from scipy.special import stdtr, stdtrit

    middle, freedom = float(np.mean(values)), len(values) - 1
    if freedom < 1:
        return Interval(middle, math.nan, math.nan), math.nan
    error = float(np.std(values, ddof=1)) / math.sqrt(freedom + 1)
    if error == 0:
        return Interval(middle, middle, middle), float(middle == 0)
    half = float(stdtrit(freedom, 0.975)) * error
    return Interval(middle, middle - half, middle + half), 2 * float(stdtr(freedom, -abs(middle) / error))


def holm(values: Sequence[float]) -> list[bool]:
    """Which p-values are significant at 5 % when they are tested together (Holm 1979); NaN is no test."""
    tested = sorted((value, place) for place, value in enumerate(values) if not math.isnan(value))
    found = [False] * len(values)
    for number, (value, place) in enumerate(tested):
        if value > 0.05 / (len(tested) - number):
            break
        found[place] = True
    return found
