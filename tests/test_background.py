"""Calls on daemon threads: results in order, and nothing waits for a call that hangs."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from lakepond import background, forks


def refuse_threads(monkeypatch, after: int = 0) -> None:
    """Start only `after` threads of lakepond, as Python does at exit from 3.12 on."""
    start, left = threading.Thread.start, iter(range(after))

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("lakepond-") and next(left, None) is None:
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_results_come_in_the_order_of_the_items():
    def slowest_first(n: int) -> int:
        time.sleep(0.02 * (3 - n))
        return 10 * n

    assert list(background.results(slowest_first, range(4), 4, "test")) == [0, 10, 20, 30]
    assert list(background.results(slowest_first, [], 4, "test")) == []


def test_the_first_error_is_raised_though_another_call_hangs_and_no_further_one_is_started():
    answers, called = threading.Event(), []

    def call(n: int) -> None:
        called.append(n)
        if n == 0:
            answers.wait(60)
        raise OSError(f"item {n}")

    try:
        with pytest.raises(OSError, match="item 1"):
            list(background.results(call, range(100), 2, "test"))
        assert len(called) < 100
    finally:
        answers.set()


@pytest.mark.parametrize("threads", [0, 1])
def test_what_a_call_held_is_freed_with_its_error(monkeypatch, threads):
    refuse_threads(monkeypatch, threads)
    held: list[weakref.ref[threading.Event]] = []

    def call() -> None:
        large = threading.Event()
        held.append(weakref.ref(large))
        raise OSError

    gc.disable()
    try:
        with suppress(OSError):
            background.run(call, "lakepond-test")
        wait_for(lambda: held[0]() is None)
    finally:
        gc.enable()


def test_a_call_is_left_to_itself_once_it_is_stopped():
    answers, stop = threading.Event(), threading.Event()
    threading.Timer(0.05, stop.set).start()
    try:
        with pytest.raises(CancelledError):
            background.run(lambda: answers.wait(60), "test", stop)
    finally:
        answers.set()
    assert background.run(lambda: 7, "test") == 7


@pytest.mark.parametrize("count", [0, 1])
def test_calls_are_made_though_threads_cannot_be_started(monkeypatch, count):
    refuse_threads(monkeypatch, count)
    assert list(background.results(lambda n: 10 * n, range(4), 4, "lakepond-test")) == [0, 10, 20, 30]


def test_without_threads_errors_are_raised_and_nothing_is_called_once_it_is_stopped(monkeypatch):
    refuse_threads(monkeypatch)
    stop, called = threading.Event(), []

    def call(n: int) -> None:
        called.append(n)
        if n == 1:
            stop.set()
        if n == 3:
            raise OSError(f"item {n}")

    with pytest.raises(CancelledError):
        list(background.results(call, range(4), 4, "lakepond-test", stop))
    assert called == [0, 1]
    with pytest.raises(OSError, match="item 3"):
        list(background.results(call, range(2, 9), 4, "lakepond-test"))
    assert called == [0, 1, 2, 3]


def test_errors_of_threads_and_pools_at_exit_are_distinguished_from_others():
    for text in ("create new thread at interpreter", "schedule new futures after interpreter", "after"):
        assert background.is_exiting(RuntimeError(f"cannot {text} shutdown"))
    assert not background.is_exiting(RuntimeError("can't start new thread"))
    pool = forks.ThreadPool(1, "test")
    pool.shutdown()
    with pytest.raises(RuntimeError) as closed:
        pool.submit(print)
    assert not background.is_exiting(closed.value)
