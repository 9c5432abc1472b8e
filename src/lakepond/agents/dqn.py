"""DQN from any `Batch`: double, dueling (a network's setting), n-step (the batch's), target network.

    target = r + discount * Q_target(s', argmax_a Q(s', a))      double (van Hasselt et al. 2016)
    target = r + discount * max_a Q_target(s', a)                as it began (Mnih et al. 2015)

The batch brings the n-step reward and `discount`, which is gamma ** steps, and 0 where the game was over.
With a teacher the loss has a second term, which pulls the policy towards the teacher's (QDagger, Agarwal et
al. 2022): `distill` times KL(teacher, agent) of softmax(Q / temperature).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lakepond.agents import fleet
from lakepond.agents.networks import Network, Params
from lakepond.types import Batch


@dataclass(frozen=True)
class DQNSettings:
    """How the big agent learns."""

    batch: int = 256
    """transitions a gradient step; small ones hurt"""
    learning_rate: float = 3e-4
    """of Adam"""
    max_gradient: float = 10.0
    """the gradient's norm is cut to this"""
    target_every: int = 500
    """gradient steps between copies to the target network"""
    double: bool = True
    """choose the next action by the online network, value it by the target network"""
    distill: float = 0.0
    """weight of the pull towards a teacher's policy, where there is one"""
    temperature: float = 0.1
    """of the policies in that"""


class DQNState(NamedTuple):
    """The complete state of the agent."""

    params: Params
    target: Params
    optimiser: optax.OptState
    updates: jax.Array


class DQNMetrics(NamedTuple):
    """Metrics of one gradient step."""

    loss: jax.Array
    value: jax.Array
    gradient: jax.Array


@dataclass(frozen=True)
class DQN:
    """The algorithm for one network; nothing here changes."""

    network: Network
    settings: DQNSettings
    spread: bool = False
    """divide each batch among the devices; the values stay the same"""

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam on a gradient of bounded norm."""
        return optax.chain(
            optax.clip_by_global_norm(self.settings.max_gradient),
            optax.adam(self.settings.learning_rate, eps=1e-5),
        )

    def init(self, params: Params) -> DQNState:
        """An agent that starts from these parameters, with a fresh optimiser."""
        target = jax.tree.map(jnp.copy, params)  # its own memory: a state may be donated
        return DQNState(params, target, self.optimiser.init(params), jnp.int32(0))

    def update(
        self,
        state: DQNState,
        batch: Batch,
        *,
        rate: jax.Array | float = 1.0,
        teacher: Params | None = None,
    ) -> tuple[DQNState, jax.Array, DQNMetrics]:
        """One gradient step; also the TD errors, for priorities. `rate`: share of the learning rate."""
        batch = fleet.spread(batch) if self.spread else batch
        (loss, (error, value)), gradient = jax.value_and_grad(self.loss, has_aux=True)(
            state.params, state.target, batch, teacher
        )
        change, optimiser = self.optimiser.update(gradient, state.optimiser, state.params)
        params = jax.tree.map(lambda p, c: p + rate * c, state.params, change)
        updates = state.updates + 1
        target = jax.lax.cond(updates % self.settings.target_every == 0, lambda: params, lambda: state.target)
        metrics = DQNMetrics(loss, value, optax.tree.norm(gradient))
        return DQNState(params, target, optimiser, updates), error, metrics

    def loss(
        self, params: Params, target: Params, batch: Batch, teacher: Params | None = None
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Weighted Huber loss, and the distance to a teacher; also the TD errors and the mean value."""
        values = self.network.apply(params, batch.obs)
        chosen = jnp.take_along_axis(values, batch.action[:, None], axis=-1)[:, 0]
        wanted = self.targets(params, target, batch)
        error = chosen - jax.lax.stop_gradient(wanted)
        loss = (batch.weight * optax.huber_loss(error)).mean()
        if teacher is not None and self.settings.distill:
            taught = self.network.apply(teacher, batch.obs)
            loss = loss + self.settings.distill * self.distance(values, taught)
        return loss, (error, values.max(-1).mean())

    def distance(self, values: jax.Array, taught: jax.Array) -> jax.Array:
        """How far a policy is from another, by the values of each: the mean of KL(other, policy)."""
        theirs = jax.nn.log_softmax(jax.lax.stop_gradient(taught) / self.settings.temperature)
        ours = jax.nn.log_softmax(values / self.settings.temperature)
        return (jnp.exp(theirs) * (theirs - ours)).sum(-1).mean()

    def targets(self, params: Params, target: Params, batch: Batch) -> jax.Array:
        """The targets of the values of the actions taken."""
        later = self.network.apply(target, batch.next_obs)
        if self.settings.double:
            best = self.network.apply(params, batch.next_obs).argmax(-1)
            value = jnp.take_along_axis(later, best[:, None], axis=-1)[:, 0]
        else:
            value = later.max(-1)
        return jnp.asarray(batch.reward) + jnp.asarray(batch.discount) * value


def with_moments(fresh: optax.OptState, other: optax.OptState) -> optax.OptState:
    """An optimiser state with the Adam moments and the count of another one."""
    moments = [s for s in jax.tree.leaves(other, is_leaf=_is_adam) if _is_adam(s)]
    return jax.tree.map(lambda s: moments[0] if _is_adam(s) else s, fresh, is_leaf=_is_adam)


def _is_adam(state: Any) -> bool:
    return isinstance(state, optax.ScaleByAdamState)
