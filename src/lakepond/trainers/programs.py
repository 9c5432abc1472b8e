"""Where JAX keeps the programs it has compiled, and how to make it forget those in memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


def prepare_jax() -> None:
    """Keep compiled programs in the user's cache, to start a second run at once; no warnings about GPUs."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import jax

    update: Callable[[str, Any], None] = jax.config.update
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        update("jax_compilation_cache_dir", str(Path(home) / "lakepond" / "jax"))
    update("jax_persistent_cache_min_compile_time_secs", 0.0)
    with contextlib.suppress(ImportError, AttributeError):  # not public: other versions may not have it
        _write_atomically()


@cache
def _write_atomically() -> None:
    """Have JAX rename complete entries into its cache, which it writes in place.

    Otherwise a process that is killed can leave half of an entry, which JAX never replaces: every later
    process would warn of it and compile that program again.
    """
    from jax._src import lru_cache

    in_place, suffix = lru_cache.LRUCache.put, lru_cache._CACHE_SUFFIX

    def put(cache: Any, key: str, value: bytes) -> None:
        if cache.eviction_enabled:  # by a setting of the user; JAX has to count the bytes
            in_place(cache, key, value)
            return
        entry = cache.path / f"{key}{suffix}"
        if not entry.exists():
            temporary = cache.path / f"{os.getpid()}-{os.urandom(4).hex()}.tmp"
            temporary.write_bytes(value)
            temporary.replace(entry)

    setattr(lru_cache.LRUCache, "put", put)  # noqa: B010 - mypy refuses an assignment


def forget() -> None:
    """Drop all compiled programs from memory, and give back to the system what compiling them took.

    A process that trains one thing after another holds hundreds of MB for each otherwise: JAX keeps every
    program, and the C library what the compiler freed. Those on disk stay, so that the next start is short.
    """
    import jax

    clear: Callable[[], None] = jax.clear_caches
    clear()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
