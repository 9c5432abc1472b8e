"""`train erl` on three Ray nodes with faults at random moments: it ends with the bits of one calm process.

A worker is killed (-9), or a node, or the driver, or the head and with it the whole cluster. Then the run
resumes from its folder, or from the bucket alone, which is a real server, SeaweedFS.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from cloud import servers
from faults import training
from faults.nodes import Nodes
from faults.outcome import Outcome
from lakepond.cloud.store import Store
from lakepond.lake.read.lake import Lake

DRILL = "many machines"
STEPS = 8 * 15
SIZES = {"children": 4, "capacity": 400}
LONGEST_SECONDS, STUCK_SECONDS = 60.0, 180.0
"""without a new generation: more than the first is a failure, after the second the drill ends"""
NAME = "erl"
"""of the run in the bucket"""


def drill(scratch: Path, chance: random.Random, *, faults: int) -> Outcome:
    """One run with that many faults, each after a generation since the last."""
    outcome = Outcome(DRILL, "train erl on Ray workers")
    one, here = scratch / "one", scratch / "here"
    sizes = SIZES | {"generations": 2 * faults + 4}  # some generations pass while something starts again
    training.train_here("erl", one, "--seed", "0", **sizes)
    (scratch / "server").mkdir()
    server = servers.Seaweed(scratch / "server")
    server.start()
    folder = tempfile.mkdtemp(prefix="lp-ray-", dir="/tmp")  # of sockets, whose names must be short
    ray = {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    try:
        with mock.patch.dict(os.environ, training.environment() | server.environment() | ray):
            machines = _Machines(scratch, here, server, sizes)
            try:
                longest = _train(machines, chance, outcome, faults)
            finally:
                machines.nodes.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        server.kill()
    outcome.notes["longest seconds without a generation"] = longest
    with outcome.attempt("the end"):
        assert outcome.tried > faults, f"{outcome.tried - 1} faults, the run was too short"
        assert longest <= LONGEST_SECONDS, f"{longest} s without a generation"
        assert training.differences(training.fingerprint(here), training.fingerprint(one)) == []
        with Lake.open(here / "lake") as lake:
            assert lake.commit.recorded == sizes["generations"] * STEPS
    return outcome


class _Machines:
    """Three nodes of Ray, a bucket, and the folder of the run on a disk that may be lost."""

    def __init__(self, scratch: Path, here: Path, server: servers.Seaweed, sizes: dict[str, int]) -> None:
        self.scratch, self.here, self.server, self.sizes = scratch, here, server, sizes
        self.nodes = Nodes()

    def train(self) -> subprocess.Popen[bytes]:
        """Start the driver, which resumes a run that was started."""
        resumes = ["--resume"] if self.is_pushed or any(self.here.glob("checkpoints/*/state.json")) else []
        ray = ["--ray", self.nodes.address, "--workers", "4", "--cloud", self.server.url(NAME)]
        command = training.words("erl", self.here, *ray, *resumes, **self.sizes)
        with (self.scratch / "errors").open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "lakepond", *command],
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    @property
    def is_pushed(self) -> bool:
        """Whether the bucket has enough of the run to resume it."""
        return Store(self.server.cloud(NAME)).head("config.json") is not None

    @property
    def generations(self) -> int:
        """Of the run, so far."""
        return len(training.log_lines(self.here))


def _train(machines: _Machines, chance: random.Random, outcome: Outcome, faults: int) -> float:
    """Train to the end, with faults; returns the longest time without a new generation, restarts included."""
    process, longest, ended_by = machines.train(), 0.0, 0
    newest, began = 0, time.monotonic()
    while process.poll() != 0:
        if process.poll() is not None:
            if process.returncode != ended_by:
                errors = (machines.scratch / "errors").read_text()
                raise AssertionError(f"exit code {process.returncode}: {errors[-600:]}")
            process, ended_by = machines.train(), 0
        while process.poll() is None and machines.generations <= newest:
            if time.monotonic() - began > STUCK_SECONDS:
                process.kill()
                raise AssertionError(f"no generation for {STUCK_SECONDS:g} s after {newest}")
            time.sleep(0.01)
        if machines.generations > newest:
            longest, began = max(longest, time.monotonic() - began), time.monotonic()
            newest = machines.generations
        if outcome.tried < faults and process.poll() is None:
            time.sleep(chance.uniform(0.0, 0.5))
            with outcome.attempt(f"fault {outcome.tried}"):
                what, ended_by = _fault(process, machines, chance)
                outcome.count(what)
    return round(longest, 1)


def _fault(process: subprocess.Popen[bytes], machines: _Machines, chance: random.Random) -> tuple[str, int]:
    """Kill something; returns what, and the exit code of a driver that ends because of it."""
    nodes, kind = machines.nodes, chance.random()
    workers = [each for each in nodes.workers() if "_Worker" in each.name()]
    if workers and kind < 0.4:
        os.kill(chance.choice(workers).pid, signal.SIGKILL)
        return "workers killed", 0
    if kind < 0.6:
        nodes.remove(chance.choice(nodes.nodes))
        nodes.add()
        return "nodes removed", 0
    if kind < 0.7:
        nodes.kill_head()
        process.wait(STUCK_SECONDS)
        nodes.close()
        machines.nodes = Nodes()
        return "heads killed", 1
    process.kill()
    process.wait()
    if chance.random() < 0.5 and machines.is_pushed:
        shutil.rmtree(machines.here)
        return "drivers killed and their disk lost", -signal.SIGKILL
    return "drivers killed", -signal.SIGKILL
