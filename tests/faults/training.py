"""The four trainers as commands, so small that a run takes seconds, and what must not differ between runs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from lakepond import guards

OF_THE_MACHINE = {
    "time",
    "bytes_held",
    "distinct_rows",  # docs/erl.md says why this and the next may differ
    "lake_bytes",
    "workers",
    "workers_alive",
    "worker_restarts",
    *guards.METRICS,
}
"""metrics that describe the machine; beside them everything that is measured in seconds"""

ERL = {
    "generations": 6,
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
    "min-free": "1",
    "evaluate": "nothing",
}
GAME = {"hidden": 8, "rollout": 16, "minibatches": 2, "checkpoint-every": 1, "evaluation-episodes": 4}
GAME |= {"evaluation-steps": 300, "min-free": "0"}
SETTINGS: dict[str, dict[str, Any]] = {
    "erl": ERL,
    "single": {**GAME, "env-steps": 2_048, "evaluate-every": 512, "envs": 8},
    "mixture": {
        **GAME,
        **{"env-steps": 3_072, "reset-every": 1_024, "evaluate-every": 512, "envs": 4, "pond": 192},
        **{"big-pond": 2_000, "big-batch": 64},
    },
    "live": {**GAME, "env-steps": 3_200, "evaluate-every": 640, "envs": 4, "big-envs": 4, "big-pond": 1_000},
}
TRAINERS = tuple(SETTINGS)
FORGET_EVERY = 20
"""trainings in one process after which its compiled programs are dropped: with the programs of 200, it has as
many memory mappings as Linux allows"""
_trainings = itertools.count()
START_OVER = "--start-over"
"""the option that moves the data of an earlier run out of the way"""


def words(trainer: str, folder: Path, *more: str, **other: Any) -> list[str]:
    """The command line of a trainer after `lakepond`; `other` replaces settings."""
    settings = {**SETTINGS[trainer], **{name.replace("_", "-"): value for name, value in other.items()}}
    options = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    return ["train", trainer, "--out", str(folder), *options, *more]


def environment() -> dict[str, str]:
    """Of a process that trains: compiled programs are shared by all."""
    cache = Path(__file__).parents[2] / ".cache" / "jax-tests"
    shared = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return {**shared, **os.environ}


def resuming(trainer: str, folder: Path) -> list[str]:
    """The option that continues a run; only `erl` has one, and only where there is something to resume."""
    started = any((folder / "checkpoints").glob("[0-9]*/state.json"))
    return ["--resume"] if trainer == "erl" and started else []


def train_here(trainer: str, folder: Path, *given: str, **other: Any) -> None:
    """Train to the end in this process: with the given options, or from where the folder's run stopped."""
    from lakepond.cli import main
    from lakepond.trainers import programs

    if next(_trainings) % FORGET_EVERY == FORGET_EVERY - 1:
        programs.forget()

    def run(*more: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as shown:
            return main(words(trainer, folder, *more, **other)), shown.getvalue()

    code, shown = run(*(given or resuming(trainer, folder)))
    if code and not given and START_OVER in shown:  # it was killed before its first checkpoint
        code, shown = run(START_OVER)
    assert code == 0, f"exit code {code}: {shown[-500:]}"


def log_lines(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's log."""
    path = folder / "metrics.jsonl"
    complete = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in complete]


def fingerprint(folder: Path) -> dict[str, str]:
    """What must not differ: hashes of the newest checkpoint's arrays and of the steps, and the metrics."""
    newest = max(path for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
    arrays = {path.name: _hash(path.read_bytes()) for path in sorted(newest.glob("*.safetensors"))}
    commit = json.loads((newest / "state.json").read_text())["state"].get("lake_commit")
    return {
        "checkpoint": newest.name,
        **arrays,
        "metrics": metrics(folder),
        "steps": "" if commit is None else _steps(folder / "lake", commit),
    }


def metrics(folder: Path) -> str:
    """The log without what describes the machine."""
    shown = [
        {name: value for name, value in line.items() if name not in OF_THE_MACHINE and "second" not in name}
        for line in log_lines(folder)
    ]
    return "\n".join(json.dumps(line, sort_keys=True) for line in shown)


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """The names of what differs between two fingerprints."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def _steps(path: Path, commit: int) -> str:
    from lakepond.lake.read.lake import Lake
    from lakepond.types import leaves

    with Lake.open(path, commit) as lake:
        lake.verify()
        batch = lake.steps(lake.commit.oldest, lake.commit.recorded)._asdict()
    arrays = [
        np.ascontiguousarray(leaf) for _, leaf in leaves({k: v for k, v in batch.items() if v is not None})
    ]
    return _hash(b"".join(array.tobytes() for array in arrays))


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
