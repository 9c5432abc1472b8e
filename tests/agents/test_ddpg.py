"""The learner's losses against numbers worked by hand, and the networks against what they promise."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.agents import ddpg
from lakepond.agents import market_network as network
from lakepond.envs.market_rules import Rules

RULES = Rules(context=5, trading_days=5)
ACTOR = network.init_actor(jax.random.key(0), 6, 8)
FREE = jnp.array([[0.0, 0.0, 0.0, 1.0]])  # not held, trades today


def test_the_td_target_takes_the_smaller_critic_and_stops_at_the_end():
    reward, ended = jnp.array([1.0, 2.0]), jnp.array([False, True])
    values = jnp.array([[10.0, 10.0], [4.0, 20.0]])
    np.testing.assert_allclose(ddpg.td_target(reward, ended, values, 0.9), [1 + 0.9 * 4, 2.0])


def test_the_critics_loss_is_the_mean_of_all_squared_errors():
    values, target = jnp.array([[1.0, 2.0], [3.0, 5.0]]), jnp.array([1.0, 4.0])
    assert ddpg.critic_loss(values, target) == pytest.approx((0 + 4 + 4 + 1) / 4)


def test_a_target_moves_by_tau_of_the_way():
    moved = ddpg.moved({"w": jnp.array([1.0, 0.0])}, {"w": jnp.array([3.0, 1.0])}, 0.25)
    np.testing.assert_allclose(moved["w"], [1.5, 0.25])


def test_only_the_highest_coefficient_above_the_threshold_is_chosen():
    assert network.chosen(jnp.array([0.6, 0.9, 0.7]), RULES).tolist() == [0, 1, 0]
    assert network.chosen(jnp.array([0.3, 0.5, 0.1]), RULES).tolist() == [0] * 3  # at the threshold: nothing


def test_its_gradient_is_that_of_a_softmax_with_nothing_as_one_more_choice():
    coefficient, worth = jnp.array([0.6, 0.9]), jnp.array([2.0, -1.0])
    found = jax.grad(lambda c: (network.chosen(c, RULES) * worth).sum())(coefficient)
    every, value = np.array([0.5, 0.6, 0.9]) / network.SOFTNESS, np.array([0.0, 2.0, -1.0])
    share = np.exp(every) / np.exp(every).sum()
    by_hand = share * (value - (share * value).sum()) / network.SOFTNESS
    np.testing.assert_allclose(found, by_hand[1:], rtol=1e-4)


def test_what_cannot_be_bought_has_a_coefficient_of_zero_and_targets_keep_their_range():
    position = jnp.array([[0.0, 0.0, 0.0, 1.0], [1.0, 0.3, 0.5, 1.0], [0.0, 0.0, 0.0, 0.0]])
    action = network.act(ACTOR, network.embed(ACTOR, jnp.ones((3, 6))), position, RULES)
    assert 0 < action[0, 0] < 1
    assert action[1:, 0].tolist() == [0, 0]  # held, and not traded today
    assert ((action[:, 1] >= RULES.target_low) & (action[:, 1] <= RULES.target_high)).all()


def test_an_embedding_does_not_depend_on_the_order_of_the_instruments():
    summary, order = jax.random.normal(jax.random.key(1), (5, 6)), jnp.array([3, 1, 4, 0, 2])
    there = network.embed(ACTOR, summary)[order]
    np.testing.assert_allclose(network.embed(ACTOR, summary[order]), there, atol=1e-5)


def test_bfloat16_gives_nearly_the_same_embedding_in_float32():
    embed = jax.jit(network.embed, static_argnums=2)
    summary = jax.random.normal(jax.random.key(1), (5, 6))
    short = embed(ACTOR, summary, jnp.bfloat16)
    assert short.dtype == jnp.float32
    np.testing.assert_allclose(short, embed(ACTOR, summary, jnp.float32), atol=0.15)


def bandit(count: int, seed: int) -> tuple[ddpg.Transitions, jax.Array]:
    """Days on which one of three instruments is marked: buying it gives +1, another -1."""
    rng = np.random.default_rng(seed)
    good = rng.integers(0, 3, 40)
    summaries = np.zeros((40, 3, 4), np.float32)
    summaries[np.arange(40), good, 0] = 2.0
    day = rng.integers(0, 40, count)
    action = rng.random((count, 3, 2), np.float32)
    action[..., 1] = 10 + 40 * action[..., 1]
    bought = action[..., 0].argmax(axis=1)
    reward = np.where(action[..., 0].max(axis=1) <= 0.5, 0.0, np.where(bought == good[day], 1.0, -1.0))
    free = np.broadcast_to(np.float32([0, 0, 0, 1]), (count, 3, 4))
    steps = ddpg.Transitions(
        day, free, action, reward.astype(np.float32), day, free, np.ones(count, np.bool_)
    )
    return steps, jnp.asarray(summaries)


def start(settings: ddpg.Settings) -> ddpg.Learner:
    return jax.jit(partial(ddpg.init, inputs=4, width=8, settings=settings))(jax.random.key(0))


def test_the_learner_finds_out_which_instrument_pays():
    settings = ddpg.Settings(RULES, critics=2, actor_rate=3e-3, critic_rate=3e-3)
    learner = start(settings)
    steps, summaries = bandit(64 * 200, 0)
    batches = jax.tree.map(lambda x: np.reshape(x, (200, 64, *x.shape[1:])), steps)
    after, metrics = jax.jit(ddpg.learn, static_argnames="settings")(
        learner, batches, summaries, settings=settings
    )
    position = jnp.broadcast_to(FREE, (40, 3, 4))
    action = network.act(after.actor, network.embed(after.actor, summaries), position, RULES)
    picked, good = np.asarray(action[..., 0].argmax(axis=1)), np.asarray(summaries[..., 0].argmax(axis=1))
    assert (picked == good).mean() > 0.9
    assert float(action[..., 0].max(axis=1).mean()) > 0.5  # and it buys
    assert np.isfinite([float(value) for value in metrics.values()]).all()


def test_with_critics_that_do_not_move_other_actions_teach_the_actor_nothing():
    settings = ddpg.Settings(RULES, critics=1, critic_rate=0.0)
    learner = start(settings)
    steps, summaries = bandit(16, 1)
    update = jax.jit(ddpg.update, static_argnames="settings")
    one, _ = update(learner, steps, summaries, settings=settings)
    other, _ = update(learner, steps._replace(action=1 - steps.action), summaries, settings=settings)
    for a, b, before in zip(*(jax.tree.leaves(x.actor) for x in (one, other, learner)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, before) or not np.any(before)  # it did learn, from the critic
