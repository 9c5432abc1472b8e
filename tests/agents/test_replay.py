"""Learning from a rollout and history, against numbers worked by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.agents.epsilon import Epsilon
from lakepond.agents.networks import Network
from lakepond.agents.pqn import PQN, Collected, PQNSettings, PQNState, Rollout
from lakepond.agents.replay import learn, replayed_lanes
from lakepond.envs.vector import EnvState
from lakepond.pond.device import Sequences
from lakepond.trainers import single

NETWORK = Network(lambda key: jnp.array([[1.0, 2.0]]), lambda params, obs: obs.astype(jnp.float32) @ params)
SETTINGS = PQNSettings(
    envs=4, rollout=2, epochs=1, minibatches=1, gamma=0.5, lam=0.5, learning_rate=0.0, max_gradient=1e9
)


def steps(*values):
    """The same in all lanes."""
    return jnp.tile(jnp.asarray(values)[:, None], (1, 4))


def obs(*values):
    return steps(*values)[..., None]


FRESH = Rollout(obs(1, 2), steps(0, 1), steps(1.0, 2.0), obs(2, 3), *[steps(False, False)] * 2, obs(2, 3))
PAST = Sequences(obs(4, 9), steps(1, 0), steps(5.0, 6.0), obs(5, 8), steps(False, True), steps(True, True))
# values are twice the observation. Fresh: 2 + .5*6 = 5; 1 + .5*(.5*5 + .5*4) = 3.25; errors of 1 and 4.
# Past: the first step is cut, 5 + .5*10 = 10, the second is over, 6; errors of 8 and 9.
FRESH_ERRORS, PAST_ERRORS = [1 - 3.25, 4 - 5], [8 - 10, 9 - 6]


def learned(share, **how):
    pqn = PQN(None, NETWORK, Epsilon(), replace(SETTINGS, **how), 1_000_000)
    params, env, zero = NETWORK.init(None), EnvState(None, None, None, None), jnp.float32(0)
    state = PQNState(
        params, pqn.optimiser.init(params), env, pqn.epsilon.init(), jnp.int32(0), jax.random.PRNGKey(3)
    )
    seen = Collected(env, FRESH, jnp.zeros((2, 4)), zero, zero, jnp.int32(0))

    def draw(key, count, length):
        assert length == 2
        return jax.tree.map(lambda x: x[:, :count], PAST)

    return learn(pqn, state, seen, draw, share=share)


@pytest.mark.parametrize(("share", "lanes"), [(0.25, 1), (0.5, 2), (1.0, 4), (0.01, 1), (0.0, 0)])
def test_a_share_of_each_pass_is_from_history_and_returns_end_where_it_is_cut(share, lanes):
    assert replayed_lanes(4, share) == lanes
    _, metrics = learned(share)
    errors = np.array([FRESH_ERRORS] * (4 - lanes) + [PAST_ERRORS] * lanes)
    assert float(metrics.loss) == pytest.approx(0.5 * (errors**2).mean())


def test_targets_are_those_of_the_current_weights_in_every_pass():
    one, first = learned(0.5, learning_rate=0.1)
    two, both = learned(0.5, learning_rate=0.1, epochs=2)
    assert not np.allclose(one.params, two.params)
    values = [np.asarray(NETWORK.apply(one.params, jnp.asarray(x)[:, None])) for x in ([1, 2], [4, 9])]
    best = [np.asarray(NETWORK.apply(one.params, jnp.asarray(x)[:, None])).max(-1) for x in ([2, 3], [5, 8])]
    last = 2 + 0.5 * best[0][1]
    targets = [[1 + 0.5 * (0.5 * last + 0.5 * best[0][0]), last], [5 + 0.5 * best[1][0], 6]]
    errors = [values[0][[0, 1], [0, 1]] - targets[0], values[1][[0, 1], [1, 0]] - targets[1]]
    second = 0.5 * (np.array(errors) ** 2).mean()
    assert float(both.loss) == pytest.approx((float(first.loss) + second) / 2, rel=1e-5)
    assert int(two.updates) == 1


def test_without_replay_a_rollout_is_learned_as_without_history_but_for_its_targets():
    """One gradient step per epoch, so that its order does not matter."""
    settings = replace(SETTINGS, learning_rate=0.1)
    config = replace(single.PRESETS["tiny"], hidden=(4,))
    moved = {}
    for epochs in (1, 2):
        pqn = single.build(replace(config, pqn=replace(settings, envs=8, rollout=16, epochs=epochs)))
        for recompute in (False, True):
            state = pqn.init(jax.random.PRNGKey(0))
            state, _, _ = single.train(pqn, state, 1, recompute=recompute)
            moved[epochs, recompute] = np.asarray(state.params["head"]["advantage"]["weight"])
    assert moved[1, True] == pytest.approx(moved[1, False], rel=1e-4, abs=1e-6)  # the weights that acted
    assert moved[2, True] != pytest.approx(moved[2, False], rel=1e-4, abs=1e-6)
