"""PQN: Q-learning online from many copies of an environment (Gallici et al. 2024, arXiv 2407.04811).

No replay and no target network; LayerNorm in the network and returns over a whole rollout take their place:

    G_t = r_t + gamma * (lambda * G_t+1 + (1 - lambda) * max_a Q(s_t+1, a))      within an episode
    G_t = r_t + gamma * max_a Q(s_t+1, a)                                        at a rollout's or time's end
    G_t = r_t                                                                    where the game is over

One `update` is a rollout of every copy, then some epochs of minibatches on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lakepond.agents import fleet
from lakepond.agents.epsilon import Epsilon, EpsilonState
from lakepond.agents.networks import Network, Params
from lakepond.agents.settings import PQNSettings
from lakepond.envs.vector import Environment, EnvState


class PQNState(NamedTuple):
    """The complete state of an agent, including its environments."""

    params: Params
    optimiser: optax.OptState
    env: EnvState
    epsilon: EpsilonState
    updates: jax.Array
    key: jax.Array


class Rollout(NamedTuple):
    """The steps of all environments, (steps, environments, ...)."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    """the true one"""
    terminated: jax.Array
    truncated: jax.Array
    reset_obs: jax.Array
    """the observation of the next action: the first of a new episode where this one ended"""


class Collected(NamedTuple):
    """The result of acting for one rollout."""

    env: EnvState
    rollout: Rollout
    value: jax.Array
    """highest action value of each true next observation, (steps, copies)"""
    epsilon: jax.Array
    score: jax.Array
    """sum of the scores of the episodes that ended"""
    episodes: jax.Array
    """how many ended"""


class PQNMetrics(NamedTuple):
    """Metrics of one update."""

    loss: jax.Array
    value: jax.Array
    """mean of the highest action value"""
    gradient: jax.Array
    """its norm, before it is cut"""
    epsilon: jax.Array
    score: jax.Array
    """sum of the scores of the episodes that ended"""
    episodes: jax.Array
    """how many ended"""

    @classmethod
    def zero(cls) -> PQNMetrics:
        """Zeros, to which metrics are added."""
        zero = jnp.float32(0.0)
        return cls(zero, zero, zero, zero, zero, jnp.int32(0))


@dataclass(frozen=True)
class PQN:
    """The algorithm for one environment and network; nothing here changes."""

    env: Environment
    network: Network
    epsilon: Epsilon
    settings: PQNSettings
    total_updates: int
    """over which the learning rate falls to 0"""
    spread: bool = False
    """divide the environments and minibatches among all devices; for one agent on a device's environments"""

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """All but the learning rate, which follows the run and not the optimiser's own count."""
        return optax.chain(optax.clip_by_global_norm(self.settings.max_gradient), optax.scale_by_radam())

    def init(self, key: jax.Array) -> PQNState:
        """A new agent."""
        key_params, key_env, key_run = jax.random.split(key, 3)
        params = self.network.init(key_params)
        return PQNState(
            params=params,
            optimiser=self.optimiser.init(params),
            env=self.env.reset(key_env, self.settings.envs),
            epsilon=self.epsilon.init(),
            updates=jnp.int32(0),
            key=key_run,
        )

    def update(self, state: PQNState, agent: jax.Array | int = 0) -> tuple[PQNState, Rollout, PQNMetrics]:
        """Act for one rollout and learn from it."""
        seen = self.collect(state, agent)
        rollout = seen.rollout
        target = self.returns(rollout.reward, rollout.terminated, rollout.truncated, seen.value)
        keys = jax.random.split(self.key_learn(state), self.settings.epochs)
        orders = jnp.concatenate([self.shuffled(key) for key in keys])
        data = rollout.obs, rollout.action, target
        learned = self.descend(state.params, state.optimiser, data, orders, self.rate(state))
        state, metrics = self.updated(state, seen, *learned)
        return state, rollout, metrics

    def returns(self, *steps: jax.Array) -> jax.Array:
        """The targets of reward, terminated, truncated and value of each step: see `lambda_returns`."""
        return lambda_returns(*steps, gamma=self.settings.gamma, lam=self.settings.lam)

    def key_learn(self, state: PQNState) -> jax.Array:
        """The key of what is learned in the next update."""
        return jax.random.split(state.key, 3)[2]

    def rate(self, state: PQNState) -> jax.Array:
        """The learning rate of the next update."""
        return self.settings.learning_rate * jnp.maximum(1.0 - state.updates / self.total_updates, 0.0)

    def shuffled(self, key: jax.Array) -> jax.Array:
        """The steps of one epoch in random order, (minibatches, steps)."""
        return jax.random.permutation(key, self.settings.update_steps).reshape(self.settings.minibatches, -1)

    def updated(
        self,
        state: PQNState,
        seen: Collected,
        params: Params,
        optimiser: optax.OptState,
        loss: jax.Array,
        gradient: jax.Array,
    ) -> tuple[PQNState, PQNMetrics]:
        """The agent after an update, and its metrics."""
        new = PQNState(
            params=params,
            optimiser=optimiser,
            env=seen.env,
            epsilon=self.epsilon.advance(state.epsilon, self.settings.update_steps),
            updates=state.updates + 1,
            key=jax.random.split(state.key, 3)[0],
        )
        metrics = PQNMetrics(loss, seen.value.mean(), gradient, seen.epsilon, seen.score, seen.episodes)
        return new, metrics

    def collect(self, state: PQNState, agent: jax.Array | int = 0) -> Collected:
        """Act for one rollout."""
        params = state.params
        epsilon = self.epsilon.value(state.epsilon, agent)

        def best(obs: jax.Array) -> jax.Array:
            return self.network.apply(params, obs).max(-1)

        def step(env: EnvState, key: jax.Array) -> tuple[EnvState, tuple[Any, ...]]:
            key_act, key_env = jax.random.split(key)
            values = self.network.apply(params, env.obs)
            action = act(values, epsilon, key_act)
            after, seen = self.env.step(env, action, key_env)
            # time ends seldom: only then is the value of an episode's last observation worth a pass
            cut = jax.lax.cond(seen.truncated.any(), best, lambda obs: jnp.zeros(obs.shape[0]), seen.next_obs)
            flags = seen.terminated, seen.truncated
            rollout = Rollout(env.obs, action, seen.reward, seen.next_obs, *flags, reset_obs=after.obs)
            score, episodes = (seen.score * seen.over).sum(), seen.over.sum()
            return after, (rollout, values.max(-1), cut, score, episodes)

        keys = jax.random.split(jax.random.split(state.key, 3)[1], self.settings.rollout)
        env = fleet.spread(state.env) if self.spread else state.env
        env, (rollout, value, cut, score, episodes) = jax.lax.scan(step, env, keys)
        following = jnp.concatenate([value[1:], best(env.obs)[None]])
        value = jnp.where(rollout.truncated, cut, following)
        return Collected(env, rollout, value, epsilon, score.sum(), episodes.sum())

    def descend(
        self,
        params: Params,
        optimiser: optax.OptState,
        data: tuple[jax.Array, jax.Array, jax.Array],
        orders: jax.Array,
        rate: jax.Array,
    ) -> tuple[Params, optax.OptState, jax.Array, jax.Array]:
        """Gradient steps on minibatches of (obs, action, target), each (steps, copies, ...).

        orders: (gradient steps, minibatch), places in the flattened data. Returns parameters, optimiser, and
        the means of the loss and of the gradient's norm.
        """
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)

        def minibatch(
            carry: tuple[Params, optax.OptState], chosen: jax.Array
        ) -> tuple[tuple[Params, optax.OptState], tuple[jax.Array, jax.Array]]:
            params, optimiser = carry
            batch = jax.tree.map(lambda x: x[chosen], flat)
            obs, action, wanted = fleet.spread(batch) if self.spread else batch
            loss, gradient = jax.value_and_grad(self.loss)(params, obs, action, wanted)
            change, optimiser = self.optimiser.update(gradient, optimiser, params)
            params = jax.tree.map(lambda p, c: p - rate * c, params, change)
            return (params, optimiser), (loss, optax.tree.norm(gradient))

        (params, optimiser), (loss, norm) = jax.lax.scan(minibatch, (params, optimiser), orders)
        return params, optimiser, loss.mean(), norm.mean()

    def loss(self, params: Params, obs: jax.Array, action: jax.Array, target: jax.Array) -> jax.Array:
        """Half the mean squared error of the values of the actions taken."""
        values = self.network.apply(params, obs)
        chosen = jnp.take_along_axis(values, action[:, None], axis=-1)[:, 0]
        return 0.5 * ((chosen - target) ** 2).mean()


def act(values: jax.Array, epsilon: jax.Array | float, key: jax.Array) -> jax.Array:
    """The best action, or with probability epsilon any."""
    key_whether, key_which = jax.random.split(key)
    anything = jax.random.randint(key_which, values.shape[:-1], 0, values.shape[-1])
    explores = jax.random.uniform(key_whether, values.shape[:-1]) < epsilon
    return jnp.where(explores, anything, values.argmax(-1)).astype(jnp.int32)


def lambda_returns(
    reward: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    value: jax.Array,
    *,
    gamma: float,
    lam: float,
) -> jax.Array:
    """The lambda returns, (steps, environments): the targets of the values.

    `value`: of the true next observation of each step. The last step of a rollout has nothing measured
    after it, so its whole tail is estimated, with the value of that step's own next observation.
    """

    def backwards(
        later: jax.Array, step: tuple[jax.Array, jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        reward, terminated, truncated, value = step
        tail = jnp.where(truncated, value, lam * later + (1.0 - lam) * value)
        found = reward + gamma * jnp.where(terminated, 0.0, tail)
        return found, found

    _, returns = jax.lax.scan(backwards, value[-1], (reward, terminated, truncated, value), reverse=True)
    return returns
