"""What a generation hands to the next: random at first, then in memory, and on disk in case of a kill.

first_generation ──▶ Evolving, Counters ──▶ a generation ──▶ Evolving, Counters ──▶ ...
▲                                        │
begin ◀── checkpoint, with the lake's commit ◀── save
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lakepond import untrusted
from lakepond.agents import ddpg, population
from lakepond.agents.market_network import POSITION, Array, Params, init_actor
from lakepond.errors import ConfigError, RunCorrupt
from lakepond.lake.commits import Commit
from lakepond.replay import Replay
from lakepond.runs import Run
from lakepond.trainers.market_stage import Market
from lakepond.types import Field, Spec

if TYPE_CHECKING:
    from lakepond.trainers.erl import Config


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
    """What the learner is told."""
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
    config: Config,
    run: Run,
    market: Market,
    settings: ddpg.Settings,
    key: Array,
    resume: bool,
    resume_from: int | None,
) -> tuple[Evolving, Counters, int | None]:
    """Where training goes on: the first generation, or a checkpoint and the lake's commit it names."""
    now = first_generation(config, market.inputs, settings, key)
    known = run.checkpoints()
    if known and not resume and resume_from is None:
        raise ConfigError(
            f"{run.folder} holds a run of {known[-1]} generations; go on with it (--resume), or choose "
            "another folder."
        )
    if resume_from is None and not known:
        run.rewind(None)
        shutil.rmtree(
            run.lake_folder, ignore_errors=True
        )  # of a run that was killed before its first checkpoint
        return now, Counters(std=config.mutation_std), None
    checkpoint = run.load(resume_from, like=now._asdict())
    run.rewind(checkpoint)
    now = Evolving(**jax.tree.map(jnp.asarray, checkpoint.arrays))
    with untrusted.blaming(checkpoint.folder / "state.json", RunCorrupt, "resume from another checkpoint"):
        counters = Counters(**checkpoint.state["counters"])
    return now, counters, checkpoint.state["lake_commit"]


def open_replay(config: Config, market: Market, folder: Path, commit: int | None) -> Replay:
    """The replay at a commit of its lake; without one, empty."""
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


def save(run: Run, now: Evolving, counters: Counters, commit: Commit, key: Array) -> Path:
    """One checkpoint; the lake's commit that it names is durable already."""
    state = {
        "counters": counters._asdict(),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "lake_commit": commit.number,
    }
    return run.save(counters.generation, jax.device_get(now)._asdict(), state)
