"""The device pond against a model in plain Python: any sequence of `add`, `begin` and `empty`."""

from functools import cache, partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakepond.pond.device import Added, DevicePond
from lakepond.types import Field

GAMMA = 0.5  # returns of small integers are then exact in float32
BATCH = 128
CONFIGS = {
    "one step": (DevicePond(Field((1, 2), "int32", rows=0), lanes=1, capacity=1), 5),
    "single rows": (DevicePond(Field((2,), "int32", rows=None), lanes=2, capacity=8), 3),
    "fewest rows": (DevicePond(Field((2, 1), "int32", rows=0), lanes=2, capacity=6, rows=5), 2),
    "stacks of 2": (DevicePond(Field((2, 1), "int32", rows=0), lanes=3, capacity=5, alpha=0.5), 1),
    "stacks of 3": (DevicePond(Field((3, 1), "int32", rows=0), lanes=1, capacity=8), 4),
    "stacks of 4": (DevicePond(Field((4, 1), "int32", rows=0), lanes=2, capacity=7, alpha=1.0), 5),
    "many rows": (DevicePond(Field((4, 1), "int32", rows=0), lanes=1, capacity=4, rows=64), 3),
}


class Model:
    """All steps of each lane, and which of them the two rings still hold."""

    def __init__(self, pond):
        self.pond = pond
        self.frames = 0
        self.written = [0] * pond.lanes
        self.steps = [[] for _ in range(pond.lanes)]
        self.emptied = 0
        self.now = [None] * pond.lanes

    def reset(self, lane):
        self.frames += 1
        self.now[lane] = [self.frames] * self.pond.length
        self.written[lane] += self.pond.length
        return self.now[lane]

    def step(self, lane, ends):
        self.frames += 1
        obs, following = self.now[lane], [*self.now[lane][1:], self.frames]
        step = {"obs": obs, "next_obs": following, "reward": float(self.frames), "action": self.frames % 7}
        step |= {"terminated": ends == 1, "truncated": ends == 2, "first_row": self.written[lane]}
        step["first_row"] -= self.pond.length
        self.written[lane] += 1
        self.steps[lane].append(step)
        self.now[lane] = following
        step["reset_obs"] = self.reset(lane) if ends else following
        return step

    def live(self, lane):
        steps = self.steps[lane]
        lowest = max(self.emptied, len(steps) - self.pond.capacity)
        held = self.written[lane] - self.pond.rows
        return [t for t in range(lowest, len(steps)) if steps[t]["first_row"] >= held]

    def transition(self, lane, t, n_step):
        steps, total = self.steps[lane], 0.0
        for i in range(n_step):
            last = steps[t + i]
            total += GAMMA**i * last["reward"]
            follows = t + i + 1 < len(steps) and steps[t + i + 1]["obs"] is last["next_obs"]
            if last["terminated"] or last["truncated"] or not follows:
                break
        discount = 0.0 if last["terminated"] else GAMMA ** (i + 1)
        return total, last["next_obs"], last["terminated"], last["truncated"], discount


@cache
def jitted(name):
    pond, n_step = CONFIGS[name]
    return (
        jax.jit(pond.begin),
        jax.jit(pond.add),
        jax.jit(partial(pond.sample, batch=BATCH, n_step=n_step, gamma=GAMMA)),
        jax.jit(pond.empty),
    )


def observations(pond, numbers):
    """Frames as the pond takes them, from lists of numbers (..., length)."""
    frames = np.asarray(numbers, np.int32)
    if pond.obs.rows is None:
        return np.ascontiguousarray(np.broadcast_to(frames, (*frames.shape[:-1], *pond.obs.shape)))
    shape = (*frames.shape[:-1], *pond.obs.shape)
    return np.ascontiguousarray(np.broadcast_to(frames.reshape(*frames.shape, *[1] * len(pond.row)), shape))


def added(pond, steps):
    """Steps [time][lane] of the model as the pond takes them."""

    def column(name, dtype):
        return np.array([[step[name] for step in row] for row in steps], dtype)

    return Added(
        action=column("action", np.int32),
        reward=column("reward", np.float32),
        next_obs=observations(pond, [[step["next_obs"] for step in row] for row in steps]),
        terminated=column("terminated", bool),
        truncated=column("truncated", bool),
        reset_obs=observations(pond, [[step["reset_obs"] for step in row] for row in steps]),
    )


def check(pond, n_step, model, state, batch):
    live = {(lane, t % pond.capacity): t for lane in range(pond.lanes) for t in model.live(lane)}
    assert int(state.steps) * pond.lanes - np.asarray(state.oldest).sum() == len(live)
    if not live:
        return
    for i in range(BATCH):
        lane = int(batch.stream[i])
        assert int(batch.step_id[i]) // pond.capacity == lane
        t = live[lane, int(batch.step_id[i]) % pond.capacity]  # else: a step that is not live
        step = model.steps[lane][t]
        total, next_obs, terminated, truncated, discount = model.transition(lane, t, n_step)
        assert (batch.obs[i] == np.asarray(observations(pond, step["obs"]))).all()
        assert (batch.next_obs[i] == np.asarray(observations(pond, next_obs))).all()
        assert int(batch.action[i]) == step["action"]
        assert float(batch.reward[i]) == total
        assert float(batch.discount[i]) == discount
        assert (bool(batch.terminated[i]), bool(batch.truncated[i])) == (terminated, truncated)


def operations(pond):
    """Ends of episodes in an `add` of one step or of `capacity` steps, or the name of another operation."""
    flag = st.sampled_from([0, 0, 1, 2])
    adds = [st.lists(flag, min_size=n * pond.lanes, max_size=n * pond.lanes) for n in {1, pond.capacity}]
    always = st.just([1] * (pond.capacity * pond.lanes))  # episodes of one step
    return st.lists(
        st.one_of(*adds, *adds, always, st.sampled_from(["begin", "empty"])), min_size=1, max_size=8
    )


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_sample_is_a_live_step_with_its_own_frames_and_return(name, data):
    pond, n_step = CONFIGS[name]
    begin, add, sample, empty = jitted(name)
    model = Model(pond)

    def restart(state):
        return begin(state, observations(pond, [model.reset(lane) for lane in range(pond.lanes)]))

    state = restart(pond.init())
    for number, operation in enumerate(data.draw(operations(pond))):
        if operation == "begin":
            state = restart(state)
        elif operation == "empty":
            state, model.emptied = empty(state), len(model.steps[0])
        else:
            flags = np.reshape(operation, (-1, pond.lanes))
            steps = [[model.step(lane, int(row[lane])) for lane in range(pond.lanes)] for row in flags]
            state = add(state, added(pond, steps))
        batch = jax.tree.map(np.asarray, sample(state, jax.random.PRNGKey(number)))
        check(pond, n_step, model, state, batch)


@pytest.mark.parametrize("name", CONFIGS)
def test_all_live_steps_are_drawn_with_the_same_probability(name):
    """Also by priority: new steps all have the same one."""
    pond, _ = CONFIGS[name]
    begin, add, sample, _ = jitted(name)
    model, rng = Model(pond), np.random.default_rng(0)
    state = begin(pond.init(), observations(pond, [model.reset(lane) for lane in range(pond.lanes)]))
    for _ in range(3):
        flags = rng.choice([0, 0, 1, 2], (pond.capacity, pond.lanes))
        steps = [[model.step(lane, int(row[lane])) for lane in range(pond.lanes)] for row in flags]
        state = add(state, added(pond, steps))
    ids = np.concatenate([sample(state, key).step_id for key in jax.random.split(jax.random.PRNGKey(1), 160)])
    draws = len(ids)
    live = [lane * pond.capacity + t % pond.capacity for lane in range(pond.lanes) for t in model.live(lane)]
    counts = np.bincount(ids, minlength=pond.lanes * pond.capacity)
    assert counts[live].sum() == draws
    expected = draws / len(live)
    chi2 = ((counts[live] - expected) ** 2 / expected).sum()
    assert chi2 < len(live) + 5 * (2 * len(live)) ** 0.5
