"""`train erl --ray local` with faults at random moments: it ends with the bits of one undisturbed process.

A worker is killed (-9), or the driver, or the head of its Ray, after which the run resumes from its folder,
or from the bucket alone, which is a real server, SeaweedFS.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from cloud import servers
from faults import training
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
    sizes = SIZES | {"generations": faults + 4}
    training.train_here("erl", one, "--seed", "0", **sizes)
    (scratch / "server").mkdir()
    server = servers.Seaweed(scratch / "server")
    server.start()
    try:
        longest = _train(scratch, here, server, chance, outcome, faults, sizes)
    finally:
        server.kill()
    outcome.notes["longest seconds without a generation"] = longest
    with outcome.attempt("the end"):
        assert longest <= LONGEST_SECONDS, f"{longest} s without a generation"
        assert training.differences(training.fingerprint(here), training.fingerprint(one)) == []
        with Lake.open(here / "lake") as lake:
            assert lake.commit.recorded == sizes["generations"] * STEPS
    return outcome


def _train(
    scratch: Path,
    here: Path,
    server: servers.Seaweed,
    chance: random.Random,
    outcome: Outcome,
    faults: int,
    sizes: dict[str, int],
) -> float:
    """Train to the end, with faults; returns the longest time without a new generation, restarts included."""
    process, longest, ended_by = _start(scratch, here, server, sizes), 0.0, 0
    newest, began = 0, time.monotonic()
    while process.poll() != 0:
        if process.poll() is not None:
            if process.returncode != ended_by:
                raise AssertionError(
                    f"exit code {process.returncode}: {(scratch / 'errors').read_text()[-600:]}"
                )
            process, ended_by = _start(scratch, here, server, sizes), 0
        while process.poll() is None and _generations(here) <= newest:
            if time.monotonic() - began > STUCK_SECONDS:
                process.kill()
                raise AssertionError(f"no generation for {STUCK_SECONDS:g} s after {newest}")
            time.sleep(0.01)
        if _generations(here) > newest:
            longest, began = max(longest, time.monotonic() - began), time.monotonic()
            newest = _generations(here)
        if outcome.tried < faults and process.poll() is None:
            time.sleep(chance.uniform(0.0, 0.5))
            with outcome.attempt(f"fault {outcome.tried}"):
                what, ended_by = _fault(process, here, server, chance)
                outcome.count(what)
    return round(longest, 1)


def _start(
    scratch: Path, here: Path, server: servers.Seaweed, sizes: dict[str, int]
) -> subprocess.Popen[bytes]:
    resumes = ["--resume"] if _is_pushed(server) or any(here.glob("checkpoints/*/state.json")) else []
    ray = ["--ray", "local", "--workers", "2", "--cloud", server.url(NAME)]
    command = training.words("erl", here, *ray, *resumes, **sizes)
    with (scratch / "errors").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "lakepond", *command],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=training.environment() | server.environment(),
        )


def _is_pushed(server: servers.Seaweed) -> bool:
    return Store(server.cloud(NAME)).head("config.json") is not None


def _generations(here: Path) -> int:
    return len(training.log_lines(here))


def _fault(
    process: subprocess.Popen[bytes], here: Path, server: servers.Seaweed, chance: random.Random
) -> tuple[str, int]:
    """Kill something; returns what, and the exit code of a driver that ends because of it."""
    started = psutil.Process(process.pid).children(recursive=True)
    workers = [each for each in started if "_Worker" in each.name()]
    head = [each for each in started if each.name() in ("gcs_server", "raylet")]
    kind = chance.random()
    if workers and kind < 0.5:
        os.kill(chance.choice(workers).pid, signal.SIGKILL)
        return "workers killed", 0
    if len(head) == 2 and kind < 0.65:
        for each in head:
            each.kill()
        process.wait(STUCK_SECONDS)
        return "heads killed", 1
    process.kill()
    process.wait()
    if chance.random() < 0.5 and _is_pushed(server):
        shutil.rmtree(here)
        return "drivers killed and their disk lost", -signal.SIGKILL
    return "drivers killed", -signal.SIGKILL
