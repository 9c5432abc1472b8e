"""Play with the policy of any checkpoint of `single`, `mixture` or `live`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from lakepond.agents.pqn import act
from lakepond.envs.vector import Environment
from lakepond.errors import ConfigError, RunMismatch
from lakepond.runs import Run, settings
from lakepond.trainers import arena
from lakepond.trainers.live import LiveConfig
from lakepond.trainers.mixture import MixtureConfig
from lakepond.trainers.single import SingleConfig
from lakepond.types import Array

TRAINERS: dict[str, type[SingleConfig | MixtureConfig | LiveConfig]] = {
    "single": SingleConfig,
    "mixture": MixtureConfig,
    "live": LiveConfig,
}


@dataclass(frozen=True)
class PlayedEpisode:
    """The observations and the score of one episode."""

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
    trust_module: str | None = None,
) -> PlayedEpisode:
    """One episode with the policy of a checkpoint, the newest unless another is named.

    A run names its game. A game `module:id` imports that Python module, which may be anything if the run came
    from somebody else, so the module must be imported already or be named by `trust_module`.
    """
    run = Run.open(folder)
    if run.trainer not in TRAINERS:
        raise RunMismatch(
            f"{folder} is a run of the trainer {run.trainer!r}; play takes one of {', '.join(TRAINERS)}."
        )
    config = settings.from_json(TRAINERS[run.trainer], run.config, run.trainer, run.folder)
    module, named, _ = config.game.partition(":")
    if named and module != trust_module and module not in sys.modules:
        raise ConfigError(
            f"{folder} plays {config.game}, which imports the Python module {module!r}; if you trust that "
            f"module, allow it with --trust-module {module}."
        )
    env: Environment = arena.make_env(config)
    network = arena.network_of(config, env)
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
    return PlayedEpisode(env.name, found.number, np.stack(seen), score, ended)
