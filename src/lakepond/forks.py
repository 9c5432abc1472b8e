"""Fork: a child has one thread, and a copy of every lock in the state it had at that moment.

An object that owns locks or threads registers here. While the process forks, no other thread is inside the
locks given to `hold_still`, so the child's copy of what they protect is consistent. In the child,
`restart_in_child` of each object then makes new locks and forgets threads that do not exist there.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Lock(Protocol):
    """A lock that its owner may acquire twice: `threading.RLock`."""

    def acquire(self) -> bool:
        """Wait for it."""

    def release(self) -> None:
        """Undo one `acquire`."""


class Restartable(Protocol):
    """What can be registered."""

    def restart_in_child(self) -> None:
        """Replace all locks and threads; called in a forked child before anything else runs there."""


_numbers = itertools.count()
_owners: weakref.WeakValueDictionary[int, Restartable] = weakref.WeakValueDictionary()
_still: weakref.WeakSet[Any] = weakref.WeakSet()
_forking = threading.RLock()
_acquired: list[Lock] = []


def register(owner: Restartable) -> None:
    """Have an object restarted in every forked child, for as long as it lives; in the order of calls."""
    _owners[next(_numbers)] = owner


def hold_still(lock: Lock) -> None:
    """Acquire this lock around every fork. Its holders must never wait for another thread."""
    _still.add(lock)


class ThreadPool(Executor):
    """A thread pool that starts when it is first used; a forked child starts one of its own."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads, self._name = threads, name
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        register(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function on one of the threads."""
        pool = self._pool
        if self._closed:
            raise RuntimeError(f"the pool {self._name!r} was shut down; open the object it belongs to again.")
        if pool is None:
            pool = self._pool = ThreadPoolExecutor(self._threads, self._name)
        return pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait, cancel_futures=cancel_futures)

    def restart_in_child(self) -> None:
        """The parent's threads do not exist here."""
        self._pool = None


def _before() -> None:
    for lock in (_forking, *_still):  # one thread forks at a time: two would wait for each other's locks
        lock.acquire()
        _acquired.append(lock)


def _release() -> None:
    while _acquired:
        _acquired.pop().release()


def _in_child() -> None:
    _release()
    for owner in list(_owners.values()):
        owner.restart_in_child()


os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
