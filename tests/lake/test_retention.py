"""Which commits and files are kept: one rule on disk and in the cloud, also under several busy writers."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from test_lake import agrees, record, settle, spec_of

import lakepond as lp
from lakepond.cli import main
from lakepond.lake.format import commits, description, manifests, names
from lakepond.lake.read import lake as lake_module
from lakepond.lake.segments import Segments
from lakepond.lake.write import packing, retention
from lakepond.lake.writers import home

WORLD = "frames first"


def write(path: Path, counts: list[int], **how: object) -> None:
    with lp.Replay.open(path, spec_of(WORLD), capacity=20, max_steps=20, **how) as replay:
        for count in counts:
            n = replay.stats().recorded
            record(replay, WORLD, n, n + count)
            replay.commit()


def checkpoint(run: Path, folder: str, lake_commit: object) -> Path:
    (run / "checkpoints" / folder).mkdir(parents=True)
    state = run / "checkpoints" / folder / "state.json"
    state.write_text(json.dumps({"state": {"lake_commit": lake_commit}, "files": {}}))
    return state


def readable(path: Path) -> list[int]:
    """The commits that are kept, every step of each checked."""
    for number in commits.numbers(path / "commits"):
        with lp.Lake.open(path, number) as lake:
            lake.verify()
            batch = lake.steps(lake.commit.oldest, lake.commit.recorded)
            assert len(batch.reward) == 20
            for i in range(20):
                agrees(batch, i, WORLD)
    return commits.numbers(path / "commits")


@pytest.fixture
def run(tmp_path) -> Path:
    """Commits 0 to 7, of 20 other steps each; the checkpoints that are finished name 2, 5 and none."""
    write(tmp_path / "run" / "lake", [20] * 8)
    checkpoint(tmp_path / "run", "00000002", 2)
    checkpoint(tmp_path / "run", "00000005", 5)
    checkpoint(tmp_path / "run", "00000009", None)
    checkpoint(tmp_path / "run", "00000003.aside", 3)
    checkpoint(tmp_path / "run", "00000004.dropped", 4)
    return tmp_path / "run"


@pytest.mark.parametrize("keep_every", [None, 3])
def test_commits_that_checkpoints_name_are_kept_by_keep_last_compact_and_gc_alike(run, tmp_path, keep_every):
    url = f"file://{tmp_path}/bucket/lake"
    lp.push(run / "lake", url)
    swept = lp.gc(url, keep_last=1, keep_every=keep_every, older_than=0, lake=run / "lake")
    compacted = tmp_path / "compacted"
    subprocess.run(["cp", "-r", run, compacted], check=True)
    words = [] if keep_every is None else ["--keep-every", str(keep_every)]
    assert main(["compact", str(compacted / "lake"), "--keep-last", "1", *words]) == 0
    kept = sorted(set(range(8)) - set(swept.commits))
    assert kept == ([2, 5, 7] if keep_every is None else [0, 2, 3, 5, 6, 7])
    assert readable(compacted / "lake") == kept
    write(run / "lake", [20], keep_last=1, keep_every=keep_every)
    assert readable(run / "lake") == [*(n for n in kept if n != 7), 8]
    named = {name for n in readable(run / "lake") for name, _ in lp.Lake.open(run / "lake", n).files()}
    assert names.segment_files(run / "lake" / "segments").keys() == named


def test_a_lake_that_is_a_link_belongs_to_the_run_that_links_to_it(run, tmp_path):
    (run / "lake").rename(tmp_path / "moved")
    (run / "lake").symlink_to(tmp_path / "moved")
    with lp.Lake.open(run / "lake") as lake:
        lake.compact(keep_last=1)
    assert readable(run / "lake") == [2, 5, 7]


@pytest.mark.parametrize(
    "wrong", ["", '{"state": ', "[]", '{"state": {"lake_commit": "five"}}', '{"state": 1}']
)
def test_all_commits_are_kept_while_a_checkpoint_cannot_be_read_and_that_is_said_once(run, caplog, wrong):
    (run / "checkpoints" / "00000005" / "state.json").write_text(wrong)
    write(run / "lake", [20, 20, 20], keep_last=1)
    with lp.Lake.open(run / "lake") as lake:
        lake.compact(keep_last=1)
    assert readable(run / "lake") == list(range(11))
    logged = [each.getMessage() for each in caplog.records if "are kept" in each.getMessage()]
    assert len(logged) == 2  # by the replay, and by compact
    assert "00000005/state.json cannot be read" in logged[0]
    with pytest.raises(lp.LakeCorrupt, match="nothing is deleted"):
        retention.checkpointed(run / "lake")


def test_checkpoints_name_commits_of_the_writer_without_a_name_only(run):
    write(run / "lake", [20] * 4, writer="worker", keep_last=1)
    assert commits.numbers(run / "lake" / "writers" / "worker" / "commits") == [3]


def test_compact_keeps_the_newest_intact_commit_though_a_newer_one_is_damaged(tmp_path):
    path = tmp_path / "lake"
    write(path, [20, 20, 20])
    newest = path / "commits" / commits.file_name(2)
    newest.write_bytes(newest.read_bytes()[:-1])
    with lp.Lake.open(path) as lake:
        assert lake.commit.number == 1
        with pytest.raises(lp.LakeCorrupt):  # what the damaged one names is not known
            lake.compact(keep_last=1)
    with lp.Lake.open(path) as lake:
        assert lake.commit.number == 1
        lake.verify()
        assert lake.steps(20, 40).reward.tolist() == list(range(20, 40))


# --- several busy writers ----------------------------------------------------------------------------

BUSY = """
import sys, threading, numpy as np, lakepond as lp
path, first = sys.argv[1], int(sys.argv[2])
spec = lp.Spec(obs=lp.Field((4096,), "uint8"))
started, finished = threading.Barrier(6), threading.Barrier(6)

def work(name):
    rng = np.random.default_rng(name)
    with lp.Replay.open(path, spec, capacity=100, max_steps=100, keep_last=1, writer=f"w{name}") as replay:
        started.wait()
        for n in range(800):
            a, b = rng.integers(0, 256, (2, 4096), np.uint8)
            replay.record(obs=a, action=0, reward=float(n), next_obs=b, terminated=False, truncated=True)
            if n % 20 == 19:
                replay.commit()
        finished.wait()  # what is on disk now is what busy writers leave, before they close
        finished.wait()

threads = [threading.Thread(target=work, args=(first + k,)) for k in range(5)]
for thread in threads:
    thread.start()
started.wait()
print("started", flush=True)
finished.wait()
print("finished", flush=True)
sys.stdin.readline()
finished.wait()
"""


def test_busy_writers_in_several_processes_keep_little_more_than_they_need(tmp_path):
    path = tmp_path / "lake"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BUSY, str(path), str(5 * k)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    try:
        for word in ("started", "finished"):
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline().strip() == word
        busy = sum(
            each.st_size
            for folder in path.glob("writers/*/segments")
            for each in names.segment_files(folder).values()
        )
        for process in processes:
            process.communicate("\n")
            assert process.returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    with lp.Lake.open(path) as lake:
        lake.verify()
        needed = lake.stats().bytes_on_disk
        assert len(lake.heads) == 10
        assert np.asarray(lake.column("reward")).tolist() == 10 * list(range(700, 800))
        for name in lake.heads:
            assert len(lake.commits(name)) == 1
    assert busy < 3 * needed
    for name in lake.heads:  # closing deletes the rest
        with lp.Lake.open(path, writer=name) as lake:
            there = names.segment_files(path / "writers" / name / "segments")
            assert there.keys() == dict(lake.files()).keys()


STOPPED = """
import os, signal, sys, lakepond as lp
sys.path.insert(0, {tests!r})
from test_lake import record, spec_of
from lakepond.lake.format import commits
replay = lp.Replay.open({path!r}, spec_of("frames first"), capacity=20, writer="stopped")
record(replay, "frames first", 0, 20)

def stop(*_, **__):
    print("stopped", flush=True)
    sys.stdin.readline()

commits.write = stop
replay.commit()
"""


def test_a_writer_that_is_stopped_or_killed_in_a_commit_does_not_hold_back_the_others(tmp_path):
    path = tmp_path / "lake"
    write(path, [20], writer="a")
    code = STOPPED.format(tests=str(Path(__file__).parent), path=str(path))
    stopped = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert stopped.stdout is not None
        assert stopped.stdout.readline().strip() == "stopped"  # its files are written, its commit is not
        for _ in range(2):
            write(path, [20] * 5, writer="a", keep_last=1)
            with lp.Lake.open(path, writer="a") as lake:
                assert lake.commits() == [lake.commit.number]
                there = names.segment_files(path / "writers" / "a" / "segments")
                assert there.keys() == dict(lake.files()).keys()
            if stopped.poll() is None:
                stopped.kill()
                stopped.communicate()
    finally:
        stopped.kill()
        stopped.communicate()
    write(path, [20], writer="stopped", keep_last=1)
    with lp.Lake.open(path, writer="stopped") as lake:
        lake.verify()
        assert lake.steps(0, 20).reward.tolist() == list(range(20))


# --- commits that are read ---------------------------------------------------------------------------

READER = """
import sys, lakepond as lp
with lp.Lake.open(sys.argv[1]) as lake:
    print(lake.commit.number, flush=True)
    sys.stdin.readline()
    lake.verify()
    print(lake.steps(0, 20).reward.tolist(), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_reader_in_another_process_keeps_its_commit(tmp_path, end):
    path = tmp_path / "lake"
    write(path, [20])
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    try:
        assert reader.stdout.readline().strip() == "0"
        write(path, [20] * 5, keep_last=1)
        with lp.Lake.open(path) as lake:
            lake.compact(keep_last=1)
        assert commits.numbers(path / "commits") == [0, 5]
        reader.stdin.write("read\n")
        reader.stdin.flush()
        assert json.loads(reader.stdout.readline()) == list(range(20))
        assert readable(path) == [0, 5]
    finally:
        if end == "kill":
            reader.kill()
        reader.communicate("end\n" if end == "close" else None)
    write(path, [20], keep_last=1)
    assert readable(path) == [6]
    with lp.Lake.open(path) as lake:
        assert names.segment_files(path / "segments").keys() == dict(lake.files()).keys()


@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, if another test loaded it
def test_a_forked_child_does_not_release_the_commit_that_its_parent_reads(tmp_path):
    path = tmp_path / "lake"
    write(path, [20])
    with lp.Lake.open(path) as lake:
        child = os.fork()
        if child == 0:
            lake.close()
            os._exit(0)
        os.waitpid(child, 0)
        write(path, [20, 20], keep_last=1)
        assert commits.numbers(path / "commits") == [0, 2]
        assert lake.steps(0, 20).reward.tolist() == list(range(20))


def test_a_reader_that_is_dropped_without_close_releases_its_commit(tmp_path):
    path = tmp_path / "lake"
    write(path, [20])
    lake = lp.Lake.open(path)
    descriptors = len(os.listdir("/proc/self/fd"))
    del lake
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < descriptors
    write(path, [20, 20], keep_last=1)
    assert readable(path) == [2]


def test_opening_a_lake_in_vain_keeps_no_descriptor(tmp_path):
    path = tmp_path / "lake"
    write(path, [20])
    write(path, [20], writer="a")
    one = description.read(path)
    two = lp.Spec(obs=(one.obs, one.obs), action=one.action, extras=one.extras)
    heads = {name: commits.read(home(path, name) / "commits", 0) for name in ("", "a")}
    before = os.listdir("/proc/self/fd")
    with pytest.raises(lp.LakeCorrupt, match=r"restore lake\.json"):
        lp.Lake(path, two, heads)
    (path / "writers" / "a" / "commits" / commits.file_name(0)).unlink()
    with pytest.raises(FileNotFoundError):
        lp.Lake(path, one, heads)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_readers_that_open_while_commits_are_deleted_find_one(tmp_path):
    """A commit may be deleted between its number and its lock: then there is a newer one."""
    path = tmp_path / "lake"
    write(path, [20])
    failed: list[BaseException] = []
    opened: list[int] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                with lp.Lake.open(path) as lake:
                    first = lake.commit.oldest
                    assert lake.steps(first, first + 20).reward.tolist() == list(range(first, first + 20))
                    opened.append(lake.commit.number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        write(path, [20] * 60, keep_last=1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert len(set(opened)) > 5
    write(path, [20], keep_last=1)
    assert readable(path) == [61]


def test_a_commit_by_number_that_is_deleted_while_it_is_opened_is_not_found(tmp_path, monkeypatch):
    path = tmp_path / "lake"
    write(path, [20, 20])
    check = lake_module.check_files

    def late(*args: object) -> None:
        check(*args)
        (path / "commits" / commits.file_name(0)).unlink()

    monkeypatch.setattr(lake_module, "check_files", late)
    with pytest.raises(lp.LakeNotFound, match="no commit 0; it has 1"):
        lp.Lake.open(path, 0)


def test_retention_knows_a_commit_that_is_published_while_the_others_are_listed(tmp_path, monkeypatch):
    """Otherwise its files could be deleted, or a commit that should be kept."""
    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of(WORLD), capacity=20, max_steps=20) as replay:
        for k in range(4):
            record(replay, WORLD, 20 * k, 20 * k + 20)
            replay.commit()
    keeper = retention.Retention(path, "", Segments(path), keep_last=2)
    third, fourth = (commits.read(path / "commits", number) for number in (2, 3))
    numbers, during = commits.numbers, []

    def publishes(seen: bool, folder: Path) -> list[int]:
        found = numbers(folder)
        if not during:
            during.append(threading.Thread(target=keeper.published, args=(fourth, [])))
            during[0].start()
            time.sleep(0.05)
        return found if seen else [number for number in found if number < 3]

    for seen in (True, False):  # whether its file is there when the folder is listed
        during.clear()
        keeper = retention.Retention(path, "", Segments(path), keep_last=2)
        monkeypatch.setattr(commits, "numbers", partial(publishes, seen))
        assert keeper._deletable(third) == [0]
        during[0].join()
        monkeypatch.undo()
        assert keeper._numbers == [0, 1, 2, 3]
        assert keeper._deletable(fourth) == [0, 1]


@pytest.mark.parametrize("what", ["the first listing", "a commit", "a segment"])
def test_commits_do_not_wait_for_a_listing_or_a_deletion(tmp_path, monkeypatch, what):
    path = tmp_path / "lake"
    write(path, [20, 20])
    started, go_on = threading.Event(), threading.Event()
    listing, deleting = commits.numbers, names.delete

    def block() -> None:
        if threading.current_thread().name.startswith("lakepond-maintenance"):
            started.set()
            assert go_on.wait(60)

    def slow_listing(folder: Path) -> list[int]:
        found = listing(folder)
        block()
        return found

    def slow_deletion(file: Path) -> bool:
        if (file.suffix == ".json") == (what == "a commit"):
            block()
        return deleting(file)

    with lp.Replay.open(path, capacity=20, max_steps=20, keep_last=1) as replay:
        if what == "the first listing":
            monkeypatch.setattr(retention.commits, "numbers", slow_listing)
        else:
            monkeypatch.setattr(retention.names, "delete", slow_deletion)
        try:
            record(replay, WORLD, 40, 60)
            replay.commit()
            assert started.wait(60)
            for n in range(60, 180, 20):
                record(replay, WORLD, n, n + 20)
                assert replay.commit(wait=False).result(60).recorded == n + 20
        finally:
            go_on.set()
        settle(replay)
        assert replay.stats().background_failures == 0
    assert readable(path) == [8]
    with lp.Lake.open(path) as lake:
        assert names.segment_files(path / "segments").keys() == dict(lake.files()).keys()


def test_a_file_that_is_needed_again_while_it_is_being_deleted_is_written_after_that(tmp_path, monkeypatch):
    """Otherwise it would be deleted after it was written again."""
    path = tmp_path / "lake"
    write(path, [20])
    file = next(iter(names.segment_files(path / "segments")))
    keeper = retention.Retention(path, "", Segments(path), keep_last=1)
    started, go_on, deleting = threading.Event(), threading.Event(), names.delete

    def slow(file: Path) -> bool:
        started.set()
        assert go_on.wait(60)
        return deleting(file)

    monkeypatch.setattr(retention.names, "delete", slow)
    deletes = threading.Thread(target=keeper._delete, args=([file],))
    claims = threading.Thread(target=keeper.claim, args=(file, 1))
    deletes.start()
    assert started.wait(60)
    claims.start()
    keeper.claim("another", 1)  # does not wait
    claims.join(0.2)
    assert claims.is_alive()
    go_on.set()
    deletes.join()
    claims.join()
    assert not (path / "segments" / file).exists()
    (path / "segments" / file).write_bytes(b"written again")
    keeper._delete([file])
    assert (path / "segments" / file).exists()


def test_a_retention_that_fails_is_counted_and_said_once_and_commits_continue(tmp_path, monkeypatch, caplog):
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of(WORLD), capacity=20, max_steps=20, keep_last=1) as replay:
        assert replay.stats().background_failures == 0
        monkeypatch.setattr(retention.names, "delete", broken)
        for k in range(4):
            record(replay, WORLD, 20 * k, 20 * k + 20)
            replay.commit()
            settle(replay)
        assert replay.stats().background_failures == 3  # the first commit leaves nothing to delete
        assert caplog.text.count("could not be deleted and are kept: OSError") == 1
        monkeypatch.undo()
    assert readable(path) == [3]


def test_no_file_is_deleted_while_a_manifest_of_a_kept_commit_cannot_be_read(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(packing, "LOOSE", 2)
    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of(WORLD), capacity=20, max_steps=20, keep_last=10) as replay:

        def commit(start: int, stop: int) -> None:
            for n in range(start, stop):
                record(replay, WORLD, n, n + 1)
                replay.commit()
            settle(replay)

        commit(0, 40)
        damaged = {file: file.read_bytes() for file in (path / "segments").glob("*.manifest")}
        for file, data in damaged.items():
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        monkeypatch.setattr(manifests, "_kept", manifests._Kept())
        before = names.segment_files(path / "segments").keys()
        commit(40, 45)  # goes on, though it cannot read what it needs for cleaning up
        logged = [each.getMessage() for each in caplog.records if "could not be deleted" in each.getMessage()]
        assert 1 <= len(logged) == len(set(logged))  # each reason once
        assert replay.stats().background_failures > 1
        assert before <= names.segment_files(path / "segments").keys()
        for file, data in damaged.items():
            file.write_bytes(data)
        commit(45, 50)
    assert readable(path) == list(range(40, 50))


def test_a_damaged_manifest_of_a_deleted_commit_keeps_no_other_file(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(packing, "LOOSE", 2)
    path = tmp_path / "lake"
    how = {"max_steps": 8, "keep_last": 2, "merge_after": None}
    with lp.Replay.open(path, spec_of(WORLD), capacity=8, **how) as replay:
        kept = replay._outflow.background.writer.maintenance._retention

        def commit(start: int, stop: int) -> None:
            for n in range(start, stop):
                record(replay, WORLD, n, n + 1)
                replay.commit()
                settle(replay)

        commit(0, 10)
        files = len(names.segment_files(path / "segments"))
        for file in (path / "segments").glob("*.manifest"):
            file.write_bytes(file.read_bytes()[:-1])
        monkeypatch.setattr(manifests, "_kept", manifests._Kept())
        commit(10, 40)  # the damaged manifests have left the lake, and then the commits that are kept
        assert kept._gone == []
        assert len(names.segment_files(path / "segments")) < 2 * files
        assert caplog.text.count("files of deleted commits stay until `compact`") == 1
    with lp.Lake.open(path) as lake:
        lake.compact(keep_last=1)
        lake.verify()
        assert {name for name, _ in lake.files()} == names.segment_files(path / "segments").keys()


@pytest.mark.parametrize("keep", [{}, {"keep_last": 4, "keep_every": 2}], ids=["all", "every second"])
def test_the_commits_that_are_read_to_delete_files_do_not_grow_with_those_that_are_kept(
    tmp_path, monkeypatch, keep
):
    real, read = commits.read, []
    monkeypatch.setattr(retention.commits, "read", lambda *which: read.append(which) or real(*which))
    path, merges = tmp_path / "lake", []
    with lp.Replay.open(path, spec_of(WORLD), capacity=20, merge_after=2, **keep) as replay:
        work = replay._outflow.background.writer.maintenance
        done = work.published
        monkeypatch.setattr(work, "published", lambda c, m: (merges.extend(m), done(c, m)))
        for number in range(160):
            record(replay, WORLD, 2 * number, 2 * number + 2)
            replay.commit()
            work._wait()
            assert len(work._retention._read) <= (4 if keep else 0)
    assert len(merges) >= 4
    assert len(read) <= (16 * 78 if keep else 0)  # 78 commits are deleted and up to 81 kept
    kept = commits.numbers(path / "commits")
    assert len(kept) == (160 if not keep else 82)
    for number in (kept[0], kept[len(kept) // 2], kept[-1]):
        with lp.Lake.open(path, number) as lake:
            lake.verify()
    with lp.Lake.open(path) as lake:
        named = set[str]()
        for number in kept:
            with lp.Lake.open(path, number) as each:
                named |= {name for name, _ in each.files()}
        assert set(names.segment_files(path / "segments")) == named  # nothing else is left
