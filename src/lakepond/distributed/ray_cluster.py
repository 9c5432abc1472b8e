"""Start Ray on this machine, or connect to a cluster, after checking that it can run what is asked for.

    with ray_cluster.connect("auto", workers=8, cpus_per_worker=2) as cluster:
        actors = [cluster.ray.remote(Worker).options(**cluster.options()).remote(i) for i in range(8)]

Everything that is wrong with the installation or the cluster is a `ClusterError` of one sentence, raised
before anything runs.
"""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from lakepond._version import __version__
from lakepond.cloud.pace import patiently
from lakepond.cloud.place import hidden
from lakepond.cloud.store import Store
from lakepond.distributed import reaper
from lakepond.errors import ClusterError, ConfigError, LakepondError, RayMissing

log = logging.getLogger("lakepond")
LOCAL, LOCALHOST = "local", "127.0.0.1"
OBJECT_STORE_BYTES = 512 << 20
"""memory for the weights that travel between the processes of one machine; experience never does"""
START_SECONDS = 120.0
"""how long Ray may take to start on this machine, which may be busy"""
RELEASE_SECONDS = 5.0
"""how long actors that have just ended may take to release their share"""
HEAD_SECONDS, PROBE_SECONDS = 20.0, 2.0
"""how long the head of the cluster may not answer, and how often it is asked"""
CHECK_SECONDS = 300.0
"""how long a node may take to start a process that reports its versions"""
LEAVE_SECONDS = 20.0
"""how long Ray may take to notice that a node is gone"""
REACH_SECONDS = 20.0
"""how long a node asks a bucket that does not answer"""


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray."""

    ray: ModuleType
    workers: int
    cpus_per_worker: float
    gpus_per_worker: float

    def options(self) -> dict[str, Any]:
        """Options of an actor that is one worker: its share of resources; restarted if it dies."""
        return {"num_cpus": self.cpus_per_worker, "num_gpus": self.gpus_per_worker, "max_restarts": -1}


class ClusterHead:
    """The head of the cluster, checked now and then; without it Ray waits in silence."""

    def __init__(self, ray: ModuleType) -> None:
        self._address: str = ray.get_runtime_context().gcs_address
        self._asked = self._answered = time.monotonic()
        self.lost = False

    def check(self) -> None:
        """Raise `ClusterError` if the head has not answered for `HEAD_SECONDS`; called again and again."""
        now = time.monotonic()
        if now - self._asked < PROBE_SECONDS:
            return
        if now - self._asked > HEAD_SECONDS / 2 or _is_reachable(self._address):  # or nobody has asked
            self._answered = now
        self._asked = time.monotonic()  # after an attempt to connect, which may take seconds
        if now - self._answered > HEAD_SECONDS:
            self.lost = True
            raise ClusterError(
                f"the head of the Ray cluster, {self._address}, has not answered for {HEAD_SECONDS:g} s; "
                "start the cluster and this command again: it resumes."
            )


@contextmanager
def connect(
    address: str = LOCAL,
    *,
    workers: int,
    cpus_per_worker: float = 1.0,
    gpus_per_worker: float = 0.0,
    bucket: str | None = None,
) -> Iterator[Cluster]:
    """Connect to Ray during a block.

    address: "local" starts Ray on this machine, bound to 127.0.0.1, and stops it after the block, or if this
    process is killed. "auto" is the cluster that this machine belongs to, or that RAY_ADDRESS names;
    "host:port" is the one at that address. If the process is connected already (`ray.init`), that connection
    is used, whatever the address, and stays.
    workers: number of actors that the caller starts. cpus_per_worker, gpus_per_worker: what each of them
    needs; on "local" there may be more workers than cores, which then share them. bucket: the URL that all
    nodes must be able to use.

    Raises `RayMissing` if Ray is not installed, and `ClusterError` if there is no cluster, if its versions of
    Ray, Python or lakepond differ from those here, if it has too few resources, or if a node cannot use the
    bucket.
    """
    if workers < 1 or cpus_per_worker < 0 or gpus_per_worker < 0:
        raise ConfigError(
            f"{workers} workers with {cpus_per_worker:g} CPUs and {gpus_per_worker:g} GPUs each cannot be "
            "started; ask for at least one worker and no negative share."
        )
    ray = import_ray()
    cluster = Cluster(ray, workers, cpus_per_worker, gpus_per_worker)
    if ray.is_initialized():
        _check(cluster, bucket)
        yield cluster
        return
    # not below TMPDIR, which may be long: the path of a socket has at most 107 bytes
    with reaper.folder("lakepond-ray-", "/tmp") if address == LOCAL else nullcontext() as folder:
        try:
            with _signals_kept(), _loopback_kept(), patient_start():
                _join(ray, address) if folder is None else _start(cluster, folder)
            _check(cluster, bucket, is_here=folder is not None)
            yield cluster
        finally:
            ray.shutdown()


def import_ray() -> ModuleType:
    """Ray, quiet and without usage statistics; raises `RayMissing` if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as later versions do; or it warns
    try:
        import ray
    except ImportError as error:
        raise RayMissing(
            f"Ray is not installed ({error}); install it with: pip install 'lakepond[ray]'"
        ) from None
    return ray  # type: ignore[no-any-return]


def hide_gpus() -> None:
    """In an actor without a share of a GPU: JAX and PyTorch use the CPU, not a GPU of others."""
    if not import_ray().get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


# --- starting and connecting ------------------------------------------------------------------------


def _start(cluster: Cluster, folder: Path) -> None:
    cores = os.cpu_count() or 1
    needed = math.ceil(cluster.workers * cluster.cpus_per_worker)
    if needed > cores:
        log.info("%d workers share the %d cores of this machine", cluster.workers, cores)
    try:
        cluster.ray.init(
            address=LOCAL,
            num_cpus=max(cores, needed),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address=LOCALHOST,
            _temp_dir=str(folder),
        )
    except Exception as error:
        raise ClusterError(f"Ray could not be started on this machine: {one_line(error)}") from error
    where = {node["NodeManagerAddress"] for node in cluster.ray.nodes()}
    if where != {LOCALHOST}:
        log.warning("Ray listens at %s, and not only for this machine", ", ".join(sorted(where)))


def _join(ray: ModuleType, address: str) -> None:
    named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    if named.startswith("ray://"):
        raise ClusterError(
            f"{named} is an address of Ray Client, which lakepond does not use; start the program on a "
            "node of the cluster with 'auto' and without RAY_ADDRESS, or with `ray job submit`."
        )
    found = _address_of_auto(named) if address == "auto" else address
    if found is not None:
        _check_reachable(found)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except ray.exceptions.AuthenticationError as error:
        ray.shutdown()
        reason = error.message.partition("\n")[0].rstrip(".")
        raise ClusterError(
            f"cannot connect to the Ray cluster {address!r}: {reason}; give its token in RAY_AUTH_TOKEN or "
            "in ~/.ray/auth_token."
        ) from None
    except (RuntimeError, ray.exceptions.RayError) as error:
        ray.shutdown()
        if "ersion mismatch" in str(error):
            raise ClusterError(_versions_differ(str(error))) from None
        raise ClusterError(f"cannot connect to the Ray cluster {address!r}: {one_line(error)}") from error
    except (ConnectionError, ValueError, OSError) as error:
        ray.shutdown()
        where = "on this machine or in RAY_ADDRESS" if address == "auto" else f"at {address}"
        raise ClusterError(
            f"there is no Ray cluster {where} ({one_line(error)}); start one with `ray start --head`, or "
            "use 'local'."
        ) from None


def _address_of_auto(named: str) -> str | None:
    """Where Ray will look for its cluster; None if it is not known. `named`: RAY_ADDRESS."""
    try:
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError:  # it is not a public function
        return None
    try:
        found: str | None = canonicalize_bootstrap_address("auto")
    except ValueError as error:
        raise ClusterError(
            f"RAY_ADDRESS is {named!r}, which is not the address of a Ray cluster ({one_line(error)}); set "
            "it to host:port, which is usually port 6379 of the head, or unset it."
        ) from None
    return found


def _is_reachable(address: str) -> bool:
    try:
        _check_reachable(address)
    except ClusterError:
        return False
    return True


def _check_reachable(address: str) -> None:
    """Raise `ClusterError` unless something answers there; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10):
            pass
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"there is no Ray cluster at {address} ({error}); give 'local', 'auto' or host:port, which is "
            "usually port 6379 of the head."
        ) from None


def _versions_differ(text: str) -> str:
    """One sentence from Ray's message about versions."""
    found = re.findall(r"(?:Ray|Python): (\S+)", text)
    if len(found) != 4:
        return f"the versions of the cluster differ from those here: {one_line(text)}"
    theirs, ours = found[:2], found[2:]
    return (
        f"the cluster has Ray {theirs[0]} and Python {theirs[1]}, but this program has Ray {ours[0]} and "
        f"Python {ours[1]}; install the same versions here, for example with: pip install 'ray=={theirs[0]}'"
    )


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM, which `ray.init` replaces by one that exits at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _loopback_kept() -> AbstractContextManager[None]:
    """Have `ray.init` use 127.0.0.1 as it is given; it replaces it by the outer address of this machine.

    Then its servers would listen to the network. There is no option for that; `_start` checks the result.
    """
    return _replaced("resolve_ip_for_localhost", lambda ask, host: host if host == LOCALHOST else ask(host))


def patient_start() -> AbstractContextManager[None]:
    """Give a node that starts `START_SECONDS`; Ray gives up after 30 s, and has no option for that."""

    def get_node(ask: Callable[..., Any], *args: Any) -> Any:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                return ask(*args)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > until:
                    raise
            time.sleep(0.1)

    return _replaced("get_node", get_node)


@contextmanager
def _replaced(name: str, by: Callable[..., Any]) -> Iterator[None]:
    """During a block, call `by` with a private function of Ray in place of that function, if Ray has it."""
    from ray._private import services

    before = getattr(services, name, None)
    if before is None:  # another version of Ray
        yield
        return
    setattr(services, name, partial(by, before))
    try:
        yield
    finally:
        setattr(services, name, before)


# --- checking ---------------------------------------------------------------------------------------


def _check(cluster: Cluster, bucket: str | None, *, is_here: bool = False) -> None:
    """Raise `ClusterError` unless the cluster can run all workers; `is_here`: a Ray of this machine."""
    nodes = [node for node in cluster.ray.nodes() if node["Alive"]]
    _check_resources(cluster, nodes)
    if not is_here:  # or it has what this process has, and a process to ask takes seconds
        _check_lakepond(cluster.ray, nodes)
        if bucket is not None:
            _check_bucket(cluster.ray, nodes, bucket)


def _check_resources(cluster: Cluster, nodes: list[dict[str, Any]]) -> None:
    needs = {"CPU": cluster.cpus_per_worker, "GPU": cluster.gpus_per_worker}
    needs = {name: need for name, need in needs.items() if need}
    total = {name: sum(node["Resources"].get(name, 0.0) for node in nodes) for name in needs}
    until = time.monotonic() + RELEASE_SECONDS
    while True:
        free = cluster.ray.available_resources()
        short = [name for name, need in needs.items() if free.get(name, 0.0) < cluster.workers * need]
        if not short:
            break
        if time.monotonic() > until or any(total[name] < cluster.workers * needs[name] for name in short):
            missing = " and ".join(
                f"{cluster.workers * needs[name]:g} {name}s ({free.get(name, 0.0):g} of {total[name]:g} free)"
                for name in short
            )
            raise ClusterError(
                f"the Ray cluster has too few resources for {cluster.workers} workers: they need {missing}; "
                "use fewer workers, a smaller share for each, or add nodes."
            )
        time.sleep(0.1)
    fit = sum(
        int(min((node["Resources"].get(name, 0.0) / need for name, need in needs.items()), default=math.inf))
        if needs
        else cluster.workers
        for node in nodes
    )
    if fit < cluster.workers:
        share = " and ".join(f"{need:g} {name}s" for name, need in needs.items())
        raise ClusterError(
            f"the nodes of the Ray cluster have room for {fit} workers with {share} each, not for "
            f"{cluster.workers}; use fewer workers, a smaller share for each, or larger nodes."
        )


def _check_lakepond(ray: ModuleType, nodes: list[dict[str, Any]]) -> None:
    """Ask a process on each node for its version of lakepond."""
    for where, found in _ask_each(ray, nodes, _version):
        if found != __version__:
            raise ClusterError(
                f"node {where} of the Ray cluster has lakepond {found}, but this program has {__version__}; "
                "install the same version on every node."
            )


def _check_bucket(ray: ModuleType, nodes: list[dict[str, Any]], url: str) -> None:
    """Ask a process on each node whether it can use the bucket, or its workers would fail one by one."""
    for where, problem in _ask_each(ray, nodes, _problem_with, url, REACH_SECONDS):
        if problem is not None:
            raise ClusterError(
                f"node {where} of the Ray cluster cannot use {hidden(url)}: {problem.rstrip('.')}; give it "
                "the access and the environment variables (AWS_*, GOOGLE_*, AZURE_*) of this machine before "
                "`ray start`."
            )


def _ask_each(
    ray: ModuleType, nodes: list[dict[str, Any]], function: Callable[..., Any], *args: Any
) -> Iterator[tuple[str, Any]]:
    """What a function returns in a process of each node, with the address of the node.

    A node that leaves the cluster before it has answered is skipped, with a warning.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(function)
    asked = []
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        asked.append((node, ask.options(scheduling_strategy=strategy).remote(*args)))
    for node, answer in asked:
        where = node["NodeManagerAddress"]
        try:
            yield where, ray.get(answer, timeout=CHECK_SECONDS)
        except ray.exceptions.GetTimeoutError as error:
            raise ClusterError(
                f"node {where} of the Ray cluster has started no process for {CHECK_SECONDS:g} s; "
                "see `ray status` and try again when the cluster is less busy."
            ) from error
        except ray.exceptions.OutOfMemoryError as error:
            raise ClusterError(
                f"node {where} of the Ray cluster has too little free memory to start a process; free some, "
                "or use another node."
            ) from error
        except ray.exceptions.RayError as error:
            if not isinstance(error, ray.exceptions.RayTaskError) and _has_left(ray, node["NodeID"]):
                log.warning("node %s has left the Ray cluster", where)
                continue
            raise ClusterError(
                f"node {where} of the Ray cluster cannot import lakepond {__version__} ({one_line(error)}); "
                "install it on every node."
            ) from error


def _has_left(ray: ModuleType, node_id: str) -> bool:
    """Whether a node is no longer in the cluster; waits for as long as Ray may take to notice."""
    until = time.monotonic() + LEAVE_SECONDS
    while any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes()):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _version() -> str:
    return __version__


def _problem_with(url: str, for_seconds: float) -> str | None:
    """What keeps this process from reading a bucket."""
    try:
        store = Store.at(url)
        patiently(lambda: store.head("lake.json"), for_seconds=for_seconds)
    except (LakepondError, OSError) as error:
        return one_line(error)
    return None


def one_line(error: object) -> str:
    """The last line of a message that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
