"""What a replay offers to sample from its pond: `sample`, `recent`, `steps`."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from lakepond.errors import SampleError, TooFewSteps
from lakepond.flow.pond_to_agents import Delivery, check_arguments, check_ids, check_n_step
from lakepond.forks import ThreadPool
from lakepond.pond import Pond, sampling
from lakepond.types import Array, Batch


class Sampler:
    """Samples a pond. Any thread may sample while another records."""

    def __init__(self, pond: Pond, threads: int, seed: int | None) -> None:
        self._pond = pond
        self._delivery = Delivery(pond)
        self._pool = ThreadPool(1, "lakepond-gather") if threads > 1 else None
        self._rng = np.random.default_rng(seed)
        self._warned = False

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
        out: Batch | None = None,
        **renamed: Any,
    ) -> Batch:
        """Draw steps at random: uniformly, or by priority if the replay has priorities.

        `n_step`, `gamma`: n-step returns, never across an episode's end; `batch.discount` is the multiplier
        for the bootstrap value of `batch.next_obs`. `sequence_length`: sequences of consecutive steps of one
        stream, (B, T, ...), within an episode unless `across_episodes`. `replace=False`: no step twice.
        `beta`: exponent of the importance weights, default 0.4; they are divided by the largest of the batch.
        `exclude`: observations to leave out ("obs", "next_obs['image']"), which are None in the batch.
        `out`: an earlier batch whose arrays are overwritten, which is faster. `rng`: the replay's own
        generator if not given; the batch depends only on its state and on what was recorded.
        """
        if renamed:
            sequence_length, across_episodes, exclude = _renamed(
                renamed, length=sequence_length, cross=across_episodes, without=exclude
            )
        pond = self._pond
        rng = self._generator(rng)
        check_arguments(pond, batch_size, n_step, gamma, sequence_length, replace, beta)

        def choose() -> Array:
            if pond.size == 0:
                raise TooFewSteps("nothing has been recorded yet; record steps before sampling.")
            if sequence_length is not None:
                return sampling.draw_sequences(pond, batch_size, sequence_length, across_episodes, rng)
            return (sampling.draw if replace else sampling.draw_distinct)(pond, batch_size, rng)

        batch = self._delivery.batch(
            choose,
            n_step=n_step,
            gamma=gamma,
            beta=0.4 if beta is None else beta,
            exclude=exclude,
            out=out,
            pool=self._pool,
            linked=n_step > 1 or sequence_length is not None or pond.priorities is not None,
        )
        if pond.saw_nan and not self._warned:
            self._warn_of_nan()
        return batch

    def _generator(self, rng: np.random.Generator | None) -> np.random.Generator:
        if rng is None:
            return self._rng
        if not isinstance(rng, np.random.Generator):
            raise SampleError(f"rng must be a numpy Generator, not {type(rng).__name__}; see default_rng.")
        return rng

    def recent(self, count: int, *, stream: int | None = None, out: Batch | None = None) -> Batch:
        """The newest `count` steps, of all or of one stream, oldest first."""
        return self._delivery.batch(
            lambda: sampling.recent(self._pond, count, stream), out=out, pool=self._pool
        )

    def steps(
        self,
        step_id: npt.ArrayLike,
        *,
        n_step: int = 1,
        gamma: float | None = None,
        exclude: Collection[str] = (),
        out: Batch | None = None,
    ) -> Batch:
        """The steps with these ids, in that order and shape; `n_step`, `gamma`, `exclude` as in `sample`."""
        ids = np.atleast_1d(np.asarray(step_id))
        check_n_step(n_step, gamma)
        if n_step > 1 and ids.ndim != 1:
            raise SampleError(f"n-step returns take a list of step ids, not the shape {list(ids.shape)}.")
        return self._delivery.batch(
            lambda: check_ids(self._pond, ids),
            n_step=n_step,
            gamma=gamma,
            exclude=exclude,
            out=out,
            pool=self._pool,
        )

    def __getitem__(self, step_id: npt.ArrayLike) -> Batch:
        """The steps with these ids: `replay[batch.step_id]`."""
        return self.steps(step_id)


def _renamed(given: dict[str, Any], **usual: Any) -> tuple[Any, ...]:
    """Values of arguments that were given by the names they had before; others as they are."""
    new = {"length": "sequence_length", "cross": "across_episodes", "without": "exclude"}
    for name in given:
        if name not in new:
            raise TypeError(f"sample() got an unexpected keyword argument {name!r}")
        warnings.warn(f"sample({name}=...) is now called {new[name]}", DeprecationWarning, stacklevel=4)
    return tuple(given.get(name, value) for name, value in usual.items())
