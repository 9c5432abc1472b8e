"""What crosses a boundary: read-only arrays, masked arrays, sources that are pickled, threads."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import lakepond as lp

STEP = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}


def filled(field: lp.Field) -> lp.Replay:
    replay = lp.Replay(lp.Spec(obs=field), 50)
    for t in range(20):
        obs = np.full((2, *field.shape), t, field.dtype)
        replay.record(obs=obs[0], next_obs=obs[1] + 1, **(STEP | {"reward": float(t)}))
    return replay


@pytest.mark.parametrize("shape", [(3,), (4, 100)])
def test_read_only_arrays_are_not_overwritten_through_out(rng, shape):
    replay = filled(lp.Field(shape, "float32"))
    batch = replay.sample(8, rng=rng)
    for name in ("obs", "reward", "step_id", "weight"):
        array = getattr(batch, name)
        before = array.copy()
        array.flags.writeable = False
        with pytest.raises(lp.SampleError, match=f"out.{name} is read-only"):
            replay.sample(8, rng=rng, out=batch)
        assert np.array_equal(array, before)
        array.flags.writeable = True
    with pytest.raises(lp.SampleError, match="pass the writeable NumPy arrays"):
        replay.sample(8, rng=rng, out=batch._replace(obs=memoryview(batch.obs)))


def test_masked_arrays_are_refused():
    replay = lp.Replay(lp.Spec(obs=lp.Field((3,), "float32")), 10)
    obs = np.ma.masked_array(np.zeros(3, np.float32), mask=[True, False, False])
    with pytest.raises(lp.RecordError, match="obs is a masked array"):
        replay.record(obs=obs, next_obs=obs, **STEP)
    assert len(replay) == 0


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda source: pickle.loads(pickle.dumps(source))])
def test_a_copy_of_a_source_has_rows_of_its_own(duplicate):
    source = lp.RowSource(np.arange(600, dtype=np.float32).reshape(100, 6))
    other = duplicate(source)
    assert other.token != source.token
    assert other.address != source.address
    other.rows.flags.writeable = True
    other.rows[:] += 1000
    replay = lp.Replay(lp.Spec(obs=lp.Field((10, 6), "float32")), 50)
    for stop in range(10, 30):
        for k, each in enumerate((source, other)):
            windows = {"obs": lp.WindowRef(each, stop), "next_obs": lp.WindowRef(each, stop + 1)}
            replay.record(**windows, **STEP, stream=k)
    batch = replay.recent(40)
    for i in range(40):
        start = 10 + i // 2 - 10
        expected = source.rows[start : start + 10] + (1000 if i % 2 else 0)
        assert np.array_equal(batch.obs[i], expected)


def test_a_source_survives_being_sent_to_another_process(tmp_path):
    file = tmp_path / "source.pickle"
    file.write_bytes(pickle.dumps(lp.RowSource(np.arange(600, dtype=np.float32).reshape(100, 6))))
    code = f"""
import pickle, lakepond as lp
source = pickle.loads(open({str(file)!r}, "rb").read())
replay = lp.Replay(lp.Spec(obs=lp.Field((10, 6), "float32")), 50)
replay.record(obs=lp.WindowRef(source, 20), next_obs=lp.WindowRef(source, 21), action=0, reward=0.0,
              terminated=False, truncated=False)
assert replay.recent(1).obs[0, 0, 0] == 60.0
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_specs_are_hashable():
    one, other = (lp.Spec(obs={"a": lp.Field((3,), "float32")}, extras={"x": lp.Field()}) for _ in range(2))
    assert len({one, other, lp.Spec(obs=lp.Field((3,), "float32"))}) == 2


def test_threads_that_record_singles_and_batches_do_not_mix_them_up():
    """Each value names its thread and its number; one thread records steps, the other batches."""
    replay = lp.Replay(lp.Spec(obs=lp.Field((2,), "int64"), action=lp.Field((), "int64")), 40_000)
    errors: list[BaseException] = []

    def run(thread: int, size: int) -> None:
        try:
            for n in range(0, 6_000, size):
                numbers = np.arange(n, n + size)
                obs = np.stack([np.full(size, thread), numbers], axis=1)
                flags = np.zeros(size, bool)
                step = {"action": numbers, "reward": numbers * 1.0, "terminated": flags, "truncated": flags}
                if size == 1:
                    step = {name: value[0] for name, value in step.items()}
                    replay.record(obs=obs[0], next_obs=obs[0] + 1, stream=thread, **step)
                else:
                    replay.record(obs=obs, next_obs=obs + 1, stream=thread, **step)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k, size)) for k, size in enumerate((1, 8, 1, 3))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not errors
    batch = replay.recent(24_000)
    assert np.array_equal(batch.obs[:, 0], batch.stream)
    assert np.array_equal(batch.obs[:, 1], batch.action)
    assert np.array_equal(batch.reward, batch.action)
    for stream in range(4):
        assert np.array_equal(batch.action[batch.stream == stream], np.arange(6_000))


def test_memory_is_counted_as_it_is_used():
    replay = lp.Replay(lp.Spec(obs=lp.Field((17,), "float32"), action=lp.Field((6,), "float32")), 1_000_000)
    obs, action = np.zeros(17, np.float32), np.zeros(6, np.float32)
    for _ in range(1_000):
        replay.record(obs=obs, next_obs=obs, **(STEP | {"action": action}))
    assert replay.stats().bytes_held < 1 << 20
