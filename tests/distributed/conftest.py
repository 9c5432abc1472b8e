"""A Ray cluster of three nodes on 127.0.0.1, and a Ray of this process alone, for all tests of a session.

The files of `ON_A_CLUSTER` in `tests/conftest.py` use the cluster; two test processes start it once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloud.servers import Seaweed
from faults.nodes import Nodes

FIRST = ["test_erl_on_ray", "test_mixture_on_ray", "test_collectors", "test_workers"]
FIRST += ["test_compare_on_ray", "test_local_collectors", "test_local_mixture", "test_ray_guide"]
"""files that come first: some share a connection to the cluster, the others one to a local Ray"""


class Connection:
    """To a Ray, while files need one: joining or starting it takes seconds."""

    def __init__(self) -> None:
        self._address: str | None = None
        self._stack = ExitStack()

    def to(self, address: str) -> None:
        """Connect, in place of any other connection."""
        from lakepond.distributed import ray_cluster

        if address != self._address:
            self.close()
            ray = ray_cluster.import_ray()
            with pytest.MonkeyPatch.context() as patch:
                if address == ray_cluster.LOCAL:  # as on a machine with a GPU
                    patch.setattr(ray, "init", partial(ray.init, num_gpus=1))
                self._stack.enter_context(ray_cluster.connect(address, workers=2))
            self._address = address

    def close(self) -> None:
        self._address = None
        self._stack.close()


CONNECTION = Connection()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray starts processes with a fork, of which JAX warns if an earlier test of the process imported it."""
    places = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    ordered = sorted((items[place] for place in places), key=lambda item: ranks.get(item.path.stem, 9))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item
        item.add_marker(pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"))


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Seaweed:
    """An S3 server that is not started, but whose address the processes of Ray know from the start."""
    return Seaweed(tmp_path_factory.mktemp("seaweed"))


@pytest.fixture(scope="session")
def variables(seaweed: Seaweed) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Ray keeps its files in one folder, and needs no token, which would be a file in the home folder."""
    folder = tempfile.mkdtemp(prefix="lp-ray-", dir="/tmp")

    @contextmanager
    def patched() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in seaweed.environment().items():
                patch.setenv(name, value)
            patch.setenv("RAY_TMPDIR", folder)
            patch.setenv("RAY_AUTH_MODE", "disabled")
            patch.setenv("RAY_worker_niceness", "0")  # or they wait for the tests of the other test process
            here = os.path.dirname(__file__)  # workers import what the tests define
            patch.setenv("PYTHONPATH", here, prepend=os.pathsep)
            patch.delenv("RAY_ADDRESS", raising=False)
            yield

    yield patched
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def _ray_of_tests(variables: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Environment variables for the files of this folder, which no test of another folder sees."""
    with variables():
        yield


@pytest.fixture(scope="session")
def cluster(variables: Callable[[], AbstractContextManager[None]]) -> Iterator[Nodes]:
    """Three nodes."""
    with variables():
        made = Nodes()
    yield made
    made.close()


@pytest.fixture(scope="module")
def connected(cluster: Nodes) -> Nodes:
    """The cluster, with a connection."""
    CONNECTION.to(cluster.address)
    return cluster


@pytest.fixture(scope="module")
def local() -> str:
    """The address of a Ray that was started by this process, with a connection."""
    CONNECTION.to("local")
    return "local"


@pytest.fixture(scope="module")
def disconnected() -> None:
    """No connection yet, for tests that make one."""
    CONNECTION.close()


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Leave the cluster after the last test of this folder: others know nothing of Ray."""
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        CONNECTION.close()


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def collectors(tmp_path: Path, bucket: str) -> Callable[..., Any]:
    """Starts collectors with two environments each, which commit every 0.2 s."""

    def start(**how: Any) -> Any:
        import worlds
        from lakepond.distributed import Collectors

        how = {"num": 3, "envs_per_collector": 2, "folder": tmp_path / "disks", **how}
        return Collectors(
            how.pop("make_env", worlds.Counting),
            how.pop("make_policy", worlds.Constant),
            lake=how.pop("lake", bucket),
            commit_every="0.2s",
            **how,
        )

    return start
