"""`train erl --ray local` with faults at random moments: it ends with the bits of one undisturbed process.

A worker is killed (-9), or the driver, after which the run resumes from its folder, or from the bucket alone.
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

from faults import training
from faults.outcome import Outcome
from lakepond.lake.read.lake import Lake

DRILL = "many machines"
STEPS = 8 * 15
SIZES = {"children": 4, "capacity": 400}
STUCK_SECONDS = 180.0
"""without a new generation"""


def drill(scratch: Path, chance: random.Random, *, faults: int) -> Outcome:
    """One run with that many faults, each after a generation since the last."""
    outcome = Outcome(DRILL, "train erl on Ray workers")
    one, here, bucket = scratch / "one", scratch / "here", scratch / "bucket"
    sizes = SIZES | {"generations": faults + 4}
    training.train_here("erl", one, "--seed", "0", **sizes)
    process, longest = None, 0.0
    while process is None or process.poll() is None or process.returncode:
        if process is None or process.poll() is not None:
            if process is not None and process.returncode != -signal.SIGKILL:
                raise AssertionError(
                    f"exit code {process.returncode}: {(scratch / 'said').read_text()[-600:]}"
                )
            process, began = _start(scratch, here, bucket, sizes), time.monotonic()
        before = _generations(here)
        while process.poll() is None and _generations(here) <= before:
            if time.monotonic() - began > STUCK_SECONDS:
                process.kill()
                raise AssertionError(f"no generation for {STUCK_SECONDS:g} s after {before}")
            time.sleep(0.01)
        longest, began = max(longest, time.monotonic() - began), time.monotonic()
        if outcome.tried < faults and process.poll() is None:
            time.sleep(chance.uniform(0.0, 0.5))
            with outcome.attempt(f"fault {outcome.tried}"):
                outcome.count(_fault(process, here, bucket, chance))
    outcome.notes["longest seconds without a generation"] = round(longest, 1)
    with outcome.attempt("the end"):
        assert training.differences(training.fingerprint(here), training.fingerprint(one)) == []
        with Lake.open(here / "lake") as lake:
            assert lake.commit.recorded == sizes["generations"] * STEPS
    return outcome


def _start(scratch: Path, here: Path, bucket: Path, sizes: dict[str, int]) -> subprocess.Popen[bytes]:
    there = any(bucket.glob("config.json"))
    resumes = ["--resume"] if there or any(here.glob("checkpoints/*/state.json")) else []
    ray = ["--ray", "local", "--workers", "2", "--cloud", f"file://{bucket}"]
    command = training.words("erl", here, *ray, *resumes, **sizes)
    with (scratch / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "lakepond", *command],
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=training.environment(),
        )


def _generations(here: Path) -> int:
    return len(training.log_lines(here))


def _fault(process: subprocess.Popen[bytes], here: Path, bucket: Path, chance: random.Random) -> str:
    """Kill something; returns what."""
    workers = [
        each for each in psutil.Process(process.pid).children(recursive=True) if "_Worker" in each.name()
    ]
    if workers and chance.random() < 0.6:
        os.kill(chance.choice(workers).pid, signal.SIGKILL)
        return "workers killed"
    process.kill()
    process.wait()
    if (bucket / "config.json").exists() and chance.random() < 0.5:
        shutil.rmtree(here)
        return "drivers killed and their disk lost"
    return "drivers killed"
