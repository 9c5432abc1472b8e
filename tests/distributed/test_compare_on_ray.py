"""`compare` on real Ray: after kills, Ctrl-C and failures the results are those of one process."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import lakepond as lp
import worlds
from faults import training
from lakepond.cli import main
from lakepond.distributed import ray_cluster
from lakepond.errors import ClusterError, ConfigError
from lakepond.runs import Run
from lakepond.trainers import compare, compare_workers
from lakepond.trainers.compare import CompareConfig

CONFIG = CompareConfig(
    games=("Breakout",),
    arms=("single", "mixture"),
    seeds=1,
    env_steps=8 * 4096,
    evaluations=8,
    evaluation_episodes=4,
    hidden=(16,),
    big_replay_ratio=0.25,
)
RUNS = ("Breakout/single/0", "Breakout/mixture/0")


def words(folder: Path, *more: str) -> list[str]:
    options = [f"--{name.replace('_', '-')}" for name in vars(CONFIG)]
    values = [value if isinstance(value, tuple) else (value,) for value in vars(CONFIG).values()]
    given = [str(word) for option, each in zip(options, values, strict=True) for word in (option, *each)]
    return ["compare", "--folder", str(folder), *given, *more]


def results(folder: Path) -> dict[str, dict]:
    """The results without what was measured in seconds."""
    found = {}
    for run in RUNS:
        found[run] = json.loads((folder / run / "result.json").read_text())
        del found[run]["seconds"]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    assert compare.run(CONFIG, folder) == 0
    return folder


def wait_for(process: subprocess.Popen, condition) -> None:
    until = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, process.stderr.read()[-3_000:]
        assert time.monotonic() < until
        time.sleep(0.1)


def test_ctrl_c_leaves_nothing_and_a_killed_worker_resumes_from_the_bucket(undisturbed, tmp_path, local):
    bucket, here, scratch = tmp_path / "bucket", tmp_path / "here", tmp_path / "scratch"
    scratch.mkdir()
    cloud = ["--cloud", f"file://{bucket}"]
    with subprocess.Popen(
        [sys.executable, "-m", "lakepond", *words(here, "--ray", "local", "--workers", "1", *cloud)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=training.environment() | {"TMPDIR": str(scratch)},
    ) as process:
        try:
            wait_for(process, lambda: any(bucket.glob("*/*/*/checkpoints/0000000[1-9]/state.json")))
            assert len(list(scratch.glob("lakepond-compare-worker-*"))) == 1
            with worlds.nothing_left_of_ray(process.pid):
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 130, process.stderr.read()[-3_000:]
            assert "continue from their checkpoints" in " ".join(process.stderr.read().split())
        finally:
            process.kill()
    assert not list(scratch.iterdir())
    shutil.rmtree(here)

    again = tmp_path / "again"
    with worlds.killing_a_busy_worker():
        assert main(words(again, "--ray", local, "--workers", "2", *cloud)) == 0
    assert results(again) == results(undisturbed) == results(bucket)
    left = bucket.glob("*/*/*/checkpoints/*/*")
    assert all(each.suffix == ".aside" for each in left)  # the temporary file of a process that was killed
    assert not list(again.glob("*/*/*/metrics.jsonl"))
    assert len(list(bucket.glob("*/*/*/metrics.jsonl"))) == len(RUNS)
    elsewhere = tmp_path / "elsewhere"  # from the bucket alone, without Ray
    assert main(words(elsewhere, "--only-report", *cloud)) == 0
    assert results(elsewhere) == results(undisturbed)
    other = replace(CONFIG, env_steps=12 * 4096)
    with pytest.raises(ConfigError, match=f"file://{bucket} is a comparison with env_steps=32768, not 49152"):
        compare_workers.run(other, tmp_path / "third", "local", cloud=f"file://{bucket}")


def test_a_run_that_fails_is_tried_again_and_named_after_the_others_are_done(
    undisturbed, tmp_path, local, monkeypatch
):
    folder = tmp_path / "runs"
    shutil.copytree(undisturbed, folder)
    shutil.rmtree(folder / RUNS[0])
    (folder / RUNS[0]).mkdir()
    (folder / RUNS[0] / "config.json").write_text("{}")
    printed: list[str] = []
    named = r"1 of the runs failed 3 times, Breakout single seed 0 with: .*config"
    with pytest.raises(ClusterError, match=named):
        compare_workers.run(CONFIG, folder, local, workers=1, tell=printed.append)
    assert sum("Breakout single seed 0 failed" in line for line in printed) == 3
    shutil.rmtree(folder / RUNS[0])
    assert compare_workers.run(CONFIG, folder, local, workers=1) == 0
    assert results(folder) == results(undisturbed)
    assert not list(folder.glob("*/*/*/checkpoints"))
    monkeypatch.setattr(ray_cluster, "connect", None)  # nothing is left to do
    assert compare_workers.run(CONFIG, folder, local) == 0


def test_a_run_whose_first_push_was_interrupted_is_started_again(tmp_path, monkeypatch):
    """Its lake is in the bucket without its config.json, and would refuse the commits of another one."""
    cloud = f"file://{tmp_path}/bucket"
    (job,) = compare.jobs(replace(CONFIG, arms=("mixture",)), tmp_path)
    here = tmp_path / "bucket" / "Breakout" / "mixture" / "0"

    def attempt(_, job, tell, *, loggers, push_to):
        assert not [each for each in here.rglob("*") if each.is_file()]
        Run.create(job.folder, "mixture", {}).close()
        with lp.Replay.open(job.folder / "lake", lp.Spec(obs=lp.Field((2,), "float32"))) as replay:
            replay.commit({})
        (job.folder / "result.json").write_text("{}")
        return True

    monkeypatch.setattr(compare, "attempt", attempt)
    worker = compare_workers.CompareWorker(CONFIG, cloud, (), False, "worker-0")
    try:
        for _ in range(2):
            assert worker.train(job).done
            (here / "config.json").unlink()
            assert (here / "lake" / "lake.json").exists()
    finally:
        worker.close()
