"""memory://name: a bucket that ends with the process, shared by all who use its name."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lakepond.cloud.bucket import Checks, Exists, Listed
from lakepond.errors import CloudNotFound


class _Held(NamedTuple):
    data: bytes
    etag: str
    modified: float


_BUCKETS: dict[str, dict[str, _Held]] = {}


class MemoryBucket:
    """Objects in a dict."""

    checks: Checks = "etag"

    def __init__(self, name: str) -> None:
        self._name = name
        self._held = _BUCKETS.setdefault(name, {})
        self._lock = threading.Lock()

    def put(self, name: str, data: bytes, *, create: bool, timeout: float) -> str | None:
        """Store bytes."""
        held = _Held(bytes(data), hashlib.md5(data, usedforsecurity=False).hexdigest(), time.time())
        with self._lock:
            if create and name in self._held:
                raise Exists(f"{name} already exists in memory://{self._name}.")
            self._held[name] = held
        return held.etag

    def put_file(self, name: str, path: Path, timeout: float) -> None:
        """Store a file."""
        self.put(name, path.read_bytes(), create=False, timeout=timeout)

    def get(self, name: str, timeout: float) -> Iterator[bytes]:
        """The bytes."""
        try:
            yield self._held[name].data
        except KeyError:
            raise CloudNotFound(f"memory://{self._name} has no {name}.") from None

    def head(self, name: str) -> Listed | None:
        """The entry of one object; None if there is none."""
        held = self._held.get(name)
        return None if held is None else Listed(name, len(held.data), held.etag, held.modified)

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects under a prefix."""
        for name, held in sorted(list(self._held.items())):
            if name.startswith(prefix):
                yield Listed(name, len(held.data), held.etag, held.modified)

    def folders(self, prefix: str) -> Sequence[str]:
        """The names of the folders directly below a prefix, sorted."""
        below = (name.removeprefix(prefix) for name in list(self._held) if name.startswith(prefix))
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    def delete(self, name: str) -> None:
        """Delete one object."""
        self._held.pop(name, None)
