"""Batches with a fixed share from each of several sources: replays, followed lakes, and lakes on disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import count as numbers
from typing import Any

import numpy as np

from lakepond.errors import SampleError, SpecError
from lakepond.flow.sampler import Sampler
from lakepond.sampling.arguments import check_arguments, check_generator
from lakepond.types import Batch, Spec, join_trees

SOURCE = "source"
"""the entry of `batch.extras` with the source of each row"""


def mix(sources: Mapping[Any, float], *, seed: int | None = None) -> Mixture:
    """Return a mixture that draws a fixed share of every batch from each source.

        mixed = lp.mix({replay: 0.75, old_lake: 0.25})
        batch = mixed.sample(256)       # 192 steps of the replay, 64 of the lake
        live = batch.extras["source"] == 0

    sources: replays and lakes with the same spec, each with its share; shares are divided by their sum.
    seed: seed of the generator that `sample` uses by default; None: seeded by the system.

    Raises `SpecError` if a share is not above 0, or if the specs differ.
    """
    return Mixture(sources, seed)


class Mixture:
    """Draws batches from several sources, see `mix`. Thread-safe like its sources; it owns none of them."""

    def __init__(self, sources: Mapping[Any, float], seed: int | None = None) -> None:
        if not isinstance(sources, Mapping):
            raise SpecError(
                f"lp.mix takes a dict of sources with their shares, like {{replay: 0.75, lake: 0.25}}, not "
                f"{type(sources).__name__}."
            )
        self.sources: list[Any] = list(sources)
        """in the order of `batch.extras["source"]`"""
        if not self.sources:
            raise SpecError("a mixture needs at least one source: lp.mix({replay: 0.75, lake: 0.25}).")
        for source, share in sources.items():
            if not (hasattr(source, "sample") and isinstance(getattr(source, "spec", None), Spec)):
                raise SpecError(f"a source is a Replay or a Lake, not {type(source).__name__}.")
            if not 0 < share < math.inf:
                raise SpecError(f"the share of a source must be above 0, but is {share!r}.")
        self.spec: Spec = self.sources[0].spec
        for i, source in enumerate(self.sources[1:], 1):
            if source.spec != self.spec:
                raise SpecError(
                    f"sources 0 and {i} have different specs ({self.spec.differences(source.spec)}); mix "
                    "sources with the same fields."
                )
        if SOURCE in self.spec.extras:
            raise SpecError(f"the spec has an extra field {SOURCE!r}, which a mixture adds; rename it.")
        total = math.fsum(sources.values())
        self._shares = [share / total for share in sources.values()]
        self._rng = np.random.default_rng(seed)

    def counts(self, batch_size: int) -> list[int]:
        """How many steps of a batch come from each source.

        Each share is rounded down, and the steps that are left go to the largest remainders, at equal ones to
        the source named first. A batch always has these counts.
        """
        exact = [share * batch_size for share in self._shares]
        found = [math.floor(each + 1e-9) for each in exact]
        order = sorted(range(len(exact)), key=lambda i: (round(found[i] - exact[i], 9), i))
        for i in order[: batch_size - sum(found)]:
            found[i] += 1
        return found

    def sample(
        self,
        batch_size: int,
        *,
        rng: np.random.Generator | None = None,
        beta: float | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Batch:
        """Draw a batch: the steps of the first source, then those of the next.

        `batch.extras["source"]` is the number of each step's source, in the shape of `batch.step_id`. Step
        ids and streams are those of the source: to update the priorities of a replay, select its steps.
        beta: exponent of the importance weights of replays with priorities; all other sources are drawn
        uniformly and have weights of 1.
        timeout: seconds that each followed lake is waited for, see `FollowedReplay.sample`.
        rng, options: as in `Replay.sample`, for all sources; without `out`.
        """
        if "out" in options:
            raise SampleError("a mixture has no arrays to write to; omit out.")
        check_arguments(batch_size, beta=beta, **options)
        rng = self._rng if rng is None else rng
        check_generator(rng)
        if beta is not None and not any(map(_has_priorities, self.sources)):
            raise SampleError("beta needs priorities; create a replay with Replay(..., alpha=0.6).")
        parts: list[Batch] = []
        for i, (source, count) in enumerate(zip(self.sources, self.counts(batch_size), strict=True)):
            if count:
                own = {"beta": beta} if beta is not None and _has_priorities(source) else {}
                if timeout is not None and hasattr(source, "lag"):
                    own["timeout"] = timeout
                part = source.sample(count, rng=rng, **options, **own)
                label = np.full(part.step_id.shape, i, np.int64)
                parts.append(part._replace(extras={**part.extras, SOURCE: label}))
        return Batch(
            *(join_trees([part[i] for part in parts], np.concatenate) for i in range(len(Batch._fields)))
        )

    def batches(self, batch_size: int, num_batches: int | None = None, **options: Any) -> Iterator[Batch]:
        """Iterate over `num_batches` batches, or over batches without end; `options` as in `sample`."""
        rounds = numbers() if num_batches is None else range(num_batches)
        return (self.sample(batch_size, **options) for _ in rounds)

    def __repr__(self) -> str:
        shares = (
            f"{share:.3g}: {source!r}" for source, share in zip(self.sources, self._shares, strict=True)
        )
        return f"Mixture({', '.join(shares)})"


def _has_priorities(source: Any) -> bool:
    return isinstance(source, Sampler) and source.prioritized
