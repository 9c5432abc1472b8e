"""Environments of gymnax by their ids, and environments of one's own."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from lakepond.envs.gymnax import Gymnax
from lakepond.envs.minatar import GAMES, MinAtar
from lakepond.errors import ConfigError
from lakepond.trainers import arena


def made():
    return MinAtar("Freeway")


def test_a_gymnax_environment_by_its_id_shows_true_ends():
    env = Gymnax("cartpole-v1")
    assert (env.name, env.actions, env.obs.shape, env.obs.dtype) == ("CartPole-v1", 2, (4,), "float32")
    state = env.reset(jax.random.PRNGKey(0), 8)

    @jax.jit
    def play(state, key):
        def step(state, key):
            after, seen = env.step(state, jax.random.randint(key, (8,), 0, 2), key)
            return after, (state.obs, seen)

        return jax.lax.scan(step, state, jax.random.split(key, 60))[1]

    before, seen = jax.tree.map(np.asarray, play(state, jax.random.PRNGKey(1)))
    assert seen.over.sum() >= 8
    assert (seen.over == (seen.terminated | seen.truncated)).all()
    assert (seen.next_obs == seen.obs)[~seen.over].all()
    assert not (seen.next_obs == seen.obs)[seen.over].all(axis=-1).any()
    assert (seen.obs[:-1] == before[1:]).all()
    assert (seen.score[seen.over] >= 8).all()  # a pole falls no sooner
    assert hash(env) == hash(Gymnax("CartPole-v1"))


@pytest.mark.parametrize("game", GAMES)
def test_a_step_returns_a_state_of_the_types_of_a_reset(game):
    """Or each program that takes a state is compiled twice."""
    env, key = MinAtar(game), jax.random.PRNGKey(0)
    first = jax.eval_shape(lambda: env.reset(key, 2))
    after = jax.eval_shape(lambda state: env.step(state, jax.numpy.zeros(2, "int32"), key)[0], first)
    types = [[(x.dtype, x.weak_type) for x in jax.tree.leaves(state)] for state in (first, after)]
    assert types[0] == types[1]


def test_what_the_agents_cannot_play_is_refused():
    with pytest.raises(ConfigError, match="Pendulum-v1 has continuous actions"):
        Gymnax("pendulum-v1")
    with pytest.raises(ConfigError, match="is not a gymnax game; did you mean"):
        Gymnax("cartpool")


def test_an_environment_of_ones_own_is_made_by_a_function_of_a_module():
    env = arena.make_env(SimpleNamespace(suite="module", game=f"{__name__}:made"))
    assert env == MinAtar("Freeway")
    for wrong in ("nowhere:made", f"{__name__}:nothing", "made", ":made"):
        with pytest.raises(ConfigError, match="is not a module:function that can be imported"):
            arena.make_env(SimpleNamespace(suite="module", game=wrong))
