"""A Ray cluster of three nodes on 127.0.0.1, for all tests of a session."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cloud.servers import Seaweed
from faults import training

FAST = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    "prestart_worker_first_driver": False,
}
"""a node that is gone is noticed in seconds, not in half a minute; no process is started in advance"""
NODE = {
    "num_cpus": 2,
    "num_gpus": 1,
    "object_store_memory": 80 << 20,
    "node_ip_address": "127.0.0.1",
    "include_log_monitor": False,
}


LONGEST = ["test_erl_on_ray", "test_mixture_on_ray", "test_collectors", "test_compare_on_ray"]
"""files that come first, so that two test processes end together"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray starts processes with a fork, of which JAX warns if an earlier test of the process imported it."""
    places = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    ordered = sorted((items[place] for place in places), key=lambda item: ranks.get(item.path.stem, 9))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item
        item.add_marker(pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"))


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Seaweed:
    """An S3 server that is not started, but whose address the processes of Ray know from the start."""
    return Seaweed(tmp_path_factory.mktemp("seaweed"))


@pytest.fixture(scope="session", autouse=True)
def _ray_of_tests(seaweed: Seaweed) -> Iterator[None]:
    """Ray keeps its files in one folder, and needs no token, which would be a file in the home folder."""
    folder = tempfile.mkdtemp(prefix="lp-ray-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in seaweed.environment().items():
            patch.setenv(name, value)
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_worker_niceness", "0")  # or they wait for the tests of the other test process
        here = os.path.dirname(__file__)  # workers import the environments of the tests
        patch.setenv("PYTHONPATH", here, prepend=os.pathsep)
        patch.delenv("RAY_ADDRESS", raising=False)
        for name, value in training.environment().items():
            patch.setenv(name, value)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(_ray_of_tests: None) -> Iterator[SimpleNamespace]:
    """Its address; `add` adds a node, `remove` kills one without grace, `workers`, `processes`: its own."""
    from lakepond.distributed import ray_cluster

    ray_cluster.import_ray()
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ray_cluster.patient_start():
            made = Cluster(
                initialize_head=True,
                head_node_args={
                    **NODE,
                    "include_dashboard": False,
                    "no_monitor": True,
                    "_system_config": FAST,
                },
            )
            nodes = [made.add_node(**NODE, wait=False) for _ in range(2)]
            made.wait_for_nodes()

        def workers(*some: Any) -> list[psutil.Process]:
            """Of some nodes, or of this cluster: another one runs beside it if tests run in two processes."""
            chosen = some or (made.head_node, *nodes)
            raylets = [node.all_processes["raylet"][0].process.pid for node in chosen]
            return [worker for pid in raylets for worker in psutil.Process(pid).children()]

        def processes() -> set[int]:
            """Those that Ray started for the nodes, and the workers."""
            started = [each for node in (made.head_node, *nodes) for each in node.all_processes.values()]
            return {each.process.pid for some in started for each in some} | {each.pid for each in workers()}

        yield SimpleNamespace(
            address=made.address,
            processes=processes,
            nodes=nodes,
            workers=workers,
            add=lambda: nodes.append(made.add_node(**NODE)),
            remove=lambda node: made.remove_node(node, allow_graceful=False),
        )
        made.shutdown()


@pytest.fixture(scope="module")
def connected(cluster: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """The cluster, with one connection for all tests of a file: joining it takes seconds."""
    from lakepond.distributed import ray_cluster

    with ray_cluster.connect(cluster.address, workers=1):
        yield cluster
