"""One recorder and one sampler at the same time: no torn batch, also while rows move and leave."""

import threading

import numpy as np
import pytest

import lakepond as lp
from lakepond.rows import store


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
