"""Scores of many runs, summed up so that few seeds do not mislead (Agarwal et al. 2021, arXiv 2108.13264).

`scores` are (seeds, games). The interquartile mean leaves out the best and the worst quarter of all runs; its
interval comes from resampling the seeds within each game.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lakepond.types import Array


class Interval(NamedTuple):
    """A figure and where it lies with 95 % confidence."""

    value: float
    low: float
    high: float


def iqm(scores: Array) -> float:
    """The mean of the middle half of all scores; a quarter that is no whole number is cut in part."""
    ordered = np.sort(np.asarray(scores, float).reshape(-1))
    weight = np.ones(len(ordered))
    cut = len(ordered) / 4
    whole = int(cut)
    weight[:whole] = weight[len(ordered) - whole :] = 0
    if whole < len(ordered) - whole:
        weight[whole] -= cut - whole
        weight[len(ordered) - whole - 1] -= cut - whole
    return float((ordered * weight).sum() / weight.sum())


def interval(
    scores: Array, figure: Callable[[Array], float] = iqm, *, draws: int = 2000, seed: int = 0
) -> Interval:
    """A figure of scores (seeds, games) with its stratified bootstrap interval."""
    rng = np.random.default_rng(seed)
    seeds, games = scores.shape
    found = [
        figure(np.take_along_axis(scores, rng.integers(seeds, size=(seeds, games)), axis=0))
        for _ in range(draws)
    ]
    low, high = np.percentile(found, [2.5, 97.5])
    return Interval(figure(scores), float(low), float(high))


def chance_of_improvement(ours: Array, theirs: Array) -> float:
    """How likely a run of ours beats one of theirs on a game at random; a tie counts half."""
    above = (ours[:, None, :] > theirs[None, :, :]).mean((0, 1))
    same = (ours[:, None, :] == theirs[None, :, :]).mean((0, 1))
    return float((above + 0.5 * same).mean())


def improvement(ours: Array, theirs: Array, *, draws: int = 2000, seed: int = 0) -> Interval:
    """That probability with its interval; both samples are resampled independently."""
    rng = np.random.default_rng(seed)

    def again(scores: Array) -> Array:
        picked = rng.integers(len(scores), size=scores.shape)
        return np.take_along_axis(scores, picked, axis=0)

    found = [chance_of_improvement(again(ours), again(theirs)) for _ in range(draws)]
    low, high = np.percentile(found, [2.5, 97.5])
    return Interval(chance_of_improvement(ours, theirs), float(low), float(high))
