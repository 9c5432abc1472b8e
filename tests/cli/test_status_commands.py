"""`status` and `watch` of runs that are running, finished or killed, here and in a bucket."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest

import lakepond
from lakepond import machine
from lakepond.cli import main
from lakepond.cloud.place import Cloud
from lakepond.runs import Run, status
from lakepond.runs.copies import pull_run, push_run

SOURCE = os.path.dirname(os.path.dirname(lakepond.__file__))
TRAINS = """
import sys, time
from dataclasses import dataclass
from lakepond.runs import Run

@dataclass(frozen=True)
class Config:
    generations: int = 4

with Run.create(sys.argv[1], "erl", Config()) as run:
    run.log(1, {"fitness_best": 1.0})
    run.log(2, {"fitness_best": 2.0})
    print("training", flush=True)
    time.sleep(60)
"""


@dataclass(frozen=True)
class Config:
    generations: int = 4


@pytest.fixture
def training(tmp_path):
    """A run of 4 generations that this process trains, and has done 2."""
    with Run.create(tmp_path / "training", "erl", Config()) as run:
        run.log(1, {"fitness_best": 1.0})
        run.log(2, {"fitness_best": 2.0})
        yield run


def test_a_run_that_runs_is_told_with_its_process_and_stays_free_to_write(training, json_of):
    seen = json_of("status", training.folder)
    assert (seen["state"], seen["pid"]) == ("running", os.getpid())
    assert (seen["unit"], seen["done"], seen["total"]) == ("generation", 2, 4)
    assert seen["rss_bytes"] == pytest.approx(machine.resident(), rel=0.2)
    assert seen["metrics"]["fitness_best"] == 2.0
    assert seen["lake"] is None
    training.log(3, {"fitness_best": 3.0})
    assert json_of("status", training.folder)["done"] == 3


def test_a_run_whose_process_was_killed_has_stopped(tmp_path, json_of):
    command = [sys.executable, "-c", TRAINS, str(tmp_path / "run")]
    env = os.environ | {"PYTHONPATH": SOURCE}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout.readline() == "training\n"
            assert machine.lock_holder(tmp_path / "run" / "lock") == process.pid
            seen = json_of("status", tmp_path / "run")
            assert (seen["state"], seen["pid"], seen["done"]) == ("running", process.pid, 2)
        finally:
            process.kill()
            process.wait()
    seen = json_of("status", tmp_path / "run")
    assert (seen["state"], seen["pid"], seen["done"]) == ("stopped", None, 2)


def test_a_run_that_reached_its_end_is_finished(make_run, json_of, capsys):
    folder = make_run(done=4)
    seen = json_of("status", folder)
    assert (seen["state"], seen["done"], seen["eta_seconds"]) == ("finished", 4, None)
    assert (seen["lake"]["steps"], seen["lake"]["commit"]) == (150, 2)
    assert seen["lake"]["ratio"] > 1
    assert seen["disk_free_bytes"] > 0
    assert main(["status", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "finished" in out
    assert "4 of 4, 100 %" in out
    assert "150 steps" in out


def test_time_left_follows_from_the_rate_whatever_pauses_there_were(make_run, json_of):
    folder = make_run(done=0)
    moments = [100.0, 110.0, 120.0, 9_999.0, 10_009.0]  # ten seconds each, and a night between two sittings
    lines = [{"step": step, "time": moment} for step, moment in enumerate(moments)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:4]))
    assert json_of("status", folder)["per_second"] == pytest.approx(0.1)
    assert json_of("status", folder)["eta_seconds"] == pytest.approx(10.0)


def test_a_torn_log_and_a_damaged_lake_are_told_and_no_error(make_run, json_of, capsys):
    folder = make_run(done=3)
    with (folder / "metrics.jsonl").open("ab") as log:
        log.write(b'torn\n{"step": 9, "ti')
    for commit in (folder / "lake" / "commits").iterdir():
        commit.write_bytes(b"{")
    seen = json_of("status", folder)
    assert seen["done"] == 3
    assert seen["lake"] is None
    assert len(seen["problems"]) == 1
    assert main(["status", str(folder)]) == 0
    assert "problem" in capsys.readouterr().out


def test_a_lake_without_a_run_has_a_status_too(lake, json_of, capsys):
    seen = json_of("status", lake)
    assert (seen["trainer"], seen["unit"], seen["done"]) == (None, "step", 150)
    assert main(["status", str(lake)]) == 0
    assert "not being written" in capsys.readouterr().out


def test_a_run_in_a_bucket_is_told_as_the_one_here(make_run, tmp_path, json_of):
    folder = make_run(done=4)
    url = f"file://{tmp_path}/bucket/run"
    push_run(folder, Cloud(url))
    here, there = json_of("status", folder), json_of("status", url)
    for name in ("trainer", "state", "done", "total", "metrics", "checkpoint"):
        assert there[name] == here[name]
    for name in ("commit", "steps", "bytes_on_disk", "bytes_plain", "rows"):
        assert there["lake"][name] == here["lake"][name]
    assert here["upload"] == {"url": url, "pending": 0, "pending_bytes": 0, "last_error": None}
    assert there["disk_free_bytes"] is None


def test_what_is_not_pushed_yet_is_the_backlog(make_run, tmp_path, json_of, capsys):
    folder = make_run(done=4)
    push_run(folder, Cloud(f"file://{tmp_path}/bucket/run"))
    (list_of_files,) = (folder / "lake" / "elsewhere").glob("*.txt")
    lines = list_of_files.read_text().splitlines()
    list_of_files.write_text("\n".join([*lines[:-1], ""]))  # as if the last file had not arrived
    upload = json_of("status", folder)["upload"]
    assert upload["pending"] == 1
    assert upload["pending_bytes"] == (folder / "lake" / "segments" / lines[-1]).stat().st_size
    assert main(["status", str(folder)]) == 0
    assert "1 file, " in capsys.readouterr().out


def test_a_push_that_failed_is_told_until_one_succeeds(make_run, tmp_path, json_of, capsys):
    folder = make_run(done=4)
    url = f"file://{tmp_path}/bucket/run"
    with lakepond.Lake.open(folder / "lake") as lake:
        spec = lake.spec
    with lakepond.Replay.open(tmp_path / "other", spec, 10) as other:
        for number in range(3):
            other.commit({"number": number})
    lakepond.push(tmp_path / "other", f"{url}/lake")  # another lake is there already
    told_by_push = push_run(folder, Cloud(url), timeout=20)
    assert not told_by_push.done
    upload = json_of("status", folder)["upload"]
    assert "another machine has published" in upload["last_error"]
    assert main(["status", str(folder)]) == 0
    assert "another machine has published" in " ".join(capsys.readouterr().out.split())
    push_run(folder, Cloud(f"{url}-2"))
    assert json_of("status", folder)["upload"]["last_error"] is None


def test_a_push_and_a_pull_of_a_run_leave_no_thread(make_run, tmp_path):
    before = threading.active_count()
    push_run(make_run(done=4), Cloud(f"file://{tmp_path}/bucket/run"))
    pull_run(tmp_path / "back", Cloud(f"file://{tmp_path}/bucket/run"))
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before, threading.enumerate()


def test_status_reads_no_segment(make_run, json_of):
    folder = make_run(done=4)
    for file in (folder / "lake" / "segments").iterdir():
        file.write_bytes(b"x" * file.stat().st_size)  # reading one would raise
    assert json_of("status", folder)["lake"]["steps"] == 150


def test_watch_prints_a_line_at_each_look_until_the_run_ends(training, capsys, monkeypatch):
    def sleep(seconds: float) -> None:
        if seconds != 0.2:  # of another thread
            return
        looks.append(json.loads(capsys.readouterr().out))
        if len(looks) == 2:
            training.close()

    looks: list[dict] = []
    monkeypatch.setattr("lakepond.cli.status.time.sleep", sleep)
    assert main(["watch", str(training.folder), "--every", "0.2", "--json"]) == 0
    looks.append(json.loads(capsys.readouterr().out))
    assert [seen["state"] for seen in looks] == ["running", "running", "stopped"]


def test_watch_draws_live_on_a_terminal_and_leaves_with_ctrl_c(training):
    folder = training.folder
    terminal, screen = os.openpty()
    size = {"PYTHONPATH": SOURCE, "COLUMNS": "100", "LINES": "40", "TERM": "xterm-256color"}
    watch = subprocess.Popen(  # not a fork: this process may hold JAX, which must not be forked
        [sys.executable, "-m", "lakepond", "watch", str(folder), "--every", "0.2"],
        env=os.environ | size,
        stdin=screen,
        stdout=screen,
        stderr=screen,
    )
    os.close(screen)
    try:
        seen, until = b"", time.monotonic() + 60
        while seen.count(b"2 of 4, 50 %") < 2 and time.monotonic() < until:  # drawn twice at least
            seen += os.read(terminal, 4096)
        watch.send_signal(signal.SIGINT)
        try:
            while os.read(terminal, 4096):
                pass
        except OSError:  # how a terminal reports that its program has ended
            pass
        code = watch.wait(60)
    finally:
        watch.kill()
        watch.wait()
        os.close(terminal)
    assert seen.count(b"2 of 4, 50 %") >= 2
    assert b"running" in seen
    assert code == 0


def test_who_holds_a_lock_is_told_without_taking_it(training, tmp_path):
    assert machine.lock_holder(training.folder / "lock") == os.getpid()
    assert machine.lock_holder(tmp_path / "none") is None
    (tmp_path / "free").touch()
    assert machine.lock_holder(tmp_path / "free") is None


def test_the_end_of_a_long_log_is_enough(make_run):
    folder = make_run(done=0)
    with (folder / "metrics.jsonl").open("w") as log:
        for step in range(20_000):
            log.write(json.dumps({"step": step, "time": float(step), "loss": 0.5}) + "\n")
    assert (folder / "metrics.jsonl").stat().st_size > 4 * status.TAIL_BYTES
    seen = status.look(folder)
    assert (seen.done, seen.per_second) == (19_999, 1.0)
