"""Odd circumstances, each with a clear outcome: clocks, permissions, little memory, dropped objects."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from test_lake import agrees, record, spec_of

import lakepond as lp
from lakepond.adapters import trading
from lakepond.lake.write import writer


def test_a_clock_that_goes_backwards_changes_no_order(tmp_path, monkeypatch):
    class Clock(datetime):
        year_now = 2030

        @classmethod
        def now(cls, tz=None):
            cls.year_now -= 1
            return datetime(cls.year_now, 1, 1, tzinfo=UTC)

    monkeypatch.setattr(writer, "datetime", Clock)
    with lp.Replay.open(tmp_path / "lake", spec_of("vector"), capacity=50, keep_last=3) as replay:
        for stop in (5, 10, 15, 20, 25):
            record(replay, "vector", stop - 5, stop)
            replay.commit()
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.commit.time.startswith("2025")
        assert (len(lake), lake.commits()) == (25, [2, 3, 4])


READ_ONLY = """
import os, numpy as np, lakepond as lp
def read():
    with lp.Lake.open({path!r}) as lake:
        lake.verify()
        lake.sample(5, rng=np.random.default_rng(0))
        return len(lake.steps(0, 10).reward)
read(), lp.repair({path!r}), lp.Replay.open({path!r}, capacity=10).close()  # all is imported
os.setgid({user}), os.setuid({user})
print(read())
for wrong in (lambda: lp.Replay.open({path!r}, capacity=10), lambda: lp.Lake.open({path!r}).compact(),
              lambda: lp.repair({path!r})):
    try:
        wrong()
    except lp.LakeReadOnly as error:
        print("may not be written" in str(error))
"""


def test_a_folder_that_may_not_be_written_can_be_read(tmp_path):
    if os.getuid():
        pytest.fail("run the tests as root, or in a container: root alone can become another user")
    folder = Path(tempfile.mkdtemp(prefix="lakepond-read-only-"))
    try:
        folder.chmod(0o755)
        with lp.Replay.open(folder / "lake", spec_of("frames first"), capacity=50) as replay:
            record(replay, "frames first", 0, 10)
        code = READ_ONLY.format(user=65534, path=str(folder / "lake"))
        ended = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, cwd="/")
        assert ended.stdout.split() == ["10", "True", "True", "True"], ended.stderr
    finally:
        shutil.rmtree(folder)


FORGOTTEN = """
import os, sys, threading
import numpy as np, lakepond as lp
path, cloud, refuse = sys.argv[1], sys.argv[2] or None, sys.argv[3] == "refuse"
start = threading.Thread.start
def start_as_python_3_12(thread):
    if not threading.main_thread().is_alive():
        raise RuntimeError("can't create new thread at interpreter shutdown")
    start(thread)
if refuse:
    threading.Thread.start = start_as_python_3_12
rng = np.random.default_rng(0)
replay = lp.Replay.open(path, lp.Spec(obs=lp.Field((84, 84), "uint8")), 2000, cloud=cloud)
def record(count):
    for step in range(replay.recorded, replay.recorded + count):
        frames = rng.integers(0, 255, (2, 84, 84), dtype=np.uint8)
        ends = dict(terminated=False, truncated=False)
        replay.record(obs=frames[0], action=0, reward=step, next_obs=frames[1], **ends)
record(10)
replay.commit(wait=False)
if child := os.fork():
    os.waitpid(child, 0)
    record(590)
"""


@pytest.mark.parametrize("threads", ["start", "refuse"])
@pytest.mark.parametrize("in_cloud", [False, True])
def test_a_program_that_ends_without_close_commits_what_it_recorded(tmp_path, threads, in_cloud):
    """8 MB of rows: several groups are compressed, by pools that start no thread at interpreter exit."""
    lake, bucket = tmp_path / "lake", tmp_path / "bucket"
    arguments = [lake, f"file://{bucket}" if in_cloud else "", threads]
    program = [sys.executable, "-W", "ignore", "-c", FORGOTTEN, *map(str, arguments)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    late = in_cloud and threads == "refuse"
    assert ("the next push from" in ended.stderr) == late
    assert len(ended.stderr.splitlines()) == late, ended.stderr
    places = [lake, f"file://{bucket}"] if in_cloud and not late else [lake]
    for place in places:
        with lp.Lake.open(place) as opened:
            opened.verify()
            assert opened.steps(0, 600).reward.tolist() == list(range(600))


def test_a_program_that_ends_says_which_steps_it_could_not_commit(tmp_path):
    """At a full disk, and after the last reference to a replay is gone."""
    code = """
import sys, numpy as np, lakepond as lp
def replay(name, **options):
    opened = lp.Replay.open(sys.argv[1] + name, lp.Spec(obs=lp.Field((4,), "uint8")), 50, **options)
    zero = np.zeros(4, np.uint8)
    opened.record(obs=zero, action=0, reward=0, next_obs=zero, terminated=True, truncated=False)
    return opened
full = replay("/full", min_free="1000TB")
replay("/dropped")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    dropped, full = sorted(ended.stderr.splitlines())
    assert dropped == f"1 step was not committed to {tmp_path}/dropped: call close() or use `with`"
    assert full.startswith(f"1 step was not committed to {tmp_path}/full: [Errno 28]")


def test_a_replay_that_is_dropped_lets_go_of_its_lake(tmp_path):
    path = tmp_path / "lake"
    replay = lp.Replay.open(path, spec_of("vector"), capacity=50)
    record(replay, "vector", 0, 5)
    pending = replay.commit(wait=False)
    del replay
    gc.collect()
    assert pending.result(timeout=60).recorded == 5  # what was handed over is finished
    for _ in range(200):
        try:
            again = lp.Replay.open(path, capacity=50)
            break
        except lp.LakeLocked:
            time.sleep(0.01)
    assert len(again) == 5
    again.close()


def test_a_saved_buffer_that_is_dropped_can_be_loaded_again(tmp_path):
    buffer = trading.ReplayBuffer(capacity=10)
    for i in range(5):
        buffer.add(np.zeros(4), 0, float(i), np.ones(4), False)
    buffer.save(tmp_path / "saved")
    del buffer
    for _ in range(3):
        gc.collect()
        time.sleep(0.1)
        assert len(trading.ReplayBuffer.load(tmp_path / "saved")) == 5


LITTLE_MEMORY = """
import resource, numpy as np, lakepond as lp
days, window, agents = 1500, 504, 16
rows = np.random.default_rng(0).standard_normal((days, 108, 9), dtype=np.float32)
source = lp.RowSource(rows)
spec = lp.Spec(obs=lp.Field((window, 108, 9), "float32"), action=lp.Field((108, 2), "float32"))
data = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmData")) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (data + 10**9, resource.RLIM_INFINITY))
rng = np.random.default_rng(0)
with lp.Replay.open({path!r}, spec, capacity=4000) as replay:
    while (n := replay.stats().recorded) * spec.step_nbytes < 101e9:
        stop = rng.integers(window, days - 125, agents)
        for t in range(125):
            replay.record(
                obs=lp.WindowRef(source, stop + t), next_obs=lp.WindowRef(source, stop + t + 1),
                action=rng.random((agents, 108, 2), np.float32), reward=n + 16 * t + np.arange(16),
                terminated=np.zeros(agents, bool), truncated=np.full(agents, t == 124))
        replay.commit(wait=False)
with lp.Lake.open({path!r}) as lake:
    print(lake.stats().bytes_plain // 10**9)
    big = lp.Replay(spec, 10_000)
    big.fill_from(lake, 10_000, rng=rng)
    batch = big.sample(8, rng=rng)
    same = lake.steps(int(batch.reward[0]), int(batch.reward[0]) + 1)
    print(same.obs.tobytes() == batch.obs[0].tobytes())
    lake.verify()
    lake.compact()
    del big, batch, same
    print(next(lake.episodes()).steps)
again = lp.Replay.open({path!r}, capacity=4000)
print(len(again))
"""


def test_a_lake_of_100_gb_needs_less_than_one(tmp_path):
    """100 GB of market windows are recorded, committed, filled from, verified, merged and opened again.

    RLIMIT_DATA counts all that a process can write to, also what it never touches: each thread's stack, say.
    """
    code = LITTLE_MEMORY.format(path=str(tmp_path / "lake"))
    ended = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert ended.stdout.split() == ["101", "True", "125", "4000"], ended.stderr[-2000:]
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 200e6


def test_what_was_recorded_before_the_axis_was_known_is_there_after_a_merge(tmp_path):
    world, path = "frames first", tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=60, merge_after=2, keep_last=1) as replay:
        for n in range(40):
            record(replay, world, n, n + 1)
            replay.commit()
    with lp.Lake.open(path) as lake:
        batch = lake.steps(0, 40)
        for i in range(40):
            agrees(batch, i, world)
