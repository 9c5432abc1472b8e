"""Checks of Python, the libraries, and the device that JAX uses."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lakepond._version import __version__
from lakepond.doctor.check import Finding

CORE = ("numpy", "numba", "pyarrow", "xxhash", "zstandard", "tyro", "rich")
EXTRAS = {
    "train": ("jax", "optax", "safetensors", "matplotlib"),
    "cloud": ("obstore",),
    "minatar": ("gymnax",),
    "atari": ("gymnasium", "ale-py"),
}


def python() -> Finding:
    """Python and the system."""
    system = f"{platform.system()} {platform.machine()}"
    result = f"Python {platform.python_version()} on {system}, lakepond {__version__}"
    if platform.system() != "Linux":
        step = "lakepond runs on Linux only; use a Linux machine or container."
        return Finding("python", "fail", result, step)
    return Finding("python", "pass", result)


def core() -> Finding:
    """The libraries that lakepond requires."""
    there, missing = _versions(CORE)
    if missing:
        step = "pip install --upgrade lakepond"
        return Finding("libraries", "fail", f"missing: {', '.join(missing)}", step)
    return Finding("libraries", "pass", there)


def extras() -> Iterator[Finding]:
    """The libraries of each extra."""
    for extra, names in EXTRAS.items():
        there, missing = _versions(names)
        if missing:
            yield Finding(extra, "warn", f"missing: {', '.join(missing)}", f"pip install 'lakepond[{extra}]'")
        else:
            yield Finding(extra, "pass", there)


def _versions(names: tuple[str, ...]) -> tuple[str, list[str]]:
    there, missing = [], []
    for name in names:
        try:
            there.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    return ", ".join(there), missing


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
