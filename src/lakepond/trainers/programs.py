"""Where JAX keeps the programs it has compiled."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CACHE_SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
"""what `prepare_jax` sets"""


def prepare_jax() -> None:
    """Keep compiled programs in the user's cache, so that a second run starts at once; no talk about GPUs."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import jax

    update: Callable[[str, Any], None] = jax.config.update
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        update(CACHE_SETTINGS[0], str(Path(home) / "lakepond" / "jax"))
    update(CACHE_SETTINGS[1], 0.2)
