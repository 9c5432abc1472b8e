"""Check whether this machine is ready for a run. Checks use real files and objects, and show no secrets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lakepond.doctor import cloud as cloud_checks
from lakepond.doctor import disk, software
from lakepond.doctor.check import Finding

__all__ = ["Finding", "examine"]


def examine(path: Path, cloud: str | None = None) -> Iterator[Finding]:
    """All checks, one after another; `path` is the folder for runs, `cloud` the URL of a bucket."""
    yield software.python()
    yield software.core()
    yield from software.extras()
    yield software.accelerator()
    yield disk.free(path)
    yield disk.memory()
    yield disk.open_files()
    yield from disk.sync_and_lock(path)
    yield disk.clock(path)
    yield cloud_checks.credentials(os.environ)
    if cloud is not None:
        yield cloud_checks.bucket(cloud)
