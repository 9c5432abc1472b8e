"""Steps a second of PQN on MinAtar beside purejaxql's own script, same settings, same process.

    git clone https://github.com/mttga/purejaxql somewhere
    python -m benchmarks.pqn somewhere --game Breakout

Their script is loaded from that checkout and run unchanged, with its published settings and network, without
tests and logging. Written for an older gymnax, it gets an episode logger of ours in the place of gymnax's,
which also turns the six values of today's `step` into its five. Ours has no sticky actions here, as theirs.
Both are compiled first; CPU seconds and wall seconds of the rest, taken in turns, make the ratios of medians.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from lakepond.agents import networks
from lakepond.agents.epsilon import Epsilon
from lakepond.agents.fleet import over_agents
from lakepond.agents.pqn import PQN, PQNSettings
from lakepond.envs.minatar import MinAtar


class EpisodeLog:
    """Stands in for gymnax's LogWrapper of old."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, key: Any, params: Any) -> Any:
        """A new episode."""
        obs, state = self._env.reset(key, params)
        return obs, (state, jnp.float32(0), jnp.float32(0))

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        """Five values, as of old."""
        inner, total, returned = state
        obs, inner, reward, terminated, truncated, _ = self._env.step(key, inner, action, params)
        done = terminated | truncated
        total = total + reward
        returned = jnp.where(done, total, returned)
        info = {"returned_episode_returns": returned, "returned_episode": done}
        return obs, (inner, jnp.where(done, 0.0, total), returned), reward, done, info


def their_script(checkout: Path, log: type[EpisodeLog] = EpisodeLog) -> Any:
    """Their module, with stand-ins for what it imports and does not need here."""
    for name, values in {
        "hydra": {"main": lambda **_: lambda function: function},
        "omegaconf": {"OmegaConf": None},
        "wandb": {},
        "gymnax.wrappers.purerl": {"LogWrapper": log, "FlattenObservationWrapper": None},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        sys.modules[name] = module
    spec = importlib.util.spec_from_file_location("pqn_minatar", checkout / "purejaxql" / "pqn_minatar.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def their_config(game: str, frames: int) -> dict[str, Any]:
    """The published settings, for a run of `frames` frames."""
    return {
        "TOTAL_TIMESTEPS": frames,
        "TOTAL_TIMESTEPS_DECAY": frames,
        "NUM_ENVS": 128,
        "NUM_STEPS": 32,
        "EPS_START": 1.0,
        "EPS_FINISH": 0.05,
        "EPS_DECAY": 0.1,
        "NUM_MINIBATCHES": 32,
        "NUM_EPOCHS": 2,
        "NORM_TYPE": "layer_norm",
        "LR": 0.0005,
        "MAX_GRAD_NORM": 10,
        "LR_LINEAR_DECAY": True,
        "GAMMA": 0.99,
        "LAMBDA": 0.65,
        "ENV_NAME": f"{game}-MinAtar",
        "TEST_DURING_TRAINING": False,
        "WANDB_MODE": "disabled",
    }


def theirs(script: Any, game: str, updates: int) -> Callable[[int], Any]:
    """A run of their script, compiled."""
    train = script.make_train(their_config(game, updates * 128 * 32))
    compiled = jax.jit(train).lower(jax.random.PRNGKey(0)).compile()
    return lambda seed: compiled(jax.random.PRNGKey(seed))


def ours(game: str, updates: int, agents: int) -> Callable[[int], Any]:
    """A run of ours with some agents, compiled."""
    env = MinAtar(game, sticky=0.0)
    network = networks.make("cnn", env.obs, env.actions)
    epsilon = Epsilon(env_steps=updates * 4096 // 10)
    pqn = PQN(env, network, epsilon, PQNSettings(), updates)

    def train(keys: jax.Array) -> Any:
        def one(key: jax.Array) -> Any:
            return jax.lax.scan(lambda s, _: pqn.update(s)[::2], pqn.init(key), None, length=updates)

        return over_agents(one, keys)

    compiled = jax.jit(train).lower(jax.random.split(jax.random.PRNGKey(0), agents)).compile()
    return lambda seed: compiled(jax.random.split(jax.random.PRNGKey(seed), agents))


def seconds(call: Callable[[int], Any], seed: int) -> tuple[float, float]:
    """Of the CPU and of the wall."""
    cpu, wall = time.process_time(), time.perf_counter()
    jax.block_until_ready(call(seed))
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--game", default="Breakout")
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    script = their_script(asked.checkout)
    calls = {
        "purejaxql": theirs(script, asked.game, asked.updates),
        "lakepond": ours(asked.game, asked.updates, 1),
        "lakepond, four agents": ours(asked.game, asked.updates, 4),
    }
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for seed in range(asked.rounds):
        for name, call in calls.items():
            took[name].append(seconds(call, seed))
    cpu, wall = (
        {name: statistics.median(each[i] for each in values) for name, values in took.items()} for i in (0, 1)
    )
    frames = asked.updates * 4096
    found = {
        "game": asked.game,
        "frames": frames,
        "steps_per_cpu_second": {
            name: frames * (4 if "four" in name else 1) / spent for name, spent in cpu.items()
        },
        "ratio_cpu": cpu["purejaxql"] / cpu["lakepond"],
        "ratio_wall": wall["purejaxql"] / wall["lakepond"],
        "ratio_four_cpu": 4 * cpu["purejaxql"] / cpu["lakepond, four agents"],
        "ratio_four_wall": 4 * wall["purejaxql"] / wall["lakepond, four agents"],
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
