"""Targets and losses against numbers worked by hand, from a batch of any origin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.agents.dqn import DQN, DQNSettings
from lakepond.agents.networks import Network
from lakepond.types import Batch, Field, Spec


def linear(params, obs):
    return obs.astype(jnp.float32) @ params


NETWORK = Network(lambda key: None, linear)
ONLINE = jnp.array([[1.0, 0.0], [0.0, 2.0]])
TARGET = jnp.array([[10.0, 20.0], [30.0, 40.0]])


def batch(**given):
    values = dict(
        obs=jnp.array([[1.0, 0.0], [0.0, 1.0]]),
        action=jnp.array([0, 1]),
        reward=jnp.array([1.0, 2.0]),
        next_obs=jnp.array([[1.0, 0.0], [0.0, 1.0]]),
        terminated=jnp.array([False, True]),
        truncated=jnp.array([False, False]),
        discount=jnp.array([0.5, 0.0]),
        weight=jnp.ones(2),
        step_id=jnp.arange(2),
        stream=jnp.zeros(2, jnp.int32),
        extras={},
        num_steps=jnp.ones(2, jnp.int32),
    )
    return Batch(**(values | given))


def test_double_targets_choose_online_and_value_by_the_target_network():
    # online values of next_obs: (1, 0) and (0, 2), so actions 0 and 1; target values: 10 and 40
    found = DQN(NETWORK, DQNSettings()).targets(ONLINE, TARGET, batch())
    assert np.asarray(found).tolist() == [1 + 0.5 * 10, 2.0]


def test_single_targets_take_the_best_of_the_target_network():
    found = DQN(NETWORK, DQNSettings(double=False)).targets(ONLINE, TARGET, batch())
    assert np.asarray(found).tolist() == [1 + 0.5 * 20, 2.0]


def test_the_loss_is_huber_and_weighted():
    # values taken: 1 and 2; targets 6 and 2; errors -5 and 0; huber 4.5 and 0
    dqn = DQN(NETWORK, DQNSettings())
    loss, (error, _) = dqn.loss(ONLINE, TARGET, batch())
    assert float(loss) == pytest.approx(4.5 / 2)
    assert np.asarray(error).tolist() == [-5.0, 0.0]
    loss, _ = dqn.loss(ONLINE, TARGET, batch(weight=jnp.array([0.5, 1.0])))
    assert float(loss) == pytest.approx(4.5 / 4)


def test_truncated_steps_are_bootstrapped_and_terminated_ones_are_not():
    cut = batch(truncated=jnp.array([True, False]), discount=jnp.array([0.9, 0.0]))
    found = DQN(NETWORK, DQNSettings()).targets(ONLINE, TARGET, cut)
    assert np.asarray(found).tolist() == pytest.approx([1 + 0.9 * 10, 2.0])


def test_the_target_network_follows_every_so_many_steps():
    dqn = DQN(NETWORK, DQNSettings(target_every=2))
    state = dqn.init(ONLINE)
    update = jax.jit(dqn.update)
    state, _, _ = update(state, batch())
    assert (np.asarray(state.target) == np.asarray(ONLINE)).all()
    assert not (np.asarray(state.params) == np.asarray(ONLINE)).all()
    state, _, metrics = update(state, batch())
    assert (np.asarray(state.target) == np.asarray(state.params)).all()
    assert float(metrics.loss) > 0


def test_the_rate_scales_a_step():
    dqn = DQN(NETWORK, DQNSettings())
    whole, half, none = (dqn.update(dqn.init(ONLINE), batch(), rate=rate)[0].params for rate in (1, 0.5, 0))
    assert np.asarray(half - ONLINE) == pytest.approx(np.asarray(whole - ONLINE) / 2, abs=1e-7)
    assert (np.asarray(none) == np.asarray(ONLINE)).all()
    assert not (np.asarray(whole) == np.asarray(ONLINE)).all()


def test_the_distance_to_a_teacher_is_that_of_its_policy():
    # at temperature 2 the teacher is (1/2, 1/2) and we are (1/4, 3/4): KL = (log 2 + log 2/3) / 2
    dqn = DQN(NETWORK, DQNSettings(temperature=2.0))
    ours, taught = jnp.array([[0.0, 2 * np.log(3)]]), jnp.array([[5.0, 5.0]])
    assert float(dqn.distance(ours, taught)) == pytest.approx(np.log(4 / 3) / 2)
    assert float(dqn.distance(taught, taught)) == 0.0


def test_a_teacher_adds_its_distance_and_none_adds_nothing():
    dqn = DQN(NETWORK, DQNSettings(distill=0.5, temperature=1.0))
    plain, _ = dqn.loss(ONLINE, TARGET, batch())
    assert float(dqn.loss(ONLINE, TARGET, batch(), ONLINE)[0]) == float(plain)
    # values (1, 0) and (0, 2); the teacher's are 0 everywhere: half the mean of KL((1/2, 1/2), softmax)
    apart = [np.log((1 + np.exp(gap)) ** 2 / (4 * np.exp(gap))) / 2 for gap in (1.0, 2.0)]
    found, _ = dqn.loss(ONLINE, TARGET, batch(), jnp.zeros((2, 2)))
    assert float(found - plain) == pytest.approx(0.5 * np.mean(apart), rel=1e-5)


def test_it_learns_from_a_batch_of_the_host_replay(rng):
    from lakepond.replay import Replay

    replay = Replay(Spec(obs=Field((2,), "float32")), 64)
    for t in range(40):
        done = t % 5 == 4
        replay.record(
            obs=np.array([t % 5, 1], np.float32),
            action=t % 2,
            reward=1.0,
            next_obs=np.array([(t + 1) % 5, 1], np.float32),
            terminated=done,
            truncated=False,
        )
    dqn = DQN(NETWORK, DQNSettings(learning_rate=0.05))
    state, update = dqn.init(jnp.zeros((2, 2))), jax.jit(dqn.update)
    losses = []
    for _ in range(60):
        given = replay.sample(32, rng=rng, n_step=3, gamma=0.9)
        state, _, metrics = update(state, given._replace(extras={}))
        losses.append(float(metrics.loss))
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
