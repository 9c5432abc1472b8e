"""Each distinct row is stored once: the number of rows for given observations."""

import subprocess
import sys

import numpy as np
import pytest

import lakepond as lp
from lakepond.rows.hashing import hash_bytes
from lakepond.rows.memory import Slab, address_of
from lakepond.rows.state import PATIENCE, USED


def day(t: int) -> np.ndarray:
    row = np.full((6, 4), t, np.float32)
    row[0, 0], row[1, 1] = np.nan, -0.0
    return row


def window(stop: int, length: int = 10) -> np.ndarray:
    return np.stack([day(t) for t in range(stop - length, stop)])


def new_replay(capacity: int = 1000, rows: object = "auto", length: int = 10) -> lp.Replay:
    return lp.Replay(lp.Spec(obs=lp.Field((length, 6, 4), "float32", rows=rows)), capacity)


def record(replay: lp.Replay, obs: object, next_obs: object, **more: object) -> None:
    fields = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False} | more
    replay.record(obs=obs, next_obs=next_obs, **fields)


def walk(replay: lp.Replay, start: int, steps: int, stream: int = 0) -> None:
    for t in range(start, start + steps):
        record(replay, window(t), window(t + 1), stream=stream)


def test_a_sliding_window_keeps_one_row_a_step():
    replay = new_replay()
    walk(replay, 10, 100)
    assert replay.stats().rows == 110


def test_another_agent_over_the_same_days_keeps_nothing_new():
    replay = new_replay()
    walk(replay, 10, 100, stream=0)
    walk(replay, 40, 60, stream=1)
    assert replay.stats().rows == 110


def test_overlapping_episodes_share_what_overlaps():
    replay = new_replay()
    walk(replay, 100, 20)
    walk(replay, 90, 20)  # a new episode of the same stream, ten days earlier
    assert replay.stats().rows == 30 + 10


def test_padding_at_the_start_of_an_episode_is_one_row():
    replay = new_replay()
    padded = [np.stack([day(max(0, t - 9 + k)) for k in range(10)]) for t in range(30)]
    for t in range(29):
        record(replay, padded[t], padded[t + 1])
    assert replay.stats().rows == 30


def test_a_step_of_several_rows_is_found_through_the_index():
    replay = new_replay(rows=0)
    for t in range(10, 70, 3):
        record(replay, window(t), window(t + 3))
    assert replay.stats().rows == 10 + 3 * 20


def test_n_step_transitions_share_their_rows_and_their_track():
    """obs, then next_obs three days on, then the obs of the day after: no entry is written twice."""
    replay = new_replay(rows=0)
    walk(replay, 10, 1)
    for t in range(11, 200):
        record(replay, window(t), window(t + 3))
    assert replay.stats().rows == 202
    store = replay._pond.leaves[0].store
    assert (store.state.extents["tail"] - store.state.extents["head"]).sum() <= 202 + 10 * 8


def test_windows_that_run_backwards_are_kept_once_too():
    replay = new_replay()
    for t in range(10, 60):
        record(replay, window(t)[::-1], window(t + 1)[::-1])
    assert replay.stats().rows == 60
    assert np.array_equal(replay.recent(1).obs[0].view(np.uint32), window(59)[::-1].copy().view(np.uint32))


def test_nan_payloads_and_negative_zero_survive_bit_for_bit():
    replay = new_replay()
    strange = window(10)
    strange.view(np.uint32)[3, 2, 1] = 0x7FC0_1234  # a NaN with a payload
    record(replay, strange, window(11))
    assert replay.recent(1).obs.tobytes() == strange.tobytes()


def test_the_caller_may_overwrite_its_arrays():
    replay = new_replay()
    obs, next_obs = window(10), window(11)
    for t in range(10, 40):
        obs[...], next_obs[...] = window(t), window(t + 1)
        record(replay, obs, next_obs)
        obs.fill(-1)
        next_obs.fill(-2)
    batch = replay.steps(np.arange(30))
    for i in range(30):
        assert batch.obs[i].tobytes() == window(10 + i).tobytes()
        assert batch.next_obs[i].tobytes() == window(11 + i).tobytes()


def test_an_array_changed_in_place_between_steps_is_seen():
    """The same memory handed over again with other content is other content."""
    replay = new_replay()
    buffer = window(10)
    record(replay, buffer, window(11))
    buffer[5, 0, 0] = 99
    record(replay, buffer, window(11))
    assert replay.recent(2).obs[0, 5, 0, 0] != 99
    assert replay.recent(2).obs[1, 5, 0, 0] == 99


def test_rows_with_equal_hashes_are_told_apart_by_their_bytes():
    """Two rows whose hashes were made equal: the second must not be taken for the first."""
    replay = new_replay(rows=0)
    walk(replay, 10, 1)
    store = replay._pond.leaves[0].store
    other = day(500)
    books, address = store.state, other.ctypes.data
    key = hash_bytes(address, store.row_bytes)
    home = int(key >> 16) & (len(books.table) - 1)
    slot = int(books.table[books.table >= 0][0])
    books.slots["keys"][slot] = key
    books.table[home] = slot
    before = replay.stats().rows
    record(replay, np.stack([other] * 10), np.stack([other] * 10))
    assert replay.stats().rows == before + 1
    assert replay.recent(1).obs.tobytes() == np.stack([other] * 10).tobytes()


def test_data_that_never_repeats_stops_being_searched_and_is_found_again_when_it_does():
    replay = new_replay(capacity=4000, rows=0)
    rng = np.random.default_rng(0)
    noise = rng.random((400, 10, 6, 4), np.float32)
    for i in range(0, 400, 2):
        record(replay, noise[i], noise[i + 1])
    store = replay._pond.leaves[0].store
    assert store.counter("misses") >= PATIENCE
    hashed = np.count_nonzero(store.state.slots["keys"])
    assert hashed < 0.2 * store.rows  # the first windows, then one in 64
    for i in range(0, 400, 2):
        record(replay, noise[i], noise[i + 1])
    assert store.counter("misses") < 400  # a window chosen by its content was chosen again and found
    assert replay.stats().rows < 1.99 * 4000


def test_large_windows_that_never_repeat_are_kept_bit_for_bit_also_when_they_replace_others():
    replay = lp.Replay(lp.Spec(obs=lp.Field((5, 1_003), "uint8", rows=0)), 64)
    noise = np.random.default_rng(0).integers(0, 256, (30, 2, 8, 5, 1_003), dtype=np.uint8)
    flags = np.zeros(8, bool)
    for obs, next_obs in noise:
        step = {"obs": obs, "next_obs": next_obs, "terminated": flags, "truncated": flags}
        replay.record(**step, action=np.zeros((8,), np.int64), reward=np.zeros(8, np.float32))
    store = replay._pond.leaves[0].store
    assert store.counter("misses") >= PATIENCE
    held = replay.recent(64)
    assert held.obs.tobytes() == noise[-8:, 0].tobytes()
    assert held.next_obs.tobytes() == noise[-8:, 1].tobytes()
    store.check()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_that_is_copied_past_the_caches_is_the_same(monkeypatch, threads):
    frames = np.random.default_rng(0).integers(0, 256, (300, 5_001), dtype=np.uint8)
    replay = lp.Replay(lp.Spec(obs=lp.Field((4, 5_001), "uint8", rows=0)), 300, threads=threads)
    for t in range(295):
        step = {"obs": frames[t : t + 4], "next_obs": frames[t + 1 : t + 5]}
        replay.record(**step, action=0, reward=float(t), terminated=False, truncated=False)
    expected = replay.sample(200, rng=np.random.default_rng(1))
    monkeypatch.setattr("lakepond.rows.store.STREAMING_BYTES", 0)
    batch = replay.sample(200, rng=np.random.default_rng(1))
    assert batch.obs.tobytes() == expected.obs.tobytes()
    assert batch.next_obs.tobytes() == expected.next_obs.tobytes()
    for t, obs in zip(batch.reward.astype(int), batch.obs, strict=True):
        assert obs.tobytes() == frames[t : t + 4].tobytes()


def test_window_refs_are_the_same_as_the_arrays():
    panel = np.stack([day(t) for t in range(300)])
    source = lp.RowSource(panel)
    by_ref, by_array = new_replay(), new_replay()
    for start in (10, 50, 200, 30):
        for t in range(start, start + 60):
            record(by_ref, lp.WindowRef(source, t), lp.WindowRef(source, t + 1))
            record(by_array, window(t), window(t + 1))
    assert by_ref.stats().rows == by_array.stats().rows == 110 + 70  # days 0..110 and 190..260
    left, right = by_ref.recent(240), by_array.recent(240)
    assert left.obs.tobytes() == right.obs.tobytes()
    assert left.next_obs.tobytes() == right.next_obs.tobytes()


def test_refs_and_arrays_may_be_mixed():
    panel = np.stack([day(t) for t in range(100)])
    source = lp.RowSource(panel)
    replay = new_replay()
    record(replay, lp.WindowRef(source, 20), window(21))
    record(replay, window(21), lp.WindowRef(source, 22))
    record(replay, lp.WindowRef(source, 22), lp.WindowRef(lp.RowSource(panel[10:]), 13))
    batch = replay.recent(3)
    for i, stop in enumerate((20, 21, 22)):
        assert batch.obs[i].tobytes() == window(stop).tobytes()
        assert batch.next_obs[i].tobytes() == window(stop + 1).tobytes()
    assert replay.stats().rows == 13


def test_evicted_rows_make_room_and_shared_ones_stay():
    replay = new_replay(capacity=20)
    walk(replay, 10, 20, stream=0)
    walk(replay, 100, 19, stream=1)
    assert replay.stats().rows <= 12 + 29  # one step of stream 0 is left, and a row before it until it goes
    walk(replay, 119, 1, stream=1)
    assert replay.stats().rows == 30
    replay._pond.leaves[0].store.check()


def test_clear_gives_memory_back_to_the_system():
    code = """
import numpy as np, lakepond as lp
from pathlib import Path
def rss(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
replay = lp.Replay(lp.Spec(obs=lp.Field((1 << 20,), "uint8", rows=None)), 200)
rng = np.random.default_rng(0)
def fill(n):
    for i in range(n):
        obs, nxt = rng.integers(0, 255, (2, 1 << 20), dtype=np.uint8)
        replay.record(obs=obs, action=0, reward=0, next_obs=nxt, terminated=False, truncated=False)
fill(2)
before = rss()
fill(150)
full = rss()
replay.clear()
print(full - before, rss() - before, replay.stats().bytes_held)
fill(3)
assert len(replay) == 3
"""
    full, after, held = map(int, subprocess.check_output([sys.executable, "-c", code]).split())
    assert full > 280 << 20
    assert after < 40 << 20
    assert held < 40 << 20


def test_a_slab_that_grows_keeps_its_rows():
    slab, held = Slab(100_000), 0
    numbers = np.arange(100, dtype=np.uint8)[:, np.newaxis]
    for slots in (8, 40, 41, 100):
        slab.grow(slots)
        slab.rows[held:slots] = numbers[held:slots]
        held = slots
    assert (slab.rows == numbers).all()
    slab.give_back(10, 20)
    assert (slab.rows[:10] == numbers[:10]).all()
    assert not slab.rows[11:29].any()
    assert (slab.rows[30:] == numbers[30:]).all()


def test_a_batch_that_replaces_most_of_a_full_pond():
    replay = lp.Replay(lp.Spec(obs=lp.Field((100_000,), "uint8", rows=None)), 100)
    rng = np.random.default_rng(0)
    for count in (100, 100, 250, 60):
        obs, next_obs = rng.integers(0, 255, (2, count, 100_000), dtype=np.uint8)
        zeros, flags = np.zeros(count, np.int64), np.zeros(count, bool)
        record(replay, obs, next_obs, action=zeros, reward=zeros, terminated=flags, truncated=flags)
        batch = replay.recent(min(count, 100))
        assert (batch.obs == obs[-100:]).all()
        assert (batch.next_obs == next_obs[-100:]).all()
        replay._pond.leaves[0].store.check()


@pytest.mark.parametrize("kind", ["frames", "noise"])
def test_memory_is_flat_over_a_hundred_times_the_capacity(kind):
    replay = lp.Replay(lp.Spec(obs=lp.Field((4, 20, 20), "uint8")), 200)
    rng = np.random.default_rng(1)
    frames = rng.integers(0, 255, (4 * 400, 20, 20), dtype=np.uint8).reshape(4, 400, 20, 20)
    peak = 0
    t = 0
    while replay.stats().recorded < 20_000:
        t += 1
        if kind == "frames":
            at = [(t * (e + 1)) % 390 if t % 97 == 0 else t % 390 for e in range(4)]
            obs = np.stack([frames[e, a : a + 4] for e, a in enumerate(at)])
            next_obs = np.stack([frames[e, a + 1 : a + 5] for e, a in enumerate(at)])
        else:
            obs, next_obs = rng.integers(0, 255, (2, 4, 4, 20, 20), dtype=np.uint8)
        replay.record(
            obs=obs,
            action=np.zeros(4, np.int64),
            reward=np.zeros(4, np.float32),
            next_obs=next_obs,
            terminated=np.zeros(4, bool),
            truncated=np.full(4, t % 50 == 0),
        )
        if replay.stats().recorded == 5_000:
            peak = replay.stats().bytes_held
    assert replay.stats().bytes_held <= 1.02 * peak
    replay._pond.leaves[0].store.check()


def test_thousands_of_short_lived_streams_leave_nothing_behind():
    replay = new_replay(capacity=50)
    for stream in range(3_000):
        walk(replay, 10 + stream, 1, stream=stream)
    stats = replay.stats()
    assert stats.streams == 50
    assert stats.bytes_held < 2 << 20
    assert replay._pond._cursors.count < 200
    assert len(replay._pond.links.newest) < 200


@pytest.mark.parametrize("rows", [None, "auto"])
def test_window_refs_are_right_whatever_the_layout(rows):
    """A field whose rows are too small to be distinguished, or that is stored as one row by choice."""
    source = lp.RowSource(np.arange(400, dtype=np.float32))
    replay = lp.Replay(lp.Spec(obs=lp.Field((100,), "float32", rows=rows)), 10)
    for stop in (150, 151, 399):
        record(replay, lp.WindowRef(source, stop), lp.WindowRef(source, stop + 1))
    batch = replay.recent(3)
    for i, stop in enumerate((150, 151, 399)):
        assert batch.obs[i].tolist() == list(range(stop - 100, stop))
        assert batch.next_obs[i].tolist() == list(range(stop - 99, stop + 1))


def test_rows_that_go_and_come_again_while_somebody_reads_are_not_torn():
    """A reader holds on while rows drop out and are revived more often than there are slots."""
    for capacity, cycle in ((50, 54), (40, 42), (30, 31)):
        replay = lp.Replay(lp.Spec(obs=lp.Field((300,), "uint8", rows=None)), capacity)

        def step(n: int, replay: lp.Replay = replay) -> None:
            obs, next_obs = np.full(300, n % 251, np.uint8), np.full(300, (n + 1) % 251, np.uint8)
            record(replay, obs, next_obs, action=n)

        for n in range(3 * cycle):
            step(n % cycle)
        leaf = replay._pond.leaves[0]
        expected = replay.recent(10)
        leaf.grow(400, 1)  # growing would wait for the reader
        with replay._pond.reading():
            read = leaf.look_up(replay._pond.places(expected.step_id), 0)
        for n in range(300):
            step(n % cycle if n % 3 else 200 + n % 40)
        out = np.empty((10, 300), np.uint8)
        read.into(out)
        with replay._pond.finishing():
            read.done()
        assert np.array_equal(out, expected.obs)
        leaf.store.check()


def test_an_empty_batch_is_nothing():
    replay = new_replay()
    assert (
        len(
            replay.record(
                obs=np.zeros((0, 10, 6, 4), np.float32),
                action=np.zeros(0, np.int64),
                reward=np.zeros(0, np.float32),
                next_obs=np.zeros((0, 10, 6, 4), np.float32),
                terminated=np.zeros(0, bool),
                truncated=np.zeros(0, bool),
            )
        )
        == 0
    )
    assert len(replay) == 0
    walk(replay, 10, 3)
    assert len(replay) == 3


@pytest.mark.parametrize(
    "dtype", ["bool", "float16", ">f4", "longdouble", "complex64", "datetime64[ns]", "S8"]
)
def test_any_dtype_comes_back_bit_for_bit(dtype):
    obs = np.arange(400).reshape(4, 100).astype(dtype)
    replay = lp.Replay(lp.Spec(obs=lp.Field((4, 100), dtype)), 10)
    record(replay, obs, obs)
    assert replay.sample(1, rng=np.random.default_rng(0)).obs.tobytes() == obs.tobytes()


def test_rows_that_keep_coming_are_kept_once_while_all_others_change():
    rng = np.random.default_rng(0)
    replay = lp.Replay(lp.Spec(obs=lp.Field((512,), "uint8", rows=None)), capacity=64)
    again = rng.integers(0, 255, (8, 512), dtype=np.uint8)
    for step in range(2_000):
        replay.record(
            obs=again[rng.integers(8)],
            action=0,
            reward=0.0,
            next_obs=rng.integers(0, 255, 512, dtype=np.uint8),
            terminated=False,
            truncated=False,
        )
        if step % 16 == 0:
            (leaf,) = replay._pond.leaves
            slots = leaf.store.state.slots
            live = np.flatnonzero((slots["state"] == USED) & (slots["refs"] > 0))
            rows = leaf.store.slab.rows[live]
            assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.parametrize("size", [1, 7, 8, 63, 64, 65, 200, 1000])
def test_a_hash_changes_with_every_bit_and_with_the_order_of_words(size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    seen = {hash_bytes(address_of(data), size)}
    for bit in range(8 * size):
        data[bit // 8] ^= 1 << bit % 8
        seen.add(hash_bytes(address_of(data), size))
        data[bit // 8] ^= 1 << bit % 8
    assert len(seen) == 8 * size + 1
    for word in range(size // 8 - 1):
        moved = data.copy()
        moved[8 * word : 8 * word + 16] = np.roll(data[8 * word : 8 * word + 16], 8)
        seen.add(hash_bytes(address_of(moved), size))
    assert len(seen) == 8 * size + 1 + max(0, size // 8 - 1)
