"""PQN: Q-learning online from many copies of an environment (Gallici et al. 2024, arXiv 2407.04811).

No replay and no target network; LayerNorm in the network and returns over a whole rollout take their place:

    G_t = r_t + gamma * (lambda * G_t+1 + (1 - lambda) * max_a Q(s_t+1, a))      within an episode
    G_t = r_t + gamma * max_a Q(s_t+1, a)                                        at a rollout's or time's end
    G_t = r_t                                                                    where the game is over

One `update` is a rollout of every copy, then some epochs of minibatches on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from lakepond.agents.epsilon import Epsilon, EpsilonState
from lakepond.agents.networks import Network, Params
from lakepond.agents.settings import PQNSettings
from lakepond.envs.vector import Environment, EnvState


class PQNState(NamedTuple):
    """All that an agent is, its environments included."""

    params: Params
    optimiser: optax.OptState
    env: EnvState
    epsilon: EpsilonState
    updates: jax.Array
    key: jax.Array


class Rollout(NamedTuple):
    """What every copy saw, (steps, copies, ...)."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    """the true one"""
    terminated: jax.Array
    truncated: jax.Array
    reset_obs: jax.Array
    """the observation of the next action: the first of a new episode where this one ended"""


class PQNMetrics(NamedTuple):
    """Of one update."""

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
        """To sum up from."""
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
        """One rollout, and what is learned from it."""
        key_next, key_rollout, key_shuffle = jax.random.split(state.key, 3)
        epsilon = self.epsilon.value(state.epsilon, agent)
        env, rollout, value, score, episodes = self._rollout(state.params, state.env, epsilon, key_rollout)
        target = lambda_returns(
            rollout.reward,
            rollout.terminated,
            rollout.truncated,
            value,
            gamma=self.settings.gamma,
            trace=self.settings.trace,
        )
        params, optimiser, loss, gradient = self._learn(state, rollout, target, key_shuffle)
        new = PQNState(
            params=params,
            optimiser=optimiser,
            env=env,
            epsilon=self.epsilon.advance(state.epsilon, self.settings.frames),
            updates=state.updates + 1,
            key=key_next,
        )
        return new, rollout, PQNMetrics(loss, value.mean(), gradient, epsilon, score, episodes)

    def _rollout(
        self, params: Params, env: EnvState, epsilon: jax.Array, key: jax.Array
    ) -> tuple[EnvState, Rollout, jax.Array, jax.Array, jax.Array]:
        """Also the highest value of each true next observation, and the sum and number of final scores."""

        def best(obs: jax.Array) -> jax.Array:
            return self.network.apply(params, obs).max(-1)

        def step(env: EnvState, key: jax.Array) -> tuple[EnvState, tuple[jax.Array, ...]]:
            key_act, key_env = jax.random.split(key)
            values = self.network.apply(params, env.obs)
            action = act(values, epsilon, key_act)
            after, seen = self.env.step(env, action, key_env)
            # time ends seldom: only then is the value of an episode's last observation worth a pass
            cut = jax.lax.cond(seen.truncated.any(), best, lambda obs: jnp.zeros(obs.shape[0]), seen.next_obs)
            return after, (
                env.obs,
                action,
                seen.reward,
                seen.next_obs,
                seen.terminated,
                seen.truncated,
                values.max(-1),
                cut,
                (seen.score * seen.over).sum(),
                seen.over.sum(),
            )

        env, seen = jax.lax.scan(step, env, jax.random.split(key, self.settings.rollout))
        obs, action, reward, next_obs, terminated, truncated, value, cut, score, episodes = seen
        following = jnp.concatenate([value[1:], best(env.obs)[None]])
        reset_obs = jnp.concatenate([obs[1:], env.obs[None]])
        rollout = Rollout(obs, action, reward, next_obs, terminated, truncated, reset_obs)
        return env, rollout, jnp.where(truncated, cut, following), score.sum(), episodes.sum()

    def _learn(
        self, state: PQNState, rollout: Rollout, target: jax.Array, key: jax.Array
    ) -> tuple[Params, optax.OptState, jax.Array, jax.Array]:
        settings = self.settings
        size = settings.frames
        rate = settings.learning_rate * jnp.maximum(1.0 - state.updates / self.total_updates, 0.0)
        data = jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), (rollout.obs, rollout.action, target))

        def minibatch(
            carry: tuple[Params, optax.OptState], chosen: jax.Array
        ) -> tuple[tuple[Params, optax.OptState], tuple[jax.Array, jax.Array]]:
            params, optimiser = carry
            obs, action, wanted = jax.tree.map(lambda x: x[chosen], data)
            loss, gradient = jax.value_and_grad(self.loss)(params, obs, action, wanted)
            change, optimiser = self.optimiser.update(gradient, optimiser, params)
            params = jax.tree.map(lambda p, c: p - rate * c, params, change)
            return (params, optimiser), (loss, optax.tree.norm(gradient))

        orders = jnp.concatenate(
            [jax.random.permutation(k, size) for k in jax.random.split(key, settings.epochs)]
        ).reshape(settings.epochs * settings.minibatches, -1)
        (params, optimiser), (loss, norm) = jax.lax.scan(minibatch, (state.params, state.optimiser), orders)
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
    trace: float,
) -> jax.Array:
    """The returns to learn from, (steps, copies).

    `value`: of the true next observation of each step. The last step of a rollout has nothing measured
    after it, so its whole tail is estimated, with the value of that step's own next observation.
    """

    def backwards(
        later: jax.Array, step: tuple[jax.Array, jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        reward, terminated, truncated, value = step
        tail = jnp.where(truncated, value, trace * later + (1.0 - trace) * value)
        found = reward + gamma * jnp.where(terminated, 0.0, tail)
        return found, found

    _, returns = jax.lax.scan(backwards, value[-1], (reward, terminated, truncated, value), reverse=True)
    return returns
