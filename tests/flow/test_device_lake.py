"""From the device to the lake and back: it holds the added steps, and a fill delivers its steps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond import Replay
from lakepond.agents import fleet
from lakepond.errors import ConfigError, SpecError, TooFewSteps
from lakepond.flow import lake_to_device
from lakepond.flow.device_to_lake import DeviceLake, Lanes
from lakepond.flow.lake_to_device import BLOCK, plan
from lakepond.lake.read.lake import Lake
from lakepond.pond.device import Added, DevicePond
from lakepond.pond.device_load import load
from lakepond.trainers.arena import pour_new
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
                reset_obs=np.stack([show(t) for t in later]),
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
    with Lake.open(path) as lake:
        big, state = filled(lake, total, seed=0)
    assert int(big.held(state)) == total
    batch = draw(big.sample, state, batch=300, n_step=3, gamma=gamma)
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


def draw(sample, state, **options):
    return jax.tree.map(np.asarray, jax.jit(partial(sample, **options))(state, jax.random.PRNGKey(0)))


def filled(lake, count, seed, block=BLOCK):
    """A pond of exactly the size that the plan asks for, filled in small pieces."""
    fill = plan(lake, count, rng=np.random.default_rng(seed), block=block)
    assert fill.steps == count
    shape = DevicePond(lake.spec.obs, lanes=1, capacity=count, rows=max(fill.rows, 7))
    return shape, load(shape, shape.init(), fill.columns, fill.pieces(16))


def test_every_step_is_chosen_with_the_same_probability_whatever_the_sizes_of_the_blocks():
    sizes, count, draws = np.array([1, 7, 32, 3, 32, 1, 20]), 30, 4000
    rng = np.random.default_rng(0)
    chosen = np.zeros(sizes.sum())
    for _ in range(draws):
        steps = lake_to_device._choose(sizes, count, rng)
        assert len(np.unique(steps)) == len(steps) == count
        chosen[steps] += 1
    share = count / sizes.sum()
    error = (chosen - draws * share) / (draws * share * (1 - share)) ** 0.5
    assert abs(error).max() < 4.5


def test_a_fill_takes_blocks_and_every_step_of_the_lake_with_the_same_probability(tmp_path):
    path, streams = poured(tmp_path, SHAPES["board"], chunks=2)
    total, count, draws = sum(len(steps) for steps in streams.values()), 20, 600
    chosen, lasts = np.zeros(total), np.zeros(total)
    with Lake.open(path) as lake:
        for seed in range(draws):
            ids = plan(lake, count, rng=np.random.default_rng(seed), block=4).columns["step_id"]
            assert len(np.unique(ids)) == len(ids) == count
            chosen[ids] += 1
            breaks = np.diff(ids) != 1
            lasts[ids[:-1][breaks]] += 1
    share = count / total
    error = (chosen - draws * share) / (draws * share * (1 - share)) ** 0.5
    assert abs(error).max() < 4.5
    assert (lasts[:-CHUNK] > 0).all()  # the cuts between blocks move


@pytest.mark.parametrize("kind", ["stack", "board"])
@pytest.mark.parametrize("count", [1, 20, 41, 144])
def test_a_filled_pond_links_only_steps_that_followed_each_other(tmp_path, kind, count):
    path, _ = poured(tmp_path, SHAPES[kind])
    length = 3 if kind == "stack" else 1
    with Lake.open(path) as lake:
        everything = lake.steps(0, len(lake))
        fill = plan(lake, count, rng=np.random.default_rng(count), block=4)
        _, state = filled(lake, count, seed=count, block=4)
        assert (
            np.asarray(state.rows)[0, fill.columns["at"]] == last_frames(everything.obs, fill, kind)
        ).all()
    ids = fill.columns["step_id"]
    linked = fill.columns["at"][1:] == fill.columns["next_at"][:-1]
    ended = (everything.terminated | everything.truncated)[ids]
    stream = everything.stream[ids]
    segment = ids // (CHUNK * LANES * 2)
    follows = (np.diff(ids) == 1) & (np.diff(stream) == 0) & (np.diff(segment) == 0) & ~ended[:-1]
    assert (linked == follows).all()
    assert fill.rows == count + length * (1 + (~linked).sum())  # the bound of the module's docstring


def last_frames(obs, fill, kind):
    found = obs[fill.columns["step_id"]]
    return found[:, -1] if kind == "stack" else found


def test_sequences_of_a_filled_pond_are_steps_of_one_episode(tmp_path):
    path, streams = poured(tmp_path, SHAPES["stack"])
    by_reward = {
        float(step["reward"]): (s, t) for s, steps in streams.items() for t, step in enumerate(steps)
    }
    with Lake.open(path) as lake:
        shape, state = filled(lake, 60, seed=1, block=8)
    batch = draw(shape.sample_sequences, state, batch=100, length=5)
    lengths = (batch.weight > 0).sum(axis=1)
    assert lengths.max() > 2
    for i, valid in enumerate(lengths):
        places = [by_reward[float(reward)] for reward in batch.reward[i, :valid]]
        stream, first = places[0]
        assert places == [(stream, first + k) for k in range(valid)]
        steps = [streams[stream][first + k] for k in range(valid)]
        assert not any(step["terminated"] or step["truncated"] for step in steps[:-1])
        for k, step in enumerate(steps):
            assert (batch.obs[i, k] == step["obs"]).all()
            assert (batch.next_obs[i, k] == step["next_obs"]).all()


def test_a_lake_of_a_replay_is_filled_in_runs_of_each_stream_and_an_unmarked_join_is_not_linked(tmp_path):
    """Four interleaved streams; stream 2 continues elsewhere at step 50 without an end of its episode."""
    streams, steps = 4, 100
    frames = np.random.default_rng(0).integers(0, 255, (streams, 2 * steps, 16, 16), dtype=np.uint8)
    first = {(s, t): t + 60 * (s == 2 and t >= 50) for s in range(streams) for t in range(steps)}
    spec = Spec(obs=Field((3, 16, 16), "uint8", rows=0), action=Field((), "int32"))
    replay = Replay(spec, capacity=1000)
    for t in range(steps):
        for s in range(streams):
            at = first[s, t]
            replay.record(
                obs=frames[s, at : at + 3],
                action=0,
                reward=float(steps * s + t),
                next_obs=frames[s, at + 1 : at + 4],
                terminated=False,
                truncated=False,
                stream=s,
            )
    replay.save(tmp_path / "lake")
    replay.close()
    with Lake.open(tmp_path / "lake") as lake:
        fill = plan(lake, len(lake), rng=np.random.default_rng(0))
        shape, state = filled(lake, len(lake), seed=0)
    stream, t = np.divmod(fill.columns["reward"].astype(int), steps)
    linked = fill.columns["at"][1:] == fill.columns["next_at"][:-1]
    join = (stream == 2) & (t == 49)
    assert (linked == ((np.diff(stream) == 0) & (np.diff(t) == 1) & ~join[:-1])).all()
    assert fill.rows == streams * steps + 3 * (streams + 1)
    batch = draw(shape.sample, state, batch=200)
    for i in range(200):
        s, t = divmod(int(batch.reward[i]), steps)
        at = first[s, t]
        assert (batch.obs[i] == frames[s, at : at + 3]).all()
        assert (batch.next_obs[i] == frames[s, at + 1 : at + 4]).all()


def test_a_pour_goes_on_from_the_commit_that_was_asked_for(tmp_path):
    path, _ = poured(tmp_path, SHAPES["stack"], chunks=3, ponds=1)
    spec = Spec(obs=SHAPES["stack"], action=Field((), "int32"))
    with DeviceLake(path, spec, commit=1) as lake:
        assert lake.recorded == 2 * CHUNK * LANES
    with DeviceLake(path, spec) as lake:
        assert lake.recorded == 3 * CHUNK * LANES
    with pytest.raises(SpecError, match="a different spec"):
        DeviceLake(path, Spec(obs=SHAPES["board"]))
    with Lake.open(path) as lake, pytest.raises(TooFewSteps, match="10,000 steps were requested, but"):
        plan(lake, 10_000, rng=np.random.default_rng(0))


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("kind", SHAPES)
def test_new_steps_of_a_pond_are_poured_in_order_and_continue_those_poured_before(
    tmp_path, kind, accelerated, monkeypatch
):
    """The rings of rows and of steps wrap, and what is poured does not leave the pond."""
    monkeypatch.setattr(fleet, "accelerated", lambda: accelerated)
    field, chunks = SHAPES[kind], 5
    begin, steps = rollouts(field, chunks)
    shape = DevicePond(field, lanes=LANES, capacity=CHUNK + 1, rows=5 * CHUNK)
    state, add = shape.begin(shape.init(), jnp.asarray(begin)), jax.jit(shape.add)
    with DeviceLake(tmp_path / "lake", Spec(obs=field, action=Field((), "int32"))) as lake:
        for c in range(chunks):
            part = steps[c * CHUNK : (c + 1) * CHUNK]
            added = Added(**{n: jnp.stack([jnp.asarray(s[n]) for s in part]) for n in Added._fields})
            state = add(state, added)
            for _ in range(2):  # the second pour has nothing new
                pour_new(shape, state, lake.recorded // LANES, lake, {}, "")
        assert lake.wait().recorded == chunks * CHUNK * LANES
    with Lake.open(tmp_path / "lake") as lake:
        lake.verify()
        links = [part["follows_previous"] for *_, part in lake.reader.scan(["follows_previous"])]
        for lane in range(LANES):
            ids = lake.query(stream=lane)
            found = lake.steps(ids)
            for name in ("obs", "reward", "next_obs", "terminated"):
                assert (getattr(found, name) == np.stack([step[name][lane] for step in steps])).all()
            ended = (found.terminated | found.truncated)[:-1]
            assert np.concatenate(links)[ids].tolist() == [False, *~ended]


def test_steps_that_were_evicted_before_a_pour_raise_even_if_every_lane_lost_as_many(tmp_path):
    """Episodes of one step need more rows than a pond of stacks has, in all lanes alike."""
    field = SHAPES["stack"]
    shape = DevicePond(field, LANES, 12, rows=24)
    begin, steps = rollouts(field, 2)
    ends = {"terminated": np.ones(LANES, bool), "truncated": np.zeros(LANES, bool)}
    added = Added(**{n: jnp.stack([jnp.asarray((s | ends)[n]) for s in steps]) for n in Added._fields})
    state = jax.jit(shape.add)(shape.begin(shape.init(), jnp.asarray(begin)), added)
    assert len(set(np.asarray(state.oldest).tolist())) == 1
    with DeviceLake(tmp_path / "lake", Spec(obs=field, action=Field((), "int32"))) as lake:
        with pytest.raises(ConfigError, match="before they were poured; lower the setting `pond`"):
            pour_new(shape, state, 0, lake, {}, "lower the setting `pond`")
        lost = lanes_of(state)._replace(oldest=np.zeros(LANES, np.int32))
        with pytest.raises(SpecError, match="lane 0 no longer has its 12 steps and"):
            lake.pour([lost])


def test_a_commit_that_was_not_kept_is_not_found_again(tmp_path):
    field = SHAPES["board"]
    begin, steps = rollouts(field, 4)
    shape = DevicePond(field, lanes=LANES, capacity=CHUNK, rows=5 * CHUNK)
    state, add = shape.begin(shape.init(), jnp.asarray(begin)), jax.jit(shape.add)
    spec = Spec(obs=field, action=Field((), "int32"))
    with DeviceLake(tmp_path / "lake", spec, keep_last=1, max_steps=2 * CHUNK * LANES) as lake:
        for c in range(4):
            part = steps[c * CHUNK : (c + 1) * CHUNK]
            added = Added(**{n: jnp.stack([jnp.asarray(s[n]) for s in part]) for n in Added._fields})
            state = add(state, added)
            pour_new(shape, state, lake.recorded // LANES, lake, {})
            assert lake.commit_at(lake.recorded).number == c
        assert lake.commit_at(CHUNK * LANES) is None
    with Lake.open(tmp_path / "lake") as lake:
        assert len(lake) == 2 * CHUNK * LANES
