"""Replay: record steps, sample batches. In memory; each distinct row once."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lakepond.errors import ReplayClosed, SampleError, SpecError, TooFewSteps, UnknownStream
from lakepond.flow import pond_to_agents
from lakepond.flow.agents_to_pond import MISSING, Intake
from lakepond.pond import Pond
from lakepond.types import Array, Batch, Spec, Tree


@dataclass(frozen=True)
class Stats:
    """What a replay holds and what it takes."""

    steps: int
    """steps held"""
    capacity: int
    recorded: int
    """steps ever recorded"""
    streams: int
    """streams with live steps"""
    rows: int
    """distinct rows held"""
    bytes_held: int
    """all memory it takes"""
    bytes_plain: int
    """what the same steps would take plainly, each with both observations"""
    layout: dict[str, str]
    """how each observation is kept"""

    @property
    def ratio(self) -> float:
        """How many times smaller it is than in plain form."""
        return self.bytes_plain / self.bytes_held if self.bytes_held else 1.0

    def __str__(self) -> str:
        layout = "; ".join(f"{path}: {how}" for path, how in self.layout.items())
        return (
            f"{self.steps:,} of {self.capacity:,} steps, {self.rows:,} distinct rows, "
            f"{self.bytes_held:,} B held, {self.bytes_plain:,} B plainly, {self.ratio:.1f}x ({layout})"
        )


class Replay:
    """The newest `capacity` steps, sampled in every usual way.

    One thread may record while another samples; what a batch holds is never torn.
    """

    def __init__(self, spec: Spec, capacity: int, *, alpha: float | None = None, threads: int = 2) -> None:
        """`alpha`: sample by priority ** alpha. `threads`: how many copy a large batch."""
        if not isinstance(spec, Spec):
            raise SpecError(f"Replay needs a Spec, not {type(spec).__name__}; see Spec.from_spaces.")
        if not isinstance(capacity, int | np.integer) or capacity < 1:
            raise SpecError(f"capacity must be a whole number of steps, at least 1, but is {capacity!r}.")
        if alpha is not None and not 0 <= alpha < np.inf:
            raise SpecError(f"alpha must be at least 0 (0: uniform, 1: proportional), but is {alpha!r}.")
        self.spec = spec
        self._pond = Pond(spec, int(capacity), alpha=alpha)
        self._intake = Intake(spec)
        self._pool = ThreadPoolExecutor(1, "lakepond-gather") if threads > 1 else None
        self._closed = False
        self._warned = False

    # --- recording -------------------------------------------------------------------------------

    def record(
        self,
        *,
        obs: Tree = MISSING,
        action: Tree = MISSING,
        reward: npt.ArrayLike = MISSING,
        next_obs: Tree = MISSING,
        terminated: npt.ArrayLike = MISSING,
        truncated: npt.ArrayLike = MISSING,
        stream: int | Array | None = None,
        **extras: npt.ArrayLike,
    ) -> Array | int:
        """Keep one step, or a batch with a leading axis; returns the step id, or the ids.

        `next_obs` is the observation that followed, also at an episode's end: the true last one. A batch
        without `stream` is one step of each of a vector environment's members, numbered from 0; with one
        number it is consecutive steps of that stream; with an array, each step names its own.
        Everything is copied: the caller may overwrite its arrays at once.
        """
        if self._closed:
            raise ReplayClosed("this replay is closed; make a new one to record more.")
        given = (obs, next_obs, action, reward, terminated, truncated)
        steps, batched = self._intake.check(given, extras, stream)
        first = self._pond.append(steps)
        if self._pond.saw_nan and not self._warned:
            self._warned = True
            warnings.warn(
                "a recorded reward is NaN; it is kept as it is (said once): look at the environment",
                RuntimeWarning,
                stacklevel=2,
            )
        return np.arange(first, first + len(steps.streams)) if batched else first

    def update_priorities(self, step_id: npt.ArrayLike, priority: npt.ArrayLike) -> None:
        """Set the priority of steps, usually their absolute TD error; those that have left are ignored."""
        pond = self._pond
        if pond.priorities is None:
            raise SampleError("this replay has no priorities; make it with Replay(..., alpha=0.6).")
        ids, values = np.asarray(step_id), np.asarray(priority, np.float64)
        if ids.shape != values.shape or ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise SampleError(
                f"update_priorities takes one priority for each step id, but got the shapes "
                f"{list(ids.shape)} and {list(values.shape)}."
            )
        if not np.isfinite(values).all() or (values < 0).any():
            raise SampleError("priorities must be finite and at least 0; take the absolute TD error.")
        with pond.reading():
            if len(ids) and ids.max() >= pond.recorded:
                raise SampleError(f"step {ids.max()} was never recorded; the newest is {pond.recorded - 1}.")
            live = ids >= pond.oldest
            pond.priorities.update(pond.places(ids[live]), values[live])

    def clear(self) -> None:
        """Forget all steps and give their memory back; ids go on counting."""
        self._pond.clear()

    # --- sampling --------------------------------------------------------------------------------

    def sample(
        self,
        batch_size: int,
        *,
        rng: np.random.Generator,
        n_step: int = 1,
        gamma: float = 1.0,
        length: int | None = None,
        cross: bool = False,
        replace: bool = True,
        beta: float | None = None,
        out: Batch | None = None,
    ) -> Batch:
        """Steps at random: uniformly, or by priority if the replay has priorities.

        `n_step`, `gamma`: n-step returns, never across an episode's end; `batch.discount` is what the value
        of `batch.next_obs` counts. `length`: sequences of so many steps of one stream, (B, T, ...), only
        within an episode unless `cross`. `replace=False`: no step twice. `beta`: exponent of the importance
        weights, 0.4 if not given. `out`: an earlier batch whose arrays are filled again, which is faster.
        With a given `rng` the result follows from its state and from what was recorded, alone.
        """
        self._check_sample(batch_size, rng, n_step, gamma, length, replace, beta)
        pond = self._pond

        def choose() -> Array:
            if pond.size == 0:
                raise TooFewSteps("nothing has been recorded yet; record steps before sampling.")
            if length is not None:
                return pond_to_agents.draw_sequences(pond, batch_size, length, cross, rng)
            if replace:
                return pond_to_agents.draw(pond, batch_size, rng)
            if batch_size > pond.size:
                raise TooFewSteps(
                    f"{batch_size:,} different steps were asked for, but only {pond.size:,} are held; "
                    "record more, ask for fewer, or pass replace=True."
                )
            return pond_to_agents.draw_distinct(pond, batch_size, rng)

        return pond_to_agents.sample(
            pond,
            choose,
            n_step=n_step,
            gamma=gamma,
            beta=0.4 if beta is None else beta,
            out=out,
            pool=self._pool,
        )

    def _check_sample(
        self,
        batch_size: int,
        rng: np.random.Generator,
        n_step: int,
        gamma: float,
        length: int | None,
        replace: bool,
        beta: float | None,
    ) -> None:
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise SampleError(f"batch_size must be a whole number, at least 1, but is {batch_size!r}.")
        if not isinstance(rng, np.random.Generator):
            raise SampleError(
                f"rng must be a numpy.random.Generator, not {type(rng).__name__}; see default_rng."
            )
        if n_step < 1 or not 0 <= gamma <= 1:
            raise SampleError(f"n_step must be at least 1 and gamma in [0, 1], but are {n_step} and {gamma}.")
        if length is not None and (length < 1 or n_step > 1 or not replace):
            raise SampleError(
                f"length must be at least 1 and stands alone, but is {length} with n_step={n_step}, "
                f"replace={replace}; compute returns from the sequence."
            )
        if beta is not None and self._pond.priorities is None:
            raise SampleError("beta weighs prioritised samples; make the replay with Replay(..., alpha=0.6).")

    def recent(self, count: int, *, stream: int | None = None, out: Batch | None = None) -> Batch:
        """The newest `count` steps, of all or of one stream, oldest first."""
        pond = self._pond

        def choose() -> Array:
            ids = pond.ids()
            if stream is not None:
                if stream not in pond.streams:
                    raise UnknownStream(
                        f"no live step belongs to stream {stream!r}; live are {self._streams()}."
                    )
                ids = ids[pond.columns["stream"][pond.places(ids)] == stream]
            if not 1 <= count <= len(ids):
                raise TooFewSteps(f"{count:,} recent steps were asked for, but {len(ids):,} are held.")
            return ids[-count:]

        return pond_to_agents.sample(pond, choose, out=out, pool=self._pool)

    def steps(self, step_id: npt.ArrayLike, *, out: Batch | None = None) -> Batch:
        """The steps with these ids, in that order."""
        pond = self._pond
        ids = np.atleast_1d(np.asarray(step_id))

        def choose() -> Array:
            if ids.dtype.kind not in "iu" or ids.ndim != 1:
                raise SampleError(f"step ids are whole numbers, not {ids.dtype.name}{list(ids.shape)}.")
            if len(ids) and (ids.min() < pond.oldest or ids.max() >= pond.recorded):
                raise TooFewSteps(
                    f"steps {ids.min()}..{ids.max()} were asked for, but the replay holds "
                    f"[{pond.oldest}, {pond.recorded}); older ones have left."
                )
            return ids.astype(np.int64)

        return pond_to_agents.sample(pond, choose, out=out, pool=self._pool)

    # --- what it holds ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._pond.size

    @property
    def capacity(self) -> int:
        """The most steps it holds; when it is full, the oldest leave."""
        return self._pond.capacity

    def _streams(self) -> str:
        streams = self._pond.streams
        return f"{streams[:8]}{' ...' if len(streams) > 8 else ''}" if streams else "none"

    def stats(self) -> Stats:
        """What it holds and what it takes."""
        pond = self._pond
        with pond.reading():
            return Stats(
                steps=pond.size,
                capacity=pond.capacity,
                recorded=pond.recorded,
                streams=len(pond.streams),
                rows=sum(leaf.store.rows for leaf in pond.leaves if leaf.store is not None),
                bytes_held=pond.nbytes,
                bytes_plain=pond.size * self.spec.step_nbytes,
                layout={leaf.path: leaf.layout for leaf in pond.leaves},
            )

    def close(self) -> None:
        """Record no more; sampling goes on."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Replay({self.stats()})"
