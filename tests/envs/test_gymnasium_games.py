"""Gymnasium environments on the host, stepped inside jit."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from lakepond.agents.fleet import over_agents
from lakepond.envs.gymnasium import Gymnasium
from lakepond.errors import ConfigError


class Counting(gymnasium.Env):
    """Shows (episode, step, last action); even episodes are over after 3 steps, odd ones cut after 5."""

    observation_space = gymnasium.spaces.Box(-1, 1000, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2, start=10)

    def __init__(self):
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.now = 0
        return np.array([self.episode, 0.0, 0.0]), {}

    def step(self, action):
        self.now += 1
        over, cut = (self.now == 3, False) if self.episode % 2 == 0 else (False, self.now == 5)
        return np.array([self.episode, self.now, action]), 1.0, over, cut, {}


def counting(mode):
    return lambda count: SyncVectorEnv([Counting] * count, autoreset_mode=mode)


def play(env, steps, *, copies=2, key=0):
    """What was seen from, and what came of it."""

    @jax.jit
    def run(key):
        def step(state, key):
            before = state.obs
            state, found = env.step(state, jax.random.randint(key, (copies,), 0, env.actions), key)
            return state, (before, found)

        return jax.lax.scan(step, env.reset(key, copies), jax.random.split(key, steps))[1]

    return jax.tree.map(np.asarray, run(jax.random.PRNGKey(key)))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_an_episode_shows_its_true_end_and_the_next_one_begins(mode):
    env = Gymnasium(counting(mode))
    before, step = play(env, 16)
    assert before[:, 0, 1].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4]
    assert before[:, 0, 0].tolist() == [0] * 3 + [1] * 5 + [2] * 3 + [3] * 5
    assert np.flatnonzero(step.terminated[:, 0]).tolist() == [2, 10]
    assert np.flatnonzero(step.truncated[:, 0]).tolist() == [7, 15]
    assert (step.next_obs[..., 1] == before[..., 1] + 1).all()
    assert (step.next_obs[..., 0] == before[..., 0]).all()
    assert set(np.unique(step.next_obs[..., 2])) == {10.0, 11.0}  # its first action is number 10
    assert (step.obs[:-1] == before[1:]).all()
    assert step.score[step.over].tolist() == [3, 3, 5, 5, 3, 3, 5, 5]


def test_a_step_that_only_begins_an_episode_is_worth_nothing():
    before, step = play(Gymnasium(counting(AutoresetMode.NEXT_STEP)), 12)
    assert before[:, 0, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1]
    assert np.flatnonzero(step.terminated[:, 0]).tolist() == [2, 3]
    assert np.flatnonzero(step.truncated[:, 0]).tolist() == [8, 9]  # a cut is not said to be the game's end
    assert np.flatnonzero(step.over[:, 0]).tolist() == [2, 8]
    assert step.reward[:, 0].tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1]
    assert (step.next_obs[[3, 9], 0] == before[[3, 9], 0]).all()
    assert step.score[step.over].tolist() == [3, 3, 5, 5]


def test_agents_have_copies_of_their_own_and_an_evaluation_takes_its_own_again():
    env = Gymnasium(counting(AutoresetMode.SAME_STEP))

    @jax.jit
    def four(keys):
        states = over_agents(lambda key: env.reset(key, 2), keys)
        for steps in range(3):

            def step(state, agent, steps=steps):
                after, _ = env.step(state, jnp.zeros(2, jnp.int32), jax.random.PRNGKey(0))
                return jax.tree.map(lambda a, b: jnp.where(agent > steps, a, b), after, state)

            states = over_agents(step, states, jnp.arange(4))
        return states

    states = four(jax.random.split(jax.random.PRNGKey(0), 4))
    assert np.asarray(states.inner).tolist() == [0, 1, 2, 3]
    assert np.asarray(states.obs[:, 0, 1]).tolist() == [0, 1, 2, 0]

    again = Gymnasium(counting(AutoresetMode.SAME_STEP), reuse=True)
    for _ in range(3):
        before, _ = play(again, 2)
        assert (before[0] == 0).all()
    assert len(again._opened) == 1
    one, other = (again.reset(jax.random.PRNGKey(0), 2) for _ in range(2))  # neither has been stepped yet
    assert int(one.inner) != int(other.inner)


def test_a_vector_environment_that_is_there_serves_one_agent():
    there = counting(AutoresetMode.SAME_STEP)(2)
    env = Gymnasium(there)
    for _ in range(2):
        before, _ = play(env, 4)
        assert before[:, 0, 1].tolist() == [0, 1, 2, 0]
    with pytest.raises(ConfigError, match=r"8 copies of SyncVectorEnv are needed, but .* has 2"):
        env.reset(jax.random.PRNGKey(0), 8)


def test_the_same_key_gives_the_same_play():
    one, other = (play(Gymnasium("CartPole-v1"), 60, copies=4) for _ in range(2))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert (a == b).all()
    assert one[1].over.any()
    assert one[0].dtype == np.float32


def test_observations_that_are_no_array_are_flattened():
    env = Gymnasium("FrozenLake-v1")
    assert env.obs.shape == (16,)
    assert env.actions == 4
    before, _ = play(env, 10)
    assert (before.sum(-1) == 1).all()


def test_an_id_is_found_by_any_spelling_and_a_slip_is_told():
    assert Gymnasium("cartpole-v1").name == "CartPole-v1"
    assert Gymnasium("CartPole").name == "CartPole-v1"
    assert Gymnasium("gymnasium.envs:CartPole-v1").name == "CartPole-v1"
    with pytest.raises(
        ConfigError, match=r"'CartPoole-v1' is not a Gymnasium game; did you mean CartPole-v1"
    ):
        Gymnasium("CartPoole-v1")
    with pytest.raises(ConfigError, match=r"the module 'nowhere' cannot be imported"):
        Gymnasium("nowhere:CartPole-v1")
    with pytest.raises(ConfigError, match=r"Pendulum-v1 has the action space Box.*discrete"):
        Gymnasium("Pendulum-v1")
