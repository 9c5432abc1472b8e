"""Which commits and files are kept: one rule on disk and in the cloud, also under several busy writers."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from test_lake import agrees, record, spec_of

import lakepond as lp
from lakepond.cli import main
from lakepond.lake import writers
from lakepond.lake.format import commits, names
from lakepond.lake.write import retention

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
    named = {name for n in readable(run / "lake") for name in lp.Lake.open(run / "lake", n).commit.files()}
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
    said = [each.getMessage() for each in caplog.records if "are kept" in each.getMessage()]
    assert len(said) == 2  # by the replay, and by compact
    assert "00000005/state.json cannot be read" in said[0]
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
        busy = sum(each.st_size for each in names.segment_files(path / "segments").values())
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
        named = {name for head in lake.heads.values() for name in head.files()}
    assert busy < 3 * needed
    assert names.segment_files(path / "segments").keys() == named  # closing deletes the rest


def test_one_that_waits_to_delete_gets_in_though_others_always_write(tmp_path):
    path = tmp_path / "lake"
    write(path, [20])
    stop = threading.Event()
    inside: list[int] = []

    def share(k: int) -> None:
        while not stop.is_set():
            with writers.sharing(path):
                inside.append(k)
                time.sleep(0.01)
                inside.remove(k)

    threads = [threading.Thread(target=share, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            with writers.alone(path, wait=60) as alone:
                assert alone
                assert inside == []
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_writer_that_is_stopped_in_a_commit_delays_the_others_and_blocks_none(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(retention, "TRIES", 2)
    monkeypatch.setattr(retention, "WAIT_SECONDS", 0.05)
    path = tmp_path / "lake"
    write(path, [20], writer="a")
    code = "import sys; from pathlib import Path; from lakepond.lake import writers\n"
    code += f"with writers.sharing(Path({str(path)!r})): print('holds', flush=True); sys.stdin.readline()"
    stopped = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert stopped.stdout is not None
        assert stopped.stdout.readline().strip() == "holds"
        caplog.set_level(logging.WARNING)
        write(path, [20] * 20, writer="a", keep_last=1)
        waits = [each for each in caplog.records if "other writers were busy" in each.getMessage()]
        assert 1 < len(waits) < 8  # each wait in vain doubles the time to the next
        assert len(commits.numbers(path / "writers" / "a" / "commits")) == 21
    finally:
        stopped.kill()  # and its lock ends with it
        stopped.communicate()
    write(path, [20], writer="a", keep_last=1)
    with lp.Lake.open(path, writer="a") as lake:
        lake.verify()
        assert lake.commits() == [21]
        assert names.segment_files(path / "segments").keys() == lake.commit.files().keys()


def test_a_killed_writer_that_waited_to_delete_does_not_hold_the_others_back(tmp_path):
    path = tmp_path / "lake"
    write(path, [20])
    code = "import sys; from pathlib import Path; from lakepond.lake import writers\n"
    code += f"print('waits', flush=True)\nwith writers.alone(Path({str(path)!r}), wait=600): pass"
    with writers.sharing(path):
        waiting = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert waiting.stdout is not None
        assert waiting.stdout.readline().strip() == "waits"
        while not (path / writers.TURNSTILE).exists():
            time.sleep(0.01)
    waiting.kill()
    waiting.communicate()
    write(path, [20])
    with lp.Lake.open(path) as lake:
        assert lake.steps(20, 40).reward.tolist() == list(range(20, 40))


@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, if another test loaded it
def test_a_forked_child_does_not_release_the_lock_of_its_parent(tmp_path):
    path = tmp_path / "lake"
    write(path, [20])
    holding = writers.sharing(path)
    holding.__enter__()
    child = os.fork()
    if child == 0:
        holding.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    with writers.alone(path) as alone:
        assert not alone
    holding.__exit__(None, None, None)
    with writers.alone(path) as alone:
        assert alone


def test_a_merge_lets_one_in_that_waits_to_delete_after_every_file(tmp_path, monkeypatch):
    path = tmp_path / "lake"
    write(path, [20])
    held: list[bool] = []

    def merge(*_: object) -> None:
        with writers.alone(path) as alone:
            held.append(not alone)

    from lakepond.lake.write import merging

    monkeypatch.setattr(merging, "merge", merge)
    with lp.Lake.open(path) as lake:
        groups = [[segment] for segment in lake.commit.segments] * 2
    entered = writers.sharing
    counted: list[Path] = []
    monkeypatch.setattr(merging, "sharing", lambda lake: (counted.append(lake), entered(lake))[1])
    assert merging._merge_groups(path / "segments", groups, lambda: False) == []
    assert held == [True, True]
    assert counted == [path, path]
