"""Steps of a lake as batches: at random with the options of `Replay.sample`, by id, or all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lakepond.errors import TooFewSteps
from lakepond.lake.format.commits import Commit
from lakepond.lake.read.assemble import batch_of
from lakepond.lake.read.index import Index
from lakepond.lake.read.reader import LakeReader
from lakepond.sampling import draw
from lakepond.sampling.arguments import check_arguments, check_generator, check_ids, check_n_step, left_out
from lakepond.sampling.batches import batches
from lakepond.types import Array, Batch, Spec, leaves


class Sampled:
    """The part of a lake that delivers batches. Memory: the batch and its distinct rows; see `index`."""

    path: Path
    spec: Spec
    commit: Commit
    reader: LakeReader
    _index: Index
    _rng: np.random.Generator

    def sample(
        self,
        batch_size: int,
        *,
        rng: np.random.Generator | None = None,
        n_step: int = 1,
        gamma: float | None = None,
        sequence_length: int | None = None,
        across_episodes: bool = False,
        replace: bool = True,
        beta: float | None = None,
        exclude: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> Batch:
        """Draw a batch of live steps at random, uniformly unless `beta` is given.

        n_step, gamma, sequence_length, across_episodes, replace, exclude, only: as in `Replay.sample`.
        beta: draw in proportion to the priorities stored in the commit, which exist for the steps that the
        replay had in memory, and use this exponent for the importance weights.
        rng: generator to draw with; default: one of the lake's own, seeded by the system.

        The first call with `n_step` or `sequence_length` reads the stream and the end flags of all steps and
        keeps 4 bytes for each. Raises `SampleError` for invalid arguments, or if `beta` is given but the
        commit has no priorities; `TooFewSteps` if the lake is empty.
        """
        check_arguments(batch_size, n_step, gamma, sequence_length, replace, beta)
        rng = self._rng if rng is None else rng
        check_generator(rng)
        if self.commit.recorded == self.commit.oldest:
            raise TooFewSteps(f"{self.path} has no steps; record some and commit them.")
        excluded = self._excluded(exclude, only)
        with self._index.lock:
            linked = n_step > 1 or sequence_length is not None
            steps = self._index.steps(linked=linked, weighted=beta is not None)
            if sequence_length is not None:
                ids = draw.draw_sequences(steps, batch_size, sequence_length, across_episodes, rng)
            else:
                ids = (draw.draw if replace else draw.draw_distinct)(steps, batch_size, rng)
            weight = draw.importance(steps, ids if ids.ndim == 1 else ids[:, 0], beta or 0.0)
        return self._batch(ids, n_step, gamma, excluded)._replace(weight=weight)

    def steps(
        self,
        step_id: npt.ArrayLike,
        stop: int | None = None,
        *,
        n_step: int = 1,
        gamma: float | None = None,
        exclude: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> Batch:
        """Return the steps with these ids, in the given order and shape, or the steps [step_id, stop).

        n_step, gamma, exclude, only: as in `sample`. Raises `TooFewSteps` if a step is not live in this
        commit.
        """
        check_n_step(n_step, gamma)
        ids = np.atleast_1d(np.asarray(step_id))
        oldest, recorded = self.commit.oldest, self.commit.recorded
        if stop is not None:
            start = int(ids[0])
            if not oldest <= start < stop <= recorded:
                raise TooFewSteps(
                    f"steps [{start}, {stop}) were asked for, commit {self.commit.number} of {self.path} "
                    f"holds [{oldest}, {recorded})."
                )
            ids = np.arange(start, stop)
        ids = check_ids(ids, n_step, oldest, recorded, f"commit {self.commit.number} of {self.path}")
        return self._batch(ids, n_step, gamma, self._excluded(exclude, only))

    def __getitem__(self, step_id: npt.ArrayLike) -> Batch:
        """The steps with these ids: `lake[batch.step_id]`."""
        return self.steps(step_id)

    def batches(
        self,
        batch_size: int,
        num_batches: int | None = None,
        *,
        rng: np.random.Generator | None = None,
        replace: bool = True,
        **options: Any,
    ) -> Iterator[Batch]:
        """Iterate over `num_batches` random batches, or over batches without end; `options` as in `sample`.

        replace: False: one pass over all live steps, each once and in random order; the last batch may be
        smaller. A pass takes 8 bytes of memory per live step.
        """
        rng = self._rng if rng is None else rng
        ids = None if replace else self.ids()
        return batches(batch_size, num_batches, rng, options, sample=self.sample, steps=self.steps, ids=ids)

    def ids(self) -> Array:
        """The ids of all live steps."""
        return np.arange(self.commit.oldest, self.commit.recorded)

    def _excluded(self, exclude: Collection[str], only: Collection[str] | None) -> Collection[str]:
        paths = [path for name in ("obs", "next_obs") for path, _ in leaves(self.spec.obs, name)]
        return left_out(paths, exclude, only)

    def _batch(self, ids: Array, n_step: int, gamma: float | None, excluded: Collection[str]) -> Batch:
        links = None
        if n_step > 1:
            with self._index.lock:
                links = self._index.steps(linked=True, weighted=False).links
        gamma = 1.0 if gamma is None else gamma
        return batch_of(
            self.reader, self.spec, ids, links=links, n_step=n_step, gamma=gamma, excluded=excluded
        )
