"""The operators of evolution, against numbers worked by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.agents import fleet, population
from lakepond.agents.population import Sizes

PARENTS = population.Parents(tournament=3, blend=(0.2, 0.8))
EVOLVE = jax.jit(partial(population.evolve, parents=PARENTS), static_argnums=3)


def agents(count: int = 4) -> dict:
    """Every weight of agent i is i."""
    numbers = jnp.arange(count, dtype=jnp.float32)
    return {"w": jnp.tile(numbers[:, None, None], (1, 3, 2)), "b": jnp.tile(numbers[:, None], (1, 2))}


def test_the_ranking_puts_the_fittest_first_a_tie_by_number_and_nan_last():
    fitness = jnp.array([1.0, 5.0, jnp.nan, 5.0, 3.0])
    assert population.ranking(fitness).tolist() == [1, 3, 4, 0, 2]


def test_a_tournament_is_won_by_the_fittest_of_those_drawn():
    fitness = jnp.array([0.0, 10.0, 20.0, jnp.nan])
    key = jax.random.key(3)
    drawn = np.asarray(jax.random.randint(key, (200, 3), 0, 4))
    known = np.array([0.0, 10.0, 20.0, -np.inf])
    by_hand = [row[np.argmax(known[row])] for row in drawn]
    assert population.tournament(key, fitness, 200, 3).tolist() == by_hand


def test_a_tournament_of_one_is_a_uniform_draw_and_a_large_one_elitist():
    fitness = jnp.arange(8.0)
    one = np.asarray(population.tournament(jax.random.key(0), fitness, 8000, 1))
    assert np.abs(np.bincount(one, minlength=8) - 1000).max() < 150
    large = np.asarray(population.tournament(jax.random.key(0), fitness, 100, 60))
    assert (large == 7).mean() > 0.98


def test_a_blend_takes_alpha_of_the_mother_and_the_rest_of_the_father():
    mothers, fathers = (fleet.pick(agents(), jnp.array(pair)) for pair in ([1, 2], [3, 0]))
    children = population.blend(mothers, fathers, jnp.array([0.25, 0.5]))
    np.testing.assert_allclose(children["w"][0], 0.25 * 1 + 0.75 * 3)
    np.testing.assert_allclose(children["b"][0], 2.5)
    np.testing.assert_allclose(children["w"][1], 0.5 * 2 + 0.5 * 0)


@pytest.mark.parametrize(("rate", "std"), [(0.2, 0.025), (0.9, 1.0)])
def test_mutation_moves_that_share_of_the_weights_that_far(rate, std):
    before = {"w": jnp.ones((2, 300, 50)), "b": jnp.ones((2, 40))}
    after = population.mutate(jax.random.key(1), before, rate, std)
    change = np.concatenate([np.asarray(after[k] - before[k]).ravel() for k in ("w", "b")])
    assert (change != 0).mean() == pytest.approx(rate, abs=0.02)
    assert change[change != 0].std() == pytest.approx(std, rel=0.05)
    assert abs(change.mean()) < 4 * std / np.sqrt(len(change))


def test_no_rate_no_mutation():
    after = population.mutate(jax.random.key(1), agents(), 0.0, 1.0)
    np.testing.assert_array_equal(after["w"], agents()["w"])


def test_a_generation_is_elites_then_children_then_mutants():
    fitness = jnp.array([3.0, 0.0, 9.0, 1.0, 2.0, 4.0])
    made = EVOLVE(jax.random.key(5), agents(6), fitness, Sizes(2, 3, 1), 0.0, 1.0)
    assert made["b"].shape == (6, 2)
    assert made["b"][:2, 0].tolist() == [2.0, 5.0]  # agents 2 and 5 are the fittest, as they were
    keys = jax.random.split(jax.random.key(5), 5)
    mothers = population.tournament(keys[0], fitness, 3).tolist()
    fathers = population.tournament(keys[1], fitness, 3).tolist()
    alpha = np.asarray(jax.random.uniform(keys[2], (3,), minval=0.2, maxval=0.8))
    by_hand = [a * m + (1 - a) * f for a, m, f in zip(alpha, mothers, fathers, strict=True)]
    np.testing.assert_allclose(made["b"][2:5, 0], by_hand, rtol=1e-6)
    assert made["b"][5, 0] == population.tournament(keys[3], fitness, 1)[0]  # with rate 0 as the winner was
    assert ((alpha >= 0.2) & (alpha <= 0.8)).all()


def test_the_same_key_makes_the_same_generation_and_another_does_not():
    fitness = jnp.arange(6.0)
    one, same, other = (
        EVOLVE(jax.random.key(k), agents(6), fitness, Sizes(2, 2, 2), 0.5, 0.1) for k in (1, 1, 2)
    )
    np.testing.assert_array_equal(one["w"], same["w"])
    assert not np.array_equal(one["w"], other["w"])


def test_put_replaces_one_agent_and_no_other():
    made = population.put(agents(), 2, {"w": jnp.full((3, 2), 7.0), "b": jnp.full(2, 7.0)})
    assert made["b"][:, 0].tolist() == [0.0, 1.0, 7.0, 3.0]
