"""ERL on real Ray: any number of workers, killed workers and a killed driver end with the same bits."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from worlds import wait_until

from faults import training
from lakepond.cli import main
from lakepond.cloud.store import Store
from lakepond.lake.read.lake import Lake
from lakepond.runs import copies

GENERATIONS, STEPS = 5, 8 * 15
SIZES = {"generations": GENERATIONS, "children": 4, "capacity": 400}  # 8 agents: 4 tasks of two
TESTS = Path(__file__).parents[1]
TWO_WORKERS = """
import os, signal, sys, threading, warnings
import psutil
sys.path.insert(0, {tests!r})
from faults import training
from lakepond.cli import main
from lakepond import distributed
from lakepond.distributed import ray_cluster
from lakepond.distributed.workers import Workers
from lakepond.errors import SpecError
from lakepond.trainers import erl

class Counts:
    def __init__(self, name):
        self.done = 0
    def square(self, number):
        self.done += 1
        if number < 0:
            raise SpecError(f"{{number}} is negative")
        return number * number
    def die_once(self, file, number):
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return number
        os.kill(os.getpid(), signal.SIGKILL)
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)
    def gpus(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES")
    def close(self):
        pass

distributed.workers.MOST_WORKERS_LOST = 2
with ray_cluster.connect("local", workers=2) as cluster:
    with Workers(cluster, Counts) as workers:
        assert workers.map("square", [(i,) for i in range(20)]) == [i * i for i in range(20)]
        assert workers.map("die_once", [({folder!r} + "/died", i) for i in range(6)]) == list(range(6))
        assert workers.map("gpus", [()] * 2) == ["", ""]
        task_kills_workers = dict(workers.each("die", [()]))[0]
        assert "2 workers died with this task" in str(task_kills_workers), task_kills_workers
        try:
            workers.map("square", [(3,), (-1,)])
        except SpecError as error:
            assert "-1 is negative" in str(error)
        else:
            raise AssertionError("no error")

    def kill_a_worker(metrics):  # while it plays the next generation
        if metrics["generation"] == 2:
            actors = [each for each in psutil.Process().children(recursive=True) if "_Worker" in each.name()]
            assert len(actors) == 2, actors
            threading.Timer(0.02, actors[0].kill).start()

    train = erl.train
    erl.train = lambda *args, **options: train(*args, **options | {{"on_generation": kill_a_worker}})
    sys.exit(main({words!r}))
"""


def interrupted(*_, **__) -> None:
    raise KeyboardInterrupt


def worker_folders() -> set[Path]:
    """Where workers keep files that belong to a bucket, of all runs on this machine."""
    return set(Path(tempfile.gettempdir()).glob("lakepond-worker-[0-9]-*"))


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


def test_two_workers_one_of_them_killed_end_as_one_process_does(undisturbed, tmp_path, capsys):
    command = words(tmp_path / "run", "--ray", "local", "--workers", "2")
    code = TWO_WORKERS.format(tests=str(TESTS), folder=str(tmp_path), words=command)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=training.environment(), check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert "worker-0 does not answer" in done.stderr or "worker-1 does not answer" in done.stderr
    assert (
        training.differences(training.fingerprint(tmp_path / "run"), training.fingerprint(undisturbed)) == []
    )
    with Lake.open(tmp_path / "run" / "lake") as lake:
        assert lake.commit.recorded == GENERATIONS * STEPS  # nothing lost, nothing twice
    assert not (tmp_path / "run" / "workers").exists()
    assert main(["status", str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    # Ray may start a worker more than once, and may not be done with it at the end
    alive = r"[12] of 2 alive; restarted \d times?"
    assert re.search(rf"workers {alive}; lag .*; [\d.]+ samples per insert", shown), (shown, done.stderr)


def test_four_workers_a_removed_node_and_a_killed_driver_resume_from_the_bucket_alone(
    undisturbed, cluster, seaweed, starting, tmp_path, capsys
):
    url, bucket = seaweed.url("erl"), Store(seaweed.cloud("erl"))
    cloud, here, before = ["--cloud", url], tmp_path / "here", worker_folders()
    starting.join()
    on_cluster = ["--ray", cluster.address, "--workers", "4", *cloud]
    process = subprocess.Popen(
        [sys.executable, "-m", "lakepond", *words(here, *on_cluster)],
        stderr=subprocess.PIPE,
        text=True,
        env=training.environment(),
    )

    def wait_for(condition: Callable[[], object]) -> None:
        until = time.monotonic() + 300
        while not condition():
            assert process.poll() is None, process.stderr.read()[-3_000:]
            assert time.monotonic() < until
            time.sleep(0.02)

    try:
        wait_for((here / "checkpoints" / "00000001" / "state.json").exists)
        cluster.remove(cluster.nodes[-1])
        wait_for(lambda: bucket.head("checkpoints/00000003/state.json"))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        cluster.add()
    assert len(bucket.folders("workers/writers")) >= 4
    assert main(["status", url]) == 0  # `watch` shows the same again and again
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"workers \d of 4 alive; restarted \d times?; lag .*; [\d.]+ samples per insert", shown
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
