"""A population is one pytree whose arrays have a leading axis, one entry an agent; operators are pure.

    ranked by fitness ──┬── elites      the best, as they are
                        ├── children    blends of two winners of tournaments
                        └── mutants     winners of tournaments, some weights moved

Randomness is handed over; the same key and fitness give the same next generation.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.agents.fleet import pick

Array = jax.Array
Tree = Any


class Sizes(NamedTuple):
    """Number of elites, children and mutants of the next generation."""

    elites: int
    children: int
    mutants: int

    @property
    def total(self) -> int:
        """The size of the population."""
        return self.elites + self.children + self.mutants


class Parents(NamedTuple):
    """How the parents of the next generation are selected and combined."""

    tournament: int
    """agents drawn for each parent; the fittest is taken"""
    blend: tuple[float, float]
    """range of the share that a child has of its first parent"""


def put(population: Tree, index: int, agent: Tree) -> Tree:
    """The population with one agent replaced."""
    return jax.tree.map(lambda x, y: x.at[index].set(y), population, agent)


def ranking(fitness: Array) -> Array:
    """Numbers of the agents, best first; a tie goes to the lower number, NaN comes last."""
    return jnp.argsort(-jnp.where(jnp.isnan(fitness), -jnp.inf, fitness), stable=True)


def tournament(key: Array, fitness: Array, rounds: int, k: int = 3) -> Array:
    """The winners of `rounds` tournaments, each the fittest of k drawn with replacement."""
    drawn = jax.random.randint(key, (rounds, k), 0, len(fitness))
    known = jnp.where(jnp.isnan(fitness), -jnp.inf, fitness)
    return drawn[jnp.arange(rounds), jnp.argmax(known[drawn], axis=1)]


def blend(mothers: Tree, fathers: Tree, alpha: Array) -> Tree:
    """Children, alpha * mother + (1 - alpha) * father, with one alpha per pair."""

    def mix(a: Array, b: Array) -> Array:
        share = alpha.reshape(-1, *(1,) * (a.ndim - 1))
        return share * a + (1 - share) * b

    return jax.tree.map(mix, mothers, fathers)


def mutate(key: Array, agents: Tree, rate: float | Array, std: float | Array) -> Tree:
    """Add normal noise of that std to each weight with probability `rate`."""
    leaves, form = jax.tree.flatten(agents)
    sizes = [leaf.size for leaf in leaves]
    key_which, key_how = jax.random.split(key)  # one draw for all weights: it compiles in a tenth of the time
    which = jax.random.bernoulli(key_which, rate, (sum(sizes),))
    change = jnp.split(which * std * jax.random.normal(key_how, (sum(sizes),)), np.cumsum(sizes)[:-1])
    moved = [leaf + part.reshape(leaf.shape) for leaf, part in zip(leaves, change, strict=True)]
    return jax.tree.unflatten(form, moved)


@partial(jax.jit, static_argnames=("sizes", "parents"))
def evolve(
    key: Array,
    population: Tree,
    fitness: Array,
    sizes: Sizes,
    rate: float | Array,
    std: float | Array,
    parents: Parents,
) -> Tree:
    """The next generation: elites, then children, then mutants."""
    key_mothers, key_fathers, key_alpha, key_winners, key_mutate = jax.random.split(key, 5)
    k, (low, high) = parents
    elites = pick(population, ranking(fitness)[: sizes.elites])
    children = blend(
        pick(population, tournament(key_mothers, fitness, sizes.children, k)),
        pick(population, tournament(key_fathers, fitness, sizes.children, k)),
        jax.random.uniform(key_alpha, (sizes.children,), minval=low, maxval=high),
    )
    winners = pick(population, tournament(key_winners, fitness, sizes.mutants, k))
    mutants = mutate(key_mutate, winners, rate, std)
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), elites, children, mutants)
