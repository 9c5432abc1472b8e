"""The device pond against a list of all steps; each frame is a number of its own."""

import operator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.errors import SampleError, SpecError
from lakepond.pond.device import Added, DevicePond
from lakepond.pond.device_load import load
from lakepond.types import Field

STACK = Field((3, 2, 2), "int32", rows=0)
COLOUR = Field((6, 2, 2), "int32", rows=(0, 2))  # a stack of three frames of two slices each
BOARD = Field((2, 2), "int32", rows=None)


def episode_steps(rng, lanes, steps, field, ends=0.3):
    """The first observations, and rows of one step a lane, with autoreset."""
    size = 1 if field.rows is None or field.rows == 0 else field.rows[1]
    stack = 1 if field.rows is None else field.shape[0] // size
    count = [0] * lanes

    def frame(lane):
        count[lane] += 1
        return lane * 1_000_000 + count[lane]

    def first(lane):
        return [frame(lane)] * stack

    def show(numbers):
        frames = np.concatenate([np.full((size, 2, 2), n, np.int32) for n in numbers])
        return frames[0] if field.rows is None else frames

    now = [first(lane) for lane in range(lanes)]
    begin = np.stack([show(n) for n in now])
    rows, reward = [], 0
    for _ in range(steps):
        row = []
        for lane in range(lanes):
            following = [*now[lane][1:], frame(lane)]
            over, cut = rng.random() < ends / 2, rng.random() < ends / 2
            reset = first(lane) if over or cut else following
            reward += 1
            row.append(
                (
                    show(now[lane]),
                    reward % 5,
                    float(reward),
                    show(following),
                    over,
                    cut and not over,
                    show(reset),
                )
            )
            now[lane] = reset
        rows.append(row)
    return begin, rows


def as_added(rows):
    columns = [np.stack([np.stack([np.asarray(one[i]) for one in row]) for row in rows]) for i in range(7)]
    _, action, reward, next_obs, terminated, truncated, reset_obs = (jnp.asarray(c) for c in columns)
    return Added(
        action.astype(jnp.int32), reward.astype(jnp.float32), next_obs, terminated, truncated, reset_obs
    )


def expected(rows, lane, t, n_step, gamma, newest):
    """The n-step transition from a step, worked out by hand."""
    total, last = 0.0, t
    for i in range(n_step):
        if t + i > newest:
            break
        total += gamma**i * rows[t + i][lane][2]
        last = t + i
        if rows[t + i][lane][4] or rows[t + i][lane][5]:
            break
    discount = 0.0 if rows[last][lane][4] else gamma ** (last - t + 1)
    return total, rows[last][lane][3], discount


def draw(pond, state, batch, **options):
    """A sample as NumPy arrays."""
    sample = jax.jit(partial(pond.sample, batch=batch, **options))
    return jax.tree.map(np.asarray, sample(state, jax.random.PRNGKey(0)))


@pytest.mark.parametrize("field", [STACK, COLOUR, BOARD], ids=["stack", "colour", "board"])
@pytest.mark.parametrize("ends", [0.1, 0.9], ids=["long", "short"])
def test_every_sample_is_a_step_that_was_added_and_none_is_torn(field, ends):
    rng = np.random.default_rng(0)
    lanes, chunk, chunks, n_step, gamma = 3, 4, 12, 3, 0.9
    begin, rows = episode_steps(rng, lanes, chunk * chunks, field, ends)
    pond = DevicePond(field, lanes=lanes, capacity=16)
    add = jax.jit(pond.add, donate_argnums=0)
    sample = jax.jit(partial(pond.sample, batch=64, n_step=n_step, gamma=gamma))
    state = pond.begin(pond.init(), jnp.asarray(begin))
    seen = set()
    for c in range(chunks):
        part = rows[c * chunk : (c + 1) * chunk]
        state = add(state, as_added(part))
        newest = (c + 1) * chunk - 1
        batch = jax.tree.map(np.asarray, sample(state, jax.random.PRNGKey(c)))
        oldest = np.asarray(state.oldest)
        for i in range(64):
            lane = int(batch.stream[i])
            frame = int(np.asarray(batch.obs[i]).reshape(-1)[-1])
            starts = [t for t in range(oldest[lane], newest + 1) if rows[t][lane][0].reshape(-1)[-1] == frame]
            assert starts, "a step that is not held"
            t = starts[0]
            total, next_obs, discount = expected(rows, lane, t, n_step, gamma, newest)
            assert (batch.obs[i] == rows[t][lane][0]).all()
            assert int(batch.action[i]) == rows[t][lane][1]
            assert float(batch.reward[i]) == pytest.approx(total, rel=1e-5)
            assert (np.asarray(batch.next_obs[i]) == next_obs).all()
            assert float(batch.discount[i]) == pytest.approx(discount, rel=1e-5)
            seen.add((t, lane))
    assert int(state.steps) == chunk * chunks
    assert int(pond.held(state)) <= 16 * lanes
    if ends < 0.5:  # rows suffice: nothing left before its time
        assert int(pond.held(state)) >= 14 * lanes
    assert len(seen) > 30 * lanes // 2


def test_every_step_held_is_drawn_as_often_as_any_other():
    rng = np.random.default_rng(1)
    begin, rows = episode_steps(rng, 4, 24, BOARD, 0.6)
    pond = DevicePond(BOARD, lanes=4, capacity=16)
    state, add = pond.begin(pond.init(), jnp.asarray(begin)), jax.jit(pond.add)
    for at in range(0, 24, 8):
        state = add(state, as_added(rows[at : at + 8]))
    held = int(pond.held(state))
    assert len(set(np.asarray(state.oldest).tolist())) > 1  # lanes hold different numbers
    counts = np.bincount(draw(pond, state, 40_000).step_id, minlength=64)
    assert (counts > 0).sum() == held
    drawn = counts[counts > 0]
    chi2 = ((drawn - 40_000 / held) ** 2 / (40_000 / held)).sum()
    assert chi2 < held + 4 * (2 * held) ** 0.5


def test_priorities_choose_and_weights_make_up_for_it():
    begin, rows = episode_steps(np.random.default_rng(2), 2, 8, BOARD, 0.2)
    pond = DevicePond(BOARD, lanes=2, capacity=16, alpha=1.0)
    add, change = jax.jit(pond.add), jax.jit(pond.update_priorities)
    sample = jax.jit(partial(pond.sample, batch=4000, beta=1.0))
    state = add(pond.begin(pond.init(), jnp.asarray(begin)), as_added(rows))
    everything = np.unique(np.asarray(sample(state, jax.random.PRNGKey(0)).step_id))
    assert len(everything) == 16  # new steps all have the largest priority
    state = change(state, jnp.asarray(everything), jnp.zeros(16))
    state = change(state, jnp.asarray(everything[[3, 9]]), jnp.asarray([3.0, 1.0]))
    batch = sample(state, jax.random.PRNGKey(1))
    ids = np.asarray(batch.step_id)
    assert (ids == everything[3]).mean() == pytest.approx(0.75, abs=0.03)
    weights = np.asarray(batch.weight)
    assert weights[ids == everything[9]].mean() / weights[ids == everything[3]].mean() == pytest.approx(
        3, rel=1e-3
    )
    state = add(state, as_added(rows))  # fresh steps come with the largest priority seen
    fresh = sample(state, jax.random.PRNGKey(2))
    assert len(np.unique(np.asarray(fresh.step_id))) >= 17


def test_steps_that_leave_for_want_of_rows_are_not_drawn_by_priority_either():
    begin, rows = episode_steps(np.random.default_rng(3), 2, 32, STACK, 0.95)
    pond = DevicePond(STACK, lanes=2, capacity=16, alpha=0.5)
    state, add = pond.begin(pond.init(), jnp.asarray(begin)), jax.jit(pond.add)
    for at in range(0, 32, 4):
        state = add(state, as_added(rows[at : at + 4]))
    assert int(pond.held(state)) < 24
    batch = jax.tree.map(
        np.asarray, jax.jit(pond.sample, static_argnums=2)(state, jax.random.PRNGKey(0), 500)
    )
    by_reward = {row[lane][2]: (t, lane) for t, row in enumerate(rows) for lane in range(2)}
    oldest = np.asarray(state.oldest)
    for i in range(500):
        t, lane = by_reward[float(batch.reward[i])]
        assert t >= oldest[lane]
        assert (np.asarray(batch.obs[i]) == rows[t][lane][0]).all()
    assert len(np.unique(np.asarray(batch.step_id))) == int(pond.held(state))


def test_four_ponds_in_one_are_four_ponds():
    data = [episode_steps(np.random.default_rng(s), 2, 8, STACK) for s in range(4)]
    pond = DevicePond(STACK, lanes=2, capacity=8)
    begin = jnp.stack([jnp.asarray(b) for b, _ in data])
    added = jax.tree.map(lambda *x: jnp.stack(x), *[as_added(rows) for _, rows in data])

    @jax.jit
    def fill(first, added):
        return pond.add(pond.begin(pond.init(), first), added)

    four = jax.jit(jax.vmap(fill))(begin, added)
    for i, (first, rows) in enumerate(data):
        one = fill(jnp.asarray(first), as_added(rows))
        for a, b in zip(
            jax.tree.leaves(one), jax.tree.leaves(jax.tree.map(operator.itemgetter(i), four)), strict=True
        ):
            assert (np.asarray(a) == np.asarray(b)).all()


def loaded(pond, base=0, count=6):
    """Two blocks of three steps, the first of which ends an episode; rows are numbers."""
    rows = np.arange(12, dtype=np.int32)[:, None, None] * np.ones((1, 2, 2), np.int32) + base
    columns = {
        "at": np.array([2, 3, 4, 8, 9, 10]),
        "next_at": np.array([3, 4, 5, 9, 10, 11]),
        "action": np.arange(6),
        "reward": np.array([2.0, 3.0, 4.0, 8.0, 9.0, 10.0]) + base,
        "terminated": np.array([False, False, True, False, False, False]),
        "truncated": np.zeros(6, bool),
    }
    columns = {name: values[:count] for name, values in columns.items()}
    starts = [0, 5, 7] if count == 6 else [0, 1]  # pieces of one size; the last overlaps the one before
    return load(pond, pond.init(), columns, [(start, rows[start : start + 5]) for start in starts])


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_a_loaded_pond_delivers_its_steps_and_returns_end_with_the_block(alpha):
    pond = DevicePond(STACK, lanes=1, capacity=10, alpha=alpha, rows=12)
    state = loaded(pond, base=100, count=3)
    columns = {"at": np.array([2]), "next_at": np.array([3]), "action": np.array([7])}
    columns |= {"reward": np.array([1.0]), "terminated": np.array([True]), "truncated": np.array([False])}
    state = load(pond, state, columns, [(0, np.zeros((4, 2, 2), np.int32))])  # replaces what it held
    assert draw(pond, state, 20).action.tolist() == [7] * 20
    batch = draw(pond, loaded(pond), 200, n_step=3, gamma=0.5)
    obs, next_obs = batch.obs[..., 0, 0], batch.next_obs[..., 0, 0]
    start, last = obs[:, -1], next_obs[:, -1]
    assert set(start.tolist()) == {2, 3, 4, 8, 9, 10}
    assert (obs == start[:, None] + np.arange(-2, 1)).all()
    assert (next_obs == last[:, None] + np.arange(-2, 1)).all()
    assert (last == np.where(start < 5, 5, 11)).all()
    taken = last - start
    total = [sum(0.5**i * (a + i) for i in range(n)) for a, n in zip(start, taken, strict=True)]
    assert batch.reward.tolist() == total
    assert batch.discount.tolist() == np.where(start < 5, 0.0, 0.5**taken).tolist()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"capacity": 10, "rows": 11}, r"6 steps with 12 rows do not fit .* 10 steps and 11 rows"),
        ({"capacity": 5, "rows": 40}, r"6 steps with 12 rows do not fit .* 5 steps and 40 rows"),
        ({"capacity": 10, "rows": 40, "lanes": 2}, "2 lanes"),
    ],
    ids=["rows", "steps", "lanes"],
)
def test_a_load_that_does_not_fit_raises_and_writes_nothing(shape, message):
    pond = DevicePond(STACK, **{"lanes": 1} | shape)
    with pytest.raises(SpecError, match=message):
        loaded(pond)


def test_a_load_whose_rows_are_incomplete_or_out_of_place_raises():
    pond = DevicePond(STACK, lanes=1, capacity=10, rows=12)
    columns = {"at": np.array([2]), "next_at": np.array([3]), "action": np.array([7])}
    columns |= {"reward": np.array([1.0]), "terminated": np.array([True]), "truncated": np.array([False])}
    rows = np.zeros((3, 2, 2), np.int32)
    with pytest.raises(SpecError, match="3 of 4 rows were loaded"):
        load(pond, pond.init(), columns, [(0, rows)])
    with pytest.raises(SpecError, match=r"rows \[2, 5\) do not continue the 3 loaded so far of 4"):
        load(pond, pond.init(), columns, [(0, rows), (2, rows)])
    with pytest.raises(SpecError, match=r"rows has shape \(3, 4, 4\)"):
        load(pond, pond.init(), columns, [(0, np.zeros((3, 4, 4), np.int32))])
    with pytest.raises(SpecError, match="outside of the 4 rows"):
        load(pond, pond.init(), columns | {"at": np.array([1])}, [(0, rows)])


def test_sequences_are_consecutive_steps_and_padding_has_weight_zero():
    pond = DevicePond(STACK, lanes=1, capacity=10, rows=12)
    sample = jax.jit(partial(pond.sample_sequences, batch=300, length=4, gamma=0.5))
    batch = jax.tree.map(np.asarray, sample(loaded(pond), jax.random.PRNGKey(0)))
    assert batch.obs.shape == (300, 4, 3, 2, 2)
    assert set(batch.reward[:, 0].tolist()) == {2, 3, 4, 8, 9, 10}
    for rewards, weights, obs, following in zip(
        batch.reward, batch.weight, batch.obs, batch.next_obs, strict=True
    ):
        stop = 5 if rewards[0] < 5 else 11
        wanted = np.minimum(rewards[0] + np.arange(4), stop - 1)
        assert rewards.tolist() == wanted.tolist()
        assert weights.tolist() == (rewards[0] + np.arange(4) < stop).astype(float).tolist()
        assert obs[:, -1, 0, 0].tolist() == rewards.tolist()
        assert following[:, -1, 0, 0].tolist() == (rewards + 1).tolist()
    assert (batch.discount == np.where(batch.reward == 4, 0.0, 0.5)).all()


@pytest.mark.parametrize("field", [STACK, COLOUR, BOARD], ids=["stack", "colour", "board"])
def test_windows_are_adjacent_steps_of_a_lane_and_each_is_as_likely_as_any_other(field):
    lanes, length = 3, 3
    begin, rows = episode_steps(np.random.default_rng(6), lanes, 14, field)
    pond = DevicePond(field, lanes=lanes, capacity=8, rows=10 if field is BOARD else 0)
    state, add = pond.begin(pond.init(), jnp.asarray(begin)), jax.jit(pond.add)
    for start in (0, 7):
        state = add(state, as_added(rows[start : start + 7]))
    oldest = np.asarray(state.oldest)
    live = {(t, lane) for lane in range(lanes) for t in range(oldest[lane], 14)}
    assert len(set(oldest.tolist())) > 1  # some lanes have lost steps for want of rows
    sample = jax.jit(partial(pond.sample_windows, count=12_000, length=length))
    found = jax.tree.map(np.asarray, sample(state, jax.random.PRNGKey(1)))
    by_reward = {row[lane][2]: (t, lane) for t, row in enumerate(rows) for lane in range(lanes)}
    first = [by_reward[float(reward)] for reward in found.reward[0]]
    for i, (start, lane) in enumerate(first[:300]):
        for k in range(length):
            t = start + k if start + k < 14 else oldest[lane] + start + k - 14  # the newest, then the oldest
            obs, action, reward, next_obs, over, cut, _ = rows[t][lane]
            assert (found.obs[k, i] == obs).all()
            assert (found.next_obs[k, i] == next_obs).all()
            assert (found.action[k, i], found.reward[k, i]) == (action, reward)
            assert found.terminated[k, i] == over
            assert found.cut[k, i] == (over or cut or k == length - 1 or t == 13)
    for position in range(length):
        places, counts = np.unique(found.reward[position], return_counts=True)
        assert {by_reward[float(place)] for place in places} == live
        expected = 12_000 / len(live)
        assert ((counts - expected) ** 2 / expected).sum() < len(live) + 4 * (2 * len(live)) ** 0.5
    with pytest.raises(SampleError, match="windows need a count and length of at least 1, not 0 and 3"):
        pond.sample_windows(state, jax.random.PRNGKey(0), 0, 3)


@pytest.mark.parametrize("alpha", [None, 1.0])
@pytest.mark.parametrize("sequences", [False, True])
def test_each_step_is_drawn_with_its_exact_probability(alpha, sequences):
    """Uniformly, or in proportion to its priority; a sequence by the priority of its first step."""
    begin, rows = episode_steps(np.random.default_rng(3), 3, 8, BOARD, 0.3)
    pond = DevicePond(BOARD, lanes=3, capacity=8, alpha=alpha)
    state = jax.jit(pond.add)(pond.begin(pond.init(), jnp.asarray(begin)), as_added(rows))
    live = np.arange(8) >= np.asarray(state.oldest)[:, np.newaxis]
    assert 15 < live.sum() < 24  # the rows do not suffice for all steps
    weight = live.reshape(-1).astype(float)
    if alpha is not None:  # priorities of evicted steps are ignored
        weight *= 1.0 + np.arange(24) % 4
        state = jax.jit(pond.update_priorities)(state, jnp.arange(24), jnp.asarray(1.0 + np.arange(24) % 4))
    draw = partial(pond.sample_sequences, length=3) if sequences else pond.sample
    batch = jax.jit(partial(draw, batch=24_000))(state, jax.random.PRNGKey(5))
    counts = np.bincount(np.asarray(batch.step_id).reshape(24_000, -1)[:, 0], minlength=24)
    assert (counts[weight == 0] == 0).all()
    counts, expected = counts[weight > 0], (weight / weight.sum())[weight > 0] * 24_000
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < 24 + 4 * (2 * 24) ** 0.5


def test_emptied_after_a_pour_the_lanes_go_on():
    begin, rows = episode_steps(np.random.default_rng(4), 2, 8, STACK)
    pond = DevicePond(STACK, lanes=2, capacity=8)
    add = jax.jit(pond.add)
    state = add(pond.begin(pond.init(), jnp.asarray(begin)), as_added(rows[:4]))
    state = pond.empty(state)
    assert int(pond.held(state)) == 0
    state = add(state, as_added(rows[4:]))
    batch = jax.tree.map(
        np.asarray, jax.jit(pond.sample, static_argnums=2)(state, jax.random.PRNGKey(0), 100)
    )
    by_reward = {row[lane][2]: (t, lane) for t, row in enumerate(rows) for lane in range(2)}
    for i in range(100):
        t, lane = by_reward[float(batch.reward[i])]
        assert t >= 4
        assert (np.asarray(batch.obs[i]) == rows[t][lane][0]).all()


def test_one_add_that_wraps_the_ring_of_rows_keeps_the_newest_steps_intact():
    """Eight episodes of one step in a pond of eight: more rows in one call than the ring has."""
    begin, rows = episode_steps(np.random.default_rng(5), 1, 8, BOARD, ends=2.0)
    assert all(row[0][4] or row[0][5] for row in rows)
    pond = DevicePond(BOARD, lanes=1, capacity=8)
    assert pond.rows < 2 * 8
    state = jax.jit(pond.add)(pond.begin(pond.init(), jnp.asarray(begin)), as_added(rows))
    batch = draw(pond, state, 200)
    by_reward = {row[0][2]: row[0] for row in rows}
    for obs, reward, next_obs in zip(batch.obs, batch.reward, batch.next_obs, strict=True):
        step = by_reward[float(reward)]
        assert (obs == step[0]).all()
        assert (next_obs == step[3]).all()
    assert set(batch.reward.tolist()) == set(list(by_reward)[-int(pond.held(state)) :])


def test_a_million_atari_steps_fit_eight_gigabytes():
    atari = DevicePond(Field((4, 84, 84), "uint8", rows=0), lanes=128, capacity=1_000_000 // 128)
    assert atari.nbytes < 8e9
    assert atari.nbytes == pytest.approx(7.53e9, rel=0.01)


def test_invalid_sizes_and_arguments_raise():
    with pytest.raises(SpecError, match=r"takes 9\d\d TB, but there is room for .* about [\d,]+ steps fit"):
        DevicePond(Field((4, 84, 84), "uint8", rows=0), lanes=128, capacity=10**9).init()
    pond = DevicePond(BOARD, lanes=1, capacity=2)
    too_many = as_added(episode_steps(np.random.default_rng(0), 1, 3, BOARD)[1])
    with pytest.raises(SpecError, match="add fewer"):
        pond.add(pond.init(), too_many)
    with pytest.raises(SampleError, match="no priorities"):
        pond.update_priorities(pond.init(), jnp.zeros(1, jnp.int32), jnp.ones(1))
    with pytest.raises(SampleError, match="at least 1"):
        pond.sample(pond.init(), jax.random.PRNGKey(0), 0)
    with pytest.raises(SampleError, match="at least 1"):
        pond.sample_sequences(pond.init(), jax.random.PRNGKey(0), 1, 0)
    with pytest.raises(SampleError, match="3 steps needs a discount; pass gamma"):
        pond.sample(pond.init(), jax.random.PRNGKey(0), 1, n_step=3)
    wrong = as_added(episode_steps(np.random.default_rng(0), 1, 2, BOARD)[1])
    with pytest.raises(SpecError, match=r"shape \(2, 1\), but this device pond takes \(2, 3\)"):
        DevicePond(BOARD, lanes=3, capacity=2).add(DevicePond(BOARD, lanes=3, capacity=2).init(), wrong)


def test_gamma_is_one_unless_it_is_passed():
    pond = DevicePond(STACK, lanes=1, capacity=10, rows=12)
    batch = draw(pond, loaded(pond), 50)
    assert (batch.discount == np.where(batch.terminated, 0.0, 1.0)).all()
