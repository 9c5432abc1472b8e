"""Returns and losses against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.agents.epsilon import Epsilon
from lakepond.agents.networks import Network
from lakepond.agents.pqn import PQN, PQNSettings, act, lambda_returns
from lakepond.errors import ConfigError


def column(*values):
    return jnp.asarray(values)[:, None]


def returns(reward, terminated, truncated, value, **how):
    found = lambda_returns(
        column(*map(float, reward)),
        column(*terminated),
        column(*truncated),
        column(*map(float, value)),
        **how,
    )
    return np.asarray(found)[:, 0].tolist()


NO = [False] * 3


def test_lambda_returns_by_hand():
    # backwards: 3 + .5*40 = 23; 2 + .5*(.5*23 + .5*30) = 15.25; 1 + .5*(.5*15.25 + .5*20) = 9.8125
    assert returns([1, 2, 3], NO, NO, [20, 30, 40], gamma=0.5, lam=0.5) == pytest.approx(
        [9.8125, 15.25, 23.0]
    )


def test_the_tail_of_a_rollout_is_estimated_with_its_own_next_value():
    """The published script takes the value of the step before it there."""
    assert returns([0, 0, 0], NO, NO, [5, 6, 7], gamma=1.0, lam=1.0) == [7.0, 7.0, 7.0]


def test_nothing_counts_behind_a_game_that_is_over():
    # step 1 is over: 2; step 0: 1 + .5*(.5*2 + .5*20) = 6.5
    found = returns([1, 2, 3], [False, True, False], NO, [20, 30, 40], gamma=0.5, lam=0.5)
    assert found == pytest.approx([6.5, 2.0, 23.0])


def test_behind_the_end_of_time_counts_the_value_of_what_truly_followed_alone():
    # step 1 is cut: 2 + .5*30 = 17, whatever the next episode brings; step 0: 1 + .5*(.5*17 + .5*20) = 10.25
    found = returns([1, 2, 300], NO, [False, True, False], [20, 30, 40], gamma=0.5, lam=0.5)
    assert found == pytest.approx([10.25, 17.0, 320.0])


def linear(params, obs):
    return obs.astype(jnp.float32) @ params


def test_the_loss_is_half_the_mean_square_of_the_errors_of_actions_taken():
    pqn = PQN(None, Network(lambda key: None, linear), Epsilon(), PQNSettings(), 10)
    params = jnp.array([[1.0, 2.0], [3.0, 4.0]])  # values: obs (1, 1) -> (4, 6), (0, 1) -> (3, 4)
    obs = jnp.array([[1, 1], [0, 1]])
    loss, gradient = jax.value_and_grad(pqn.loss)(params, obs, jnp.array([1, 0]), jnp.array([5.0, 1.0]))
    assert float(loss) == pytest.approx(0.5 * (1 + 4) / 2)
    assert np.asarray(gradient).tolist() == [[0.0, 0.5], [1.0, 0.5]]  # errors 1 and 2, over two


def test_actions_are_the_best_but_for_epsilon():
    values = jnp.tile(jnp.array([[0.0, 1.0, 0.5]]), (30_000, 1))
    greedy = np.asarray(act(values, 0.0, jax.random.PRNGKey(0)))
    assert (greedy == 1).all()
    some = np.asarray(act(values, 0.3, jax.random.PRNGKey(0)))
    assert (some == 1).mean() == pytest.approx(0.7 + 0.1, abs=0.02)
    assert (some == 0).mean() == pytest.approx(0.1, abs=0.02)


def test_minibatches_must_come_out_even():
    with pytest.raises(ConfigError, match="cannot be divided into 7 minibatches"):
        PQNSettings(envs=8, rollout=4, minibatches=7)
