"""Iterate over batches: random ones without end, or one pass over all steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count as numbers
from typing import Any

import numpy as np

from lakepond.errors import SampleError
from lakepond.sampling.arguments import check_arguments, check_generator
from lakepond.types import Array, Batch

PASS_OPTIONS = {"n_step", "gamma", "exclude", "only"}
"""no `out`: the last batch is smaller, and so are those with steps that were evicted meanwhile"""


def batches(
    batch_size: int,
    num_batches: int | None,
    rng: np.random.Generator,
    options: dict[str, Any],
    *,
    sample: Callable[..., Batch],
    steps: Callable[..., Batch],
    ids: Array | None,
) -> Iterator[Batch]:
    """Batches of `sample`, or, if `ids` are given, of `steps` with these ids in random order.

    `ids` is shuffled in place. Invalid arguments are refused by this call, not by the first batch.
    """
    check_generator(rng)
    if num_batches is not None and num_batches < 0:
        raise SampleError(f"num_batches must be at least 0, or None for no end, but is {num_batches}.")
    check_arguments(batch_size, **{**options, "replace": ids is None})
    rounds = iter(numbers() if num_batches is None else range(num_batches))
    if ids is None:
        return (sample(batch_size, rng=rng, **options) for _ in rounds)
    if not PASS_OPTIONS.issuperset(options):
        raise SampleError(
            f"a pass over all steps (replace=False) takes {sorted(PASS_OPTIONS)}, not "
            f"{sorted(set(options) - PASS_OPTIONS)}; each step comes once, and batches may be smaller."
        )
    rng.shuffle(ids)
    return _one_pass(ids, batch_size, rounds, lambda some: steps(some, **options))


def _one_pass(
    ids: Array, batch_size: int, rounds: Iterator[int], steps: Callable[[Array], Batch]
) -> Iterator[Batch]:
    for at, _ in zip(range(0, len(ids), batch_size), rounds, strict=False):
        batch = steps(ids[at : at + batch_size])
        if len(batch.step_id):  # empty if all were evicted since the pass started
            yield batch
