"""Sessions of a run: machine, device and versions each time it was started.

On the same number of cores, the same device and the same versions a resumed run ends with the same bits as
one that was never stopped. Elsewhere XLA splits its sums differently, so the last bits may differ.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lakepond._version import __version__

LIBRARIES = ("numpy", "jax", "jaxlib", "optax", "gymnax", "ale-py", "gymnasium")
JAX_SETTINGS = ("jax_default_matmul_precision", "jax_enable_x64", "jax_default_prng_impl")
IGNORED = ("memory_bytes",)
"""facts of a machine that do not change results"""


def present() -> dict[str, Any]:
    """When this process started training, its versions and its machine."""
    libraries = {}
    for name in LIBRARIES:
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "lakepond": __version__,
        "python": platform.python_version(),
        "libraries": libraries,
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            **_device(),
        },
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What may change results between two sessions: name, before, now; only facts that both have."""
    pairs = [
        (name, before[name], now[name]) for name in ("lakepond", "python") if name in before and name in now
    ]
    for part in ("libraries", "machine"):
        old, new = before.get(part), now.get(part)
        if isinstance(old, dict) and isinstance(new, dict):
            pairs += [(name, old[name], new[name]) for name in new if name in old and name not in IGNORED]
    return [(name, old, new) for name, old, new in pairs if old != new]


def _processor() -> str:
    """The model of the first core; vector instructions differ between models, and with them sums."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor()


def _device() -> dict[str, Any]:
    """What JAX computes on and how, if this process uses JAX."""
    jax = sys.modules.get("jax")
    if jax is None:
        return {}
    devices = jax.devices()
    return {
        "device": f"{len(devices)} x {devices[0].platform} {devices[0].device_kind}",
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        **{name: getattr(jax.config, name) for name in JAX_SETTINGS},
    }
