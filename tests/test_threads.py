"""Recorders, samplers and fills at the same time: no torn batch, also while rows move and leave."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import lakepond as lp
from lakepond.flow import lake_to_pond
from lakepond.rows import store


def in_threads(*works: Callable[[], object]) -> list[threading.Thread]:
    """Start daemon threads: one that waits for ever fails its test and not the session."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true, at most 30 s."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("capacity", [300, 20_000])
def test_no_batch_is_torn(capacity, monkeypatch):
    """Every pixel of a frame is its number, and a stack is four neighbours: a torn row or stack shows."""
    monkeypatch.setattr(store, "TRIM_BYTES", 1 << 16)
    replay = lp.Replay(lp.Spec(obs=lp.Field((4, 30, 30), "uint16", rows=0)), capacity)
    stop, problems, batches = threading.Event(), [], 0

    def frames(t: int) -> np.ndarray:
        return np.broadcast_to((np.arange(t, t + 4) % 65_521).astype(np.uint16)[:, None, None], (4, 30, 30))

    def sampler() -> None:
        nonlocal batches
        rng = np.random.default_rng(0)
        out = None
        while not stop.is_set():
            try:
                out = replay.sample(32, rng=rng, out=out)
            except lp.TooFewSteps:  # just started, or just cleared
                continue
            batches += 1
            first = out.action % 65_521
            for name, shift in (("obs", 0), ("next_obs", 1)):
                expected = (first[:, None] + np.arange(4) + shift) % 65_521
                found = getattr(out, name)
                if not (found == expected[:, :, None, None]).all():
                    problems.append((name, batches))
                    return

    thread = threading.Thread(target=sampler)
    thread.start()
    try:
        for t in range(6_000):
            replay.record(
                obs=frames(7 * t),
                action=7 * t,
                reward=0.0,
                next_obs=frames(7 * t + 1),
                terminated=False,
                truncated=False,
                stream=t % 3,
            )
            if t % 2_500 == 2_499 and capacity < 1000:
                replay.clear()
    finally:
        stop.set()
        thread.join()
    assert not problems
    assert batches > 20
    replay._pond.leaves[0].store.check()
    assert replay._pond.leaves[0].store.readers == 0


def test_two_threads_gather_what_one_does():
    panel = np.random.default_rng(0).random((400, 300, 9), np.float32)
    spec = lp.Spec(obs=lp.Field((100, 300, 9), "float32"))
    source = lp.RowSource(panel)
    batches = []
    for threads in (1, 2):
        replay = lp.Replay(spec, 1000, threads=threads)
        stops = np.arange(100, 390)
        replay.record(
            obs=lp.WindowRef(source, stops),
            action=stops,
            reward=stops,
            next_obs=lp.WindowRef(source, stops + 1),
            terminated=stops < 0,
            truncated=stops < 0,
            stream=0,
        )
        batches.append(replay.sample(32, rng=np.random.default_rng(3)))
    assert batches[0].obs.nbytes > 4 << 20
    assert batches[0].obs.tobytes() == batches[1].obs.tobytes()
    assert batches[0].next_obs.tobytes() == batches[1].next_obs.tobytes()
    i = 5
    stop = int(batches[0].action[i])
    assert batches[0].obs[i].tobytes() == panel[stop - 100 : stop].tobytes()


def test_record_returns_the_ids_of_its_own_steps_although_another_thread_waited_to_grow():
    """A waits until a reader is done, because its rows do not fit; B comes meanwhile."""
    replay = lp.Replay(lp.Spec(obs=lp.Field((200,), "float32", rows=None)), 1_000)
    rng, found = np.random.default_rng(0), {}

    def record(thread: int, count: int) -> None:
        obs = rng.random((2, count, 200), np.float32)
        ends, streams = np.zeros(count, bool), 1_000 * thread + np.arange(count)
        step = {"action": streams, "reward": streams, "terminated": ends, "truncated": ends}
        found[thread] = replay.record(obs=obs[0], next_obs=obs[1], stream=streams, **step)

    record(0, 2)
    pond = replay._pond
    leaf = pond.leaves[0].store
    with pond.lock:
        leaf.readers += 1  # as a sampler that copies rows
    threads = in_threads(lambda: record(1, 300))
    until(lambda: pond._grower is not None)
    threads += in_threads(lambda: record(2, 3))
    until(lambda: len(pond._change._waiters) == 2)
    with pond.finishing():
        leaf.readers -= 1
    for thread in threads:
        thread.join(30)
    for thread, count in ((0, 2), (1, 300), (2, 3)):
        assert replay.steps(found[thread]).stream.tolist() == list(
            range(1_000 * thread, 1_000 * thread + count)
        )


NOISE = lp.Spec(obs=lp.Field((4, 20, 20), "uint8"))
FRAMES = np.random.default_rng(1).integers(0, 255, (60, 20, 20), np.uint8)


def record_noise(replay: lp.Replay, number: int) -> None:
    """A whole observation that does not repeat; its reward is its number."""
    obs, next_obs = np.random.default_rng([2, number]).integers(0, 255, (2, 4, 20, 20), np.uint8)
    more = {"action": 0, "terminated": False, "truncated": False, "stream": 8}
    replay.record(obs=obs, next_obs=next_obs, reward=float(number), **more)


def record_stack(replay: lp.Replay, t: int) -> None:
    """A stack of frames; its reward is 1,000 + t."""
    more = {"action": 0, "terminated": False, "truncated": False, "stream": 7}
    replay.record(obs=FRAMES[t : t + 4], next_obs=FRAMES[t + 1 : t + 5], reward=1_000.0 + t, **more)


def check_noise_and_stacks(replay: lp.Replay) -> None:
    replay._pond.leaves[0].store.check()
    batch = replay.recent(len(replay))
    for number, *windows in zip(batch.reward.astype(int).tolist(), batch.obs, batch.next_obs, strict=True):
        t = number - 1_000
        noise = np.random.default_rng([2, number]).integers(0, 255, (2, 4, 20, 20), np.uint8)
        expected = noise if t < 0 else (FRAMES[t : t + 4], FRAMES[t + 1 : t + 5])
        assert np.array_equal(windows, expected), number


def test_a_layout_that_is_found_while_a_replay_is_filled_does_not_mix_up_observations(tmp_path, monkeypatch):
    """Stacks that another thread records show their layout while rows of the lake are loaded."""
    with lp.Replay.open(tmp_path / "lake", NOISE, capacity=40) as source:
        for number in range(40):
            record_noise(source, number)
    replay = lp.Replay(NOISE, 400)
    record_noise(replay, 40)
    append = lake_to_pond.append

    def append_after_a_recorder(*args: object) -> None:
        for thread in in_threads(lambda: [record_stack(replay, t) for t in range(12)]):
            thread.join(30)
        monkeypatch.setattr(lake_to_pond, "append", append)
        append(*args)

    monkeypatch.setattr(lake_to_pond, "append", append_after_a_recorder)
    with lp.Lake.open(tmp_path / "lake") as lake:
        replay.fill_from(lake, 40, rng=np.random.default_rng(0))
    assert len(replay) == 53
    check_noise_and_stacks(replay)
    for t in range(12, 30):
        record_stack(replay, t)
    assert "rows of" in replay.stats().layout["obs"]  # the search continues after the fill
    check_noise_and_stacks(replay)


def test_rows_that_cannot_be_read_do_not_stop_a_recorder_that_waits_to_grow():
    replay = lp.Replay(lp.Spec(obs=lp.Field((200,), "float32", rows=None)), 10_000)
    pond, threads = replay._pond, []
    assert pond.keep_layout(0)

    def record() -> None:
        obs, ends = np.random.default_rng(0).random((2, 1_000, 200), np.float32), np.zeros(1_000, bool)
        step = {"action": np.arange(1_000), "reward": np.arange(1_000), "terminated": ends, "truncated": ends}
        replay.record(obs=obs[0], next_obs=obs[1], stream=0, **step)

    def read(rows: np.ndarray) -> None:
        threads.extend(in_threads(record))
        until(lambda: pond._grower is not None)
        raise lp.LakeCorrupt("the file is damaged")

    def load() -> None:
        with pytest.raises(lp.LakeCorrupt):
            pond.read_rows(0, 5, read)
        pond.release_layout(0, [])

    threads += in_threads(load)
    until(lambda: len(threads) == 2)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert replay.recent(1_000).reward.tolist() == list(range(1_000))
    pond.leaves[0].store.check()
