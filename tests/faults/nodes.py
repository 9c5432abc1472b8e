"""A Ray cluster of three nodes on 127.0.0.1, which is not the network of other machines."""

from __future__ import annotations

import warnings
from typing import Any

import psutil

from lakepond.distributed import ray_cluster

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


class Nodes:
    """A head and two more nodes. They know the environment variables of this process at the start."""

    def __init__(self) -> None:
        ray_cluster.import_ray()
        from ray.cluster_utils import Cluster

        head = {**NODE, "include_dashboard": False, "no_monitor": True, "_system_config": FAST}
        with warnings.catch_warnings(), ray_cluster.patient_start():
            warnings.simplefilter("ignore")
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
            self.nodes = [self._cluster.add_node(**NODE, wait=False) for _ in range(2)]
            self._cluster.wait_for_nodes()
        self.address: str = self._cluster.address

    def add(self) -> None:
        """Add a node."""
        with warnings.catch_warnings(), ray_cluster.patient_start():
            warnings.simplefilter("ignore")
            self.nodes.append(self._cluster.add_node(**NODE))

    def remove(self, node: Any) -> None:
        """Kill a node without grace."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """Kill (-9) the processes of the head, without which no node can go on."""
        for name in ("gcs_server", "raylet"):
            self.head.all_processes[name][0].process.kill()

    def workers(self, *some: Any) -> list[psutil.Process]:
        """The worker processes of some nodes, or of all."""
        raylets = [node.all_processes["raylet"][0].process.pid for node in some or (self.head, *self.nodes)]
        return [worker for pid in raylets for worker in psutil.Process(pid).children()]

    @property
    def head(self) -> Any:
        """The first node, which is the head."""
        return self._cluster.head_node

    def processes(self) -> set[int]:
        """Those that Ray started for the nodes, and the workers."""
        started = [each for node in (self.head, *self.nodes) for each in node.all_processes.values()]
        return {each.process.pid for some in started for each in some} | {each.pid for each in self.workers()}

    def close(self) -> None:
        """End all processes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._cluster.shutdown()
