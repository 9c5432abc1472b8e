"""Row layouts are detected from recorded observations, and not from data without evidence."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakepond as lp
from lakepond.rows import LayoutSearch
from lakepond.types import RowLayout


def frames(n: int, seed: int = 0, shape: tuple[int, ...] = (8, 36)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (n, *shape), dtype=np.uint8)


def found(observations: list[np.ndarray]) -> RowLayout | str | None:
    """What the steps of one stream with these observations show."""
    search = LayoutSearch(lp.Field(observations[0].shape, observations[0].dtype))
    says: RowLayout | str | None = "open"
    for obs, next_obs in itertools.pairwise(observations):
        if says == "open":
            says = search.add(0, obs, next_obs)
    return says


# --- one pair -------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_stack_is_found_on_any_axis_from_the_first_step(axis):
    f = np.moveaxis(frames(5), 0, axis)
    assert found([f.take(range(4), axis), f.take(range(1, 5), axis)]) == (axis, 1)


def test_newest_first_is_found_too():
    f = frames(5)
    assert found([f[1:5][::-1], f[:4][::-1]]) == (0, 1)


@pytest.mark.parametrize("value", [0, 7])
def test_equal_rows_say_nothing(value):
    still = np.full((4, 8, 36), value, np.uint8)
    assert found([still] * 40) == "open"
    still[:] = frames(1)
    assert found([still] * 40) == "open"


def test_a_dot_that_moves_over_a_blank_board_says_nothing():
    """Each board is the previous one moved by a line, but nothing new enters: it is not a window."""
    boards = np.zeros((40, 48, 24), np.uint8)
    for t in range(40):
        boards[t, 44 - t, 3] = 1
    assert found(list(boards)) == "open"


def test_a_padded_stack_says_nothing_until_it_moves():
    f = np.concatenate([np.zeros((3, 8, 36), np.uint8), frames(9)])
    stacks = [f[t : t + 4] for t in range(8)]
    assert found([np.zeros((4, 8, 36), np.uint8), stacks[0]]) == "open"  # nothing moved, one row entered
    assert found(stacks[:2]) == (0, 1)


def test_nan_rows_are_compared_by_bytes():
    w = np.full((6, 8, 9), np.nan, np.float32)
    w[:, 0, 0] = np.arange(6)
    assert found([w[:5], w[1:6]]) == (0, 1)


def test_tiny_rows_do_not_count():
    v = np.arange(100, dtype=np.float32)
    assert found([v[t : t + 50] for t in range(40)]) is None


def test_unrelated_observations_are_one_row_each():
    assert found([frames(4, seed) for seed in range(40)]) is None


def test_rows_of_several_slices_are_not_chosen_from_one_pair():
    """A window that moves by two slices may move by one later: rows of two would then not repeat."""
    f = frames(40)
    assert found([f[0:4], f[2:6]]) == "open"
    assert found([f[2 * t : 2 * t + 4] for t in range(9)]) == (0, 2)
    assert found([f[2 * t : 2 * t + 4] for t in range(7)] + [f[13:17]]) == (0, 1)
    assert found([f[0:5], f[2:7]]) == (0, 1)  # 5 slices are not made of twos


# --- what people record ---------------------------------------------------------------------------


@dataclass
class Case:
    """Observations, how to declare them, and the distinct rows that a step adds."""

    shape: tuple[int, ...]
    rows: object
    observe: Callable[[int, int], np.ndarray]
    """the observation at time t of an episode"""
    new_bytes: int
    """of an observation that differ from all before it"""


@functools.lru_cache(maxsize=20_000)
def _frame(episode: int, t: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng([episode, t]).integers(1, 256, shape, dtype=np.uint8)


def _stack(
    count: int, shape: tuple[int, ...], axis: int, *, by: int = 1, apart: int = 1, zeros: bool = False
) -> Callable[[int, int], np.ndarray]:
    """The last `count` frames, `apart` frames from each other; a step is `by` frames."""

    def observe(episode: int, t: int) -> np.ndarray:
        at = [by * t - apart * k for k in range(count - 1, -1, -1)]
        empty = np.zeros(shape, np.uint8)
        return np.concatenate(
            [empty if zeros and i < 0 else _frame(episode, max(i, 0), shape) for i in at], axis
        )

    return observe


def _beside(stack: Callable[[int, int], np.ndarray]) -> Callable[[int, int], np.ndarray]:
    """A stack and a mask that stays the same for an episode."""
    return lambda e, t: np.concatenate([stack(e, t), _frame(e, -1 % 2**16, stack(e, t)[:1].shape)])


def _window(axis: int) -> Callable[[int, int], np.ndarray]:
    return lambda e, t: np.stack([_frame(0, 40 * e + t + k, (8, 24)) for k in range(30)], axis)


GREY, RGB = 20 * 20, 3 * 20 * 20
CASES = {
    "frames first": Case((4, 20, 20), 0, _stack(4, (1, 20, 20), 0), GREY),
    "frames last": Case((20, 20, 4), -1, _stack(4, (20, 20, 1), -1), GREY),
    "DrQ: colour frames first": Case((9, 20, 20), (0, 3), _stack(3, (3, 20, 20), 0), RGB),
    "SB3: colour frames last, zeros at the start": Case(
        (20, 20, 12), (-1, 3), _stack(4, (20, 20, 3), -1, zeros=True), RGB
    ),
    "moves by two frames": Case((4, 20, 20), (0, 2), _stack(4, (1, 20, 20), 0, by=2), 2 * GREY),
    "moves by three of four frames": Case((4, 20, 20), 0, _stack(4, (1, 20, 20), 0, by=3), 3 * GREY),
    "every second frame": Case((4, 20, 20), 0, _stack(4, (1, 20, 20), 0, apart=2), GREY),
    "every fourth colour frame": Case((9, 20, 20), (0, 3), _stack(3, (3, 20, 20), 0, apart=4), RGB),
    "window on axis 1": Case((8, 30, 24), 1, _window(1), 8 * 24),
    "window on the last axis": Case((8, 24, 30), -1, _window(-1), 8 * 24),
    "a mask beside a stack": Case((13, 20, 20), 0, _beside(_stack(4, (3, 20, 20), 0)), RGB),
    "stacked vectors in one": Case((400,), (0, 100), _stack(4, (100,), 0), 100),
}
ENVS = 8
LENGTH = 40
EPISODES = 3


def play(replay: lp.Replay, case: Case, wrap: Callable[[np.ndarray], object] = lambda obs: obs) -> None:
    """Record eight environments, all ending at the same time, as a vector environment does."""
    for episode in range(EPISODES):
        streams = [episode * ENVS + k for k in range(ENVS)]
        seen = [np.stack([case.observe(e, t) for e in streams]) for t in range(LENGTH + 1)]
        for t in range(LENGTH):
            replay.record(
                obs=wrap(seen[t]),
                next_obs=wrap(seen[t + 1]),
                action=np.arange(ENVS),
                reward=np.array(streams) * 1000.0 + t,
                terminated=np.full(ENVS, t == LENGTH - 1),
                truncated=np.zeros(ENVS, np.bool_),
            )


def check(batch: lp.Batch, case: Case, take: Callable[[object], object] = lambda obs: obs) -> None:
    """Each reward says which episode and time its step is from."""
    for i, reward in enumerate(batch.reward.astype(int).tolist()):
        episode, t = divmod(reward, 1000)
        assert np.array_equal(take(batch.obs)[i], case.observe(episode, t))
        assert np.array_equal(take(batch.next_obs)[i], case.observe(episode, t + 1))


def bytes_of_rows(replay: lp.Replay) -> int:
    return sum(leaf.store.rows * leaf.store.row_bytes for leaf in replay._pond.leaves if leaf.store)


@pytest.mark.parametrize("name", CASES)
def test_what_people_record_is_found_and_stored_as_if_declared(name):
    case, steps = CASES[name], ENVS * LENGTH * EPISODES
    replay = lp.Replay(lp.Spec(obs=lp.Field(case.shape, "uint8")), steps)
    declared = lp.Replay(lp.Spec(obs=lp.Field(case.shape, "uint8", rows=case.rows)), steps)
    for each in (replay, declared):
        play(each, case)
        check(each.steps(np.arange(0, steps, 3)), case)
        each._pond.leaves[0].store.check()
    assert replay.stats().layout == declared.stats().layout
    # a crowded place of the index may forget a row, which is then stored again
    assert replay.stats().rows <= 1.01 * declared.stats().rows
    first = ENVS * EPISODES * int(np.prod(case.shape))  # of each episode
    assert bytes_of_rows(replay) <= 1.01 * (steps * case.new_bytes + first)
    assert replay.stats().hints == {}
    copied = pickle.loads(pickle.dumps(replay))
    assert copied.stats().layout == replay.stats().layout
    check(copied.steps(np.arange(0, steps, 11)), case)


@pytest.mark.parametrize("steps", [1_000, 3_000])
@pytest.mark.parametrize("envs", [1, 8])
def test_a_found_layout_takes_the_memory_of_a_declared_one(envs, steps):
    """Small rows, stacks of 4 vectors of 17 floats: what counts is the state of the store beside them."""
    rng = np.random.default_rng(0)
    fields = [lp.Field((68,), "float32", rows=rows) for rows in ("auto", (0, 17))]
    found, declared = (lp.Replay(lp.Spec(obs=field), steps) for field in fields)
    obs = rng.standard_normal((envs, 68)).astype(np.float32)
    for t in range(steps // envs):
        new = rng.standard_normal((envs, 17)).astype(np.float32)
        next_obs = np.concatenate([obs[:, 17:], new], axis=1)
        end = np.full(envs, t % 200 == 199)
        rest = {"action": np.zeros(envs, int), "reward": np.zeros(envs), "truncated": end & False}
        for replay in (found, declared):
            replay.record(obs=obs, next_obs=next_obs, terminated=end, **rest)
        obs = next_obs if t % 200 < 199 else rng.standard_normal((envs, 68)).astype(np.float32)
    assert found.stats().layout == declared.stats().layout
    assert found.stats().bytes_held < 1.1 * declared.stats().bytes_held


@pytest.mark.parametrize("name", ["DrQ: colour frames first", "window on axis 1", "every second frame"])
def test_they_are_found_inside_a_dict(name):
    case, steps = CASES[name], ENVS * LENGTH * EPISODES
    spec = lp.Spec(obs={"speed": lp.Field((3,)), "camera": lp.Field(case.shape, "uint8")})
    replay = lp.Replay(spec, steps)
    play(replay, case, lambda obs: {"speed": np.zeros((len(obs), 3), np.float32), "camera": obs})
    check(replay.steps(np.arange(steps)), case, lambda obs: obs["camera"])
    alone = lp.Replay(lp.Spec(obs=lp.Field(case.shape, "uint8")), steps)
    play(alone, case)
    assert replay.stats().layout["obs['camera']"] == alone.stats().layout["obs"]
    assert bytes_of_rows(replay) == bytes_of_rows(alone)


@pytest.mark.parametrize("name", CASES)
def test_they_are_the_same_through_a_lake(name, tmp_path):
    """Written, verified, exported, opened again and continued, filled into another replay."""
    case, steps = CASES[name], ENVS * LENGTH * EPISODES
    spec = lp.Spec(obs=lp.Field(case.shape, "uint8"))
    with lp.Replay.open(tmp_path / "lake", spec, capacity=2 * steps) as replay:
        play(replay, case)
        layout, rows = replay.stats().layout, replay.stats().rows
        replay.snapshot(tmp_path / "snapshot")
    with lp.Lake.open(tmp_path / "snapshot") as lake:
        check(lake.steps(np.arange(0, steps, 7)), case)
    with lp.Replay.open(tmp_path / "lake", capacity=2 * steps) as replay:
        assert replay.stats().layout == layout
        assert replay.stats().rows <= 1.01 * rows
        check(replay.steps(np.arange(0, steps, 5)), case)
        play(replay, case)
        assert replay.stats().rows <= 1.01 * rows  # all of it is known
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert len(lake) == 2 * steps
        lake.verify()
        check(lake.steps(np.arange(0, steps, 7)), case)
        assert sum(len(episode.reward) for episode in lake.episodes()) == 2 * steps
        stored = lake.rows()
        size = int(np.prod(stored.shape[1:]))
        assert size == int(np.prod(case.shape)) // replay._pond.leaves[0].store.length
        assert len(stored) <= 1.01 * rows  # each distinct row once, on disk as well
        other = lp.Replay(spec, steps)
        other.fill_from(lake, steps // 2, rng=np.random.default_rng(0))
        assert other.stats().layout == layout
        check(other.steps(np.arange(steps // 2)), case)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_layout_returns_the_exact_bytes(data):
    """Declared or found, with repeats or without, changed by a second look or not."""
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    dtype = data.draw(st.sampled_from(["uint8", "float32", "bool", "complex128"]))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = data.draw(st.sampled_from([n for n in range(1, shape[axis] + 1) if shape[axis] % n == 0]))
    rows = data.draw(st.sampled_from(["auto", None, axis, (axis, size)]))
    by = data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 3)))
    long = list(shape)
    long[axis] += 30 * by
    history = rng.integers(0, 3, long).astype(dtype)
    observe = [history.take(range(by * t, by * t + shape[axis]), axis) for t in range(30)]
    replay = lp.Replay(lp.Spec(obs={"a": lp.Field(shape, dtype, rows=rows)}), 24)
    for t in range(29):
        replay.record(
            obs={"a": observe[t]},
            next_obs={"a": observe[t + 1]},
            action=0,
            reward=t,
            terminated=False,
            truncated=False,
        )
    batch = replay.steps(np.arange(5, 29))
    out = replay.sample(4, rng=np.random.default_rng(0))
    for i, t in enumerate(range(5, 29)):
        assert batch.obs["a"][i].tobytes() == np.ascontiguousarray(observe[t]).tobytes()
        assert batch.next_obs["a"][i].tobytes() == np.ascontiguousarray(observe[t + 1]).tobytes()
    for i, t in enumerate(out.reward.astype(int)):
        assert out.obs["a"][i].tobytes() == np.ascontiguousarray(observe[t]).tobytes()


# --- misleading starts ----------------------------------------------------------------------------


def record_all(replay: lp.Replay, observations: list[np.ndarray]) -> None:
    for t, (obs, next_obs) in enumerate(itertools.pairwise(observations)):
        replay.record(
            obs=obs, action=0, reward=float(t), next_obs=next_obs, terminated=False, truncated=False
        )


@pytest.mark.parametrize("quiet", [0, 40])
def test_the_layout_is_found_after_a_quiet_start(quiet):
    """An episode that begins with a still screen: nothing is decided until something moves."""
    f = np.concatenate([np.repeat(frames(1), 4 + quiet, axis=0), frames(60, 3)])
    replay = lp.Replay(lp.Spec(obs=lp.Field((4, 8, 36), "uint8")), 1000)
    record_all(replay, [f[t : t + 4] for t in range(quiet + 51)])
    assert "4 rows of 288 B along axis 0" in str(replay.stats())
    batch = replay.steps(np.arange(quiet + 50))
    for t in range(quiet + 50):
        assert np.array_equal(batch.obs[t], f[t : t + 4])
        assert np.array_equal(batch.next_obs[t], f[t + 1 : t + 5])
    assert replay.stats().rows <= 52 + 4


def test_noise_settles_for_whole_observations_and_costs_little_more_than_a_ring():
    replay = lp.Replay(lp.Spec(obs=lp.Field((4, 500), "float32")), 500)
    rng = np.random.default_rng(0)
    for t in range(500):
        obs, next_obs = rng.random((2, 4, 500), np.float32)
        replay.record(obs=obs, action=0, reward=t, next_obs=next_obs, terminated=False, truncated=False)
    stats = replay.stats()
    assert stats.layout["obs"] == "whole observations of 8,000 B"
    assert stats.bytes_held < 1.1 * stats.bytes_plain
    assert stats.hints == {}


def test_stats_of_small_observations_say_that_they_are_stored_without_deduplication():
    replay = lp.Replay(lp.Spec(obs=lp.Field((4,), "float32")), 500)
    obs = np.zeros(4, np.float32)
    replay.record(obs=obs, action=0, reward=0, next_obs=obs, terminated=False, truncated=False)
    text = str(replay.stats())
    assert text.startswith("1 of 500 steps, ")
    assert " B in memory, 46 B without deduplication, " in text
    assert text.endswith("x (obs: stored without deduplication)")
    assert "distinct rows" not in text


def test_a_stack_after_a_noisy_start_is_found_by_the_second_look():
    f = frames(500)
    replay = lp.Replay(lp.Spec(obs=lp.Field((4, 8, 36), "uint8")), 1000)
    record_all(replay, [*(frames(4, seed) for seed in range(1, 60)), *(f[t : t + 4] for t in range(400))])
    assert replay.stats().layout["obs"] == "4 rows of 288 B along axis 0"
    batch = replay.steps(np.arange(59, 458))
    for t in range(399):
        assert np.array_equal(batch.next_obs[t], f[t + 1 : t + 5])


def test_small_rows_that_stop_repeating_are_given_up_by_the_second_look():
    """An image that scrolls at first looks like a window of its lines."""
    f = frames(100, shape=(40,))
    replay = lp.Replay(lp.Spec(obs=lp.Field((40, 40), "uint8")), 1000)
    noise = [frames(40, seed, (40,)) for seed in range(1, 400)]
    record_all(replay, [*(f[t : t + 40] for t in range(20)), *noise])
    assert replay.stats().layout["obs"] == "whole observations of 1,600 B"
    batch = replay.steps(np.arange(418))
    for t in range(19):
        assert np.array_equal(batch.next_obs[t], f[t + 1 : t + 41])
    for t in range(20, 418):
        assert np.array_equal(batch.next_obs[t], noise[t - 19])


# --- hints ----------------------------------------------------------------------------------------


def test_stats_say_what_to_declare_where_nothing_was_found():
    """A stack of every eighth frame repeats only observations of eight steps ago."""
    f = frames(1000, shape=(20, 20))
    stacks = [f[t : t + 25 : 8] for t in range(300)]
    replay = lp.Replay(lp.Spec(obs=lp.Field((4, 20, 20), "uint8")), 1000)
    record_all(replay, stacks)
    assert replay.stats().layout["obs"] == "whole observations of 1,600 B"
    assert replay.stats().hints["obs"].startswith("declare Field(..., rows=0) to store it in 2.")
    declared = lp.Replay(lp.Spec(obs=lp.Field((4, 20, 20), "uint8", rows=0)), 1000)
    record_all(declared, stacks)
    assert bytes_of_rows(declared) < bytes_of_rows(replay) / 3
    assert declared.stats().hints == {}


def test_a_declared_layout_that_misses_repeats_gets_a_hint():
    case = CASES["SB3: colour frames last, zeros at the start"]
    replay = lp.Replay(lp.Spec(obs=lp.Field(case.shape, "uint8", rows=None)), 1000)
    play(replay, case)
    hint = replay.stats().hints["obs"]
    assert hint.startswith("declare Field(..., rows=(-1, 3)) to store it in 2.")
    assert hint in str(replay.stats())
    declared = lp.Replay(lp.Spec(obs=lp.Field(case.shape, "uint8", rows=(-1, 3))), 1000)
    play(declared, case)
    assert declared.stats().hints == {}
    assert bytes_of_rows(replay) > 2.5 * bytes_of_rows(declared)


# --- declarations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "normal"),
    [(0, 0), (2, -1), (-1, -1), (1, 1), (-2, 1), (-3, 0), ((0, 1), 0), ((-1, 3), (-1, 3)), ([2, 3], (-1, 3))],
)
def test_a_declared_layout_has_one_form(rows, normal):
    field = lp.Field((4, 5, 6), "uint8", rows=rows)
    assert field.rows == normal
    assert field == lp.Field((4, 5, 6), "uint8", rows=normal)


@pytest.mark.parametrize("rows", [3, -4, (0, 3), (0, 0), (0, -1), (0, 1, 2), "first", 1.5, True, (0, 2.0)])
def test_a_layout_that_does_not_fit_is_refused(rows):
    with pytest.raises(lp.SpecError, match="rows="):
        lp.Field((4, 5, 6), "uint8", rows=rows)
