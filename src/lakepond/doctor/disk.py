"""Checks of disk, memory, file system and clock; syncing and locking are tested with real files."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

from lakepond import machine
from lakepond.doctor.check import Finding, judged
from lakepond.formats import duration, size

GB = 10**9
FREE_WARN, FREE_FAIL = 20 * GB, GB
"""free disk below which the check warns, and below which it fails"""
MEMORY_WARN = 4 * GB
FILES_WARN = 256
SKEW_WARN = 60.0
"""seconds; object stores refuse signatures from about 15 minutes on"""
RELEASED = 1_793_000_000.0
"""a correct clock does not show an earlier moment: October 2026"""
FORGETFUL = ("tmpfs", "ramfs")
TRY_LOCK = """
import fcntl, sys, time
file = open(sys.argv[1])
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(7)
print("held", flush=True)
time.sleep(60)
"""


def free(path: Path) -> Finding:
    """Free space at the folder for runs."""
    left = machine.free_disk(path)
    result = f"{size(left)} free at {path.absolute()}"
    step = "free some space, or see `lakepond plan` for how much a run needs."
    return judged("disk", result, step, fail=left < FREE_FAIL, warn=left < FREE_WARN)


def memory() -> Finding:
    """Main memory."""
    has = machine.memory()
    result = f"{size(has.available)} of {size(has.total)} available"
    step = "stop other programs, or see `lakepond plan` for how much a run needs."
    return judged("memory", result, step, warn=has.available < MEMORY_WARN)


def open_files() -> Finding:
    """The limit of open files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    unlimited = limit == resource.RLIM_INFINITY
    result = "no limit" if unlimited else f"{limit:,}"
    step = f"ulimit -n {4 * FILES_WARN}"
    return judged("open files", result, step, warn=not unlimited and limit < FILES_WARN)


def sync_and_lock(path: Path) -> Iterator[Finding]:
    """What a commit needs of the file system, tested in a folder that is removed afterwards."""
    home = machine.existing(path)
    try:
        folder = Path(mkdtemp(prefix=".lakepond-doctor-", dir=home))
    except OSError as error:
        step = "choose a folder that you may write to with --path."
        yield Finding("writing", "fail", f"{home}: {error.strerror}", step)
        return
    try:
        yield sync(folder)
        yield lock(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sync(folder: Path) -> Finding:
    """Write, sync, rename and sync the folder, as a commit does; report the kind of file system."""
    from lakepond.lake.files import write_atomic

    kind = machine.file_system(folder)
    began = time.perf_counter()
    try:
        write_atomic(folder, lambda file: file.write(os.urandom(65_536)), lambda _: "probe")
    except OSError as error:
        step = "this file system cannot make a commit durable; choose another with --path."
        return Finding("sync", "fail", f"{kind}: {error.strerror}", step)
    result = f"{kind}: a synced write takes {duration(time.perf_counter() - began)}"
    step = "this file system is in memory and lost when the machine restarts; choose a disk with --path."
    return judged("sync", result, step, warn=kind in FORGETFUL)


def lock(folder: Path) -> Finding:
    """A lock that another process holds is refused, and is released when that process ends."""
    step = "two writers could damage a lake here; choose a local disk with --path."
    if wrong := _wrong_with_locks(folder / "lock"):
        return Finding("locks", "fail", wrong, step)
    kind = machine.file_system(folder)
    if kind.startswith(machine.SHARED):
        result = f"work on this machine; {kind} may not support them between machines"
        return Finding("locks", "warn", result, step)
    return Finding("locks", "pass", "work, and are released when their process ends")


def _wrong_with_locks(file: Path) -> str | None:
    file.touch()
    command = [sys.executable, "-c", TRY_LOCK, str(file)]
    with file.open() as mine, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        try:
            if other.stdout.readline() != "held\n":
                return "this file system does not support locks"
            if _takes(mine.fileno()):
                return "a lock was granted to two processes at once"
            other.kill()
            other.wait()
            return None if _takes(mine.fileno()) else "a lock outlived the process that held it"
        finally:
            other.kill()


def _takes(descriptor: int) -> bool:
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def clock(path: Path) -> Finding:
    """The clock: not in the past, and equal to the file system's."""
    now = time.time()
    result = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    step = "set it (timedatectl set-ntp true); object stores refuse requests from a wrong clock."
    if now < RELEASED:
        return Finding("clock", "fail", f"{result} is earlier than the release of this version", step)
    probe = machine.existing(path) / f".lakepond-clock-{os.getpid()}"
    try:
        probe.touch()
        skew = probe.stat().st_mtime - time.time()
    except OSError:
        return Finding("clock", "pass", result)  # another check reports that nothing can be written
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    if abs(skew) > SKEW_WARN:
        result += f"; the file system's clock differs by {skew:+,.0f} s"
    return judged("clock", result, step, warn=abs(skew) > SKEW_WARN)
