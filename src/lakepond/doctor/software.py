"""Checks of Python, the libraries, and the device that JAX uses; and compiling ahead of time."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lakepond._version import __version__
from lakepond.doctor.check import Finding, judged
from lakepond.formats import duration

CORE = ("numpy", "numba", "pyarrow", "xxhash", "zstandard", "tyro", "rich")
EXTRAS = {
    "train": ("jax", "optax", "safetensors", "matplotlib"),
    "cloud": ("obstore",),
    "minatar": ("gymnax",),
    "atari": ("gymnasium", "ale_py"),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboardX",),
}
"""modules of each extra that its users import"""


def python() -> Finding:
    """Python and the system."""
    system = f"{platform.system()} {platform.machine()}"
    result = f"Python {platform.python_version()} on {system}, lakepond {__version__}"
    step = "lakepond runs on Linux only; use a Linux machine or container."
    return judged("python", result, step, fail=platform.system() != "Linux")


def core() -> Finding:
    """The libraries that lakepond requires."""
    result, complete = _versions(CORE)
    return judged("libraries", result, "pip install --upgrade lakepond", fail=not complete)


def extras() -> Iterator[Finding]:
    """The libraries of each extra."""
    for extra, names in EXTRAS.items():
        result, complete = _versions(names)
        yield judged(extra, result, f"pip install 'lakepond[{extra}]'", warn=not complete)


def _versions(names: tuple[str, ...]) -> tuple[str, bool]:
    """The versions of some libraries and True, or the names of those that are missing and False."""
    there, missing = [], []
    for name in names:
        try:
            there.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    return (f"missing: {', '.join(missing)}", False) if missing else (", ".join(there), True)


def accelerator() -> Finding:
    """The device that JAX uses, queried in a separate process because a broken driver may hang."""
    ask = "import jax; d = jax.devices(); print(d[0].platform, len(d), d[0].device_kind, sep='|')"
    try:
        done = subprocess.run(
            [sys.executable, "-c", ask], capture_output=True, text=True, timeout=90, check=False
        )
    except subprocess.TimeoutExpired:
        step = "run nvidia-smi; restart the machine."
        return Finding("accelerator", "fail", "JAX did not answer in 90 s", step)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Finding("accelerator", "warn", f"JAX cannot be used: {why}", "pip install 'lakepond[train]'")
    kind, count, name = done.stdout.strip().splitlines()[-1].split("|")
    if kind == "cpu" and any(Path("/dev").glob("nvidia[0-9]*")):
        result = "none; JAX uses the CPU, although there is a GPU"
        return Finding("accelerator", "warn", result, "pip install 'jax[cuda12]'")
    if kind == "cpu":
        step = "fine for small runs; use a machine with a GPU for large ones."
        return Finding("accelerator", "warn", "none; JAX uses the CPU", step)
    return Finding("accelerator", "pass", f"{count} x {name}")


def warm_up() -> Finding:
    """Record, sample and evict small frames, so that all compiled functions run once."""
    import numpy as np

    from lakepond.replay import Replay
    from lakepond.types import Field, RowSource, Spec, WindowRef

    began = time.perf_counter()
    step: dict[str, Any] = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}
    frames = np.arange(80 * 8 * 8, dtype=np.float32).reshape(80, 8, 8)
    source = RowSource(frames)
    replay = Replay(Spec(obs=Field((4, 8, 8), "float32")), 32, alpha=0.6)
    for t in range(4, 70):
        windows: Any = (frames[t - 4 : t], frames[t - 3 : t + 1])
        if t % 2:
            windows = (WindowRef(source, t), WindowRef(source, t + 1))
        replay.record(obs=windows[0], next_obs=windows[1], **step)
    batch = replay.sample(8, n_step=3, gamma=0.99)
    replay.update_priorities(batch.step_id, np.ones(8))
    replay.clear()
    for dtype in ("uint8", "float32", "float64"):
        for shape in ((84, 84), (4, 84, 84)):
            pixels = Replay(Spec(obs=Field(shape, dtype)), 4)
            obs = np.zeros(shape, dtype)
            pixels.record(obs=obs, next_obs=obs, **step)
            pixels.sample(1)
    took = duration(time.perf_counter() - began)
    return Finding("compiled", "pass", f"in {took}; later starts load it from disk")
