"""The methods of a replay that sample its pond: `sample`, `recent`, `steps`, `batches`."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lakepond.errors import SampleError, TooFewSteps, UnknownStream
from lakepond.flow.agents_to_pond import as_array
from lakepond.flow.pond_to_agents import Delivery
from lakepond.forks import ThreadPool
from lakepond.pond import Pond
from lakepond.sampling import draw
from lakepond.sampling.arguments import check_arguments, check_count, check_generator, check_ids, check_n_step
from lakepond.sampling.batches import batches
from lakepond.types import Array, Batch


class Sampler:
    """Samples a pond. Any thread may sample while another records."""

    def __init__(self, pond: Pond, threads: int, seed: int | None) -> None:
        self._pond = pond
        self._delivery = Delivery(pond)
        self._pool = ThreadPool(1, "lakepond-gather") if threads > 1 else None
        self._rng = np.random.default_rng(seed)
        self._warned = False

    @property
    def prioritized(self) -> bool:
        """Whether steps are sampled by priority (`alpha`)."""
        return self._pond.priorities is not None

    def _warn_of_nan(self) -> None:
        self._warned = True
        warnings.warn(
            "recorded a NaN reward (warning once); it is stored unchanged. Check the environment.",
            RuntimeWarning,
            stacklevel=3,
        )

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
        out: Batch | None = None,
    ) -> Batch:
        """Draw a batch of steps at random: uniformly, or by priority if the replay has priorities.

        n_step, gamma: n-step returns, which never cross the end of an episode; `gamma` is required with
        n_step > 1. `batch.discount` is the multiplier for the bootstrap value of `batch.next_obs`.
        sequence_length: draw sequences of consecutive steps of one stream, with arrays (B, T, ...), within an
        episode unless `across_episodes`.
        replace: False: every step at most once per batch.
        beta: exponent of the importance weights, default 0.4; they are divided by the batch maximum.
        exclude: observations to leave out ("obs", "next_obs['image']"); they are None in the batch.
        only: observations to include; all others are left out.
        out: an earlier batch whose arrays are overwritten, which is faster.
        rng: generator to draw with; default: the replay's own. A batch depends only on the state of the
        generator and on the recorded steps.

        Thread-safe. Raises `TooFewSteps` if too few steps are recorded, `SampleError` for invalid arguments.
        """
        pond = self._pond
        rng = self._generator(rng)
        check_arguments(batch_size, n_step, gamma, sequence_length, replace, beta)
        if beta is not None and not self.prioritized:
            raise SampleError("beta needs priorities; create the replay with Replay(..., alpha=0.6).")

        def choose() -> Array:
            if pond.size == 0:
                raise TooFewSteps("the replay has no steps; record some before sampling.")
            if sequence_length is None:
                return (draw.draw if replace else draw.draw_distinct)(pond, batch_size, rng)
            found = draw.try_sequences(pond, batch_size, sequence_length, across_episodes, rng)
            if len(found) < batch_size:
                raise _StartsAreRare(found)
            return found

        deliver = partial(
            self._delivery.batch,
            n_step=n_step,
            gamma=gamma,
            beta=0.4 if beta is None else beta,
            exclude=exclude,
            only=only,
            out=out,
            pool=self._pool,
            linked=n_step > 1 or sequence_length is not None or pond.priorities is not None,
        )
        try:
            batch = deliver(choose)
        except _StartsAreRare as rare:
            assert sequence_length is not None
            found, starts = rare.found, self._all_starts(sequence_length, across_episodes)
            options = batch_size, sequence_length, across_episodes, rng
            batch = deliver(lambda: draw.add_sequences(pond, self._live(found), self._live(starts), *options))
        if pond.saw_nan and not self._warned:
            self._warn_of_nan()
        return batch

    def _all_starts(self, length: int, across_episodes: bool) -> Array:
        """All steps that start a sequence; the lock is free between two pieces of the search."""
        pond, starts = self._pond, [np.zeros(0, np.int64)]
        for ids in draw.pieces_of(pond.oldest, pond.recorded, length):
            with pond.reading():
                pond.update()
                starts.append(draw.sequences_from(pond, self._live(ids), length, across_episodes)[:, 0])
        return np.concatenate(starts)

    def _live(self, ids: Array) -> Array:
        """Those of some steps, or sequences of steps, that have not been evicted."""
        return ids[(ids if ids.ndim == 1 else ids[:, 0]) >= self._pond.oldest]

    def _generator(self, rng: np.random.Generator | None) -> np.random.Generator:
        if rng is None:
            return self._rng
        check_generator(rng)
        return rng

    def recent(self, count: int, *, stream: int | None = None, out: Batch | None = None) -> Batch:
        """Return the newest `count` steps, of all streams or of one, oldest first; `out` as in `sample`."""
        check_count("count", count)
        return self._delivery.batch(lambda: self._newest(count, stream), out=out, pool=self._pool)

    def _newest(self, count: int, stream: int | None) -> Array:
        """Ids of the newest steps; the lock is held."""
        pond = self._pond
        if stream is None:
            found = np.arange(max(pond.oldest, pond.recorded - count), pond.recorded)
        else:
            found = np.array(pond.links.recent(stream, count, pond.oldest)[::-1], np.int64)
            if not len(found):
                streams = pond.streams
                live = f"{streams[:8]}{' ...' if len(streams) > 8 else ''}" if streams else "none"
                raise UnknownStream(
                    f"no live step belongs to stream {stream!r}; the live streams are {live}."
                )
        if count != len(found):
            raise TooFewSteps(f"{count:,} recent steps were requested, but {len(found):,} are stored.")
        return found

    def steps(
        self,
        step_id: npt.ArrayLike,
        *,
        n_step: int = 1,
        gamma: float | None = None,
        exclude: Collection[str] = (),
        only: Collection[str] | None = None,
        out: Batch | None = None,
    ) -> Batch:
        """Return the steps with these ids, in the given order and shape.

        n_step, gamma, exclude, only, out: as in `sample`. Raises `TooFewSteps` if a step has been evicted.
        """
        ids, pond = np.atleast_1d(as_array("step_id", step_id)), self._pond
        check_n_step(n_step, gamma)
        return self._delivery.batch(
            lambda: check_ids(ids, n_step, pond.oldest, pond.recorded, "the replay"),
            n_step=n_step,
            gamma=gamma,
            exclude=exclude,
            only=only,
            out=out,
            pool=self._pool,
            linked=n_step > 1 or pond.priorities is not None,
        )

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

        replace: False: one pass over the steps that are live now, each once and in random order. The last
        batch may be smaller, and steps that are evicted during the pass are left out.
        """
        ids = None if replace else np.arange(self._pond.oldest, self._pond.recorded)
        return batches(
            batch_size,
            num_batches,
            self._generator(rng),
            options,
            sample=self.sample,
            steps=self._steps_still_live,
            ids=ids,
        )

    def _steps_still_live(
        self, ids: Array, n_step: int = 1, gamma: float | None = None, **options: Any
    ) -> Batch:
        return self._delivery.batch(
            lambda: self._live(ids), n_step=n_step, gamma=gamma, pool=self._pool, **options
        )

    def __getitem__(self, step_id: npt.ArrayLike) -> Batch:
        """The steps with these ids: `replay[batch.step_id]`."""
        return self.steps(step_id)


class _StartsAreRare(Exception):
    """Too few sequences were found by drawing starts at random."""

    def __init__(self, found: Array) -> None:
        self.found = found
