"""Real emulators, stepped inside jit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ale_py import vector_env

from lakepond.envs.atari import Atari, games
from lakepond.errors import ConfigError


@pytest.fixture(scope="module")
def seen():
    """Random play of four copies."""
    env = Atari("breakout", size=42)

    @jax.jit
    def play(key):
        def step(state, key):
            before = state.obs
            action = jax.random.randint(key, (4,), 0, env.actions)
            state, found = env.step(state, action, key)
            return state, (before, found)

        return jax.lax.scan(step, env.reset(key, 4), jax.random.split(key, 400))[1]

    return env, jax.tree.map(np.asarray, play(jax.random.PRNGKey(0)))


def test_frames_are_stacks_that_move_by_one(seen):
    env, (before, step) = seen
    assert before.shape == (400, 4, 4, 42, 42)
    assert env.obs.shape == (4, 42, 42)
    ended = step.terminated | step.truncated
    moved = (before[:, :, 1:] == step.next_obs[:, :, :-1]).all(axis=(2, 3, 4))
    assert moved.all()
    assert (step.obs == step.next_obs)[~ended].all()


def test_the_depth_of_a_stack_is_a_setting():
    env = Atari("breakout", size=42, stack=3)
    assert env.obs.shape == env.reset(jax.random.PRNGKey(0), 2).obs.shape[1:] == (3, 42, 42)


def test_a_game_that_is_over_starts_anew_and_counts_once(seen):
    _, (_, step) = seen
    assert step.over.sum() >= 4
    for lane in range(4):
        ends = np.flatnonzero(step.over[:, lane])
        begin = 0
        for end in ends:
            assert step.terminated[end, lane]
            rewards = step.reward[begin : end + 1, lane]
            assert step.score[end, lane] >= rewards.sum()  # bricks are worth more than 1
            if end + 1 < 400:  # the step that starts the next game: worth nothing, no episode of its own
                assert step.terminated[end + 1, lane]
                assert step.reward[end + 1, lane] == 0
                assert not step.over[end + 1, lane]
                assert step.score[end + 1, lane] == 0
            begin = end + 2
    assert set(np.unique(step.reward)) <= {0.0, 1.0}


def test_agents_have_emulators_of_their_own(seen):
    env, _ = seen
    one, other = env.reset(jax.random.PRNGKey(1), 2), env.reset(jax.random.PRNGKey(1), 2)
    assert not (np.asarray(one.inner[0]) == np.asarray(other.inner[0])).all()
    step = jax.jit(env.step)
    for _ in range(3):
        one, _ = step(one, jnp.zeros(2, jnp.int32), jax.random.PRNGKey(0))
    again, _ = step(other, jnp.zeros(2, jnp.int32), jax.random.PRNGKey(0))
    assert not (np.asarray(one.obs) == np.asarray(again.obs)).all()


def test_games_are_those_that_ale_brings():
    assert len(games()) > 100
    assert Atari("SpaceInvaders").name == "space_invaders"
    with pytest.raises(ConfigError, match="did you mean gravitar"):
        Atari("gravitas")


def test_the_step_that_follows_a_truncated_game_is_truncated_and_not_terminated(monkeypatch):
    whole = vector_env.AtariVectorEnv
    monkeypatch.setattr(vector_env, "AtariVectorEnv", partial(whole, max_num_frames_per_episode=200))
    env = Atari("breakout", size=42)
    state, step = env.reset(jax.random.PRNGKey(0), 2), jax.jit(env.step)
    flags = []
    for _ in range(60):
        state, found = step(state, jnp.zeros(2, jnp.int32), jax.random.PRNGKey(0))
        flags.append((found.terminated, found.truncated, found.over))
    terminated, truncated, over = np.array(flags).transpose(1, 0, 2)
    (ends,) = np.nonzero(over[:, 0])
    assert len(ends)
    for end in ends[ends < 59]:
        assert truncated[end : end + 2, 0].all()
        assert not over[end + 1, 0]
    assert not terminated.any()
