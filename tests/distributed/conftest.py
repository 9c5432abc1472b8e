"""A Ray cluster of three nodes on 127.0.0.1, for all tests of a session."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from faults import training

FAST = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    "prestart_worker_first_driver": False,
}
"""a node that is gone is noticed in seconds, not in half a minute; no process is started in advance"""
NODE = {"num_cpus": 2, "object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray starts processes with a fork, of which JAX warns if an earlier test of the process imported it."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"))


@pytest.fixture(scope="session", autouse=True)
def _ray_of_tests() -> Iterator[None]:
    """Ray keeps its files in one folder, and needs no token, which would be a file in the home folder."""
    folder = tempfile.mkdtemp(prefix="lp-ray-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        here = os.path.dirname(__file__)  # workers import the environments of the tests
        patch.setenv("PYTHONPATH", here, prepend=os.pathsep)
        patch.delenv("RAY_ADDRESS", raising=False)
        for name, value in training.environment().items():
            patch.setenv(name, value)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(_ray_of_tests: None) -> Iterator[SimpleNamespace]:
    """Its address; `add` adds a node, `remove` kills one without grace."""
    from lakepond.distributed import ray_cluster

    ray_cluster.import_ray()
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ray_cluster.patient_start():
            made = Cluster(
                initialize_head=True,
                head_node_args={**NODE, "include_dashboard": False, "_system_config": FAST},
            )
            nodes = [made.add_node(**NODE, wait=False) for _ in range(2)]
            made.wait_for_nodes()
        yield SimpleNamespace(
            address=made.address,
            nodes=nodes,
            add=lambda: nodes.append(made.add_node(**NODE)),
            remove=lambda node: made.remove_node(node, allow_graceful=False),
        )
        made.shutdown()
