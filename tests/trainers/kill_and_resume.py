"""Kill a training run at random moments and resume it, until it is done; compare it with one never killed.

    python tests/trainers/kill_and_resume.py --kills 20      the soak; `make test` does two

A kill is SIGKILL to the whole process, some random time after the run has logged one more generation, or
before its first. What is compared, bit for bit: weights, targets and optimiser states of the last checkpoint,
the metrics without those that tell of the machine, and every step of the lake with both observations.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lakepond import guards

OF_THE_MACHINE = {
    "time",
    "seconds",
    "held_seconds",
    "held_seconds_total",
    "train_seconds_total",
    "seconds_left",
    "bytes_held",
    "distinct_rows",  # docs/erl.md tells why this and the next may differ
    "lake_bytes",
    *guards.METRICS,
}
TINY = {
    "days": 400,
    "instruments": 6,
    "context": 20,
    "trading-days": 15,
    "settlement-days": 5,
    "max-holding": 5,
    "elites": 2,
    "children": 2,
    "mutants": 2,
    "fitness-episodes": 2,
    "validation-slices": 2,
    "width": 8,
    "capacity": 300,
    "learn-from": 150,
    "gradient-steps": 32,
    "batch-size": 8,
    "min-free": "1MB",
    "evaluate": "nothing",
}
"""what the command is told beside the preset `demo`: everything small, and a replay that overflows"""


def command(folder: Path, generations: int, *more: str) -> list[str]:
    options = {"out": folder, "generations": generations, **TINY}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return [sys.executable, "-m", "lakepond", "train", "erl", *words, *more]


def lines(folder: Path) -> list[dict]:
    path = folder / "metrics.jsonl"
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]


def fingerprint(folder: Path) -> dict[str, str]:
    """What must not differ: hashes of weights and steps, and the metrics."""
    from lakepond.lake.lake import Lake

    newest = max(path for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
    weights = {path.name: _hash(path.read_bytes()) for path in sorted(newest.glob("*.safetensors"))}
    plain = [{k: v for k, v in line.items() if k not in OF_THE_MACHINE} for line in lines(folder)]
    state = json.loads((newest / "state.json").read_text())["state"]
    with Lake.open(folder / "lake", state["lake_commit"]) as lake:
        batch = lake.steps(lake.commit.oldest, lake.commit.recorded)
        arrays = [
            batch.obs["window"],
            batch.obs["position"],
            batch.action,
            batch.reward,
            batch.next_obs["window"],
        ]
        arrays += [batch.next_obs["position"], batch.terminated, batch.stream, *batch.extras.values()]
        steps = _hash(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
    return {
        "checkpoint": newest.name,
        **weights,
        "metrics": "\n".join(json.dumps(line, sort_keys=True) for line in plain),
        "steps": steps,
    }


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def kill_and_resume(folder: Path, generations: int, kills: int, seed: int, env: dict[str, str]) -> list[int]:
    """Train with so many kills; returns how many generations had been logged at each."""
    draw = random.Random(seed)
    at: list[int] = []
    while True:
        last = len(at) >= kills
        done = len(lines(folder))
        process = subprocess.Popen(
            command(folder, generations, *(["--resume"] if (folder / "config.json").exists() else [])),
            env=env,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            if last:
                if process.wait(timeout=600) != 0:
                    raise RuntimeError(f"the run ended with exit code {process.returncode}")
                return at
            if draw.random() < 0.85:  # else: somewhere before its first new generation
                while len(lines(folder)) <= done and process.poll() is None:
                    time.sleep(0.005)
                time.sleep(draw.random() * 0.6)
            else:
                time.sleep(draw.uniform(0.5, 6))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0:  # it was faster than the kill
            return at
        at.append(len(lines(folder)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--generations", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        env = os.environ | {"XDG_CACHE_HOME": f"{scratch}/cache"}
        straight, broken = Path(scratch) / "straight", Path(scratch) / "broken"
        subprocess.run(command(straight, asked.generations), env=env, check=True, stdout=subprocess.DEVNULL)
        began = time.monotonic()
        at = kill_and_resume(broken, asked.generations, asked.kills, asked.seed, env)
        same = fingerprint(straight) == fingerprint(broken)
        seconds = time.monotonic() - began
    told = {"kills": len(at), "generations_at_kill": at, "bit_identical": same, "seconds": seconds}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
