"""What a trainer asks of the machine: memory, and a place for compiled programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CACHE_SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
"""what `prepare_jax` sets"""


def memory_available() -> int:
    """Bytes that can be taken without swapping: the kernel's estimate, within the cgroup's limit."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
            break
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (most := limit.read_text().strip()).isdigit():
        free = min(free, max(0, int(most) - int(used.read_text())))
    return free


def memory_used() -> int:
    """Bytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def prepare_jax() -> None:
    """Keep compiled programs in the user's cache, so that a second run starts at once; no talk about GPUs."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import jax

    update: Callable[[str, Any], None] = jax.config.update
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        update(CACHE_SETTINGS[0], str(Path(home) / "lakepond" / "jax"))
    update(CACHE_SETTINGS[1], 0.2)
