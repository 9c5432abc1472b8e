"""The device pond against a plain list of all steps; each frame is a number that tells on itself."""

import operator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.errors import SampleError, SpecError
from lakepond.pond.device import Added, DevicePond, Loaded
from lakepond.types import Field

STACK = Field((3, 2, 2), "int32", rows=0)
BOARD = Field((2, 2), "int32", rows=None)


def episode_steps(rng, lanes, steps, field, ends=0.3):
    """The first observations, and rows of one step a lane, with autoreset."""
    stack = field.shape[0] if field.rows == 0 else 1
    count = [0] * lanes

    def frame(lane):
        count[lane] += 1
        return lane * 1_000_000 + count[lane]

    def first(lane):
        return [frame(lane)] * stack

    def show(numbers):
        frames = np.stack([np.full((2, 2), n, np.int32) for n in numbers])
        return frames if field.rows == 0 else frames[0]

    now = [first(lane) for lane in range(lanes)]
    begin = np.stack([show(n) for n in now])
    rows, reward = [], 0
    for _ in range(steps):
        row = []
        for lane in range(lanes):
            following = [*now[lane][1:], frame(lane)]
            over, cut = rng.random() < ends / 2, rng.random() < ends / 2
            begun = first(lane) if over or cut else following
            reward += 1
            row.append(
                (
                    show(now[lane]),
                    reward % 5,
                    float(reward),
                    show(following),
                    over,
                    cut and not over,
                    show(begun),
                )
            )
            now[lane] = begun
        rows.append(row)
    return begin, rows


def as_added(rows):
    columns = [np.stack([np.stack([np.asarray(one[i]) for one in row]) for row in rows]) for i in range(7)]
    _, action, reward, next_obs, terminated, truncated, begun = (jnp.asarray(c) for c in columns)
    return Added(action.astype(jnp.int32), reward.astype(jnp.float32), next_obs, terminated, truncated, begun)


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


@pytest.mark.parametrize("field", [STACK, BOARD], ids=["stack", "board"])
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
    batch = pond.sample(state, jax.random.PRNGKey(0), 40_000)
    counts = np.bincount(np.asarray(batch.step_id), minlength=64)
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


def test_pieces_loaded_are_what_is_sampled():
    pond = DevicePond(STACK, lanes=1, capacity=10, rows=40)
    state, load = pond.init(), jax.jit(pond.load)
    rows = np.arange(12, dtype=np.int32)[:, None, None] * np.ones((1, 2, 2), np.int32)
    for base in (0, 100):
        piece = Loaded(
            rows=rows + base,
            rows_count=8,  # the last four are padding
            at=np.array([2, 3, 6, 0]),
            next_at=np.array([4, 5, 7, 0]),
            action=np.array([0, 1, 2, 9]),
            reward=np.array([base + 2.0, base + 3.0, base + 6.0, -1.0], np.float32),
            terminated=np.array([False, False, True, False]),
            truncated=np.zeros(4, bool),
            span=np.array([2, 2, 1, 1]),
            steps_count=3,
        )
        state = load(state, piece)
    assert int(pond.held(state)) == 6
    batch = pond.sample(state, jax.random.PRNGKey(0), 200, gamma=0.5)
    assert set(np.asarray(batch.reward).tolist()) == {2.0, 3.0, 6.0, 102.0, 103.0, 106.0}
    newest = np.asarray(batch.obs)[:, -1, 0, 0]
    assert (newest == np.asarray(batch.reward)).all()
    assert (np.asarray(batch.obs)[:, 0, 0, 0] == newest - 2).all()
    gap = np.asarray(batch.next_obs)[:, -1, 0, 0] - newest
    assert (gap == np.where(newest % 100 == 6, 1, 2)).all()
    discount = np.where(newest % 100 == 6, 0.0, 0.25)
    assert np.asarray(batch.discount) == pytest.approx(discount)
    assert int(pond.held(pond.cleared(state))) == 0


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


def test_a_million_atari_steps_fit_eight_gigabytes():
    atari = DevicePond(Field((4, 84, 84), "uint8", rows=0), lanes=128, capacity=1_000_000 // 128)
    assert atari.nbytes < 8e9
    assert atari.nbytes == pytest.approx(7.53e9, rel=0.01)


def test_what_does_not_fit_the_device_is_told_before_it_is_taken():
    with pytest.raises(SpecError, match=r"takes .* GB, but there is room for .* about [\d,]+ steps fit"):
        DevicePond(Field((4, 84, 84), "uint8", rows=0), lanes=128, capacity=10**9).init()
    pond = DevicePond(BOARD, lanes=1, capacity=2)
    too_many = as_added(episode_steps(np.random.default_rng(0), 1, 3, BOARD)[1])
    with pytest.raises(SpecError, match="add fewer"):
        pond.add(pond.init(), too_many)
    with pytest.raises(SampleError, match="no priorities"):
        pond.update_priorities(pond.init(), jnp.zeros(1, jnp.int32), jnp.ones(1))
    with pytest.raises(SampleError, match="at least 1"):
        pond.sample(pond.init(), jax.random.PRNGKey(0), 0)
