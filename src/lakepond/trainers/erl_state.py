"""What a generation hands to the next: random at first, then in memory, and on disk in case of a kill.

first_generation ──▶ Evolving, Counters ──▶ a generation ──▶ Evolving, Counters ──▶ ...
▲                                        │
begin ◀── checkpoint, with the lake's commit ◀── save
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from lakepond import untrusted
from lakepond.agents import ddpg, population
from lakepond.agents.market_network import POSITION, Array, Params, init_actor
from lakepond.errors import RunCorrupt
from lakepond.lake.format.commits import Commit, Start
from lakepond.replay import Replay
from lakepond.runs import Run
from lakepond.runs.resume import Resume
from lakepond.trainers.market_stage import Market
from lakepond.types import Field, Spec

if TYPE_CHECKING:
    from lakepond.trainers.erl_settings import Config


class Evolving(NamedTuple):
    """All that a generation hands to the next; with the lake, all that a checkpoint must hold."""

    population: Params
    best: Params
    learner: ddpg.Learner


class Counters(NamedTuple):
    """The small numbers among it, kept as JSON."""

    generation: int = 0
    best_score: float = float("-inf")
    best_generation: int = 0
    stalled: int = 0
    std: float = 0.0
    gradient_steps: int = 0
    held_seconds: float = 0.0
    """for which saving has held the training thread"""
    train_seconds: float = 0.0


def learner_settings(config: Config) -> ddpg.Settings:
    """Settings of the learner."""
    return ddpg.Settings(
        config.rules,
        config.critics,
        config.gamma,
        config.tau,
        config.actor_rate,
        config.critic_rate,
        dtype=config.dtype,
    )


def first_generation(config: Config, inputs: int, settings: ddpg.Settings, key: Array) -> Evolving:
    """Random agents, a new learner."""
    key_agents, key_learner = jax.random.split(jax.random.fold_in(key, 0))
    keys = jax.random.split(key_agents, config.sizes.total)
    agents = jax.jit(jax.vmap(partial(init_actor, inputs=inputs, width=config.width)))(keys)
    learner = jax.jit(partial(ddpg.init, inputs=inputs, width=config.width, settings=settings))(key_learner)
    return Evolving(agents, population.take(agents, 0), learner)


def begin(
    config: Config, run: Run, market: Market, settings: ddpg.Settings, key: Array, how: Resume
) -> tuple[Evolving, Counters, Replay]:
    """What training continues with: the first generation, or a checkpoint; and the replay as it was then."""
    now = first_generation(config, market.inputs, settings, key)
    counters = Counters(std=config.mutation_std)
    checkpoint, replay = how.take_up(
        run,
        jax.device_get(now)._asdict(),
        _state(counters, None, key),
        partial(open_replay, config, market, run.lake_folder),
    )
    if checkpoint is None:
        return now, counters, replay
    now = Evolving(**jax.tree.map(jnp.asarray, checkpoint.arrays))
    with untrusted.blaming(checkpoint.folder / "state.json", RunCorrupt, "resume from another checkpoint"):
        saved = checkpoint.state["counters"]
        counters = Counters(**{name: saved[name] for name in Counters._fields})
    best = -math.inf if counters.best_score is None else counters.best_score
    return now, counters._replace(best_score=best), replay


def open_replay(config: Config, market: Market, folder: Path, commit: int | Start) -> Replay:
    """The replay at a commit of its lake, or empty."""
    _, instruments, width = market.history.shape
    spec = Spec(
        obs={
            "window": Field((config.rules.context, instruments, width), "float32", rows=0),
            "position": Field((instruments, POSITION), "float32", rows=None),
        },
        action=Field((instruments, 2), "float32"),
        extras={"day": Field((), "int32"), "next_day": Field((), "int32")},
    )
    return Replay.open(folder, spec, config.capacity, commit=commit, min_free=config.min_free)


def hand_over(replay: Replay, generation: int) -> Future[Commit]:
    """Commit all steps, in the background."""
    return cast("Future[Commit]", replay.commit({"generation": generation}, wait=False))


def save(run: Run, now: Evolving, counters: Counters, commit: Commit, key: Array) -> Path:
    """One checkpoint; the lake's commit that it names is durable already."""
    return run.save(counters.generation, jax.device_get(now)._asdict(), _state(counters, commit.number, key))


def _state(counters: Counters, commit: int | None, key: Array) -> dict[str, Any]:
    """The state of a checkpoint, as JSON, which has no infinity."""
    numbers: dict[str, Any] = counters._asdict()
    if not math.isfinite(counters.best_score):
        numbers["best_score"] = None
    return {
        "counters": numbers,
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "lake_commit": commit,
    }
