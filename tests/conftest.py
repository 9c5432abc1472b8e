import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from faults import heed_signals
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
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# XLA compiles a trainer in half the time so, to slower programs; `make soak` trains without it
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

# processes that tests start find `reference` and `faults`, too
paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)

heed_signals()


def fsync_without_waiting(file: Any) -> None:
    """Only check the descriptor, as `os.fsync` does: no test loses power, and each sync waits for the disk.

    That files and folders are synced, and in which order, is proven by the recorded operations of
    `tests/faults`, which note each call, whatever it does.
    """
    os.fstat(file if isinstance(file, int) else file.fileno())


os.fsync = fsync_without_waiting

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
if os.geteuid() == 0:  # small disks that tests mount are unmounted with the process, however it ends
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)


@pytest.fixture(autouse=True)
def _no_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as they are without a terminal, whatever the shell that starts the tests exports."""
    monkeypatch.delenv("COLUMNS", raising=False)


ON_A_CLUSTER = {
    f"tests/distributed/test_{name}.py" for name in ("erl_on_ray", "mixture_on_ray", "collectors", "workers")
}
"""files that use the Ray cluster of three nodes, which takes many seconds to start"""
LONGEST = [
    *("trainers/test_games", "distributed", "faults/test_crash_points", "lake/test_manifests", "test_docs"),
    *("faults/test_signals", "trainers/test_erl_presets", "trainers/test_history", "agents/test_fleet"),
    *("trainers/test_erl", "trainers/test_training_on_a_full_disk", "cloud/test_rules"),
    *("report/test_view_page", "lake/test_scale", "pond/test_device", "lake/test_full_disk"),
    "format/test_independent_reader",
]
"""files that take longest, and folders with such files"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--no-loadscope-reorder`: start the longest files first, so that all processes end together."""
    names = [f"tests/{name}" for name in LONGEST]

    def rank(item: pytest.Item) -> int:
        starts = (at for at, name in enumerate(names) if item.nodeid.startswith((f"{name}/", f"{name}.py")))
        return next(starts, len(names))

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, one process has all files that use the cluster, so that it is started once."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneCluster(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "cluster" if file in ON_A_CLUSTER else file

    return OneCluster(config, log)


HANDLERS = {number: signal.getsignal(number) for number in stopping.SIGNALS}


@pytest.fixture(autouse=True)
def _signal_handlers_are_restored() -> Iterator[None]:
    """Restore the handlers of the start, and fail a test that left one of lakepond's.

    Others install handlers for good: TorchRL's `LazyMemmapStorage`, and Ray when a cluster is started for all
    tests of a session. A later test that sends itself a signal would fail, or end its worker.
    """
    yield
    deferred, stopping._deferred = stopping._deferred, None
    left = [handler for number in HANDLERS if (handler := signal.getsignal(number)) != HANDLERS[number]]
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)
    assert deferred is None
    assert not [handler for handler in left if getattr(handler, "__module__", "").startswith("lakepond")]


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
