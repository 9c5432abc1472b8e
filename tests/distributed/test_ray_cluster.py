"""Starting, joining and leaving Ray, and the errors if that is not possible."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from types import SimpleNamespace
from unittest.mock import MagicMock

import psutil
import pytest
from worlds import wait_until

from lakepond.distributed import ray_cluster, reaper
from lakepond.errors import ClusterError, ConfigError, RayMissing

PROGRAM = """
import os, sys, time
from lakepond.distributed import ray_cluster
with ray_cluster.connect("local", workers=3) as cluster:
    ray = cluster.ray
    @ray.remote
    class Busy:
        def work(self):
            os.system("sleep 1000")  # a child of a worker
        def where(self):
            return os.getpid()
    actors = [Busy.options(**cluster.options(), max_concurrency=2).remote() for _ in range(3)]
    found = ray.get([actor.where.remote() for actor in actors])
    [actor.work.remote() for actor in actors]
    print(len(set(found)), flush=True)
    sys.stdin.read()
"""


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def listening(pids: set[int]) -> set[str]:
    """The addresses that these processes listen to."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):  # it was a short one
            found += psutil.Process(pid).net_connections("inet")
    assert found
    return {each.laddr.ip for each in found if each.status == "LISTEN"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_local_ray_ends_with_its_program(number):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout.readline() == "3\n"
            started = {child.pid for child in psutil.Process(program.pid).children(recursive=True)}
            assert len(started) > 8  # Ray's own, 3 workers and their children
            assert listening(started) <= {"127.0.0.1", "::ffff:127.0.0.1"}
            folders = {folder for pid in started for folder in _folders(pid)}
            assert len(folders) == 1
            program.send_signal(number)
            began = time.monotonic()
            assert program.wait(60) == -number
            while any(map(is_running, started)):
                assert time.monotonic() - began < 15, [pid for pid in started if is_running(pid)]
                time.sleep(0.05)
            assert not any(map(os.path.exists, folders))
        finally:
            program.kill()


def _folders(pid: int) -> set[str]:
    try:
        files = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return set()
    return {"/".join(name.split("/")[:3]) for name in files if name.startswith("/tmp/lakepond-ray-")}


def test_the_reaper_leaves_others_alone(tmp_path):
    """Only those that have the log of the node process open, as its children do."""
    logs = tmp_path / "session" / "logs"
    logs.mkdir(parents=True)
    with (logs / "raylet.out").open("w") as file, (logs / "other.log").open("w") as other:
        ours = subprocess.Popen(["sleep", "100"], stdout=file)
        theirs = subprocess.Popen(["sleep", "100"], stdout=other)
    try:
        assert reaper.users_of(str(tmp_path)) == [ours.pid]
        command = [sys.executable, reaper.__file__, str(tmp_path)]
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=30)
        assert ours.wait(10) == -signal.SIGKILL
        assert theirs.poll() is None
        assert not tmp_path.exists()
    finally:
        for each in (ours, theirs):
            each.kill()
            each.wait()


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RayMissing, match=r"pip install 'lakepond\[ray\]'"), ray_cluster.connect(workers=1):
        pass


def test_no_cluster_there(monkeypatch):
    with pytest.raises(ClusterError, match=r"no Ray cluster at 127.0.0.1:1 "):
        ray_cluster.connect("127.0.0.1:1", workers=1).__enter__()
    with pytest.raises(ClusterError, match="no Ray cluster at nonsense "):
        ray_cluster.connect("nonsense", workers=1).__enter__()
    with pytest.raises(ClusterError, match="Ray Client, which lakepond does not use"):
        ray_cluster.connect("ray://127.0.0.1:10001", workers=1).__enter__()
    with pytest.raises(ConfigError, match="at least one worker"):
        ray_cluster.connect(workers=0).__enter__()


def test_a_head_that_is_gone_is_noticed(monkeypatch):
    monkeypatch.setattr(ray_cluster, "PROBE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        head = ray_cluster.ClusterHead(
            SimpleNamespace(get_runtime_context=lambda: SimpleNamespace(gcs_address=address))
        )
        monkeypatch.setattr(ray_cluster, "HEAD_SECONDS", 1.0)
        head.check()
        assert not head.lost
    message = f"cluster, {address}, has not answered for 1 s; start the cluster"
    with pytest.raises(ClusterError, match=message):
        wait_until(head.check)  # it returns None
    assert head.lost


def test_another_version_of_ray(cluster):
    from ray._raylet import GcsClient

    client, key, namespace = GcsClient(address=cluster.address), b"CLUSTER_METADATA", b"cluster"
    known = client.internal_kv_get(key, namespace)
    other = json.dumps({**json.loads(known), "ray_version": "2.40.0"}).encode()
    client.internal_kv_put(key, other, True, namespace)
    try:
        with pytest.raises(ClusterError, match=r"cluster has Ray 2.40.0 .*pip install 'ray==2.40.0'"):
            ray_cluster.connect(cluster.address, workers=1).__enter__()
    finally:
        client.internal_kv_put(key, known, True, namespace)


def test_a_node_without_free_memory():
    from ray import exceptions

    ray = MagicMock(exceptions=exceptions)
    ray.get.side_effect = exceptions.OutOfMemoryError(
        "Task was killed due to the node running low on memory."
    )
    with pytest.raises(ClusterError, match=r"node 10\.0\.0\.7 .* has too little free memory to start"):
        ray_cluster._check_lakepond(ray, [{"NodeID": "ab" * 28, "NodeManagerAddress": "10.0.0.7"}])


def test_a_connection_of_the_program_is_used_and_stays(cluster, monkeypatch):
    with ray_cluster.connect(cluster.address, workers=1) as outer:
        with ray_cluster.connect("local", workers=2) as inner:
            assert inner.ray.get_runtime_context().gcs_address == cluster.address
        assert outer.ray.is_initialized()
        monkeypatch.setattr(ray_cluster, "__version__", "9.9.9")
        with pytest.raises(
            ClusterError, match=r"has lakepond .*, but this program has 9.9.9; install the same"
        ):
            ray_cluster.connect(workers=1).__enter__()
        monkeypatch.setattr(ray_cluster, "CHECK_SECONDS", 0)  # as if every node were too busy to answer
        with pytest.raises(ClusterError, match=r"has started no process for 0 s; see `ray status`"):
            ray_cluster.connect(workers=1).__enter__()
    assert not outer.ray.is_initialized()
