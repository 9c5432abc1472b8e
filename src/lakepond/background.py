"""Calls on daemon threads, for requests to a server that may stall: nothing waits for them at an error.

The threads of `concurrent.futures` are joined when the process ends, and its pools when their block ends. So
an error, Ctrl-C or the end of the process would wait for each request that a stalled server does not answer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")
LOOK_SECONDS = 0.1
"""seconds between checks of `stop`, and for Ctrl-C"""


def results(
    call: Callable[[S], T], items: Iterable[S], threads: int, name: str, stop: threading.Event | None = None
) -> Iterator[T]:
    """Yield `call(item)` for each item, in order, computed on some daemon threads.

    Raises the first error of a call, `CancelledError` once `stop` is set. Then no further call is started,
    and those that run are left to themselves. If no thread can be started, as when the interpreter exits, all
    calls are made in this thread before the first result is yielded.
    """
    items = list(items)
    waiting = deque(enumerate(items))
    ended: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()

    def work() -> None:
        while stop is None or not stop.is_set():
            try:
                at, item = waiting.popleft()
            except IndexError:
                return
            try:
                ended.put((at, call(item), None))
            except BaseException as error:
                waiting.clear()
                ended.put((at, None, error))

    found: dict[int, T] = {}
    try:
        for started in range(min(threads, len(items))):
            try:
                threading.Thread(target=work, name=name, daemon=True).start()
            except RuntimeError:  # at interpreter exit, or there are too many threads
                if not started:
                    work()
                break
        for at in range(len(items)):
            while at not in found:
                each, result, error = _next(ended, stop)
                if error is not None:
                    try:
                        raise error
                    finally:
                        del error  # its traceback names this frame: a cycle would keep what the calls held
                found[each] = result
            yield found.pop(at)
    finally:
        waiting.clear()


def run(call: Callable[[], T], name: str, stop: threading.Event | None = None) -> T:
    """Return `call()`, made on a daemon thread; `CancelledError` once `stop` is set."""
    (result,) = results(lambda _: call(), [None], 1, name, stop)
    return result


def check(stop: threading.Event | None) -> None:
    """Raise `CancelledError` once `stop` is set."""
    if stop is not None and stop.is_set():
        raise CancelledError("it was closed while it waited for a server.")


def is_exiting(error: RuntimeError) -> bool:
    """Whether no thread or task could be started because the interpreter exits.

    A pool whose threads have ended for that reason only says "after shutdown"; one of lakepond that was
    closed has another message.
    """
    return "shutdown" in str(error)


def _next(ended: SimpleQueue[T], stop: threading.Event | None) -> T:
    """Wait for the next item of a queue; raise `CancelledError` once `stop` is set."""
    while True:
        check(stop)
        try:
            return ended.get(timeout=LOOK_SECONDS)
        except Empty:
            continue
