import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from lakepond import stopping

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, derandomize=True
)
settings.register_profile(
    "soak", parent=settings.get_profile("default"), max_examples=2000, derandomize=False
)
settings.load_profile(os.environ.get("LAKEPOND_HYPOTHESIS", "default"))

# what one test has compiled, another, in this process or the next, need not compile again
CACHE = Path(__file__).parents[1] / ".cache" / "jax-tests"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

# a shell that starts the tests in the background ignores these, and so would every process that a test sends
# them to
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
if os.geteuid() == 0:  # small disks that tests mount are unmounted with the process, however it ends
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)


@pytest.fixture(autouse=True)
def _no_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as they are without a terminal, whatever the shell that starts the tests exports."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def _signal_handlers_are_restored() -> Iterator[None]:
    """Fail the test that leaves a signal handler behind, not a later one that sends itself a signal."""
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    yield
    left = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    deferred, stopping._deferred = stopping._deferred, None
    changed = {number: left[number] for number, handler in before.items() if left[number] != handler}
    for number in changed:
        signal.signal(number, before[number])
    ours = [
        each for each in changed.values() if "lakepond" in (getattr(each, "__module__", None) or "lakepond")
    ]
    assert not ours  # tensordict, say, installs handlers when it is first used
    assert deferred is None


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20_261_115)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Under CI nothing may be skipped: a skip that would hide a missing install fails instead."""
    report = yield
    if os.environ.get("LAKEPOND_NO_SKIPS") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped, which CI does not allow: {report.longrepr}"
    return report
