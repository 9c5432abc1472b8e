"""The branches for accelerators and several devices, forced on a CPU: same numbers as one after another."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.agents import fleet, networks
from lakepond.agents.epsilon import Epsilon
from lakepond.agents.pqn import PQN, PQNSettings
from lakepond.envs.atari import Atari
from lakepond.envs.gymnasium import Gymnasium
from lakepond.lake.read.lake import Lake
from lakepond.trainers import live, mixture

SETTINGS = PQNSettings(envs=4, rollout=6, epochs=1, minibatches=2)


def make_pqn(env, **how):
    network = networks.make("mlp", env.obs, env.actions, hidden=(8,))
    return PQN(env, network, Epsilon(env_steps=10), SETTINGS, 4, **how)


@pytest.fixture
def accelerated(monkeypatch):
    monkeypatch.setattr(fleet, "accelerated", lambda: True)


def trained(env, agents=2):
    """Agents after an update, and their rollouts."""
    pqn = make_pqn(env)

    def run(keys):
        states = fleet.over_agents(pqn.init, keys)
        return fleet.over_agents(pqn.update, states, jnp.arange(agents))

    return jax.tree.map(np.asarray, jax.jit(run)(jax.random.split(jax.random.PRNGKey(0), agents)))


def assert_close(one, other):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-4)


GAMES = {  # MinAtar: whole runs in tests/trainers/test_games.py
    "atari": lambda: Atari("breakout", size=42),
    "gymnasium": lambda: Gymnasium("CartPole-v1"),
}


@pytest.mark.parametrize("game", GAMES)
def test_agents_under_vmap_see_and_learn_what_they_do_one_by_one(game, monkeypatch):
    state, rollouts, metrics = trained(GAMES[game]())
    monkeypatch.setattr(fleet, "accelerated", lambda: True)
    other_state, other_rollouts, other_metrics = trained(GAMES[game]())
    assert not (rollouts.obs[0] == rollouts.obs[1]).all()  # each agent has environments of its own
    assert_close(rollouts, other_rollouts)
    assert_close((state.params, metrics), (other_state.params, other_metrics))


FOUR_DEVICES = """
import sys
sys.path.insert(0, {tests!r})
import jax
import numpy as np
from lakepond.envs.minatar import MinAtar
from test_fleet import assert_close, make_pqn

assert jax.device_count() == 4
env = MinAtar("Breakout")
states = []
for spread in (False, True):
    pqn = make_pqn(env, spread=spread)
    state = pqn.init(jax.random.PRNGKey(0))
    update = jax.jit(pqn.update)
    for _ in range(3):
        state, _, metrics = update(state)
    states.append((state.params, metrics))
    print(len(state.env.obs.sharding.device_set))
assert_close(*jax.tree.map(np.asarray, states))
"""


def test_on_four_devices_environments_are_divided_with_the_same_numbers():
    code = FOUR_DEVICES.format(tests=str(Path(__file__).parent))
    given = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    flags = {"XLA_FLAGS": given, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **flags},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert done.stdout.split() == ["1", "4"]


TINY = {
    "suite": "atari",
    "agents": 2,
    "evaluate_every": 48,
    "hidden": (7,),
    "pqn": PQNSettings(envs=2, rollout=6, epochs=1, minibatches=1),
    "big_pond": 96,
    "big_batch": 16,
    "evaluation_episodes": 2,
    "evaluation_steps": 20,
    "evaluation_greedy": False,
    "min_free": "0",
}
MIXTURE = replace(mixture.PRESETS["tiny"], env_steps=96, reset_every=48, pond=24, **TINY)
LIVE = replace(live.PRESETS["tiny"], env_steps=72, big_envs=2, big_replay_ratio=1.0, **TINY)


@pytest.mark.parametrize(("trainer", "config", "lanes"), [(mixture, MIXTURE, 4), (live, LIVE, 6)])
def test_agents_train_on_atari_as_on_an_accelerator(accelerated, tmp_path, trainer, config, lanes):
    metrics = trainer.run(config, tmp_path / "run")
    assert np.isfinite(metrics["loss"])
    with Lake.open(tmp_path / "run" / "lake") as lake:
        lake.verify()
        assert len(lake) == config.env_steps
        for stream in range(lanes):  # of two agents with two environments each, and of the big agent
            one = lake.steps(lake.query(stream=stream))
            assert (one.next_obs[:-1] == one.obs[1:]).all()
        starts = [lake.steps(lake.query(stream=stream)[:1]).obs for stream in range(lanes)]
        assert len({obs.tobytes() for obs in starts}) > 1  # other seeds, other numbers of no-ops
