"""The lake: what was committed comes back bit for bit, whatever happened to the process."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

import lakepond as lp
from lakepond.adapters import trading
from lakepond.lake.format import commits, link_notes
from lakepond.lake.format.sealed import as_stored
from lakepond.types import Tree, leaves, rebuild
from reference import WORLDS, same_bytes

T = TypeVar("T")


def item(tree: Tree, i: int) -> Tree:
    values = iter([leaf for _, leaf in leaves(tree)])
    return rebuild(tree, lambda: next(values)[i])


def step_of(world: str, n: int, streams: int = 3) -> dict:
    """Step n of a run: stream n % streams goes on; episodes last 7 steps; its reward is its id."""
    stream, turn = n % streams, n // streams
    episode, t = stream + streams * (turn // 7), turn % 7
    observe = WORLDS[world].observe
    return {
        "obs": observe(episode, t),
        "next_obs": observe(episode, t + 1),
        "action": np.array([n, stream], np.float32),
        "reward": float(n),
        "terminated": t == 6 and episode % 2 == 0,
        "truncated": t == 6 and episode % 2 == 1,
        "log_prob": -float(n),
        "stream": stream,
    }


def spec_of(world: str) -> lp.Spec:
    return lp.Spec(
        obs=WORLDS[world].fields,
        action=lp.Field((2,), "float32"),
        extras={"log_prob": lp.Field((), "float64")},
    )


def record(replay: lp.Replay, world: str, start: int, stop: int) -> None:
    for n in range(start, stop):
        assert replay.record(**step_of(world, n)) == n


known_step = lru_cache(maxsize=1 << 13)(step_of)
"""steps to compare with, which are made once; nothing may change them"""


def agrees(batch: lp.Batch, i: int, world: str) -> None:
    step = known_step(world, int(batch.step_id[i]))
    for name in ("obs", "next_obs", "action"):
        assert same_bytes(item(getattr(batch, name), i), step[name])
    for name in ("reward", "terminated", "truncated", "stream"):
        assert getattr(batch, name)[i] == step[name]
    assert batch.extras["log_prob"][i] == step["log_prob"]


def all_there(path: Path, count: int, world: str) -> None:
    """Check that a lake has exactly the steps [0, count), and every byte of it."""
    with lp.Lake.open(path) as lake:
        assert len(lake) == count
        lake.verify()
        batch = lake.steps(0, count)
        for i in range(count):
            agrees(batch, i, world)


def settle(replay: lp.Replay) -> None:
    """Wait until merging and deleting after the last commit have finished."""
    background = replay._outflow.background
    for _ in range(2):  # the thread takes the second one when all is done that follows the last commit
        background._wake.put(None)
    while not background._wake.empty():
        time.sleep(0.0005)
    work = background.writer.maintenance._work
    if work is not None:
        work.result(timeout=60)


def same_batch(a: lp.Batch, b: lp.Batch) -> bool:
    return all(same_bytes(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("world", WORLDS)
def test_what_was_committed_comes_back(tmp_path, world):
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=60) as replay:
        for k, stop in enumerate([1, 40, 41, 150, 150]):  # more than the pond holds, and a commit of nothing
            record(replay, world, replay.stats().recorded, stop)
            assert replay.commit(note={"k": k}).recorded == stop
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert len(lake) == 150
        lake.verify()
        batch = lake.steps(0, 150)
        for i in range(150):
            agrees(batch, i, world)
        some = lake.sample(20, rng=np.random.default_rng(0))
        for i in range(20):
            agrees(some, i, world)
        kept = [lp.Lake.open(tmp_path / "lake", commit=n) for n in lake.commits()]
        assert {len(old) for old in kept} == {1, 40, 41, 101, 150}  # at 101 the pond would have overflowed
        for old in kept:
            agrees(old.steps(0, len(old)), len(old) - 1, world)
            old.close()
        assert lake.query(stream=1).tolist() == list(range(1, 150, 3))


@pytest.mark.parametrize("alpha", [None, 0.6])
@pytest.mark.parametrize(
    "world", ["frames first", "frames last", "market window", "dict and tuple", "vector"]
)
def test_a_resumed_replay_samples_as_one_that_never_stopped(tmp_path, world, alpha):
    plain = lp.Replay(spec_of(world), 50, alpha=alpha)
    record(plain, world, 0, 120)
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=50, alpha=alpha) as replay:
        record(replay, world, 0, 120)
        if alpha:
            for each in (plain, replay):
                each.update_priorities(np.arange(80, 120), np.linspace(0.1, 5, 40))
        replay.commit()
    again = lp.Replay.open(tmp_path / "lake", capacity=50, alpha=alpha)
    assert len(again) == 50
    for each in (plain, again):
        record(each, world, 120, 130)
    for kind in ({}, {"n_step": 3, "gamma": 0.9}, {"sequence_length": 3}, {"replace": False}):
        a, b = (each.sample(16, rng=np.random.default_rng(7), **kind) for each in (plain, again))
        assert same_batch(a, b)
    assert same_batch(plain.recent(50), again.recent(50))
    again.close()
    assert len(lp.Lake.open(tmp_path / "lake")) == 130  # close() commits the rest


def test_going_on_writes_only_what_is_new(tmp_path):
    world = "market window"
    replay = lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=500)
    record(replay, world, 0, 300)
    first = replay.commit()
    rows = lp.Lake.open(tmp_path / "lake").stats().rows
    replay.close()
    again = lp.Replay.open(tmp_path / "lake", capacity=500)
    for n in range(300, 330):  # episodes that have been seen before, by the same agents
        again.record(**(step_of(world, n - 300) | {"reward": float(n)}))
    second = again.commit()
    again.close()
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.stats().rows == rows  # the days are there
        assert second.bytes_written < 0.5 * first.bytes_written
        assert lake.steps(300, 330).obs.tobytes() == lake.steps(0, 30).obs.tobytes()


@pytest.mark.parametrize("codec", ["zstd", "none"])
@pytest.mark.parametrize("world", ["noise", "market window", "dict and tuple", "vector"])
def test_a_large_commit_is_several_files(tmp_path, monkeypatch, world, codec):
    """As if files were full at a kilobyte: whatever is read or merged goes across their borders."""
    from lakepond.flow import pond_to_lake
    from lakepond.lake.format import checksum, shard_writer
    from lakepond.lake.write import merge, new_files

    monkeypatch.setattr(pond_to_lake, "PIECE_BYTES", 500)
    monkeypatch.setattr(new_files, "block_rows_for", lambda row_bytes: max(1, 500 // row_bytes))
    monkeypatch.setattr(shard_writer, "_TASK_BYTES", 500)
    monkeypatch.setattr(checksum, "PIECE_BYTES", 500)
    monkeypatch.setattr(new_files, "ENOUGH_BYTES", 1000)
    monkeypatch.setattr(new_files, "LARGE_BYTES", 4000)
    monkeypatch.setattr(merge, "LARGE_BYTES", 8000)
    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=300, codec=codec) as replay:
        record(replay, world, 0, 60)
        replay.commit()
        record(replay, world, 60, 300)
        commit = replay.commit()
    with lp.Lake.open(path) as lake:
        files = [file for leaf in range(len(commit.rows)) for _, file in lake.reader.row_files(leaf)]
        assert len(files) > 2 or world == "vector"
        assert len(list(lake.reader.stored())) >= 4
        assert all(file.shard.bytes < 9000 or file.shard.rows == 1 for file in files)
    for _ in range(2):
        with lp.Lake.open(path) as lake:
            lake.verify()
            batch = lake.steps(0, 300)
            for i in range(300):
                agrees(batch, i, world)
            lake.compact(keep_last=1)
            assert all(
                file.shard.bytes < 9000 or file.shard.rows == 1 for _, file in lake.reader.row_files(0)
            )
    with lp.Replay.open(path, capacity=300) as replay:
        record(replay, world, 300, 320)
        agrees(replay.recent(300), 0, world)
    all_there(path, 320, world)


def test_a_commit_in_the_background(tmp_path):
    world = "frames first"
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=100) as replay:
        record(replay, world, 0, 50)
        pending = replay.commit(wait=False)
        record(replay, world, 50, 180)  # goes on, and round the ring, while it is written
        assert pending.result(timeout=60).recorded == 50
        last = replay.commit()
        assert last.recorded == 180
    all_there(tmp_path / "lake", 180, world)


def test_readers_are_free_and_writers_are_one(tmp_path):
    world = "vector"
    replay = lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=100)
    record(replay, world, 0, 10)
    replay.commit()
    with lp.Lake.open(tmp_path / "lake") as reader:
        with pytest.raises(lp.LakeLocked, match="this process"):
            lp.Replay.open(tmp_path / "lake", capacity=100)
        record(replay, world, 10, 20)
        replay.commit()
        assert len(reader) == 10  # a reader stays at its commit
        agrees(reader.steps(0, 10), 9, world)
    replay.close()
    lp.Replay.open(tmp_path / "lake", capacity=100).close()


def test_opening_what_is_not_there(tmp_path):
    with pytest.raises(lp.LakeNotFound, match="no lake"):
        lp.Lake.open(tmp_path / "nowhere")
    with pytest.raises(lp.SpecError, match="no lake"):
        lp.Replay.open(tmp_path / "nowhere", capacity=10)
    replay = lp.Replay.open(tmp_path / "lake", spec_of("vector"), capacity=10)
    with pytest.raises(lp.LakeNotFound, match="no commit yet"):
        lp.Lake.open(tmp_path / "lake")
    replay.commit()
    replay.close()
    with pytest.raises(lp.LakeNotFound, match="no commit 7"):
        lp.Lake.open(tmp_path / "lake", commit=7)
    with pytest.raises(lp.SpecError, match="a different spec"):
        lp.Replay.open(tmp_path / "lake", spec_of("image"), capacity=10)


def test_a_lake_of_a_later_format(tmp_path):
    lp.Replay.open(tmp_path / "lake", spec_of("vector"), capacity=10).close()
    file = tmp_path / "lake" / "lake.json"
    file.write_text(file.read_text().replace('"format": 2', '"format": 99'))
    with pytest.raises(lp.LakeTooNew, match="format 99"):
        lp.Lake.open(tmp_path / "lake")


def test_a_commit_that_is_broken_is_stepped_over_and_said(tmp_path, caplog):
    world = "frames first"
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=100) as replay:
        for stop in (20, 40, 60):
            record(replay, world, replay.stats().recorded, stop)
            replay.commit()
    newest = sorted((tmp_path / "lake" / "commits").glob("*.json"))[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert len(lake) == 40
        agrees(lake.steps(0, 40), 39, world)
    assert "skipping unreadable commit 2" in caplog.text


def test_every_flipped_byte_of_a_small_lake_is_found(tmp_path):
    """Each file in turn: open, verify and read everything; wrong data is never returned."""
    world = "frames first"
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=100) as replay:
        record(replay, world, 0, 9)
        replay.commit()
    right = lp.Lake.open(tmp_path / "lake").steps(0, 9)
    harmless = flips = 0
    rng = random.Random(0)
    for file in sorted((tmp_path / "lake").rglob("*.*")):
        if file.is_dir():
            continue
        whole = file.read_bytes()
        for at in rng.sample(range(len(whole)), min(len(whole), 250)):
            broken = bytearray(whole)
            broken[at] ^= 1 << rng.randrange(8)
            file.write_bytes(bytes(broken))
            flips += 1
            try:
                with lp.Lake.open(tmp_path / "lake") as lake:
                    lake.verify()
                    assert same_batch(lake.steps(0, 9), right)
                    harmless += 1  # padding, or a comment in the JSON
            except lp.LakepondError:
                pass
        file.write_bytes(whole)
    assert flips > 500
    assert harmless < 0.1 * flips


def test_a_file_cut_short_or_gone_is_found(tmp_path):
    world = "frames first"
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=100) as replay:
        record(replay, world, 0, 20)
        replay.commit()
        record(replay, world, 20, 30)
        replay.commit()
    for file in sorted((tmp_path / "lake" / "segments").iterdir()):
        whole = file.read_bytes()
        for broken in (whole[:-1], whole[: len(whole) // 2], b""):
            file.write_bytes(broken)
            with pytest.raises(lp.LakepondError):
                lp.Lake.open(tmp_path / "lake", commit=1)
        file.unlink()
        with pytest.raises(lp.LakeCorrupt, match="missing"):
            lp.Lake.open(tmp_path / "lake", commit=1)
        file.write_bytes(whole)


def test_fill_is_exactly_uniform_and_without_replacement(tmp_path):
    world = "frames first"
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=50) as replay:
        for stop in range(20, 201, 20):
            record(replay, world, replay.stats().recorded, stop)
            replay.commit()
    lake = lp.Lake.open(tmp_path / "lake")
    counts = np.zeros(200, int)
    for seed in range(150):
        pond = lp.Replay(spec_of(world), 40)
        pond.fill_from(lake, 40, rng=np.random.default_rng(seed))
        batch = pond.recent(40)
        ids = batch.reward.astype(int)
        assert len(set(ids.tolist())) == 40
        counts[ids] += 1
        if seed == 0:
            for i, n in enumerate(ids):
                step = step_of(world, int(n))
                assert same_bytes(batch.obs[i], step["obs"])
                assert same_bytes(batch.next_obs[i], step["next_obs"])
                assert batch.stream[i] == step["stream"]
            # steps that were not neighbours must not be taken for such
            three = pond.sample(40, rng=np.random.default_rng(0), n_step=3, gamma=0.5)
            assert (three.reward == pond.steps(three.step_id).reward).all()
    from scipy import stats  # here, because processes that tests start import this file

    assert stats.chisquare(counts).pvalue > 0.01
    with pytest.raises(lp.TooFewSteps):
        lp.Replay(spec_of(world), 500).fill_from(lake, 201, rng=np.random.default_rng(0))
    lake.close()


def test_a_replay_with_observations_in_another_order_is_not_filled(tmp_path):
    """Equal dicts may have another order, by which the rows of a lake are numbered."""
    orders = [lp.Spec(obs=dict.fromkeys(keys, lp.Field((2,), "float32"))) for keys in ("ab", "ba")]
    values = {"a": np.full(2, 1, np.float32), "b": np.full(2, 2, np.float32)}
    with lp.Replay.open(tmp_path / "lake", orders[0], 10) as replay:
        replay.record(obs=values, action=0, reward=0.0, next_obs=values, terminated=False, truncated=False)
    with lp.Lake.open(tmp_path / "lake") as lake:
        with pytest.raises(lp.SpecError, match=r"another order.*Replay\(lake\.spec, capacity\)"):
            lp.Replay(orders[1], 10).fill_from(lake, 1, rng=np.random.default_rng(0))
        filled = lp.Replay(lake.spec, 10)
        filled.fill_from(lake, 1, rng=np.random.default_rng(0))
    assert filled.recent(1).obs["b"].tolist() == [[2, 2]]


def test_a_filled_replay_takes_no_more_than_one_that_recorded(tmp_path):
    spec = lp.Spec(obs=lp.Field((100,), "float32", rows=None))
    obs = np.random.default_rng(0).random((20_001, 100), np.float32)
    steps = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.zeros(20_000, np.int64), "stream": 0}
    ends = {"reward": np.zeros(20_000, np.float32), "terminated": np.zeros(20_000, bool)}
    with lp.Replay.open(tmp_path / "lake", spec, capacity=20_000) as replay:
        replay.record(**steps, **ends, truncated=np.zeros(20_000, bool))
        replay.commit()
        recorded = replay.stats().bytes_held
    with lp.Lake.open(tmp_path / "lake") as lake:
        filled = lp.Replay(spec, 20_000)
        filled.fill_from(lake, 20_000, rng=np.random.default_rng(0))
    assert filled.stats().bytes_held < 1.5 * recorded


FULL_DISK = """
import resource, sys, numpy as np, lakepond as lp
sys.path.insert(0, {tests!r})
from test_lake import record, spec_of
replay = lp.Replay.open({path!r}, spec_of("noise"), capacity=2000)
record(replay, "noise", 0, 50)
replay.commit()
record(replay, "noise", 50, 800)
soft = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, soft[1]))
for attempt in range(2):
    try:
        replay.commit()
        print("committed?")
    except OSError as error:
        print("refused", flush=True)
record(replay, "noise", 800, 900)          # training goes on
assert len(lp.Lake.open({path!r})) == 50   # the last commit is whole
resource.setrlimit(resource.RLIMIT_FSIZE, soft)
print("then", replay.commit().recorded)
replay.close()
"""


def test_a_full_disk_loses_nothing_and_training_goes_on(tmp_path):
    code = FULL_DISK.format(tests=str(Path(__file__).parent), path=str(tmp_path / "lake"))
    printed = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert printed == ["refused", "refused", "then", "900"]
    with lp.Lake.open(tmp_path / "lake") as lake:
        lake.verify()
        batch = lake.steps(0, 900)
        for i in range(0, 900, 7):
            agrees(batch, i, "noise")
    assert not list((tmp_path / "lake" / "segments").glob("*.aside"))


def test_a_commit_needs_a_bounded_amount_of_memory(tmp_path):
    """300 MB of rows are committed and read back within 100 MB more than the pond itself takes."""
    code = f"""
import numpy as np, lakepond as lp
def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024
spec = lp.Spec(obs=lp.Field((300_000,), "uint8", rows=None))
replay = lp.Replay.open({str(tmp_path / "lake")!r}, spec, capacity=600)
rng = np.random.default_rng(0)
def fill(n):
    for i in range(n):
        obs, nxt = rng.integers(0, 255, (2, 300_000), dtype=np.uint8)
        replay.record(obs=obs, action=0, reward=i, next_obs=nxt, terminated=False, truncated=False)
fill(2); replay.commit()
fill(500)
before = peak()
replay.commit()
print(peak() - before)
"""
    extra = int(subprocess.check_output([sys.executable, "-c", code]))
    assert extra < 100 << 20
    with lp.Lake.open(tmp_path / "lake") as lake:
        sizes = [file.shard.bytes for _, file in lake.reader.row_files(0)]
        assert max(sizes) <= 64 << 20  # one object of the cloud each
        assert len(sizes) == 7  # 1 MB, then 300 MB in as few as need be
        lake.verify()


assert resource  # used by the scripts above


# --- retention, repair, the disk guard ---


def test_a_bounded_lake_lets_the_oldest_go_with_their_files(tmp_path):
    world, path = "frames first", tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=60, max_steps=100, keep_last=2) as replay:
        sizes = []
        for stop in range(50, 1001, 50):
            record(replay, world, stop - 50, stop)
            replay.commit()
            settle(replay)
            sizes.append(sum(file.stat().st_size for file in (path / "segments").iterdir()))
    assert sizes[-1] < 1.3 * sizes[4]  # flat
    with lp.Lake.open(path) as lake:
        assert (lake.commit.oldest, lake.commit.recorded) == (900, 1000)
        assert len(lake.commits()) == 2
        lake.verify()
        batch = lake.steps(900, 1000)
        for i in range(100):
            agrees(batch, i, world)
        kept = {name for name, _ in lake.files()}
        with lp.Lake.open(path, commit=lake.commits()[0]) as old:
            kept |= {name for name, _ in old.files()}
        assert {file.name for file in (path / "segments").iterdir()} == kept
    again = lp.Replay.open(path, capacity=60)
    assert again.recent(60).step_id[0] == 940
    again.close()


def test_rows_that_live_steps_share_outlive_the_segment_that_brought_them(tmp_path):
    """All episodes walk over the same days: the first segment's rows are needed for ever."""
    path, spec = tmp_path / "lake", spec_of("market window")
    with lp.Replay.open(path, spec, capacity=40, max_steps=40, keep_last=1) as replay:
        for n in range(200):
            replay.record(**(step_of("market window", n % 21) | {"reward": float(n)}))
            if n % 40 == 39:
                replay.commit()
    with lp.Lake.open(path) as lake:
        lake.verify()
        batch = lake.steps(160, 200)
        for i, n in enumerate(range(160, 200)):
            assert same_bytes(batch.obs[i], step_of("market window", n % 21)["obs"])


def test_repair_goes_back_to_what_is_whole_and_keeps_the_rest_aside(tmp_path):
    world, path = "frames first", tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=100) as replay:
        for stop in (30, 60, 90):
            record(replay, world, stop - 30, stop)
            replay.commit()
    with lp.Lake.open(path, commit=2) as lake:
        newest = list(lake.reader.stored())[-1].name
        before = {file.name for file in path.rglob("*.*") if file.is_file()}
    broken = bytearray((path / "segments" / newest).read_bytes())
    broken[100] ^= 4
    (path / "segments" / newest).write_bytes(bytes(broken))
    done = lp.repair(path)
    assert done.newest == 1
    assert newest in done.quarantined
    assert {file.name for file in path.rglob("*.*") if file.is_file()} == before  # nothing was deleted
    with lp.Lake.open(path) as lake:
        assert len(lake) == 60
        lake.verify()
    with lp.Replay.open(path, capacity=100) as replay:
        record(replay, world, 60, 80)
    assert len(lp.Lake.open(path)) == 80
    assert lp.repair(path).quarantined == ()


def test_the_disk_guard_refuses_at_the_floor_and_goes_on_when_there_is_space(tmp_path, monkeypatch, caplog):
    import shutil

    from lakepond.lake.write import disk_guard as guard

    free = 1_000_000
    monkeypatch.setattr(guard.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 0, free))
    world = "vector"
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=500, min_free="0.98 MB") as replay:
        for stop in (100, 200):
            record(replay, world, stop - 100, stop)
            replay.commit()
        assert "full at about commit" in caplog.text
        free = 800_000
        record(replay, world, 200, 300)
        with pytest.raises(lp.LakeFull, match="the limit is 980,000"):
            replay.commit()
        assert len(lp.Lake.open(tmp_path / "lake")) == 200
        with pytest.warns(RuntimeWarning, match="tried again"):
            record(replay, world, 300, 310)  # training goes on, and hears of it
        free = 1_000_000
        assert replay.commit().recorded == 310
    assert len(lp.Lake.open(tmp_path / "lake")) == 310
    with pytest.raises(lp.SpecError, match="not a valid size"):
        lp.Replay.open(tmp_path / "lake", capacity=10, min_free="much")


def test_going_on_from_an_older_commit(tmp_path):
    world, path = "frames first", tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=100) as replay:
        for stop in (30, 60, 90):
            record(replay, world, stop - 30, stop)
            replay.commit(note={"stop": stop})
    with lp.Replay.open(path, capacity=100, commit=0) as replay:
        assert replay.stats().recorded == 30  # no step of the future
        record(replay, world, 30, 45)
        assert replay.commit().number == 3
    with lp.Lake.open(path) as lake:
        assert (len(lake), lake.commit.parent) == (45, 0)
    assert len(lp.Lake.open(path, commit=2)) == 90  # the other branch is still there


@pytest.mark.parametrize("version", [1])
def test_golden_lakes_stay_readable(tmp_path, version):
    golden = Path(__file__).parent / "golden" / f"v{version}"
    with lp.Lake.open(golden) as lake:
        lake.verify()
        assert len(lake) == 120
        batch = lake.steps(0, 120)
        for i in range(120):
            agrees(batch, i, "dict and tuple")
        assert lp.Lake.open(golden, commit=1).commit.note == {"generation": 1}
    copy = tmp_path / "lake"
    shutil.copytree(golden, copy)
    with lp.Replay.open(copy, capacity=60, alpha=0.6) as replay:
        record(replay, "dict and tuple", 120, 130)
    assert len(lp.Lake.open(copy)) == 130


def test_a_row_axis_that_was_found_after_the_first_commit_is_kept(tmp_path):
    """The screen stands still until after a commit; resumed, the pond is laid out in rows all the same."""
    rng = np.random.default_rng(0)
    still = np.repeat(rng.integers(0, 255, (1, 12, 24), dtype=np.uint8), 30, axis=0)
    frames = np.concatenate([still, rng.integers(0, 255, (100, 12, 24), dtype=np.uint8)])

    def play(replay: lp.Replay, start: int, stop: int) -> None:
        for t in range(start, stop):
            replay.record(
                obs=frames[t : t + 4],
                action=0,
                reward=float(t),
                next_obs=frames[t + 1 : t + 5],
                terminated=False,
                truncated=False,
            )

    path, spec = tmp_path / "lake", lp.Spec(obs=lp.Field((4, 12, 24), "uint8"))
    with lp.Replay.open(path, spec, capacity=500) as replay:
        play(replay, 0, 20)
        replay.commit()
        assert "not found yet" in replay.stats().layout["obs"]
        play(replay, 20, 100)
    again = lp.Replay.open(path, capacity=500)
    assert again.stats().layout["obs"] == "4 rows of 288 B along axis 0"
    assert again.stats().rows <= 76
    batch = again.recent(100)
    for t in range(100):
        assert np.array_equal(batch.obs[t], frames[t : t + 4])
        assert np.array_equal(batch.next_obs[t], frames[t + 1 : t + 5])
    play(again, 100, 120)
    again.close()
    with lp.Lake.open(path) as lake:
        assert np.array_equal(lake.steps(0, 120).obs[:, 0], frames[:120])


# --- what must not happen ---


def test_rows_of_another_lake_are_not_taken_for_ones_own(tmp_path):
    world = "frames first"
    with lp.Replay.open(tmp_path / "one", spec_of(world), capacity=50) as replay:
        record(replay, world, 0, 40)
    memory = lp.Replay(spec_of(world), 100)
    with lp.Lake.open(tmp_path / "one") as lake:
        memory.fill_from(lake, 20, rng=np.random.default_rng(0))
        mine = lp.Replay.open(tmp_path / "two", spec_of(world), capacity=50)
        with pytest.raises(lp.SpecError, match="in memory"):
            mine.fill_from(lake, 5, rng=np.random.default_rng(0))
        mine.close()
    memory.save(tmp_path / "three")
    expected = memory.recent(20)
    memory.close()
    with lp.Lake.open(tmp_path / "three") as lake:
        lake.verify()
        assert same_batch(lake.steps(0, 20)._replace(discount=expected.discount), expected)


def test_a_lake_smaller_than_its_pond_is_refused(tmp_path):
    with pytest.raises(lp.SpecError, match="at least the capacity"):
        lp.Replay.open(tmp_path / "lake", spec_of("vector"), capacity=100, max_steps=10)


def test_an_interrupted_hand_over_changes_nothing(tmp_path, monkeypatch):
    from lakepond.rows.store import RowStore

    world = "dict and tuple"
    replay = lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=100)
    record(replay, world, 0, 10)
    replay.commit()
    record(replay, world, 10, 30)
    pin, calls = RowStore.pin, []

    def interrupted(self: RowStore, slots: np.ndarray) -> None:
        pin(self, slots)
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(RowStore, "pin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replay.commit()
    monkeypatch.undo()
    record(replay, world, 30, 40)
    replay.close()
    all_there(tmp_path / "lake", 40, world)


def test_clear_keeps_what_was_recorded_in_the_lake(tmp_path):
    world = "frames first"
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=100) as replay:
        record(replay, world, 0, 20)
        replay.clear()
        assert len(replay) == 0
        record(replay, world, 20, 30)
    all_there(tmp_path / "lake", 30, world)


@pytest.mark.parametrize("alpha", [None, 0.6])
def test_what_was_cleared_is_not_loaded_again(tmp_path, alpha):
    world, path = "frames first", tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=100, alpha=alpha) as replay:
        record(replay, world, 0, 20)
        replay.clear()
    for start in (20, 25):  # the second time from a commit that was made after the replay was reopened
        with lp.Replay.open(path, capacity=1000, alpha=alpha) as replay:
            assert len(replay) == start - 20
            record(replay, world, start, start + 5)
            assert set(replay.sample(200).step_id.tolist()) == set(range(20, start + 5))
    with lp.Replay.open(path, capacity=1000, alpha=alpha, commit=0) as replay:
        assert len(replay) == 20  # as of the commit before


@pytest.mark.parametrize(
    "note", [{"cut_streams": [0]}, {"alone_steps": []}, {"ended_steps": 1}, {"cleared_before": 0}]
)
def test_a_note_cannot_have_keys_of_lakepond(tmp_path, note):
    with lp.Replay.open(tmp_path / "lake", spec_of("vector"), capacity=100) as replay:
        record(replay, "vector", 0, 5)
        with pytest.raises(lp.SpecError, match=f"the key '{next(iter(note))}' of a note is reserved"):
            replay.commit(note)
        assert replay.commit({"loss": 1}).recorded == 5


def nested(levels: int) -> dict[str, object]:
    """A note of that many dicts, one in another."""
    note: dict[str, object] = {}
    for _ in range(levels - 1):
        note = {"a": note}
    return note


def deep(calls: int, read: Callable[[], T]) -> T:
    """What `read` returns on a call stack that has `calls` more calls."""
    return deep(calls - 1, read) if calls else read()


def test_a_note_that_is_nested_too_deeply_is_refused_before_anything_is_written(tmp_path):
    around: list[object] = []
    around.append(around)
    with lp.Replay.open(tmp_path / "lake", spec_of("vector"), capacity=100) as replay:
        record(replay, "vector", 0, 5)
        for note in (nested(101), nested(900), nested(100_000), {"a": around}):
            with pytest.raises(lp.SpecError, match="the note of a commit is nested deeper than 100 levels"):
                replay.commit(note)
        assert replay.commit(nested(100)).number == 0
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.commit.note == nested(100)


def test_a_commit_with_a_deeply_nested_note_is_intact_for_a_reader_with_a_deep_call_stack(
    tmp_path, monkeypatch
):
    """Earlier versions wrote such notes."""
    path = tmp_path / "lake"
    monkeypatch.setattr(link_notes, "stored_note", as_stored)
    with lp.Replay.open(path, spec_of("vector"), capacity=100) as replay:
        record(replay, "vector", 0, 5)
        replay.commit()
        record(replay, "vector", 5, 10)
        replay.commit(nested(850))
    for calls in (0, 200, 400):
        assert deep(calls, lambda: lp.Lake.open(path).commit.recorded) == 10
        assert deep(calls, lambda: lp.repair(path).quarantined) == ()
    data = (path / "commits" / commits.file_name(1)).read_bytes()
    for calls in range(0, 960, 10):  # at any depth it is read, or the stack is what is short
        with suppress(RecursionError):
            deep(calls, lambda: commits.Commit.from_json(data, "1"))


@pytest.mark.parametrize(
    ("note", "says"),
    [
        ("text", "must be a dict, not str"),
        ({"a": {1: 2}}, r"note\['a'\] has the key 1"),
        ({"a": [object()]}, r"note\['a'\] is object"),
        ({"a": np.zeros(5000)}, "up to 1,000 values"),
    ],
)
def test_a_note_takes_what_json_has_and_numpy_values(tmp_path, note, says):
    with lp.Replay.open(tmp_path / "lake", spec_of("vector"), capacity=100) as replay:
        with pytest.raises(lp.SpecError, match=says):
            replay.commit(note)
        kept = replay.commit({"a": np.float32(1.5), "b": {"c": (np.arange(3), np.bool_(True))}}).note
        assert kept == {"a": 1.5, "b": {"c": [[0, 1, 2], True]}}


def test_saving_has_its_own_lakes(tmp_path):
    world = "vector"
    replay = lp.Replay(spec_of(world), 50)
    record(replay, world, 0, 20)
    replay.save(tmp_path / "a")
    replay.close()
    with pytest.raises(lp.ReplayClosed):
        replay.save(tmp_path / "b")
    with lp.Replay.open(tmp_path / "all", spec_of(world), capacity=10) as replay:
        record(replay, world, 0, 50)
    with pytest.raises(lp.SpecError, match="not written by `save`"):
        trading.ReplayBuffer.load(tmp_path / "all")
    assert len(lp.Lake.open(tmp_path / "all")) == 50


def test_commits_from_two_threads_follow_each_other(tmp_path):
    import threading

    world = "frames first"
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=80) as replay:

        def committer() -> None:
            for _ in range(20):
                replay.commit(wait=False)
                time.sleep(0.005)

        threads = [threading.Thread(target=committer) for _ in range(2)]
        for thread in threads:
            thread.start()
        record(replay, world, 0, 600)
        for thread in threads:
            thread.join()
    with lp.Lake.open(tmp_path / "lake") as lake:
        firsts = [segment.first for segment in list(lake.reader.stored())]
        assert firsts == sorted(set(firsts))
        assert [s.stop for s in list(lake.reader.stored())] == [*firsts[1:], 600]
        batch = lake.steps(0, 600)
        for i in range(0, 600, 5):
            agrees(batch, i, world)


def test_recording_goes_on_while_the_disk_is_full_within_bounds(tmp_path, monkeypatch):
    from lakepond.lake.write.new_files import NewFiles

    world = "frames first"
    replay = lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=20)
    record(replay, world, 0, 10)
    replay.commit()
    real = NewFiles.segments

    def full(self: NewFiles, new: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(NewFiles, "segments", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        record(replay, world, 10, 80)  # three and a half ponds: held beside it
    with pytest.raises(lp.RecordError, match="free some space"), pytest.warns(RuntimeWarning):
        record(replay, world, 80, 200)
    recorded = replay.stats().recorded
    monkeypatch.setattr(NewFiles, "segments", real)
    assert replay.commit().recorded == recorded
    record(replay, world, recorded, recorded + 10)
    replay.close()
    all_there(tmp_path / "lake", recorded + 10, world)


def test_priorities_are_kept_for_another_exponent(tmp_path):
    world = "vector"
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=10, alpha=1.0) as replay:
        record(replay, world, 0, 2)
        replay.update_priorities([0, 1], [4.0, 16.0])
        replay.commit()
    again = lp.Replay.open(tmp_path / "lake", capacity=10, alpha=0.5)
    assert again._pond.priorities.weights(np.array([0, 1])) == pytest.approx([2.0, 4.0])
    again.close()


def test_a_commit_is_kept_while_a_reader_has_it_open(tmp_path):
    world, path = "frames first", tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=20, max_steps=20, keep_last=1) as replay:
        record(replay, world, 0, 20)
        replay.commit()
        reader = lp.Lake.open(path)
        for stop in (40, 60):
            record(replay, world, stop - 20, stop)
            replay.commit()
        settle(replay)
        assert reader.commits() == [0, 2]
        batch = reader.steps(0, 20)  # it has read nothing before
        for i in range(20):
            agrees(batch, i, world)
        reader.verify()
        reader.close()
    with lp.Lake.open(path) as lake:
        assert lake.commits() == [2]
        assert {file.name for file in (path / "segments").iterdir()} == dict(lake.files()).keys()


def test_a_saved_replay_may_be_named_by_any_path_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    replay = lp.Replay(spec_of("vector"), 50)
    record(replay, "vector", 0, 10)
    replay.save("checkpoint")
    record(replay, "vector", 10, 20)
    assert replay.save(tmp_path / "checkpoint").recorded == 20
    with pytest.raises(lp.SpecError, match="is saved to checkpoint"):
        replay.save("elsewhere")
    replay.close()


def test_a_lake_is_pickled_as_its_path_and_commit(tmp_path, rng):
    import copy
    import pickle

    with lp.Replay.open(tmp_path / "lake", spec_of("frames first"), capacity=50) as replay:
        record(replay, "frames first", 0, 30)
        replay.commit()
        with lp.Lake.open(tmp_path / "lake") as lake:
            data = pickle.dumps(lake)
            record(replay, "frames first", 30, 60)
            replay.commit()
            for other in (pickle.loads(data), copy.deepcopy(lake)):
                assert len(other) == len(lake) == 30  # the same commit, whatever came since
                assert same_batch(other.steps(0, 30), lake.steps(0, 30))
                other.close()
    assert len(data) < 1000
    code = f"""
import pickle
lake = pickle.loads({data!r})
assert lake.steps(7, 8).reward.tolist() == [7.0]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
