"""Rows that come from a lake take the room that recording was sure of."""

from __future__ import annotations

import numpy as np

import lakepond as lp


def test_rows_that_were_read_are_not_overwritten_by_what_is_recorded_next():
    rng = np.random.default_rng(0)
    replay = lp.Replay(lp.Spec(obs=lp.Field((4, 100), "float32", rows=0)), 1000)
    pond = replay._pond

    def record(count: int) -> np.ndarray:
        obs = rng.random((2, count, 4, 100), np.float32)
        zeros = {"reward": np.zeros(count, np.float32), "terminated": np.zeros(count, bool)}
        more = {"action": np.zeros(count, np.int64), "truncated": np.zeros(count, bool), "stream": 0}
        replay.record(obs=obs[0], next_obs=obs[1], **zeros, **more)
        return obs

    record(200)
    replay.clear()
    record(1)  # there is room for many more, and the pond knows
    store = pond.leaves[0].store
    free = len(store.state.slots) - store.rows
    assert free > 1000
    rows = rng.integers(0, 256, (free, 400), dtype=np.uint8)

    def read(out: np.ndarray) -> None:
        out[:] = rows

    assert pond.keep_layout(0)
    slots = pond.read_rows(0, free, read)
    recorded = record(100)
    assert np.array_equal(store.slab.rows[slots], rows)
    newest = replay.recent(100)
    assert np.array_equal(newest.obs, recorded[0])
    assert np.array_equal(newest.next_obs, recorded[1])
    pond.release_layout(0, [slots])
    store.check()
