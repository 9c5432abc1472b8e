"""The seven steps of `mixture`, one at a time."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.agents.dqn import DQNMetrics
from lakepond.agents.pqn import PQNSettings
from lakepond.errors import ConfigError
from lakepond.flow.device_to_lake import DeviceLake, Lanes
from lakepond.lake.read.lake import Lake
from lakepond.pond.device_load import load
from lakepond.trainers import mixture, programs
from lakepond.types import Field, Spec

CONFIG = replace(
    mixture.PRESETS["tiny"],
    env_steps=1_024,
    reset_every=512,
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
        started = mixture.start_big_agent(made, best, last, key)
        assert alike(started.params, known[setting])
        assert alike(started.target, known[setting])


def test_the_last_layers_start_anew_and_the_others_are_kept_or_shrunk():
    key = jax.random.PRNGKey(3)
    made, best, last = made_and_weights(big_new_layers=2)
    fresh = made.pqn.network.init(key)
    started = mixture.start_big_agent(made, best, last, key).params
    assert list(fresh) == ["layer0", "layer1", "head"]
    assert alike(started["layer0"], best["layer0"])
    assert alike(started["layer1"], fresh["layer1"])
    assert alike(started["head"], fresh["head"])
    made, best, last = made_and_weights(big_new_layers=1, big_shrink=0.75)
    started = mixture.start_big_agent(made, best, last, key).params
    weight = [np.asarray(each["layer0"]["dense"]["weight"]) for each in (started, best, fresh)]
    assert weight[0] == pytest.approx(0.75 * weight[1] + 0.25 * weight[2], abs=1e-6)
    assert alike(started["head"], fresh["head"])


def test_stages_pair_steps_of_a_return_with_discounts():
    assert CONFIG.stages == [(3, 0.99)]
    assert replace(CONFIG, big_n_step=(10, 5, 3)).stages == [(10, 0.99), (5, 0.99), (3, 0.99)]
    both = replace(CONFIG, big_n_step=(10, 3), big_gamma=(0.97, 0.99))
    assert both.stages == [(10, 0.97), (3, 0.99)]
    assert replace(CONFIG, big_gamma=(0.9, 0.95)).stages == [(3, 0.9), (3, 0.95)]
    with pytest.raises(ConfigError, match="3 values of big_n_step and 2 of big_gamma do not match"):
        mixture.build(replace(CONFIG, big_n_step=(10, 5, 3), big_gamma=(0.97, 0.99)))


def test_the_agents_stop_for_a_pour_an_evaluation_a_reset_and_the_end():
    config = replace(
        CONFIG, env_steps=5 * 256, reset_every=768, evaluate_every=512, pond=128
    )  # 3, 2 and 2 updates
    done, stops = 0, []
    while done < config.updates:
        done += mixture.stop_agents_after(config, done)
        stops.append(done)
    assert stops == [2, 3, 4, 5]
    assert mixture.stop_agents_after(replace(config, pond=64), 0) == 1


def test_the_big_agent_stops_when_it_has_seen_each_transition_as_often_as_was_asked():
    assert mixture.stop_big_agent_after(CONFIG, 50, 2.0) == 10  # in batches of 10
    assert mixture.stop_big_agent_after(replace(CONFIG, big_n_step=(10, 5, 3)), 50, 0.1) == 3  # one a stage


def test_each_stage_takes_its_share_of_the_gradient_steps(monkeypatch):
    seen = []

    def learn(_, shape, n_step, agent, pond, teacher, key, steps, total, gamma):
        seen.append((steps, total, n_step, gamma))
        return agent, DQNMetrics(*[jnp.float32(steps)] * 3)

    monkeypatch.setattr(mixture, "learn", learn)
    made, best, _ = made_and_weights(big_n_step=(10, 5, 3))
    key = jax.random.PRNGKey(0)
    _, metrics = mixture.train_big_agent(made, None, None, None, best, key, 10)
    assert metrics == {"big_loss": 1.0, "big_value": 1.0}
    assert seen == [(steps, 10, n_step, 0.99) for steps, n_step in ((3, 10), (3, 5), (4, 3))]


STACK = Field((4, 2, 2), "int32", rows=0)


def lake_of_frames(path, lanes, steps, ends, seed=0):
    """A lake in which each frame is a number of its own and the reward of a step is its id; and the truth."""
    rng = np.random.default_rng(seed)
    rows, at, next_at, over = [], [], [], rng.random((lanes, steps)) < ends
    for lane in range(lanes):
        frames, newest, following = [], [], []

        def show(count, frames=frames, lane=lane):
            frames.extend([lane * 10**6 + len(frames)] * count)

        show(4)
        for t in range(steps):
            newest.append(len(frames) - 1)
            show(1)
            following.append(len(frames) - 1)
            if over[lane, t]:
                show(4)
        rows.append(np.array(frames))
        at.append(newest)
        next_at.append(following)
    held = np.zeros((lanes, max(map(len, rows)), 2, 2), np.int32)
    for lane, frames in enumerate(rows):
        held[lane, : len(frames)] = frames[:, None, None]
    reward = np.arange(lanes * steps, dtype=np.float32).reshape(lanes, steps)
    columns = {"action": np.zeros((lanes, steps), np.int32), "reward": reward}
    columns |= {"terminated": over, "truncated": np.zeros_like(over)}
    lanes_ = Lanes(held, steps, np.zeros(lanes, int), np.array(at), np.array(next_at), columns)
    with DeviceLake(path, Spec(obs=STACK, action=Field((), "int32"))) as lake:
        lake.pour([lanes_])
        lake.wait()
    window = np.arange(-3, 1)
    shown = [
        np.stack([rows[lane][np.array(where[lane])[:, None] + window] for lane in range(lanes)])
        for where in (at, next_at)
    ]
    return *(each.reshape(-1, 4) for each in shown), over.reshape(-1)


def check_transitions(batch, gamma, n_step, obs, next_obs, over, lane_steps):
    """Each starts at the step whose frames it shows, and its return is exact for the steps that it takes."""
    starts = {tuple(frames): i for i, frames in enumerate(obs.tolist())}
    taken = []
    for i in range(len(batch.reward)):
        step = starts[tuple(batch.obs[i, :, 0, 0].tolist())]
        possible, total = {}, 0.0
        for k in range(n_step):
            last = step + k
            total += gamma**k * last
            possible[k + 1] = (total, last)
            if over[last] or (last + 1) % lane_steps == 0:
                break
        steps = [
            k for k, (_, last) in possible.items() if (batch.next_obs[i, :, 0, 0] == next_obs[last]).all()
        ]
        assert len(steps) == 1, f"step {step}: a next observation of another step"
        total, last = possible[steps[0]]
        assert batch.reward[i] == np.float32(total)
        assert batch.discount[i] == (0.0 if over[last] else gamma ** steps[0])
        taken.append(steps[0] == len(possible))
    return np.mean(taken)


@pytest.mark.parametrize("big_pond", [2_000, 8_000, 20_000])
def test_the_big_pond_holds_the_frames_of_its_own_steps(tmp_path, big_pond):
    """The trainer's own pond and fill, on a lake larger than the pond: 10 to 100 % of the steps."""
    obs, next_obs, over = lake_of_frames(tmp_path / "lake", lanes=4, steps=5_000, ends=0.005)
    config = replace(mixture.PRESETS["atari"], big_pond=big_pond)
    shape = mixture.make_big_pond(config, STACK)
    sample = jax.jit(partial(shape.sample, batch=2_000, n_step=3, gamma=0.5))
    with Lake.open(tmp_path / "lake") as lake:
        filled, pond = mixture.fill_big_pond(shape, None, lake, np.random.default_rng(0))
        assert filled == shape  # its rows suffice
        assert int(shape.held(pond)) == big_pond
        batch = jax.tree.map(np.asarray, sample(pond, jax.random.PRNGKey(0)))
        complete = check_transitions(batch, 0.5, 3, obs, next_obs, over, 5_000)
        assert complete > (0.9 if big_pond < 20_000 else 0.999)  # the others stop at the end of their block
        filled, pond = mixture.fill_big_pond(
            shape, pond, lake, np.random.default_rng(1)
        )  # into the same memory
        batch = jax.tree.map(np.asarray, sample(pond, jax.random.PRNGKey(0)))
        check_transitions(batch, 0.5, 3, obs, next_obs, over, 5_000)


def test_a_big_pond_whose_rows_do_not_suffice_is_replaced_by_a_larger_one(tmp_path):
    obs, next_obs, over = lake_of_frames(tmp_path / "lake", lanes=2, steps=500, ends=0.9)
    shape = mixture.make_big_pond(replace(mixture.PRESETS["atari"], big_pond=400), STACK)
    with Lake.open(tmp_path / "lake") as lake:
        filled, pond = mixture.fill_big_pond(shape, shape.init(), lake, np.random.default_rng(0))
    assert filled.rows > shape.rows
    assert replace(filled, rows=shape.rows) == shape
    sample = jax.jit(partial(filled.sample, batch=500, n_step=2, gamma=0.5))
    batch = jax.tree.map(np.asarray, sample(pond, jax.random.PRNGKey(0)))
    check_transitions(batch, 0.5, 2, obs, next_obs, over, 500)


def test_the_learning_rate_falls_to_what_is_left_at_the_end():
    pond_of = mixture.build(CONFIG).big_pond
    columns = {"at": np.array([0, 1]), "next_at": np.array([1, 2]), "action": np.zeros(2, np.int32)}
    columns |= {"reward": np.ones(2), "terminated": np.array([True, True]), "truncated": np.zeros(2, bool)}
    rows = np.ones((3, *pond_of.row), pond_of.obs.dtype)
    moved = {}
    for left in (0.0, 0.5, 1.0):
        made, best, last = made_and_weights(big_rate_end=left)
        state = mixture.start_big_agent(made, best, last, jax.random.PRNGKey(3))
        before = np.asarray(state.params["head"]["advantage"]["bias"])
        state = state._replace(updates=jnp.int32(8))  # of 8: its training is over
        pond = load(pond_of, pond_of.init(), columns, [(0, rows)])
        key = jax.random.PRNGKey(4)
        after, _ = mixture.learn(made, pond_of, 3, state, pond, best, key, steps=1, total=8, gamma=0.99)
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
