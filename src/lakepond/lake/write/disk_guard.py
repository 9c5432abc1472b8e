"""Free space: warns early, refuses commits at the floor, and names the errors of a full or read-only disk."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lakepond.errors import LakeFull, LakeReadOnly, SpecError

log = logging.getLogger("lakepond")
WARN_COMMITS = 20
"""warn when the remaining space is enough for fewer commits like the last ones than this"""
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(size: int | str) -> int:
    """A number of bytes, or a size like "20GB" (10^9) or "512 MiB" (2^20)."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", size)
    if match is None or match[2].upper() not in UNITS:
        raise SpecError(f"{size!r} is not a valid size; write it like '20GB' or '512 MiB'.")
    return int(float(match[1]) * UNITS[match[2].upper()])


class DiskGuard:
    """Watches the disks that a lake is on: `segments/` may be a link to another one than that of commits."""

    def __init__(self, folders: Sequence[Path], floor: int) -> None:
        self._folders, self.floor = folders, floor
        self._rate = 0.0  # bytes per commit, a moving average
        self._warned_at = 0

    def check(self, number: int) -> None:
        """Before a commit: `LakeFull` if less than the floor is free; a warning if it soon will be."""
        free, path = min((shutil.disk_usage(folder).free, folder) for folder in self._folders)
        if free < self.floor:
            raise LakeFull(
                errno.ENOSPC,
                f"{free:,} bytes are free at {path}, the limit is {self.floor:,}; the last commit is "
                "intact and newer steps are in memory: free some space, and the next commit continues",
            )
        left = self.commits_left(free)
        if left is not None and left < WARN_COMMITS and number >= self._warned_at:
            self._warned_at = number + max(1, int(left) // 2)
            log.warning(
                "%s: %s bytes free above the limit, %s per commit: full at about commit %d",
                path,
                f"{free - self.floor:,}",
                f"{int(self._rate):,}",
                number + int(left),
            )

    def commits_left(self, free: int) -> float | None:
        """How many more commits fit, at the rate of the last ones; None while that is not known."""
        return (free - self.floor) / self._rate if self._rate else None

    def written(self, size: int) -> None:
        """After a commit: how much it took."""
        self._rate = size if not self._rate else 0.7 * self._rate + 0.3 * size


@contextmanager
def named_errors(
    path: Path,
    *,
    creating: bool = False,
    rest: str = "what was committed is intact and newer steps are in memory",
) -> Iterator[None]:
    """Raise `LakeFull` or `LakeReadOnly`, with the same errno, for a system error that means that.

    `path`: of the lake that is written. `rest`: what the message says of the data. A full disk and an
    exceeded quota become `LakeFull`, a read-only file system `LakeReadOnly`, and so does a missing permission
    with `creating`, for a block that reads no files of the lake. Other errors pass unchanged.
    """
    try:
        yield
    except (LakeFull, LakeReadOnly):
        raise
    except OSError as error:
        code = error.errno
        if code == errno.EROFS:
            raise LakeReadOnly(
                code,
                f"{path} is on a read-only file system ({os.strerror(code)}), so nothing was written; mount "
                "it writable and try again, or use Lake.open to read a lake",
            ) from error
        if creating and code in (errno.EACCES, errno.EPERM):
            raise LakeReadOnly(
                code,
                f"{error.filename or path} may not be written by this user ({os.strerror(code)}); choose "
                "another folder, or use Lake.open to read a lake",
            ) from error
        if code == errno.ENOSPC:
            cause, step = f"the disk of {path} is full", "free some space"
        elif code == errno.EDQUOT:
            cause, step = f"the disk quota at {path} is exceeded", "delete files or raise the quota"
        else:
            raise
        raise LakeFull(
            code,
            f"{cause} ({os.strerror(code)}); {rest}: {step} and try again",
        ) from error
