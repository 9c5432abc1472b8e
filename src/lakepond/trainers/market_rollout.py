"""Episodes on the market: one scan over days, all agents and all first days at once.

The market part of an observation depends on the day alone, so each agent embeds the days of an episode once,
in one large matmul outside the loop; inside it there are positions, the head and the rules.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lakepond.agents import market_network as network
from lakepond.agents.market_network import Array, Params
from lakepond.envs.market import functional
from lakepond.envs.market.functional import MarketState, Result
from lakepond.envs.market.world import World
from lakepond.envs.market_rules import Rules


class Episodes(NamedTuple):
    """Episodes with leading axes (agents, first days, trading days)."""

    day: Array
    next_day: Array
    position: Array
    """(..., trading days + 1, instruments, 4): before each step, and after the last"""
    action: Array
    result: Result


class Player(NamedTuple):
    """How episodes are played; hashable, so that it can be static under jit."""

    rules: Rules
    noise: float = 0.0
    """standard deviation of the noise on coefficients and sale targets, as a share of the range of each"""
    together: int = 1
    """episodes embedded at once: 1 is fastest on a CPU, many on an accelerator"""
    dtype: str = "float32"


def _embeddings(agents: Params, starts: Array, world: World, player: Player) -> Array:
    """(agents, first days, trading days, instruments, width)."""
    count, firsts = len(jax.tree.leaves(agents)[0]), len(starts)

    def one(index: Array) -> Array:
        agent = jax.tree.map(lambda x: x[index // firsts], agents)
        days = jax.lax.dynamic_slice_in_dim(
            world.summaries, starts[index % firsts], player.rules.trading_days
        )
        return network.embed(agent, days, jnp.dtype(player.dtype))

    flat: Array = jax.lax.map(one, jnp.arange(count * firsts), batch_size=player.together)
    return flat.reshape(count, firsts, *flat.shape[1:])


def _scan(
    agent: Params, embedding: Array, start: Array, noise: Array | None, world: World, player: Player
) -> tuple[MarketState, tuple[Array, Array, Array, Array, Result]]:
    """One agent, one episode."""
    rules = player.rules
    low, high = jnp.array([0.0, rules.target_low]), jnp.array([1.0, rules.target_high])

    def one(
        state: MarketState, seen: tuple[Array, Array | None]
    ) -> tuple[MarketState, tuple[Array, Array, Array, Array, Result]]:
        embedded, moved = seen
        position = functional.position(world.prices, rules, state)
        action = network.act(agent, embedded, position, rules)
        if moved is not None:
            free = jnp.stack([network.may_buy(position), jnp.ones_like(position[:, 0])], axis=-1)
            action = jnp.clip(action + player.noise * (high - low) * moved, low, high) * free
        after, result = functional.step(world.prices, rules, state, action)
        return after, (state.day, after.day, position, action, result)

    return jax.lax.scan(one, functional.reset(world.prices, rules, start), (embedding, noise))


@partial(jax.jit, static_argnums=1)
def noise(key: Array, shape: tuple[int, ...]) -> Array:
    """Standard normal noise for the actions of (agents, first days, trading days, instruments, 2)."""
    return jax.random.normal(key, shape)


@partial(jax.jit, static_argnames="player")
def play(agents: Params, starts: Array, noise: Array | None, world: World, player: Player) -> Episodes:
    """All that happens, for recording or inspection; an agent acts the same beside any other agents."""

    def one(agent: Params, embedding: Array, start: Array, noise: Array | None) -> Episodes:
        last, (day, next_day, position, action, result) = _scan(agent, embedding, start, noise, world, player)
        end = functional.position(world.prices, player.rules, last)
        return Episodes(day, next_day, jnp.concatenate([position, end[None]]), action, result)

    embeddings = _embeddings(agents, starts, world, player)
    over_starts = jax.vmap(one, in_axes=(None, 0, 0, 0))
    return jax.vmap(over_starts, in_axes=(0, 0, None, 0))(agents, embeddings, starts, noise)


@partial(jax.jit, static_argnames="player")
def rewards(agents: Params, starts: Array, world: World, player: Player) -> Array:
    """The rewards of each agent from each first day on, without noise, (trading days, agents, first days)."""

    def one(agent: Params, embedding: Array, start: Array) -> Array:
        _, (*_, result) = _scan(agent, embedding, start, None, world, player)
        return result.reward

    over_starts = jax.vmap(one, in_axes=(None, 0, 0), out_axes=1)
    embeddings = _embeddings(agents, starts, world, player)
    return jax.vmap(over_starts, in_axes=(0, 0, None), out_axes=1)(agents, embeddings, starts)


@jax.jit
def totals(rewards: Array) -> Array:
    """Sums over the trading days, (agents, first days).

    A program of its own: the order in which XLA adds depends on the number of agents, so the rewards of a
    population are added in one call, wherever its agents played.
    """
    return rewards.sum(axis=0)
