"""PQN that replays: every pass is partly the fresh rollout and partly sequences drawn from all history.

    seen = pqn.collect(state)                                          act for a rollout
    history = memory.add(history, seen.rollout)
    state, metrics = learn(pqn, state, seen, partial(memory.draw, history), share=0.5)

The lambda-returns of both parts are computed before each pass with the current weights; there is no target
network. A pass has as many steps as a rollout, so gradient samples are the same for every share. With a share
of 0 nothing is drawn, and only the targets are recomputed.

History is two device ponds. `recent` holds all steps since the last fill, one lane per environment. `filled`
is a uniform sample of the `older` steps in the lake, loaded at the last fill (`flow.device_fill`). A
sequence comes from `recent` with the probability of its share of all steps, so every step of the history is
equally likely, whether all of it fits the device or not. A `rewarded` share of the sequences is drawn
otherwise: they contain a step with a reward, and each such step of the history is equally likely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from lakepond.agents.networks import Params
from lakepond.agents.pqn import PQN, Collected, PQNMetrics, PQNState, Rollout
from lakepond.pond.device import Added, DevicePond, PondState, Sequences

Draw = Callable[[jax.Array, int, int], Sequences]
"""from a key, a number of sequences and their length"""


def learn(
    pqn: PQN, state: PQNState, seen: Collected, draw: Draw | None = None, *, share: float = 0.0
) -> tuple[PQNState, PQNMetrics]:
    """One update from a rollout and, for a `share` of the sequences of each pass, from history."""
    settings, rollout = pqn.settings, seen.rollout
    fresh = Sequences(
        rollout.obs, rollout.action, rollout.reward, rollout.next_obs, rollout.terminated, rollout.truncated
    )
    replayed = replayed_lanes(settings.envs, share)
    rate = pqn.rate(state)

    def one_pass(
        carry: tuple[Params, optax.OptState], key: jax.Array
    ) -> tuple[tuple[Params, optax.OptState], tuple[jax.Array, jax.Array]]:
        params, optimiser = carry
        key_lanes, key_draw, key_order = jax.random.split(key, 3)
        mixed = fresh
        if draw is not None and replayed:
            lanes = jax.random.permutation(key_lanes, settings.envs)[replayed:]
            past = draw(key_draw, replayed, settings.rollout)
            mixed = jax.tree.map(lambda new, old: jnp.concatenate([new[:, lanes], old], 1), fresh, past)
        values = pqn.network.apply(params, mixed.next_obs.reshape(-1, *mixed.next_obs.shape[2:]))
        value = values.max(-1).reshape(mixed.reward.shape)
        target = pqn.returns(mixed.reward, mixed.terminated, mixed.cut, value)
        data = mixed.obs, mixed.action, target
        params, optimiser, loss, gradient = pqn.descend(
            params, optimiser, data, pqn.shuffled(key_order), rate
        )
        return (params, optimiser), (loss, gradient)

    keys = jax.random.split(pqn.key_learn(state), settings.epochs)
    (params, optimiser), (loss, gradient) = jax.lax.scan(one_pass, (state.params, state.optimiser), keys)
    return pqn.updated(state, seen, params, optimiser, loss.mean(), gradient.mean())


def replayed_lanes(envs: int, share: float) -> int:
    """How many of the `envs` sequences of a pass come from history: at least one, unless `share` is 0."""
    return max(1, round(envs * share)) if share else 0


def as_added(rollout: Rollout) -> Added:
    """The steps of a rollout, as a device pond takes them."""
    return Added(**{name: getattr(rollout, name) for name in Added._fields})


class HistoryState(NamedTuple):
    """The steps of a run so far, on the device."""

    recent: PondState
    """all steps since the last fill"""
    filled: PondState
    """a uniform sample of the steps before them"""
    older: jax.Array
    """the number of steps that `filled` is a sample of; 0: it is empty"""


@dataclass(frozen=True)
class HistoryPonds:
    """The two ponds of a history, and pure functions on its state."""

    recent: DevicePond
    filled: DevicePond
    rewarded: float = 0.0
    """share of the sequences that are drawn by a reward that they contain"""

    def add(self, history: HistoryState, rollout: Rollout) -> HistoryState:
        """Add a rollout, (steps, lanes, ...)."""
        return history._replace(recent=self.recent.add(history.recent, as_added(rollout)))

    def draw(self, history: HistoryState, key: jax.Array, count: int, length: int) -> Sequences:
        """Draw `count` sequences of `length` steps; see `DevicePond.sample_windows`."""
        rewarded = round(self.rewarded * count)
        if rewarded in (0, count):
            return self._draw(history, key, count, length, rewarded=rewarded > 0)
        key_rewarded, key_any = jax.random.split(key)
        some = self._draw(history, key_rewarded, rewarded, length, rewarded=True)
        rest = self._draw(history, key_any, count - rewarded, length, rewarded=False)
        return Sequences(*(jnp.concatenate(both, axis=1) for both in zip(some, rest, strict=True)))

    def _draw(
        self, history: HistoryState, key: jax.Array, count: int, length: int, *, rewarded: bool
    ) -> Sequences:
        key_which, key_recent, key_filled = jax.random.split(key, 3)
        recent = self.recent.sample_windows(history.recent, key_recent, count, length, rewarded=rewarded)
        filled = self.filled.sample_windows(history.filled, key_filled, count, length, rewarded=rewarded)
        new, older = self.recent.held(history.recent), history.older
        if rewarded:
            each = older / jnp.maximum(self.filled.held(history.filled), 1)  # steps that one stands for
            rewards = self.recent.rewarded_steps(history.recent).block.sum()
            earlier = self.filled.rewarded_steps(history.filled).block.sum() * each
            some = rewards + earlier > 0
            new, older = jnp.where(some, rewards, new), jnp.where(some, earlier, older)
        is_new = jax.random.uniform(key_which, (count,)) * (new + older) < new

        def chosen(one: jax.Array, other: jax.Array) -> jax.Array:
            return jnp.where(is_new.reshape(1, count, *[1] * (one.ndim - 2)), one, other)

        return Sequences(*map(chosen, recent, filled))
