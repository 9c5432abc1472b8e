"""`lakepond collect`: one collector without Ray; and what `status` and `watch` show of collectors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from worlds import Constant, Counting, all_obs, each_once, wait_until

import lakepond as lp
from lakepond.cli import collect, main
from lakepond.cloud.store import Store
from lakepond.distributed.collector import Collector
from lakepond.distributed.weights import SavedWeights, save_weights
from lakepond.errors import ConfigError
from lakepond.flow.following.positions import Learners

ENVIRONMENT = ["--env", "worlds:Counting", "--policy", "worlds:Constant"]


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)


def json_of(capsys, *line) -> dict:
    assert main([*map(str, line), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_collects_with_saved_weights_and_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(collect, "LOOK_SECONDS", 0.05)
    lake, url = tmp_path / "lake", f"file://{tmp_path}/bucket"
    for place, how in ((lake, []), (url, ["--folder", tmp_path / "disk"])):
        save_weights(place, {"value": np.int64(5)})
        line = [
            "collect",
            "--writer",
            "c0",
            "--lake",
            place,
            *ENVIRONMENT,
            "--envs",
            2,
            "--every",
            "50ms",
            *how,
        ]
        assert json_of(capsys, *line, "--weights", place, "--steps", 400)["steps"] == 400
        assert json_of(capsys, *line, "--steps", 100)["steps"] == 100
        with lp.Lake.open(place, cache=tmp_path / "cache") if how else lp.Lake.open(place) as opened:
            steps = opened.steps(0, 500)
            assert sum(each_once(all_obs(opened)).values()) == 500
        assert steps.action[399] == 5
        assert not steps.action[400:].any()  # the second one was not given any
        assert not (steps.truncated & steps.terminated).any()
        assert steps.truncated[398:400].all()  # its episodes ended with the process
        status = json_of(capsys, "status", place)
        collector = status["lake"]["writers"][0]["collector"]
        assert (collector["starts"], collector["steps"], collector["error"]) == (2, 100, None)
        assert status["state"] == "running"  # it has committed in the last minute
        assert main(["status", str(place)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "lake, being written" in shown
        assert "restarted 1 time" in shown


def test_sigterm_commits_and_pushes_the_rest(tmp_path):
    url = f"file://{tmp_path}/bucket"
    command = [sys.executable, "-m", "lakepond", "collect", "--writer", "c0", "--lake", url, *ENVIRONMENT]
    command += ["--folder", str(tmp_path / "disk"), "--every", "1h"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert "c0 collects for" in process.stderr.readline()
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 143
    with lp.Lake.open(url, cache=tmp_path / "cache") as lake:
        assert sum(each_once(all_obs(lake)).values()) == len(lake) > 0


def test_collectors_learn_of_a_slow_learner_through_the_lake_and_status_shows_it(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("lakepond.flow.following.limits.AHEAD_STEPS", 100)
    monkeypatch.setattr("lakepond.flow.following.positions.PUBLISH_SECONDS", 0.05)
    lake = tmp_path / "lake"
    with Collector(lambda: Counting(0), Constant, lake, "c0", commit_every=0.05) as collector:
        learners = Learners(Store.at(lake))
        assert not learners.are_behind()
        with lp.Replay.follow(lake, 10_000, samples_per_insert=2.0, poll_every="0.02s") as replay:
            wait_until(lambda: bool(list((lake / "followers").glob("*.json"))))
            collector.run(steps=500)
            wait_until(learners.are_behind)
            while learners.are_behind():
                with suppress(lp.SampleTimeout):  # it has sampled all that it may
                    replay.sample(100, timeout=0.05)
            collector.note_error(RuntimeError("the emulator has crashed"))
            collector.run(steps=501)
            (position,) = (lake / "followers").glob("*.json")
            wait_until(lambda: json.loads(position.read_bytes())["inserted"] == 501)
            assert main(["status", str(lake)]) == 0
            shown = " ".join(capsys.readouterr().out.split())
            assert re.search(
                r"writer c0: 501 steps, .* RuntimeError: the emulator has crashed learner", shown
            )
            found = re.search(r"learner 501 steps inserted, ([\d,]+) sampled \((\S+) per insert\)", shown)
            assert float(found[2]) == pytest.approx(int(found[1].replace(",", "")) / 501, rel=0.01)
        assert not list((lake / "followers").glob("*.json"))
        assert not learners.are_behind()


def test_a_policy_without_load_ignores_weights_and_says_so(tmp_path):
    with Collector(Counting, lambda: lambda obs: np.zeros(len(obs)), tmp_path / "lake", "c0") as collector:
        collector.load(1, {"value": 1})
        collector.run(steps=3)
        assert "a function without a method load(params); weights are ignored" in collector.status.error


def test_an_environment_that_fails_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("lakepond.distributed.collector.RETRY_SECONDS", 0.01)
    with Collector(partial(Counting, 0, 75), Constant, tmp_path / "lake", "c0", envs=2) as collector:
        collector.run(steps=400)
        assert collector.status.error == "RuntimeError: the emulator has crashed"
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert sum(each_once(all_obs(lake)).values()) == 400
        assert (
            lake.steps(0, 150).truncated[[98, 99, 148, 149]].all()
        )  # ends of episodes, and what it cut short
    failing = Collector(partial(Counting, 0, 0), Constant, tmp_path / "other", "c0")
    with failing, pytest.raises(RuntimeError, match="crashed"):  # before the first step
        failing.run()


def test_a_process_that_still_has_the_name_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("lakepond.distributed.collector.LOCKED_SECONDS", 0.1)
    lake = tmp_path / "lake"
    with (
        Collector(Counting, Constant, lake, "c0") as zombie,
        Collector(Counting, Constant, lake, "c0") as new,
    ):
        for each in (zombie, new, zombie):
            each.run(steps=each.steps + 5)
    with lp.Lake.open(lake) as opened:
        assert sorted(each_once(all_obs(opened)).values()) == [15]
        assert sorted(opened.heads) == ["c0", f"c0-{os.getpid()}"]


def test_a_dead_learner_holds_nobody(tmp_path, monkeypatch):
    (tmp_path / "followers").mkdir()
    position = {"count": 3, "sampled": 0, "inserted": 10_000, "ahead": True}
    (tmp_path / "followers" / f"{0:016x}.json").write_text(json.dumps(position))
    (tmp_path / "followers" / f"{1:016x}.json").write_text("[")
    (tmp_path / "followers" / "notes.txt").write_text("not ours")
    learners = Learners(Store.at(tmp_path))
    assert learners.are_behind()
    monkeypatch.setattr("lakepond.flow.following.positions.SILENT_SECONDS", 0.0)
    assert not learners.are_behind()


def test_weights_are_arrays_and_read_when_they_are_new(tmp_path):
    saved = SavedWeights(tmp_path)
    assert saved.newest() is None
    params = {
        "dense": {"kernel": np.arange(6.0).reshape(2, 3), "bias": np.zeros(3, np.float16)},
        "t": np.int32(1),
    }
    save_weights(tmp_path, params)
    found = saved.newest()
    assert (found["dense"]["kernel"] == params["dense"]["kernel"]).all()
    assert found["dense"]["bias"].dtype == np.float16
    assert (saved.newest(), saved.version) == (None, 1)
    save_weights(tmp_path, {"t": np.int32(2)})
    assert saved.newest() == {"t": 2}
    for bad in ({"a": object()}, {1: np.zeros(1)}, {"a//b": np.zeros(1)}):
        with pytest.raises(ConfigError):
            save_weights(tmp_path, bad)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--env", "worlds:Nothing", "--policy", "worlds:Constant"], "--env worlds:Nothing cannot be used"),
        (
            ["--env", "worlds:Counting", "--policy", "nowhere:Policy"],
            "--policy nowhere:Policy cannot be used",
        ),
        (["--env", "worlds:Counting", "--policy", "worlds:EPISODE"], "is a int, not a class or function"),
    ],
)
def test_bad_input(line, message, tmp_path, capsys):
    assert main(["collect", "--writer", "c0", "--lake", str(tmp_path / "lake"), *line]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "lake").exists()


def test_a_lake_of_another_run(tmp_path, capsys):
    lp.Replay.open(tmp_path / "lake", lp.Spec(obs=lp.Field((2,), "float32"))).close()
    line = ["collect", "--writer", "c0", "--lake", str(tmp_path / "lake"), *ENVIRONMENT]
    assert main(line) != 0
    assert "was created with a different spec" in " ".join(capsys.readouterr().err.split())
