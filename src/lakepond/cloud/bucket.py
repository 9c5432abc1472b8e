"""A bucket: named bytes, put, listed, got and deleted. One protocol, three kinds.

    local.py    a folder, with a writer of our own that syncs        file://
    memory.py   a dict, for tests                                    memory://
    remote.py   obstore                                              gs://  s3://  az://

A bucket does one try of one thing and raises a `CloudError`; patience and checks are in `store.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from lakepond.errors import CloudConflict, CloudCorrupt

Checks = Literal["etag", "read", "own"]
"""how a write is checked: the server reports the MD5; it must be read back; the bucket did it itself"""

LONGEST_PART = 255
"""bytes between two slashes of a key: the longest file name of common file systems"""


class Listed(NamedTuple):
    """The entry of one object in a listing."""

    name: str
    size: int
    etag: str | None
    modified: float
    """by the server's clock, seconds since 1970"""

    @property
    def md5(self) -> str | None:
        """The MD5 of its bytes, if the ETag looks like one."""
        return self.etag if self.etag is not None and re.fullmatch(r"[0-9a-f]{32}", self.etag) else None


class Exists(CloudConflict):
    """There is an object of that name already."""


class Unlistable(CloudCorrupt):
    """The client fails on a listing because of a key that it cannot name."""


def valid_name(name: str) -> bool:
    """Whether a key, without its place, is a relative path that can be written below a folder.

    Other keys (`//x`, `../x`, `x/`, control characters, parts longer than a file name) were not written by
    lakepond and are ignored.
    """
    parts = name.split("/")
    return not re.search(r"[\x00-\x1f\x7f\\\ud800-\udfff]", name) and all(
        part not in ("", ".", "..") and len(part.encode()) <= LONGEST_PART for part in parts
    )


class Bucket(Protocol):
    """Names are keys with slashes; `timeout` is in seconds."""

    checks: Checks

    def put(self, name: str, data: bytes, *, create: bool, timeout: float) -> str | None:
        """Store bytes in one request and return the ETag; with `create`, `Exists` if the name is taken."""

    def put_file(self, name: str, path: Path, timeout: float) -> None:
        """Store a file of any size, piece by piece, over whatever has that name."""

    def get(self, name: str, timeout: float) -> Iterator[bytes]:
        """The bytes, piece by piece."""

    def head(self, name: str) -> Listed | None:
        """The entry of one object; None if there is none."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects under a prefix, in any order; an object may come twice."""

    def folders(self, prefix: str) -> Sequence[str]:
        """The names of the folders directly below a prefix, sorted; one request, whatever is in them."""

    def delete(self, name: str) -> None:
        """Delete one object; it need not be there."""
