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
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

import lakepond as lp
from lakepond.cli import collect, main
from lakepond.cloud.store import Store
from lakepond.distributed.collector import Collector, _Temporary
from lakepond.distributed.weights import SavedWeights, save_weights
from lakepond.errors import ConfigError
from lakepond.flow.following.positions import Learners
from lakepond.lake.lock import FileLock
from worlds import EPISODE, Constant, Counting, all_obs, each_once, wait_until

ENVIRONMENT = ["--env", "worlds:Counting", "--policy", "worlds:Constant"]


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])


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


class Unordered(Counting):
    """`reset` and `step` return the keys of the observation in a different order each."""

    observation_space = gym.spaces.Dict({key: gym.spaces.Box(0, 2**40, (3,), np.int64) for key in "ab"})

    def reset(self, *, seed=None, options=None):
        return {"a": np.full(3, self.n), "b": np.full(3, -1)}, {}

    def step(self, action):
        _, *rest = super().step(action)
        return {"b": np.full(3, -1), "a": np.full(3, self.n)}, *rest


def test_observations_of_several_environments_are_stacked_by_key(tmp_path):
    def envs():
        env = Unordered(0.0)
        env.n = 0 if env.number % 2 else EPISODE // 2  # one is reset while the other steps
        return env

    with Collector(envs, lambda: lambda obs: np.zeros(2), tmp_path / "lake", "c0", envs=2) as collector:
        collector.run(steps=2 * EPISODE)
    with lp.Lake.open(tmp_path / "lake") as lake:
        batch = lake.steps(0, 2 * EPISODE)
    assert (batch.obs["b"] == -1).all()
    assert np.array_equal(batch.next_obs["a"], batch.obs["a"] + 1)


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


def test_an_error_before_the_first_step_is_raised_and_is_in_the_lake(tmp_path, capsys):
    failing = Collector(partial(Counting, 0, 0), Constant, tmp_path / "lake", "c0")
    with pytest.raises(RuntimeError, match="crashed"), failing:
        failing.run()
    assert main(["status", str(tmp_path / "lake")]) == 0
    assert "RuntimeError: the emulator has crashed" in " ".join(capsys.readouterr().out.split())


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


def test_closing_a_collector_leaves_the_files_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr("lakepond.distributed.collector.LOCKED_SECONDS", 0.1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    url = f"file://{tmp_path}/bucket"
    with (
        Collector(Counting, Constant, url, "c0") as first,
        Collector(Counting, Constant, url, "c0") as second,
    ):
        first.run(steps=5)
        first.close()
        with Collector(Counting, Constant, url, "c0") as third:  # the name is free again
            second.run(steps=7)
            second.close()
            third.run(steps=9)
        assert all(each.complete for each in (first, second, third))
    with lp.Lake.open(url, cache=tmp_path / "cache") as lake:
        assert sum(each_once(all_obs(lake)).values()) == 21
    assert not list((tmp_path / "tmp").iterdir())


def test_a_temporary_folder_is_locked_until_it_is_deleted(tmp_path, monkeypatch):
    """A process that opens the lock just before the last one deletes it does not have the folder."""
    first = _Temporary(tmp_path / "all" / "c0")
    with pytest.raises(lp.errors.LakeLocked):
        _Temporary(tmp_path / "all" / "c0")
    opened = FileLock.__init__

    def deleted_in_between(self, path, **how):
        opened(self, path, **how)
        if first is not None:
            first.folder.mkdir()
            first.close(delete=True)
            monkeypatch.undo()

    monkeypatch.setattr(FileLock, "__init__", deleted_in_between)
    second = _Temporary(tmp_path / "all" / "c0")
    assert not (tmp_path / "all" / "c0").exists()
    with pytest.raises(lp.errors.LakeLocked):
        _Temporary(tmp_path / "all" / "c0")
    second.close(delete=True)
    assert not list(tmp_path.iterdir())


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
        (
            ["--env", "NoSuch-v0", "--policy", "worlds:Constant"],
            "--env NoSuch-v0 cannot be made: Environment",
        ),
        (["--env", "worlds:nothing", "--policy", "worlds:Constant"], "the environment is a NoneType without"),
        ([*ENVIRONMENT, "--weights", "foo://x"], "'foo://x' is not a valid cloud URL"),
        ([*ENVIRONMENT, "--lake", ""], "needs a name and a lake, but has 'c0' and ''"),
        ([*ENVIRONMENT, "--writer", ""], "needs a name and a lake, but has ''"),
    ],
)
def test_bad_input(line, message, tmp_path, capsys):
    assert main(["collect", "--writer", "c0", "--lake", str(tmp_path / "lake"), "--steps", "1", *line]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "lake").exists()


def test_a_policy_with_too_few_actions(tmp_path, capsys):
    line = ["--env", "worlds:Counting", "--policy", "worlds:TooFew"]
    assert main(["collect", "--writer", "c0", "--lake", str(tmp_path / "lake"), *line]) == 2
    assert "returned actions of the shape [0]; it must return one" in " ".join(
        capsys.readouterr().err.split()
    )


def test_without_gymnasium(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    line = ["--env", "CartPole-v1", "--policy", "worlds:Constant", "--lake", str(tmp_path / "lake")]
    assert main(["collect", "--writer", "c0", *line]) == 2
    assert "--env CartPole-v1 needs Gymnasium: pip install gymnasium" in capsys.readouterr().err


def test_unreadable_weights_do_not_keep_the_collector_waiting(monkeypatch):
    monkeypatch.setattr(collect, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr("lakepond.flow.following.positions.SILENT_SECONDS", 0.2)
    positions = iter([True, False, True])
    collector = SimpleNamespace(waiting=False, note_error=lambda error: None)
    seen, ended = [], SimpleNamespace(wait=lambda _: seen.append(collector.waiting) or len(seen) == 100)

    def newest():
        raise lp.errors.CloudUnreachable("no answer")

    def are_behind():
        time.sleep(0.01)
        for position in positions:
            return position
        raise lp.errors.CloudUnreachable("no answer")

    collect._look(collector, SimpleNamespace(newest=newest), SimpleNamespace(are_behind=are_behind), ended)
    assert seen[:4] == [True, False, True, True]
    assert not seen[-1]  # its position could not be read for long


def test_environments_of_a_failed_start_are_closed(tmp_path):
    closed, made = [], []

    class Closing(Counting):
        def __init__(self):
            super().__init__()
            if len(made) == 3:
                raise OSError("no simulator is left")
            made.append(self)

        def close(self):
            closed.append(self)

    lp.Replay.open(tmp_path / "other", lp.Spec(obs=lp.Field((2,), "float32"))).close()
    with pytest.raises(lp.errors.SpecError, match="different spec"):
        Collector(Closing, Constant, tmp_path / "other", "c0", envs=2)
    assert closed == made[:2]
    with pytest.raises(OSError, match="simulator"):
        Collector(Closing, Constant, tmp_path / "lake", "c0", envs=2)
    assert closed == made


def test_the_hint_after_ctrl_c_is_true(tmp_path, monkeypatch):
    def interrupt(collector, steps):
        if is_full:
            monkeypatch.setattr(collector, "_commit", full)
        raise KeyboardInterrupt

    def full():
        raise KeyboardInterrupt  # pressed again

    monkeypatch.setattr(Collector, "run", interrupt)
    for is_full in (False, True):
        command = collect.Collect("c0", str(tmp_path / "lake"), "worlds:Counting", "worlds:Constant")
        with pytest.raises(KeyboardInterrupt):
            command.run()
        assert ("What was recorded is in the lake" in command.interrupted()) is not is_full


def test_a_lake_of_another_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    other, url = lp.Spec(obs=lp.Field((2,), "float32")), f"file://{tmp_path}/bucket"
    with lp.Replay.open(tmp_path / "lake", other, cloud=url) as replay:
        replay.commit({})
        assert replay.push(wait=True).done
    differs = r"was created with a different spec: obs is int64\[3\], not float32\[2\].*; choose another"

    def refused(lake, *more) -> str:
        assert (
            main(["collect", "--writer", "c0", "--lake", str(lake), *ENVIRONMENT, "--steps", "1", *more]) == 2
        )
        return " ".join(capsys.readouterr().err.split())

    for folder in ([], ["--folder", str(tmp_path / "disk")]) * 2:  # nothing is left of the first attempt
        assert re.search(f"the lake {url} {differs} lake URL", refused(url, *folder))
        assert not list((tmp_path / "tmp").glob("*"))
    assert re.search(f"the lake {tmp_path}/lake {differs} folder", refused(tmp_path / "lake"))
    (tmp_path / "disk").mkdir(exist_ok=True)
    (tmp_path / "lake").rename(tmp_path / "disk" / "c0")
    mine = f"{tmp_path}/disk/c0 has files of a lake that {differs} lake URL than file://{tmp_path}/new, or"
    assert re.search(mine, refused(f"file://{tmp_path}/new", "--folder", str(tmp_path / "disk")))
    assert (tmp_path / "disk" / "c0" / "lake.json").exists()
