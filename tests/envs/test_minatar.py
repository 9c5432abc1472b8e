import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.envs.games import find_game
from lakepond.envs.minatar import GAMES, MinAtar
from lakepond.errors import ConfigError


@pytest.fixture(scope="module")
def breakout():
    """300 steps of 32 copies with actions that never move, and what was seen."""
    env = MinAtar("breakout", sticky=0.0)

    @jax.jit
    def play(key):
        state = env.reset(key, 32)

        def step(state, key):
            before = state
            state, seen = env.step(state, jnp.zeros(32, jnp.int32), key)
            return state, (before, seen)

        return jax.lax.scan(step, state, jax.random.split(key, 60))[1]

    return jax.tree.map(np.asarray, play(jax.random.PRNGKey(0)))


def test_an_episode_that_ends_begins_anew_and_shows_its_true_end(breakout):
    before, seen = breakout
    ended = seen.terminated | seen.truncated
    assert ended.any()
    assert not (seen.terminated & seen.truncated).any()
    same = (seen.obs == seen.next_obs).all(axis=(2, 3, 4))
    assert same[~ended].all()
    assert not same[ended].any()  # the ball lies at the bottom at the end, and at the top of a new game
    assert (seen.next_obs[ended][:, 9, :, 1].sum(-1) == 1).all()
    assert (seen.obs[ended][:, 3, :, 1].sum(-1) == 1).all()
    assert (before.obs[1:] == seen.obs[:-1]).all()


def test_the_score_is_the_sum_of_an_episodes_rewards(breakout):
    _, seen = breakout
    total = np.zeros(32)
    for t in range(len(seen.reward)):
        total += seen.reward[t]
        assert (seen.score[t] == total).all()
        total[seen.terminated[t] | seen.truncated[t]] = 0
    assert seen.reward.sum() > 0


def test_observations_are_boards_of_zero_and_one(breakout):
    _, seen = breakout
    env = MinAtar("Breakout")
    assert env.obs.shape == (10, 10, 4)
    assert env.actions == 3
    assert seen.obs.dtype == np.uint8
    assert set(np.unique(seen.obs)) == {0, 1}


def test_sticky_actions_repeat_the_last_one_so_often():
    env = MinAtar("Breakout", sticky=0.1)

    @jax.jit
    def share_of_repeats(key):
        state = env.reset(key, 4000)._replace(last_action=jnp.full(4000, 1))
        return (env.step(state, jnp.full(4000, 2), key)[0].last_action == 1).mean()

    assert float(share_of_repeats(jax.random.PRNGKey(0))) == pytest.approx(0.1, abs=0.02)


def test_a_game_is_found_by_any_spelling_and_a_slip_is_told():
    assert MinAtar("space_invaders").name == "SpaceInvaders"
    assert MinAtar("Breakout-MinAtar").name == "Breakout"
    with pytest.raises(ConfigError, match="did you mean Breakout"):
        MinAtar("brakeout")
    with pytest.raises(ConfigError, match="there are Asterix, Breakout"):
        find_game("zzzzz", GAMES, "MinAtar")
