"""ERL on real Ray: any number of workers, killed workers and a killed driver end with the same bits."""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import psutil
import pytest

from faults import training
from faults.nodes import Nodes
from lakepond.cli import main
from lakepond.cloud.store import Store
from lakepond.lake.read.lake import Lake
from lakepond.runs import copies
from lakepond.trainers import erl
from worlds import wait_until

GENERATIONS, STEPS = 4, 8 * 15
SIZES = {"generations": GENERATIONS, "children": 4, "capacity": 400}  # 8 agents: 4 tasks of two


def interrupted(*_, **__) -> None:
    raise KeyboardInterrupt


def worker_folders() -> set[Path]:
    """Where workers keep files that belong to a bucket, of all runs on this machine."""
    return set(Path(tempfile.gettempdir()).glob("lakepond-worker-[0-9]-*"))


def workers_of(cluster: Nodes, *nodes: Any) -> list[psutil.Process]:
    """The processes of workers of a trainer, on some nodes or on all."""
    return [each for each in cluster.workers(*nodes) if "_Worker" in each.name()]


def words(folder: Path, *more: str) -> list[str]:
    return training.words("erl", folder, *more, **SIZES)


@pytest.fixture(scope="module", autouse=True)
def starting(seaweed) -> Iterator[Thread]:
    """Starts the S3 server, which takes many seconds, beside the first test."""
    thread = Thread(target=seaweed.start)
    thread.start()
    yield thread
    thread.join()
    seaweed.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("erl") / "one"
    assert main(words(folder)) == 0
    return folder


def test_two_workers_one_of_them_killed_end_as_one_process_does(
    undisturbed, connected, tmp_path, capsys, caplog, monkeypatch
):
    def kill_a_worker(metrics):  # while it plays the next generation
        if metrics["generation"] == 2:
            actors = workers_of(connected)
            assert len(actors) == 2, actors
            Timer(0.02, actors[0].kill).start()

    run, train = tmp_path / "run", erl.train
    monkeypatch.setattr(
        erl, "train", lambda *args, **how: train(*args, **how | {"on_generation": kill_a_worker})
    )
    assert main(words(run, "--ray", connected.address, "--workers", "2")) == 0
    assert "does not answer" in caplog.text
    assert training.differences(training.fingerprint(run), training.fingerprint(undisturbed)) == []
    with Lake.open(run / "lake") as lake:
        assert lake.commit.recorded == GENERATIONS * STEPS  # nothing lost, nothing twice
    assert not (run / "workers").exists()
    capsys.readouterr()
    assert main(["status", str(run)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    # Ray may start a worker more than once, and may not be done with it at the end
    alive = r"[12] of 2 alive; restarted \d times?"
    assert re.search(rf"workers {alive}; lag .*; [\d.]+ samples per insert", shown), (shown, caplog.text)


def test_three_workers_a_removed_node_and_a_killed_driver_resume_from_the_bucket_alone(
    undisturbed, cluster, seaweed, starting, tmp_path, capsys
):
    url, bucket = seaweed.url("erl"), Store(seaweed.cloud("erl"))
    cloud, here, before = ["--cloud", url], tmp_path / "here", worker_folders()
    starting.join()
    on_cluster = ["--ray", "auto", "--workers", "3", *cloud]
    process = subprocess.Popen(
        [sys.executable, "-m", "lakepond", *words(here, *on_cluster)],
        stderr=subprocess.PIPE,
        text=True,
        env=training.environment() | {"RAY_ADDRESS": cluster.address},
    )

    def wait_for(condition: Callable[[], object]) -> None:
        until = time.monotonic() + 300
        while not condition():
            assert process.poll() is None, process.stderr.read()[-3_000:]
            assert time.monotonic() < until
            time.sleep(0.2)

    try:
        wait_for((here / "checkpoints" / "00000001" / "state.json").exists)
        cluster.remove(next(node for node in cluster.nodes if workers_of(cluster, node)))
        wait_for(lambda: bucket.head("checkpoints/00000002/state.json"))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        cluster.add()
    assert process.returncode == -signal.SIGKILL  # it was not done
    assert len(bucket.folders("workers/writers")) >= 2
    assert main(["status", url]) == 0  # `watch` shows the same again and again
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"workers \d of 3 alive; restarted \d times?; lag .*; [\d.]+ samples per insert", shown
    ), shown
    wait_until(lambda: worker_folders() <= before)
    shutil.rmtree(here)
    assert main(words(here, *cloud)) == 2  # a new run where another one is
    assert f"{url} contains another run; resume it" in " ".join(capsys.readouterr().err.split())
    assert not here.exists()
    again = tmp_path / "again"
    with pytest.MonkeyPatch.context() as patch:  # killed while the run is fetched
        patch.setattr(copies, "pull", interrupted)
        assert main(["train", "erl", "--resume", "--out", str(again), *cloud]) == 130
    assert main(["train", "erl", "--resume", "--out", str(again), *cloud, "--evaluate", "nothing"]) == 0
    assert training.differences(training.fingerprint(again), training.fingerprint(undisturbed)) == []
    pushed = json.loads(bucket.read(f"checkpoints/{GENERATIONS:08}/state.json"))["state"]
    assert pushed["counters"]["generation"] == GENERATIONS
    assert not (again / "workers").exists()  # the run's lake has all of it
