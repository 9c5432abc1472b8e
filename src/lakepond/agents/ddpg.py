"""DDPG (Lillicrap et al. 2016) with one critic, or with the smaller of two as in TD3 (Fujimoto et al. 2018).

    y        = reward + gamma * (1 - terminated) * min_k Q'_k(s', mu'(s'))
    critics    minimise  mean_k (Q_k(s, a) - y)^2
    actor      maximises Q_1(s, mu(s))
    targets    move by `tau` of the way after each step

Of TD3 only the twin critics are taken; neither smoothed target actions nor delayed actor updates are.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lakepond.agents import market_network as network
from lakepond.agents.market_network import Array, Params
from lakepond.envs.market_rules import Rules


class Settings(NamedTuple):
    """Settings of the learner; hashable, so that they can be static under jit."""

    rules: Rules
    critics: int = 2
    gamma: float = 0.9
    tau: float = 0.01
    actor_rate: float = 5e-4
    critic_rate: float = 1e-3
    clip: float = 10.0
    """largest norm of a gradient"""
    dtype: str = "float32"


class Learner(NamedTuple):
    """Everything that learns; a pytree."""

    actor: Params
    critics: Params
    """stacked: each array has a leading axis, one entry a critic"""
    actor_target: Params
    critics_target: Params
    actor_optimiser: Any
    critic_optimiser: Any


class Transitions(NamedTuple):
    """Steps from the replay, as the learner reads them: market days by index, positions as they were seen."""

    day: Any
    position: Any
    action: Any
    reward: Any
    """scaled"""
    next_day: Any
    next_position: Any
    terminated: Any


def _optimiser(rate: float, clip: float) -> optax.GradientTransformation:
    return optax.flatten(optax.chain(optax.clip_by_global_norm(clip), optax.adam(rate)))  # one long vector


def init(key: Array, inputs: int, width: int, settings: Settings) -> Learner:
    """A new learner; its targets are copies."""
    key_actor, key_critics = jax.random.split(key)
    actor = network.init_actor(key_actor, inputs, width)
    critics = jax.vmap(lambda k: network.init_critic(k, inputs, width))(
        jax.random.split(key_critics, settings.critics)
    )
    return Learner(
        actor,
        critics,
        actor,
        critics,
        _optimiser(settings.actor_rate, settings.clip).init(actor),
        _optimiser(settings.critic_rate, settings.clip).init(critics),
    )


def td_target(reward: Array, terminated: Array, next_values: Array, gamma: float) -> Array:
    """The target of Q; `next_values` (critics, batch), of which the smallest is used."""
    return reward + gamma * (1 - terminated.astype(jnp.float32)) * next_values.min(axis=0)


def critic_loss(values: Array, target: Array) -> Array:
    """Mean squared error of each critic (critics, batch) against one target (batch), averaged."""
    return ((values - target) ** 2).mean()


def moved(slow: Params, fast: Params, tau: float) -> Params:
    """A target network moved towards another one by the share `tau`."""
    new: Params = jax.tree.map(lambda s, f: s + tau * (f - s), slow, fast)
    return new


def update(
    learner: Learner, steps: Transitions, summaries: Array, settings: Settings
) -> tuple[Learner, dict[str, Array]]:
    """One gradient step on a batch; `summaries` of all days, read by index."""
    rules, dtype = settings.rules, jnp.dtype(settings.dtype)
    here, there = summaries[steps.day], summaries[steps.next_day]

    def q(critic: Params, summary: Array, position: Array, action: Array) -> Array:
        return network.value(critic, network.embed(critic, summary, dtype), position, action, rules)

    q_all = jax.vmap(q, in_axes=(0, None, None, None))
    next_embedding = network.embed(learner.actor_target, there, dtype)
    next_action = network.act(learner.actor_target, next_embedding, steps.next_position, rules)
    next_values = q_all(learner.critics_target, there, steps.next_position, next_action)
    target = td_target(steps.reward, steps.terminated, next_values, settings.gamma)

    def loss_of_critics(critics: Params) -> tuple[Array, Array]:
        values = q_all(critics, here, steps.position, steps.action)
        return critic_loss(values, target), values

    (loss, values), gradient = jax.value_and_grad(loss_of_critics, has_aux=True)(learner.critics)
    critic_optimiser = _optimiser(settings.critic_rate, settings.clip)
    change, critic_state = critic_optimiser.update(gradient, learner.critic_optimiser, learner.critics)
    critics = optax.apply_updates(learner.critics, change)

    first = jax.tree.map(lambda x: x[0], critics)
    first_embedding = network.embed(first, here, dtype)

    def loss_of_actor(actor: Params) -> Array:
        action = network.act(actor, network.embed(actor, here, dtype), steps.position, rules)
        return -network.value(first, first_embedding, steps.position, action, rules).mean()

    actor_loss, gradient = jax.value_and_grad(loss_of_actor)(learner.actor)
    actor_optimiser = _optimiser(settings.actor_rate, settings.clip)
    change, actor_state = actor_optimiser.update(gradient, learner.actor_optimiser, learner.actor)
    actor = optax.apply_updates(learner.actor, change)

    new = Learner(
        actor,
        critics,
        moved(learner.actor_target, actor, settings.tau),
        moved(learner.critics_target, critics, settings.tau),
        actor_state,
        critic_state,
    )
    return new, {"critic_loss": loss, "actor_loss": actor_loss, "q_mean": values.mean()}


@partial(jax.jit, static_argnames="settings")
def learn(
    learner: Learner, batches: Transitions, summaries: Array, settings: Settings
) -> tuple[Learner, dict[str, Array]]:
    """As many gradient steps as there are batches along the leading axis; metrics are their means."""

    def one(learner: Learner, steps: Transitions) -> tuple[Learner, dict[str, Array]]:
        return update(learner, steps, summaries, settings)

    learner, metrics = jax.lax.scan(one, learner, batches)
    return learner, jax.tree.map(jnp.mean, metrics)
