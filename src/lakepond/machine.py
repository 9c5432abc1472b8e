"""What this machine has: disk, memory, accelerator. Read from the system without a library.

In a container the limit of its control group counts, not what the host has.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""control groups of both versions: folder, limit, usage, and the page cache in `memory.stat`"""
SHARED = ("nfs", "cifs", "smb", "fuse", "9p", "lustre", "beegfs", "ceph")
"""how the types of file systems begin that several machines may share"""


@dataclass(frozen=True)
class Memory:
    """Main memory, in bytes."""

    total: int
    available: int
    """what processes could still take without swapping"""


def memory() -> Memory:
    """Main memory: the smaller of what the system has and what this container may use."""
    fields = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    total, available = fields["MemTotal"], fields["MemAvailable"]
    for folder, limit_name, used_name, cache_name in _CGROUPS:
        try:
            limit, used = (int((folder / name).read_text()) for name in (limit_name, used_name))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such control group, or its limit is "max"
            continue
        if limit < total:  # the page cache counts as used there, but the system takes it back when needed
            used -= int(stat.get(cache_name, 0))
            total, available = limit, min(available, max(0, limit - used))
    return Memory(total, available)


def resident(pid: int | None = None) -> int | None:
    """The resident bytes of a process, None if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def free_disk(path: str | Path) -> int:
    """The bytes that are free where a path is, or will be."""
    return shutil.disk_usage(existing(path)).free


def existing(path: str | Path) -> Path:
    """The path, or its nearest parent that exists."""
    path = Path(path).absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def file_system(path: Path) -> str:
    """The type of the file system a path is on, as the kernel calls it."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, name, *_ = line.split(" ")
        point = point.encode().decode("unicode_escape")
        inside = str(path.absolute()) == point or str(path.absolute()).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind


def device_memory() -> tuple[int, int] | None:
    """Bytes in use and in all on the first accelerator; None without one, or before JAX is loaded."""
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_in_use" not in stats or "bytes_limit" not in stats:
        return None
    return int(stats["bytes_in_use"]), int(stats["bytes_limit"])


def lock_holder(file: str | Path) -> int | None:
    """The process that holds a lock on a file, according to the kernel; None if none does.

    Asking takes no lock, so nobody who wants it is in the way.
    """
    try:
        file_info = os.stat(file)
    except FileNotFoundError:
        return None
    device = f"{os.major(file_info.st_dev):02x}:{os.minor(file_info.st_dev):02x}:{file_info.st_ino}"
    for line in Path("/proc/locks").read_text().splitlines():
        parts = line.split()
        if parts[1] == "FLOCK" and parts[5] == device:
            return int(parts[4])
    return None
