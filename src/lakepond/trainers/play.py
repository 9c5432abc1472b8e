"""Play with the policy of any checkpoint of `single`, `mixture` or `live`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from lakepond.agents.pqn import act
from lakepond.envs.vector import Environment
from lakepond.errors import RunMismatch
from lakepond.runs import Run
from lakepond.trainers import arena
from lakepond.types import Array

TRAINERS = ("single", "mixture", "live")


@dataclass(frozen=True)
class Episode:
    """What was seen and what it was worth."""

    game: str
    checkpoint: int
    observations: Array
    """(steps + 1, ...): the last one is the end"""
    score: float
    ended: bool
    """False: it was cut off"""


def play(
    folder: str | Path,
    *,
    checkpoint: int | None = None,
    seed: int = 0,
    epsilon: float = 0.001,
    most_steps: int = 5_000,
) -> Episode:
    """One episode with the policy of a checkpoint, the newest unless another is named."""
    run = Run.open(folder)
    if run.trainer not in TRAINERS:
        raise RunMismatch(
            f"{folder} is a run of the trainer {run.trainer!r}; play takes one of {', '.join(TRAINERS)}."
        )
    config = run.config
    env: Environment = arena.make_env(config["suite"], config["game"])
    network = arena.make_network(
        config["network"], env, config["hidden"], dueling=config.get("dueling", False)
    )
    found = run.load(checkpoint, like={"policy": network.init(jax.random.PRNGKey(0))})
    params = found.arrays["policy"]

    @jax.jit
    def step(state, key):  # type: ignore[no-untyped-def]
        key_act, key_env = jax.random.split(key)
        return env.step(state, act(network.apply(params, state.obs), epsilon, key_act), key_env)

    key_reset, key_play = jax.random.split(jax.random.PRNGKey(seed))
    state = env.reset(key_reset, 1)
    seen, score, ended = [np.asarray(state.obs[0])], 0.0, False
    for number in range(most_steps):
        state, after = step(state, jax.random.fold_in(key_play, number))
        seen.append(np.asarray(after.next_obs[0]))
        score, ended = float(after.score[0]), bool(after.terminated[0] | after.truncated[0])
        if ended:
            break
    return Episode(env.name, found.number, np.stack(seen), score, ended)
