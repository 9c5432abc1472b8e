"""Locks on files (flock), which end with their process: of writers, of readers of commits and segments."""

from __future__ import annotations

import errno
import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self
from weakref import WeakSet

from lakepond import forks
from lakepond.errors import LakeError, LakeLocked, LakeReadOnly
from lakepond.lake.format.names import delete

BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
ASK_SECONDS = 0.01
"""between two tries to lock a file"""
DECIDE_SECONDS = 0.5
"""how long a commit may be locked by retention, which may keep it after all, until it counts as deleted"""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FileLock:
    """A file opened to be locked with flock, until `close`.

    A forked child does not inherit it: flock belongs to the open file, so an unlock in the child would take
    the parent's lock away, and a child that outlives its parent would keep the file locked.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        _open_locks.add(self)
        forks.register(self)

    def lock(self, how: int) -> None:
        """Lock the file as `fcntl.flock` does: LOCK_SH or LOCK_EX, with LOCK_NB to not wait.

        `LakeError` if the file system has no locks.
        """
        try:
            fcntl.flock(self.descriptor, how)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise LakeError(
                f"the file system of {self.path.parent} does not support file locks ({error.strerror}); put "
                "the lake on a local disk, or mount the file system with locks."
            ) from error

    def wait(self, seconds: float) -> None:
        """Lock the file alone; `LakeLocked` if another process, which may be stopped, has it for so long."""
        until = time.monotonic() + seconds
        while True:
            try:
                return self.lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in BUSY:
                    raise
            if time.monotonic() >= until:
                raise LakeLocked(
                    f"another process has had {self.path} locked for {seconds:g} s; if it is stopped, "
                    "continue or end it, then try again."
                )
            time.sleep(ASK_SECONDS)

    def close(self) -> None:
        """Unlock and close the file."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            _open_locks.discard(self)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked without Python has a copy, too
            os.close(descriptor)

    def restart_in_child(self) -> None:
        """Close the child's copy, which leaves the parent's lock as it is."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_open_locks: WeakSet[FileLock] = WeakSet()


def pin(file: Path) -> FileLock | None:
    """Keep a file on this disk until the lock is closed; FileNotFoundError if it has left.

    None if it cannot be locked: this user may not write it, or the file system has no locks.
    """
    try:
        lock = FileLock(file)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return None
        raise
    try:
        lock.lock(fcntl.LOCK_SH)
    except LakeError:
        lock.close()
        return None
    if not os.fstat(lock.descriptor).st_nlink:
        lock.close()
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    return lock


def evict(file: Path) -> bool:
    """Delete a file of a lake unless a process has pinned it; returns whether it is gone."""
    try:
        with FileLock(file) as lock:
            lock.lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
            return delete(file)
    except FileNotFoundError:
        return True
    except LakeError:  # no locks
        return delete(file)
    except OSError as error:
        if error.errno in BUSY:
            return False
        raise


class WriterLock(FileLock):
    """At most one process, and one object in it, writes a lake under one name."""

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path, create=True)
        except OSError as error:
            if error.errno == errno.EROFS:
                raise LakeReadOnly(
                    error.errno, f"{path.parent} is on a read-only file system; Lake.open reads it."
                ) from None
            if error.errno in (errno.EACCES, errno.EPERM):
                raise LakeReadOnly(
                    error.errno, f"{path.parent} may not be written by this user; Lake.open reads it."
                ) from None
            raise
        try:
            self.lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (LakeError, OSError) as error:
            self.close()
            if not isinstance(error, OSError) or error.errno not in BUSY:
                raise
            place = path.resolve()
            here = any(lock.path.resolve() == place and lock.descriptor >= 0 for lock in list(_open_locks))
            who = "this process already" if here else "another process"
            raise LakeLocked(
                f"{path.parent} is being written by {who}; close that with replay.close(), or only "
                "read the lake, with lp.Lake.open(path)."
            ) from None


class CommitLock:
    """A shared lock on the file of a commit that is being read: retention keeps the commit meanwhile.

    Works without write permission, and in other processes. A forked child shares the lock of its parent: the
    commit is kept until both have closed it. On a file system without locks it does nothing.
    """

    def __init__(self, path: Path) -> None:
        """FileNotFoundError if the file is gone or being deleted; one that is replaced is opened again."""
        until = time.monotonic() + DECIDE_SECONDS
        while True:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _lock_shared(descriptor) and os.fstat(descriptor).st_nlink:
                    break
                if time.monotonic() > until:
                    raise FileNotFoundError(errno.ENOENT, "it is being deleted", str(path))
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            time.sleep(0.001)
        self.close = weakref.finalize(self, os.close, descriptor)
        """unlocks the file; can be repeated, and happens by itself when the lock is dropped"""
        self.close.atexit = False


def _lock_shared(descriptor: int) -> bool:
    """Whether retention is not just deciding about this file, which is locked for reading then."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


@contextmanager
def unread(path: Path) -> Iterator[bool]:
    """Whether no process reads the commit with this file; until the end of the block none can start to."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError as error:
            free = error.errno in NO_LOCKS
        yield free
    finally:
        os.close(descriptor)
