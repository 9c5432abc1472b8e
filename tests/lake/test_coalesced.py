"""Work that commits signal: one run at a time, one more for all signals of a run, failures reported once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from lakepond.lake.write.coalesced import CoalescedTask

SECONDS = 30.0
"""until a test fails that would otherwise hang"""


class Blocked:
    """A function that waits until it may end. Counts its runs."""

    def __init__(self) -> None:
        self.began, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.runs = self.now = self.most = 0

    def __call__(self) -> None:
        self.runs, self.now = self.runs + 1, self.now + 1
        self.most = max(self.most, self.now)
        self.began.release()
        assert self.gate.acquire(timeout=SECONDS)
        self.now -= 1


def threads() -> int:
    return sum(thread.name == "lakepond-test" for thread in threading.enumerate())


def test_signals_during_a_run_are_served_by_one_more_and_close_waits_for_it():
    run = Blocked()
    task = CoalescedTask(run, "lakepond-test", "the test failed")
    task.signal()
    assert run.began.acquire(timeout=SECONDS)
    for _ in range(100):
        task.signal()
    assert run.runs == threads() == 1
    assert not task.close(0.0)  # it runs
    run.gate.release(2)
    assert task.close(SECONDS)
    assert (run.runs, run.most, task.failures) == (2, 1, 0)
    task.signal()
    assert task.close(0.0)
    assert run.runs == 2


def test_a_failure_is_counted_each_time_and_logged_once_until_a_success(caplog):
    fails, done = [True], threading.Semaphore(0)

    def run() -> None:
        done.release()
        if fails[0]:
            raise OSError(5, f"attempt {task.failures}")

    task = CoalescedTask(run, "lakepond-test", "the test failed")
    for number, fail in enumerate((True, True, True, False, True)):
        fails[0] = fail
        task.signal()
        assert done.acquire(timeout=SECONDS)
        with task._change:
            assert task._change.wait_for(lambda: not task._running, SECONDS)
        assert caplog.text.count("the test failed") == (2 if number == 4 else 1)
    assert task.failures == 4
    assert threads() == 0


def test_a_thread_that_cannot_be_started_is_an_error_and_the_next_signal_starts_one(monkeypatch):
    run = Blocked()
    task = CoalescedTask(run, "lakepond-test", "the test failed")
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError(why)

    monkeypatch.setattr(threading.Thread, "start", refused)
    why = "can't start new thread"
    with pytest.raises(RuntimeError, match=why):
        task.signal()
    why = "can't create new thread at interpreter shutdown"
    task.signal()  # nothing is said while the interpreter exits
    monkeypatch.setattr(threading.Thread, "start", start)
    task.signal()
    run.gate.release()
    assert task.close(SECONDS)
    assert run.runs == 1


def test_a_forked_child_does_not_wait_for_the_run_of_its_parent():
    """In a process of its own, because this one may hold JAX, which must not be forked."""
    program = """
        import os, warnings
        from test_coalesced import Blocked, CoalescedTask, SECONDS
        run = Blocked()
        task = CoalescedTask(run, "lakepond-test", "the test failed")
        task.signal()
        assert run.began.acquire(timeout=SECONDS)
        task.signal()  # one more run is due in the parent
        with task._change:  # a copy of a locked lock
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: there are several threads
            child = os.fork()
        if child == 0:
            os._exit(0 if task.close(0.0) and run.runs == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        run.gate.release(2)
        assert task.close(SECONDS)
        assert run.runs == 2
    """
    line = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    done = subprocess.run(line, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
