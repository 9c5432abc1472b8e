"""A forked child reads everything, writes nothing of its parent, and waits for no thread it does not have."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PREAMBLE = """
import fcntl, os, signal, sys, threading, time
import numpy as np
import lakepond as lp
sys.path.insert(0, {tests!r})
from test_lake import agrees, record, spec_of
path, world = {path!r}, {world!r}
rng = np.random.default_rng(0)

def in_child(work):
    child = os.fork()
    if not child:
        signal.alarm(30)  # a child that hangs is killed
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    return child

def ended(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def right(batch):
    for i in range(0, len(batch.step_id), 16):
        agrees(batch, i, world)

def refused(write):
    try:
        write()
    except lp.ForkedReplay as error:
        assert isinstance(error, RuntimeError)
        assert "forked" in str(error)
        return
    raise AssertionError("it was not refused")
"""


def run(path: Path, code: str, world: str = "market window") -> None:
    """In a process of its own, because this one may hold JAX, which must not be forked."""
    preamble = PREAMBLE.format(tests=str(Path(__file__).parent), path=str(path / "lake"), world=world)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", preamble + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr


def test_a_child_that_closes_leaves_its_parent_the_lock(tmp_path):
    run(
        tmp_path,
        """
        replay = lp.Replay.open(path, spec_of(world), capacity=100)
        record(replay, world, 0, 10)
        replay.commit()
        record(replay, world, 10, 20)

        def leave():
            with replay:
                pass
            replay.close()
            replay.close(discard=True)

        ended(in_child(leave))

        def drop():
            global replay
            del replay
            import gc
            gc.collect()

        ended(in_child(drop))

        def open_it_too():
            try:
                lp.Replay.open(path)
            except lp.LakeLocked as error:
                return
            raise AssertionError("the lock was gone")

        ended(in_child(open_it_too))
        assert replay.commit().recorded == 20
        replay.close()
        with lp.Lake.open(path) as lake:
            lake.verify()
            right(lake.steps(0, 20))
        """,
    )


def test_a_child_does_not_hold_the_locks_of_a_parent_that_is_gone(tmp_path):
    """Also when it was forked in the middle of a commit."""
    run(
        tmp_path,
        """
        from pathlib import Path
        from lakepond.lake.lock import WriterLock
        read, write = os.pipe()
        parent = os.fork()
        if not parent:
            replay = lp.Replay.open(path, spec_of(world), capacity=100)
            with WriterLock(replay._outflow.path / "other"):
                if os.fork():
                    time.sleep(60)
                os.kill(os.getppid(), signal.SIGKILL)
                os.write(write, b"%d" % os.getpid())
                time.sleep(60)
                os._exit(0)
        os.waitpid(parent, 0)
        child = int(os.read(read, 20))
        try:
            WriterLock(Path(path) / "other").close()
            lp.Replay.open(path).close()
        finally:
            os.kill(child, signal.SIGKILL)
        """,
    )


def test_a_child_is_refused_at_once_when_it_writes(tmp_path):
    run(
        tmp_path,
        """
        from lakepond.flow.device_to_lake import DeviceLake
        replay = lp.Replay.open(path, spec_of(world), capacity=100)
        record(replay, world, 0, 50)
        replay.commit()
        record(replay, world, 50, 60)
        saved = lp.Replay(spec_of(world), 100)
        record(saved, world, 0, 50)
        saved.save(path + "-saved")
        device = DeviceLake(path + "-device", lp.Spec(obs=lp.Field((4,), "uint8")))

        def write():
            refused(lambda: record(replay, world, 60, 61))
            refused(replay.commit)
            refused(lambda: replay.commit(wait=False))
            refused(replay.clear)
            refused(lambda: saved.save(path + "-saved"))
            refused(lambda: device.pour([]))
            refused(device.wait)
            right(replay.sample(32, rng=rng))
            device.close()
            saved.close()
            replay.close()
            own = lp.Replay.open(path, capacity=100, writer="child")  # its own name has its own lock
            record(own, world, 0, 5)
            own.close()

        ended(in_child(write))
        record(replay, world, 60, 70)
        replay.close()
        saved.close()
        device.close()
        with lp.Lake.open(path, writer="") as lake:
            assert len(lake) == 70
            right(lake.steps(0, 70))
        with lp.Lake.open(path, writer="child") as lake:
            assert len(lake) == 5
        """,
    )


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_a_child_samples_fills_and_verifies(tmp_path, codec):
    """As a DataLoader's workers do, after the parent has used the same objects."""
    run(
        tmp_path,
        f"""
        from lakepond.flow import pond_to_agents
        pond_to_agents.PARALLEL_BYTES = 1  # every batch is copied by two threads
        replay = lp.Replay.open(path, spec_of(world), capacity=2000, codec={codec!r})
        for k in range(4):
            record(replay, world, 400 * k, 400 * k + 400)
            replay.commit()
        lake = lp.Lake.open(path)

        def sampled(seed):
            return lake.sample(64, rng=np.random.default_rng(seed))

        def read():
            right(replay.sample(256, rng=rng))
            right(lake.sample(256, rng=rng))
            lake.verify()
            pond = lp.Replay(lake.spec, 1000)
            pond.fill_from(lake, 1000, rng=rng)
            batch = pond.sample(256, rng=rng)
            right(batch._replace(step_id=batch.reward.astype(np.int64)))

        read()
        children = [in_child(lambda: (read(), ended(in_child(read)))) for _ in range(2)]
        read()
        for child in children:
            ended(child)
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for batch in pool.map(sampled, range(4)):
                right(batch)
        replay.close()
        lake.close()
        """,
    )


def test_a_fork_while_other_threads_record_sample_commit_and_read(tmp_path):
    """What a child sees is never torn, and no lock that another thread had is locked there for ever."""
    run(
        tmp_path,
        """
        replay = lp.Replay.open(path, spec_of(world), capacity=200)
        memory = lp.Replay(spec_of(world), 200)
        record(replay, world, 0, 300)
        record(memory, world, 0, 300)
        replay.commit()
        lake = lp.Lake.open(path)
        going = True

        def recorder(to, n=300):
            while going:
                record(to, world, n, n + 1)
                n += 1

        def committer():
            while going:
                replay.commit(wait=False).result()

        def sampler():
            own = np.random.default_rng(1)
            while going:
                memory.sample(64, rng=own)
                replay.sample(64, rng=own)

        def reader():
            own = np.random.default_rng(2)
            while going:
                lake.sample(64, rng=own)

        threads = [threading.Thread(target=f, daemon=True) for f in (committer, sampler, reader)]
        threads += [threading.Thread(target=recorder, args=(each,), daemon=True) for each in (replay, memory)]
        for thread in threads:
            thread.start()

        def look():
            for _ in range(2):
                right(replay.sample(64, rng=rng))
                right(memory.sample(64, rng=rng))
                right(lake.sample(64, rng=rng))
            n = memory.stats().recorded
            record(memory, world, n, n + 250)  # all of it is evicted, and the pond may grow
            for leaf in memory._pond.leaves:
                if leaf.store is not None:
                    leaf.store.check()
            refused(replay.commit)

        for _ in range(8):
            time.sleep(0.02)
            ended(in_child(look))
        going = False
        for thread in threads:
            thread.join()
        n = replay.stats().recorded
        replay.close()
        with lp.Lake.open(path) as lake:
            assert len(lake) == n
            right(lake.steps(0, n))
        """,
    )
