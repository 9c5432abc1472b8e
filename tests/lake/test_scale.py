"""A lake of 10 TB, 156,000 files, 100,000 commits and 400 million rows: memory does not follow its size."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import large_lakes

import lakepond as lp
from lakepond.lake.format.entries import File
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.write import maintenance, merge

ENTRIES, COMMITS, STEPS, ROW_BYTES = 78_000, 100_000, 5_128, 25_000

WORK = """
import itertools, sys
import numpy as np
import lakepond as lp
from lakepond.lake.read.verify import checks

def peak():
    with open("/proc/self/status") as status:  # ru_maxrss would count the process that started this one
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) >> 10  # MB

path = sys.argv[1]
with lp.Lake.open(path) as lake:
    stats = lake.stats()
    assert stats.files > 156_000, stats
    assert stats.rows > 400_000_000, stats
    assert stats.bytes_on_disk > 10e12, stats
    print("open", peak())
    rng = np.random.default_rng(0)
    batch = lake.sample(64, rng=rng)
    first = batch.step_id < 78_000 * 5_128
    assert (batch.reward[first] == batch.step_id[first] % 5_128).all()
    places = np.sort(rng.integers(0, stats.rows, 200))
    assert len(lake.rows()[places]) == 200
    filled = lp.Replay(lake.spec, 1_000)
    filled.fill_from(lake, 500, rng=rng)
    batch = filled.sample(64, rng=rng)
    assert len(np.unique(batch.obs[:, :8], axis=0)) > 32

    class Enough(Exception):
        pass

    def progress(done, total):
        if done > 3e8:  # 13,000 files of steps
            raise Enough

    try:
        lake.verify(progress=progress)
    except Enough:
        pass
    of_rows = (check for check in checks(lake) if check.name.endswith(".rows"))
    for check in itertools.islice(of_rows, 12):  # 1.5 GB
        check.run()
    assert sum(1 for _ in lake.files()) > 156_000
with lp.Replay.open(path, capacity=100) as replay:
    assert len(replay) == 100
    assert len(replay.sample(10).reward) == 10
    replay.commit()
print("all", peak())
"""

MERGE = """
import os, sys
from dataclasses import replace
from pathlib import Path
import lakepond as lp
from lakepond.lake.write import maintenance, merge
from benchmarks import large_lakes

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) >> 10  # MB

path = Path(sys.argv[1])
merged = []
done, merge.MOST_FILES = merge.merge, 520
maintenance.merge = lambda *args: merged.append(done(*args)) or merged[-1]
with large_lakes.continued(path, capacity=200) as replay:  # merges while it grows
    for _ in range(80):
        large_lakes.record(replay, 3)
        replay.commit()
        replay._outflow.background.writer.maintenance._wait()
        if merged:
            break
    assert merged[0].count > 400
    large_lakes.record(replay, 3)
    replay.commit()
print("maintenance", peak())
numbers = lp.Lake.open(path).commits()
for number in numbers[: numbers.index(100_000 - 1)]:
    os.unlink(f"{path}/commits/{number:010d}.json")  # not valid, so `compact` would refuse to delete files

def first_of_each_list(*args):  # of the others one file takes the place of all, which no step is read from
    group, last = args[2], merged[-1].new if merged else None
    if type(group[0]) is not type(last):
        merged.append(done(*args))
    else:
        count = sum(file.count for file in group)
        new = replace(group[0], steps=replace(group[0].steps, steps=count, bytes=60 << 20))
        merged.append(merge.Merged.of(group, new))
    return merged[-1]


maintenance.merge = first_of_each_list
with lp.Lake.open(path) as lake:
    before, rewards = lake.stats(), lake.column("reward")[:10_000].tolist()
    merged.clear()
    lake.compact()
    *steps, rows = merged
    assert len(steps) >= 150
    assert sum(each.count for each in steps) > 77_000
    assert rows.count > 40
    assert lake.stats().steps == before.steps
    assert lake.stats().files < before.files - 77_000
    assert lake.column("reward")[:10_000].tolist() == rewards
print("compact", peak())
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "lake"
    large_lakes.make(path, entries=ENTRIES, num_commits=COMMITS, steps=STEPS, row_bytes=ROW_BYTES)
    with large_lakes.continued(path, capacity=200) as replay:
        for _ in range(40):
            large_lakes.record(replay, 3)
            replay.commit()
    return path


def test_memory_is_bounded_whatever_a_lake_holds(lake):
    done = subprocess.run([sys.executable, "-c", WORK, lake], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peaks = dict(line.split() for line in done.stdout.splitlines())
    assert int(peaks["open"]) < 300  # MB, with the interpreter and its libraries
    assert int(peaks["all"]) < 1_000


def test_memory_of_a_merge_is_bounded_whatever_a_lake_holds(lake):
    done = subprocess.run([sys.executable, "-c", MERGE, lake], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peaks = dict(line.split() for line in done.stdout.splitlines())
    assert int(peaks["maintenance"]) < 400  # MB
    assert int(peaks["compact"]) < 500


def test_a_commit_of_a_large_lake_is_small(lake):
    with lp.Lake.open(lake) as opened:
        newest = opened.commit
    assert len(newest.to_json()) < 40_000
    assert sum(newest.named().values()) < 64 << 20  # manifests, and the newest files


def test_compacting_reads_each_list_once(tmp_path, monkeypatch):
    """It looks at each file a few times, however many groups there are, and no further than a group ahead."""
    entries, most = 400, 8
    large_lakes.make(tmp_path / "lake", entries=entries, num_commits=2, steps=4, row_bytes=16)
    monkeypatch.setattr(merge, "MOST_FILES", most)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # several hundred of them
    looked_at, listed, ahead, done = 0, 0, [0], 0

    def is_live(*how: object) -> bool:
        nonlocal looked_at
        looked_at += 1
        return real_is_live(*how)

    def all_small(files: Iterator[File]) -> Iterator[list[File]]:
        def counted() -> Iterator[File]:
            nonlocal listed
            for file in files:
                listed += 1
                yield file

        return real_all_small(counted())

    def merged(*how: object) -> merge.Merged | None:
        nonlocal done
        found = real_merge(*how)
        assert found is not None
        ahead.append(listed - done)
        done += found.count
        return found

    real_is_live, real_all_small, real_merge = Catalog.is_live, maintenance.all_small, maintenance.merge
    monkeypatch.setattr(maintenance, "all_small", all_small)
    monkeypatch.setattr(maintenance, "merge", merged)
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.stats().files == 2 * entries
        rewards = lake.column("reward")[:].tolist()
        with monkeypatch.context() as patch:
            patch.setattr(Catalog, "is_live", is_live)
            lake.compact()
        assert rewards == [0, 1, 2, 3] * entries
        assert lake.column("reward")[:].tolist() == rewards
        assert lake.stats().files == 2 * entries / most
        lake.verify()
    assert done == listed == 2 * entries
    assert max(ahead) <= most + 1
    assert looked_at <= 6 * 2 * entries, looked_at
