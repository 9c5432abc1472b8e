"""From the device to the lake and back: it holds what was added, and what is filled follows from it."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.errors import SpecError, TooFewSteps
from lakepond.flow.device_to_lake import DeviceLake, Lanes
from lakepond.flow.lake_to_device import pieces
from lakepond.lake.commits import Start
from lakepond.lake.lake import Lake
from lakepond.lake.writer import LakeWriter
from lakepond.pond.device import Added, DevicePond, Loaded
from lakepond.trainers.ponds import Ponds, open_lake
from lakepond.types import Field, Spec

LANES, CHUNK = 3, 6
SHAPES = {"stack": Field((3, 2, 2), "uint8", rows=0), "board": Field((2, 2), "uint8", rows=None)}


def rollouts(field, chunks, seed=0):
    """Observations of lane l at its step t hold t % 250; rewards tell seed, lane and t."""
    rng = np.random.default_rng(seed)
    show = {
        "stack": lambda t: np.stack([np.full((2, 2), (t - i) % 250, np.uint8) for i in (2, 1, 0)]),
        "board": lambda t: np.full((2, 2), t % 250, np.uint8),
    }["stack" if field.rows == 0 else "board"]
    clock = np.zeros(LANES, int)
    begin = np.stack([show(0)] * LANES)
    steps = []
    for _ in range(chunks * CHUNK):
        over, cut = rng.random(LANES) < 0.2, rng.random(LANES) < 0.1
        before = [show(t) for t in clock]
        following = [show(t + 1) for t in clock]
        later = np.where(over | cut, clock + 10, clock + 1)
        steps.append(
            dict(
                obs=np.stack(before),
                action=(clock % 4).astype(np.int32),
                reward=(10_000.0 * seed + 1000 * np.arange(LANES) + clock).astype(np.float32),
                next_obs=np.stack(following),
                terminated=over,
                truncated=cut & ~over,
                begun=np.stack([show(t) for t in later]),
            )
        )
        clock = later
    return begin, steps


def poured(tmp_path, field, chunks=4, ponds=2):
    """Some ponds poured several times, and what was in them: {stream: [step, ...]}."""
    pond = DevicePond(field, lanes=LANES, capacity=CHUNK, rows=5 * CHUNK)
    spec = Spec(obs=field, action=Field((), "int32"))
    add, begin_ = jax.jit(pond.add), jax.jit(pond.begin)
    data = [rollouts(field, chunks, seed) for seed in range(ponds)]
    states = [begin_(pond.init(), jnp.asarray(begin)) for begin, _ in data]
    with DeviceLake(tmp_path / "lake", spec) as lake:
        for c in range(chunks):
            for i, (_, steps) in enumerate(data):
                part = steps[c * CHUNK : (c + 1) * CHUNK]
                added = Added(**{n: jnp.stack([jnp.asarray(s[n]) for s in part]) for n in Added._fields})
                states[i] = add(states[i], added)
            lake.pour([lanes_of(state) for state in states], {"chunk": c})
            states = [pond.empty(state) for state in states]
        assert lake.wait().recorded == chunks * CHUNK * LANES * ponds
    streams = {
        i * LANES + lane: [{n: v[lane] for n, v in step.items()} for step in steps]
        for i, (_, steps) in enumerate(data)
        for lane in range(LANES)
    }
    return tmp_path / "lake", streams


def lanes_of(state):
    state = jax.tree.map(np.array, state)
    names = ("action", "reward", "terminated", "truncated")
    columns = {name: getattr(state, name) for name in names}
    return Lanes(state.rows, int(state.steps), state.oldest, state.at, state.next_at, columns)


@pytest.mark.parametrize("kind", ["stack", "board"])
def test_the_lake_holds_what_was_added_and_is_an_ordinary_one(tmp_path, kind):
    path, streams = poured(tmp_path, SHAPES[kind])
    with Lake.open(path) as lake:
        lake.verify()
        for stream, steps in streams.items():
            ids = lake.query(stream=stream)
            assert len(ids) == len(steps)
            for step_id, step in zip(ids.tolist(), steps, strict=True):
                batch = lake.steps(step_id, step_id + 1)
                for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
                    assert (getattr(batch, name)[0] == step[name]).all(), (stream, name)


@pytest.mark.parametrize("kind", ["stack", "board"])
def test_what_is_filled_are_n_step_transitions_of_the_lake(tmp_path, kind):
    field, gamma = SHAPES[kind], 0.5
    path, streams = poured(tmp_path, field)
    total = sum(len(steps) for steps in streams.values())
    big = DevicePond(field, lanes=1, capacity=total, rows=2 * total * 3)
    state, load = big.init(), jax.jit(big.load)
    with Lake.open(path) as lake:
        for piece in pieces(lake, total, rng=np.random.default_rng(0), n_step=3, gamma=gamma, size=16):
            state = load(state, Loaded(*piece))
    assert int(big.held(state)) == total
    batch = jax.tree.map(np.asarray, big.sample(state, jax.random.PRNGKey(0), 300, gamma=gamma))
    wanted = {}
    for steps in streams.values():
        for t, step in enumerate(steps):
            last, reward = t, 0.0
            for i in range(3):
                if t // CHUNK != (t + i) // CHUNK:  # a pour is a segment; returns end with it
                    break
                last, reward = t + i, reward + gamma**i * float(steps[t + i]["reward"])
                if steps[last]["terminated"] or steps[last]["truncated"]:
                    break
            discount = 0.0 if steps[last]["terminated"] else gamma ** (last - t + 1)
            key = (step["obs"].tobytes(), int(step["action"]), round(reward, 3))
            wanted[key] = (steps[last]["next_obs"], discount, bool(steps[last]["truncated"]))
    for i in range(300):
        key = (batch.obs[i].tobytes(), int(batch.action[i]), round(float(batch.reward[i]), 3))
        next_obs, discount, truncated = wanted[key]
        assert (batch.next_obs[i] == next_obs).all()
        assert batch.discount[i] == pytest.approx(discount)
        assert batch.truncated[i] == truncated


def test_a_fill_takes_each_step_at_most_once_and_all_are_as_likely(tmp_path):
    path, streams = poured(tmp_path, SHAPES["board"], chunks=2)
    total = sum(len(steps) for steps in streams.values())
    drawn = np.zeros(total)
    with Lake.open(path) as lake:
        everything = lake.steps(0, total).reward
        for seed in range(40):
            some = np.concatenate(
                [p.reward[: p.steps_count] for p in pieces(lake, 20, rng=np.random.default_rng(seed), size=8)]
            )
            assert len(some) == 20
            for reward in some:
                drawn[np.flatnonzero(everything == reward)] += 1
    assert (drawn > 0).mean() > 0.95


def test_a_pour_goes_on_from_the_commit_that_was_asked_for(tmp_path):
    path, _ = poured(tmp_path, SHAPES["stack"], chunks=3, ponds=1)
    spec = Spec(obs=SHAPES["stack"], action=Field((), "int32"))
    with DeviceLake(path, spec, commit=1) as lake:
        assert lake.recorded == 2 * CHUNK * LANES
    with DeviceLake(path, spec) as lake:
        assert lake.recorded == 3 * CHUNK * LANES
    with pytest.raises(SpecError, match="another spec"):
        DeviceLake(path, Spec(obs=SHAPES["board"]))
    with Lake.open(path) as lake, pytest.raises(TooFewSteps, match="asked for, but"):
        next(iter(pieces(lake, 10_000, rng=np.random.default_rng(0))))


def test_ponds_use_the_memory_of_a_pour_again_but_not_while_it_is_written(tmp_path, monkeypatch):
    """The first two pours wait in line together; the memory of the second is the third's."""
    field, chunks = SHAPES["stack"], 4
    begin, steps = rollouts(field, chunks)
    shape = DevicePond(field, lanes=LANES, capacity=CHUNK, rows=5 * CHUNK)
    written, commit = threading.Event(), LakeWriter.commit

    def commit_later(*args):
        written.wait(60)
        return commit(*args)

    monkeypatch.setattr(LakeWriter, "commit", commit_later)
    some = Ponds(shape, jnp.asarray(begin)[None], open_lake(shape, tmp_path / "lake", Start.EMPTY))
    add, memory = jax.jit(jax.vmap(shape.add)), []
    for c in range(chunks):
        part = steps[c * CHUNK : (c + 1) * CHUNK]
        added = Added(**{n: jnp.stack([jnp.asarray(s[n]) for s in part])[None] for n in Added._fields})
        some.state = add(some.state, added)
        some.pour({})
        memory.append(some._host.rows.ctypes.data)
        if c == 1:
            written.set()
        if c >= 1:
            some.durable({})
    some.close()
    assert memory[0] != memory[1]
    assert memory[1] == memory[2] == memory[3]
    with Lake.open(tmp_path / "lake") as lake:
        lake.verify()
        for lane in range(LANES):
            ids = lake.query(stream=lane)
            assert [float(lake.steps(i, i + 1).reward[0]) for i in ids.tolist()] == [
                float(step["reward"][lane]) for step in steps
            ]
