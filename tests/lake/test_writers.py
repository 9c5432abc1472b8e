"""Several processes write one lake, each its own steps under its own name; readers read them together."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_lake import agrees, item, record, same_batch, settle, spec_of, step_of

import lakepond as lp
from lakepond.cli import main
from lakepond.lake import writers
from lakepond.lake.format import commits
from lakepond.lake.format.description import describe
from lakepond.lake.write.writer import create
from reference import same_bytes

WORLD = "frames first"


def write(path: Path, writer: str, counts: list[int], world: str = WORLD, **how: object) -> None:
    """Commits of that many steps each; step n of a writer is step n of the world."""
    with lp.Replay.open(path, spec_of(world), capacity=60, writer=writer, **how) as replay:
        for count in counts:
            n = replay.stats().recorded
            record(replay, world, n, n + count)
            replay.commit(note={"writer": writer})


def all_there(lake: lp.Lake, expected: list[tuple[str, int, int]], world: str = WORLD) -> None:
    """Of each writer in turn the steps [start, stop), read in every way."""
    wanted = np.concatenate([np.arange(start, stop) for _, start, stop in expected])
    assert len(lake) == len(wanted)
    lake.verify()
    batch = lake.steps(0, len(lake))
    assert batch.step_id.tolist() == list(range(len(wanted)))
    own = batch._replace(step_id=wanted)
    for i in range(len(wanted)):
        agrees(own, i, world)
    some = lake.sample(40, rng=np.random.default_rng(0))
    some = some._replace(step_id=wanted[some.step_id])
    for i in range(40):
        agrees(some, i, world)
    first = 0
    for writer, start, stop in expected:
        ids = np.arange(first, first + stop - start)
        assert lake.query(writer=writer).tolist() == ids.tolist()
        mine = ids[wanted[ids] % 3 == 1]
        assert lake.query(writer=writer, stream=1).tolist() == mine.tolist()
        first += stop - start
    assert lake.query(stream=1).tolist() == np.flatnonzero(wanted % 3 == 1).tolist()
    pond = lp.Replay(lake.spec, len(lake))
    pond.fill_from(lake, len(lake), rng=np.random.default_rng(1))
    filled = pond.recent(len(lake))
    assert sorted(filled.reward.tolist()) == sorted(float(n) for n in wanted)
    for i in range(0, len(lake), 7):
        assert same_bytes(item(filled.obs, i), step_of(world, int(filled.reward[i]))["obs"])
    assert np.asarray(lake.column("reward")).tolist() == wanted.tolist()


def test_writers_are_read_together_and_alone(tmp_path):
    path = tmp_path / "lake"
    write(path, "", [5, 40])
    write(path, "worker-1", [33])
    write(
        path, "worker-2", [20, 20, 20, 20], max_steps=60
    )  # whose oldest steps left in the middle of a segment
    with lp.Lake.open(path) as lake:
        assert list(lake.heads) == ["", "worker-1", "worker-2"]
        assert repr(lake) == f"Lake({path}, 3 writers: {len(lake):,} steps)"
        all_there(lake, [("", 0, 45), ("worker-1", 0, 33), ("worker-2", 20, 80)])
        assert lake.query(writer="worker-2", since_commit=2).tolist() == list(range(118, 138))
        assert lake.commits("worker-1") == [0]
        stats = lake.stats()
        alone = [lp.Lake.open(path, writer=name) for name in lake.heads]
        assert repr(alone[0]) == f"Lake({path}, commit {alone[0].commit.number}: {len(alone[0]):,} steps)"
        assert stats.steps == sum(each.stats().steps for each in alone)
        assert stats.rows == sum(each.stats().rows for each in alone)
        assert alone[2].steps(20, 80).step_id[0] == 20  # its own ids
        assert alone[2].commits() == [0, 1, 2, 3]
        ends = [(episode.stream, episode.reward.tolist()) for episode in lake.episodes()]
        assert ends == [(e.stream, e.reward.tolist()) for each in alone for e in each.episodes()]
        for wrong in (lambda: lake.query(since_commit=0), lake.commits, lambda: lake.query(writer="nobody")):
            with pytest.raises(lp.SpecError, match="name one of the writers"):
                wrong()
        for each in alone:
            each.close()
    with lp.Lake.open(path, commit=0) as lake:
        assert len(lake) == 5  # of the writer without a name
    with lp.Lake.open(path, commit=1, writer="worker-2") as lake:
        assert len(lake) == 40
    with pytest.raises(lp.LakeNotFound, match="worker-1 has no commit 7"):
        lp.Lake.open(path, commit=7, writer="worker-1")
    with pytest.raises(lp.LakeNotFound, match="no commit yet"):
        lp.Lake.open(path, writer="nobody")


@pytest.mark.parametrize("world", ["market window", "dict and tuple", "vector"])
def test_whatever_the_observations_are(tmp_path, world):
    path = tmp_path / "lake"
    write(path, "a", [50, 30], world)
    write(path, "b", [1], world)  # its row axis is not known yet
    with lp.Lake.open(path) as lake:
        batch = lake.steps(0, 81)
        batch = batch._replace(step_id=np.array([*range(80), 0]))
        for i in range(81):
            agrees(batch, i, world)
        lake.verify()
        if world == "market window":
            with lp.Lake.open(path, writer="a") as alone:
                assert same_bytes(lake.rows()[:5], alone.rows()[:5])


def test_the_only_writer_of_a_lake_has_it_as_ever(tmp_path):
    write(tmp_path / "one", "", [10, 10])
    assert sorted(each.name for each in (tmp_path / "one").iterdir()) == [
        "commits",
        "lake.json",
        "lock",
        "segments",
    ]
    write(tmp_path / "two", "worker", [10, 10])
    with lp.Lake.open(tmp_path / "one") as one, lp.Lake.open(tmp_path / "two") as two:
        assert same_batch(one.steps(0, 20), two.steps(0, 20))
        assert dict(one.files()) == dict(two.files())
        assert two.commits() == [0, 1]
        assert two.query(since_commit=0).tolist() == list(range(10, 20))


def test_two_processes_cannot_write_the_same_stream(tmp_path):
    path = tmp_path / "lake"
    how = {"spec": spec_of(WORLD), "capacity": 50}
    with lp.Replay.open(path, writer="a", **how), lp.Replay.open(path, writer="b", **how):
        with pytest.raises(
            lp.LakeLocked, match=r"writers/a is being written .* replay\.close\(\), .* lp\.Lake\.open\(path\)"
        ):
            lp.Replay.open(path, writer="a", **how)
        with lp.Replay.open(path, **how):
            pass
    for wrong in ("../up", "a/b", ".hidden", "x" * 65):
        with pytest.raises(lp.SpecError, match="cannot name a writer"):
            lp.Replay.open(path, writer=wrong, **how)


def test_each_writer_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "lake"
    write(path, "a", [30])
    write(path, "b", [50])
    plain = lp.Replay(spec_of(WORLD), 60)
    record(plain, WORLD, 0, 40)
    with lp.Replay.open(path, capacity=60, writer="a") as replay:
        record(replay, WORLD, 30, 40)
        a, b = (
            each.sample(16, rng=np.random.default_rng(7), n_step=3, gamma=1.0) for each in (plain, replay)
        )
        assert same_batch(a, b)
        replay.commit()
        with replay.lake() as lake:
            assert len(lake) == 40
    with lp.Lake.open(path) as lake:
        all_there(lake, [("a", 0, 40), ("b", 0, 50)])


def segment_files(path: Path, writer: str = "") -> set[str]:
    return {file.name for file in (writers.home(path, writer) / "segments").iterdir()}


def kept_files(path: Path, writer: str = "") -> set[str]:
    """The files that all commits of a writer name, every byte of each checked."""
    found: set[str] = set()
    for number in commits.numbers(writers.home(path, writer) / "commits"):
        with lp.Lake.open(path, number, writer=writer) as lake:
            lake.verify()
            found |= dict(lake.files()).keys()
    return found


def test_no_writer_deletes_a_file_of_another(tmp_path):
    """Two that record the same have files of the same names, each in its own folder."""
    path = tmp_path / "lake"
    write(path, "a", [20, 20, 20])
    write(path, "b", [20, 20, 20])
    write(path, "", [20, 20, 20])
    assert segment_files(path, "a") == segment_files(path, "b") == segment_files(path)
    write(path, "b", [60, 60], max_steps=60, keep_last=1)
    with lp.Lake.open(path) as lake:
        all_there(lake, [("", 0, 60), ("a", 0, 60), ("b", 120, 180)])
        lake.compact(keep_last=1)
        all_there(lake, [("", 0, 60), ("a", 0, 60), ("b", 120, 180)])
        assert [lake.commits(name) for name in lake.heads] == [[3], [3], [4]]
    for writer in ("", "a", "b"):
        assert segment_files(path, writer) == kept_files(path, writer)
    with lp.Lake.open(path, writer="a") as lake:
        lake.compact(keep_last=1)
    shutil.rmtree(path / "writers" / "a")
    with lp.Lake.open(path) as lake:
        all_there(lake, [("", 0, 60), ("b", 120, 180)])


def test_one_deletes_while_another_is_between_its_files_and_their_commit(tmp_path, monkeypatch):
    """b writes what a has as well; before b names it, a deletes its own copy."""
    path = tmp_path / "lake"
    a = lp.Replay.open(path, spec_of(WORLD), capacity=20, max_steps=20, keep_last=1, writer="a")
    b = lp.Replay.open(path, spec_of(WORLD), capacity=20, writer="b")
    record(a, WORLD, 0, 20)
    a.commit()
    record(a, WORLD, 20, 40)
    record(b, WORLD, 0, 20)
    publish, done = commits.write, []

    def late(folder: Path, commit: commits.Commit, *, segments: Path) -> None:
        if folder.parent.name == "b" and not done:
            done.append(a.commit())
            settle(a)
        publish(folder, commit, segments=segments)

    monkeypatch.setattr(commits, "write", late)
    b.commit()
    assert done[0].oldest == 20
    with lp.Lake.open(path) as lake:
        all_there(lake, [("a", 20, 40), ("b", 0, 20)])
        assert lake.commits("a") == [1]
    assert segment_files(path, "a") == kept_files(path, "a")
    a.close()
    b.close()
    with lp.Lake.open(path) as lake:
        all_there(lake, [("a", 20, 40), ("b", 0, 20)])


def test_merged_files_that_wait_for_their_commit_are_not_deleted(tmp_path):
    path = tmp_path / "lake"
    a = lp.Replay.open(path, spec_of(WORLD), capacity=60, keep_last=2, merge_after=4, writer="a")
    for k in range(4):
        record(a, WORLD, 5 * k, 5 * k + 5)
        a.commit()
    settle(a)
    write(path, "b", [5])
    with lp.Lake.open(path, writer="b") as lake:
        lake.compact()
    record(a, WORLD, 20, 25)
    assert len(a.commit().segments) == 2
    a.close()
    with lp.Lake.open(path) as lake:
        all_there(lake, [("a", 0, 25), ("b", 0, 5)])
    assert segment_files(path, "a") == kept_files(path, "a")


def test_opening_leaves_alone_what_another_thread_or_process_is_writing(tmp_path):
    path = tmp_path / "lake"
    write(path, "a", [5])
    folder = path / "writers" / "a" / "segments"
    left, held = folder / "1-00000000.aside", folder / "1-00000001.aside"
    left.write_bytes(b"of a process that was killed")
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as every file that is being written
        write(path, "a", [5])
        assert held.exists()
        assert not left.exists()
        write(path, "b", [5])
    write(path, "b", [5])
    assert held.exists()  # of another writer
    write(path, "a", [5])
    assert not held.exists()


def like_format_1(path: Path, *names: str) -> None:
    """The golden lake of format 1 with its commits given to some writers; all segments are in one folder."""
    golden = Path(__file__).parent / "golden" / "v1"
    shutil.copytree(golden, path)
    for name in names:
        shutil.copytree(golden / "commits", path / "writers" / name / "commits")


GOLDEN = "dict and tuple"


def test_a_lake_of_format_1_with_several_writers_is_read_and_continued(tmp_path):
    path = tmp_path / "lake"
    like_format_1(path, "a", "b")
    with lp.Lake.open(path) as lake:
        assert list(lake.heads) == ["", "a", "b"]
        all_there(lake, [(name, 0, 120) for name in lake.heads], GOLDEN)
    before = segment_files(path)
    write(path, "a", [10], GOLDEN, alpha=0.6)
    assert before <= segment_files(path, "a")
    assert all((path / "writers" / "a" / "segments" / name).stat().st_nlink == 2 for name in before)
    with lp.Lake.open(path) as lake:
        all_there(lake, [("", 0, 120), ("a", 0, 130), ("b", 0, 120)], GOLDEN)
    for number in range(4):  # its older commits as well
        with lp.Lake.open(path, number, writer="a") as lake:
            lake.verify()
    with pytest.raises(FileNotFoundError):
        (path / "writers" / "b" / "segments").stat()


@pytest.mark.parametrize("keep_last", [1, None])
def test_files_that_writers_of_format_1_share_stay_while_one_needs_them(tmp_path, keep_last):
    path = tmp_path / "lake"
    like_format_1(path, "a", "b")
    before = segment_files(path)
    write(path, "", [60, 60], GOLDEN, alpha=0.6, max_steps=60, keep_last=1)
    with lp.Lake.open(path, writer="") as lake:
        lake.compact(keep_last=1)
        assert lake.commits() == [lake.commit.number]
    assert before <= segment_files(path)
    write(path, "a", [10], GOLDEN, alpha=0.6)
    assert before <= segment_files(path)  # b needs them
    write(path, "b", [10], GOLDEN, alpha=0.6)
    with lp.Lake.open(path, writer="") as lake:
        lake.compact(keep_last=keep_last)
        assert segment_files(path) == dict(lake.files()).keys()
    with lp.Lake.open(path) as lake:
        all_there(lake, [("", 180, 240), ("a", 0, 130), ("b", 0, 130)], GOLDEN)
    for writer, number in itertools.product("ab", range(5)):  # also those that were never continued
        with lp.Lake.open(path, number, writer=writer) as lake:
            lake.verify()


@pytest.mark.parametrize("links", [True, False])
def test_a_writer_that_is_interrupted_while_it_takes_over_its_files_loses_none(tmp_path, monkeypatch, links):
    path = tmp_path / "lake"
    like_format_1(path, "a")
    before, link, done = segment_files(path), os.link, []

    def stops(source: Path, target: Path) -> None:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(target)
        if not links:
            raise PermissionError("no links here")
        link(source, target)

    monkeypatch.setattr(os, "link", stops)
    with pytest.raises(KeyboardInterrupt):
        lp.Replay.open(path, capacity=60, writer="a")
    monkeypatch.undo()
    with lp.Lake.open(path, writer="") as lake:
        lake.compact(keep_last=1)
    assert before <= segment_files(path)
    with lp.Replay.open(path, capacity=60, writer="a", commit=1, alpha=0.6) as replay:
        assert replay.stats().recorded == 50
    with lp.Lake.open(path, writer="") as lake:
        lake.compact(keep_last=1)
    assert segment_files(path, "a") == kept_files(path, "a")
    with lp.Lake.open(path, 3, writer="a") as lake:
        all_there(lake, [("a", 0, 120)], GOLDEN)


def test_repair_mends_every_writer_and_touches_no_file_of_another(tmp_path):
    path = tmp_path / "lake"
    write(path, "a", [30, 30])
    write(path, "b", [30, 30])
    newest = path / "writers" / "b" / "commits" / commits.file_name(1)
    newest.write_bytes(newest.read_bytes()[:-1])
    with lp.Replay.open(path, capacity=60, writer="a"), pytest.raises(lp.LakeLocked):
        lp.repair(path)
    done = lp.repair(path)
    assert done.quarantined == (newest.name,)
    with lp.Lake.open(path) as lake:
        all_there(lake, [("a", 0, 60), ("b", 0, 30)])
    write(path, "b", [10])
    with lp.Lake.open(path) as lake:
        assert lake.commits("b") == [0, 2]  # a number is not given twice
        all_there(lake, [("a", 0, 60), ("b", 0, 40)])


WRITER = """
import sys, numpy as np, lakepond as lp
sys.path.insert(0, {tests!r})
from test_lake import record, spec_of
name, keep = sys.argv[1], dict(keep_last=2, merge_after=4)
replay = lp.Replay.open({path!r}, spec_of("frames first"), capacity=90, writer=name, **keep)
n, rng = replay.stats().recorded, np.random.default_rng()
while True:
    stop = n + int(rng.integers(1, 30))
    record(replay, "frames first", n, stop)
    print("durable", replay.commit().recorded, flush=True)
    n = stop
"""


def test_three_processes_write_one_is_killed_and_a_reader_reads(tmp_path):
    """All begin a lake that is not there. They record the same steps, so their files have the same names."""
    path = tmp_path / "lake"
    code = WRITER.format(tests=str(Path(__file__).parent), path=str(path))
    names = ["a", "b", "c"]
    processes = {
        name: subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE) for name in names
    }
    durable = dict.fromkeys(names, 0)
    try:
        for name, process in processes.items():
            assert process.stdout is not None
            durable[name] = int(process.stdout.readline().split()[1])
        chance, read = random.Random(3), 0
        for turn in range(6):
            time.sleep(chance.uniform(0.05, 0.4))
            if turn == 2:
                processes["b"].send_signal(signal.SIGKILL)
            with lp.Lake.open(path) as lake:
                ends = {name: head.recorded for name, head in lake.heads.items()}
                assert all(ends[name] >= durable[name] for name in names)
                newest = np.concatenate([lake.query(writer=name)[-20:] for name in names])
                wanted = [n for name in names for n in range(max(0, ends[name] - 20), ends[name])]
                for i, n in zip(newest, wanted, strict=True):  # all commits are kept while they are read
                    agrees(lake.steps(int(i), int(i) + 1)._replace(step_id=np.array([n])), 0, WORLD)
                    read += 1
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGKILL)
    for name, process in processes.items():
        for line in process.communicate()[0].splitlines():
            if len(words := line.split()) == 2:
                durable[name] = max(durable[name], int(words[1]))
    assert read > 100
    with lp.Lake.open(path) as lake:
        ends = {name: head.recorded for name, head in lake.heads.items()}
        assert all(ends[name] >= durable[name] for name in names)
        all_there(lake, [(name, 0, ends[name]) for name in names])
    for name in names:
        write(path, name, [10], keep_last=2)
        with lp.Lake.open(path, writer=name) as lake:
            lake.compact(keep_last=2)
        assert segment_files(path, name) == kept_files(path, name)  # also those of the one that was killed
    shutil.copytree(path, tmp_path / "copy")
    with lp.Lake.open(tmp_path / "copy") as lake:
        all_there(lake, [(name, 0, ends[name] + 10) for name in names])


def test_the_first_writer_of_a_lake_sets_its_spec_for_all(tmp_path):
    """Two that begin at the same moment: the lake keeps the spec of the first one, and its lock."""
    path = tmp_path / "lake"
    create(path, describe(spec_of(WORLD)))
    before = (path / "lake.json").stat().st_ino
    create(path, describe(spec_of("vector")))
    assert (path / "lake.json").stat().st_ino == before
    assert [file.name for file in path.glob("*.aside")] == []
    with pytest.raises(lp.SpecError, match="a different spec"):
        lp.Replay.open(path, spec_of("vector"), capacity=10, writer="late")
    write(path, "late", [5])


def test_lakepond_verify_checks_every_writer(tmp_path, capsys):
    path = tmp_path / "lake"
    write(path, "a", [30])
    write(path, "b", [20, 20])
    assert main(["verify", str(path)]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "commit 0 of a",
        "commit 1 of b",
    ]
    with lp.Lake.open(path, writer="b") as lake:
        file = path / "writers" / "b" / "segments" / lake.commit.segments[-1].name
    data = bytearray(file.read_bytes())
    data[300] ^= 1
    file.write_bytes(bytes(data))
    assert main(["verify", str(path)]) == 3
    assert "commit 1 of b: damaged." in capsys.readouterr().out


def test_a_fill_with_steps_of_before_their_row_axis_was_known_overwrites_no_row(tmp_path):
    # writers "a" and "c" stop before their rows are known, so their steps come as whole observations,
    # while the rows of "b" are in the pond already and its steps are not
    spec = lp.Spec(obs=lp.Field((32, 16), "float32"))
    rng = np.random.default_rng(0)

    def record_all(writer: str, obs: np.ndarray, next_obs: np.ndarray) -> None:
        with lp.Replay.open(tmp_path / "lake", spec, capacity=3000, writer=writer) as replay:
            for one, other in zip(obs, next_obs, strict=True):
                replay.record(obs=one, next_obs=other, action=0, reward=0, terminated=False, truncated=False)

    noise = rng.random((2, 2, 31, 32, 16), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(rng.random((1900, 16), np.float32), 32, axis=0)
    windows = np.ascontiguousarray(windows.transpose(0, 2, 1))
    record_all("a", *noise[0])
    record_all("b", windows[:-1], windows[1:])
    record_all("c", *noise[1])
    with lp.Lake.open(tmp_path / "lake") as lake:
        replay = lp.Replay(spec, 5000)
        replay.fill_from(lake, len(lake), rng=rng)
        filled = {(o.tobytes(), n.tobytes()) for o, n in zip(*_both(replay.recent(len(lake))), strict=True)}
    wanted = [
        *zip(*noise[0], strict=True),
        *itertools.pairwise(windows),
        *zip(*noise[1], strict=True),
    ]
    assert filled == {(one.tobytes(), other.tobytes()) for one, other in wanted}
    replay._pond.leaves[0].store.check()


def _both(batch: lp.Batch) -> tuple[np.ndarray, np.ndarray]:
    return batch.obs, batch.next_obs
