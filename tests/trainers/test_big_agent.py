"""The BigAgent of a mixture: where it starts, and how its training goes in stages."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.agents.pqn import PQNSettings
from lakepond.errors import ConfigError
from lakepond.trainers import big_agent, mixture, programs

CONFIG = replace(
    mixture.PRESETS["debug"],
    frames=1_024,
    portion=512,
    hidden=(8, 4),
    pqn=PQNSettings(envs=4, rollout=16, minibatches=2),
    pond=64,
    big_pond=100,
    big_batch=10,
)


def alike(one, other):
    return all(bool((a == b).all()) for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


def made_and_weights(**settings):
    made = mixture.build(replace(CONFIG, **settings))
    best, last = (made.pqn.network.init(jax.random.PRNGKey(i)) for i in (1, 2))
    return made, best, last


def test_it_starts_from_the_best_from_itself_or_anew():
    key = jax.random.PRNGKey(3)
    for setting in ("best", "last", "fresh"):
        made, best, last = made_and_weights(big_start=setting)
        known = {"best": best, "last": last, "fresh": made.pqn.network.init(key)}
        started = big_agent.start(made, best, last, key)
        assert alike(started.params, known[setting])
        assert alike(started.target, known[setting])


def test_the_last_layers_start_anew_and_the_others_are_kept_or_shrunk():
    key = jax.random.PRNGKey(3)
    made, best, last = made_and_weights(big_new_layers=2)
    fresh = made.pqn.network.init(key)
    started = big_agent.start(made, best, last, key).params
    assert list(fresh) == ["layer0", "layer1", "head"]
    assert alike(started["layer0"], best["layer0"])
    assert alike(started["layer1"], fresh["layer1"])
    assert alike(started["head"], fresh["head"])
    made, best, last = made_and_weights(big_new_layers=1, big_shrink=0.75)
    started = big_agent.start(made, best, last, key).params
    weight = [np.asarray(each["layer0"]["dense"]["weight"]) for each in (started, best, fresh)]
    assert weight[0] == pytest.approx(0.75 * weight[1] + 0.25 * weight[2], abs=1e-6)
    assert alike(started["head"], fresh["head"])


def test_stages_pair_steps_of_a_return_with_discounts():
    assert big_agent.stages(CONFIG) == [(3, 0.99)]
    assert big_agent.stages(replace(CONFIG, big_n_step=(10, 5, 3))) == [(10, 0.99), (5, 0.99), (3, 0.99)]
    both = replace(CONFIG, big_n_step=(10, 3), big_gamma=(0.97, 0.99))
    assert big_agent.stages(both) == [(10, 0.97), (3, 0.99)]
    assert big_agent.stages(replace(CONFIG, big_gamma=(0.9, 0.95))) == [(3, 0.9), (3, 0.95)]
    with pytest.raises(ConfigError, match="3 values of big_n_step and 2 of big_gamma do not go together"):
        mixture.build(replace(CONFIG, big_n_step=(10, 5, 3), big_gamma=(0.97, 0.99)))


def test_each_stage_fills_the_pond_for_itself_and_takes_its_share_of_the_steps(monkeypatch):
    seen = []

    def fill(_, pond, lake, rng, n_step, gamma):
        seen.append(("fill", n_step, gamma))
        return pond

    def learn(_, agent, pond, teacher, key, steps, total, gamma):
        seen.append(("learn", steps, total, gamma))
        return agent, big_agent.DQNMetrics(*[jnp.float32(steps)] * 3)

    monkeypatch.setattr(big_agent, "fill", fill)
    monkeypatch.setattr(big_agent, "learn", learn)
    made, best, _ = made_and_weights(big_n_step=(10, 5, 3))
    big = big_agent.BigAgent(made, jax.random.PRNGKey(0))
    seconds = {"fill": 0.0, "learn": 0.0}
    found = big.train(best, range(50), 2.0, seconds)  # 50 transitions twice, in batches of 10
    assert (found.held, found.steps, found.loss) == (50, 10, 1.0)
    assert [line for line in seen if line[0] == "learn"] == [
        ("learn", steps, 10, 0.99) for steps in (3, 3, 4)
    ]
    assert [line[1] for line in seen if line[0] == "fill"] == [10, 5, 3]
    big.train(best, range(200), 2.0, seconds)  # more than the pond holds
    assert (big.resets, big.samples) == (2, 100 + 200)
    assert seconds["fill"] > 0


def test_the_learning_rate_falls_to_what_is_left_at_the_end():
    pond_of = mixture.build(CONFIG).big_pond
    piece = big_agent.Loaded(
        rows=jnp.ones((4, *pond_of.row), pond_of.obs.dtype),
        rows_count=2,
        at=jnp.array([0, 0]),
        next_at=jnp.array([1, 1]),
        action=jnp.zeros(2, jnp.int32),
        reward=jnp.ones(2),
        terminated=jnp.array([True, True]),
        truncated=jnp.array([False, False]),
        span=jnp.ones(2, jnp.uint8),
        steps_count=2,
    )
    moved = {}
    for left in (0.0, 0.5, 1.0):
        made, best, last = made_and_weights(big_rate_end=left)
        state = big_agent.start(made, best, last, jax.random.PRNGKey(3))
        before = np.asarray(state.params["head"]["advantage"]["bias"])
        state = state._replace(updates=jnp.int32(8))  # of 8: its training is over
        pond = pond_of.load(pond_of.init(), piece)
        after, _ = big_agent.learn(made, state, pond, best, jax.random.PRNGKey(4), 1, 8, 0.99)
        moved[left] = np.asarray(after.params["head"]["advantage"]["bias"]) - before
    assert (moved[0.0] == 0).all()
    assert (moved[1.0] != 0).any()
    assert moved[0.5] == pytest.approx(moved[1.0] / 2, rel=1e-4, abs=1e-7)


def test_compiled_programs_are_forgotten():
    program = jax.jit(lambda x: x + 1)
    program(1.0)
    assert program._cache_size() == 1
    programs.forget()
    assert program._cache_size() == 0
    assert program(1.0) == 2.0
