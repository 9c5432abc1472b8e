"""Starting, joining and leaving Ray, and the errors if that is not possible."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

import worlds
from faults import training
from lakepond.cli import main
from lakepond.distributed import collectors, ray_cluster, reaper
from lakepond.distributed.collector import CollectorStatus
from lakepond.errors import ClusterError, ConfigError, RayMissing
from lakepond.trainers.worker_chains import check_shared
from worlds import wait_until

pytestmark = pytest.mark.usefixtures("disconnected")
PROGRAM = """
import ctypes, fcntl, os, socket, struct, sys, time
if ctypes.CDLL(None).unshare(0x40000000) == 0:  # CLONE_NEWNET: without a network, which root may
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
    assert socket.if_nameindex() == [(1, "lo")]
from lakepond.distributed import ray_cluster
with ray_cluster.connect("local", workers=2) as cluster:
    ray = cluster.ray
    @ray.remote
    class Busy:
        def work(self):
            os.system("sleep 1000")  # a child of a worker
        def where(self):
            return os.getpid()
    actors = [Busy.options(**cluster.options(), max_concurrency=2).remote() for _ in range(2)]
    found = ray.get([actor.where.remote() for actor in actors])
    try:
        ray_cluster.connect(workers=2, gpus_per_worker=0.5).__enter__()
    except ray_cluster.ClusterError as error:
        print(error, flush=True)
    [actor.work.remote() for actor in actors]
    print(len(set(found)), flush=True)
    sys.stdin.read()
"""
FORKS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import reaper
waits, held = os.pipe()
with reaper.folder("lakepond-test-") as folder:
    if not os.fork():  # has the pipe to the reaper open until this program has ended
        os.close(held)
        os.read(waits, 1)
        os._exit(0)
    if not (child := os.fork()):  # leaves the block
        raise SystemExit
    os.waitpid(child, 0)
    time.sleep(0.3)
    print(folder.exists(), flush=True)
print(folder.exists())
"""


def test_a_local_ray_starts_without_a_network_and_ends_with_its_program_that_is_killed():
    """Without a network if the test may take it away, as root may."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            line = program.stdout.readline()
            assert "has too few resources for 2 workers: they need " in line
            assert "1 GPUs (0 of 0 free)" in line
            assert program.stdout.readline() == "2\n"
            with worlds.nothing_left_of_ray(program.pid) as started:
                assert len(started) > 6  # Ray's own, 2 workers and their children
                program.kill()
                assert program.wait(60) == -signal.SIGKILL
        finally:
            program.kill()


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


def test_forked_children_neither_delay_nor_cause_the_end_of_a_local_ray():
    command = [sys.executable, "-c", FORKS, str(Path(reaper.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["True", "False"]


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
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:10001")
    with pytest.raises(ClusterError, match=r"ray://127\.0\.0\.1:10001 is an address of Ray Client"):
        ray_cluster.connect("auto", workers=1).__enter__()
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    with pytest.raises(ClusterError, match="RAY_ADDRESS is 'nonsense', which is not the address of a Ray"):
        ray_cluster.connect("auto", workers=1).__enter__()
    with pytest.raises(ConfigError, match="at least one worker"):
        ray_cluster.connect(workers=0).__enter__()


def test_a_cluster_that_asks_for_a_token_is_one_sentence(monkeypatch):
    ray = ray_cluster.import_ray()

    def refuse(**_):
        raise ray.exceptions.AuthenticationError("no token was found")

    monkeypatch.setattr(ray, "init", refuse)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ClusterError) as error:
            ray_cluster.connect(address, workers=1).__enter__()
    assert str(error.value) == (
        f"cannot connect to the Ray cluster '{address}': no token was found; give its token in "
        "RAY_AUTH_TOKEN or in ~/.ray/auth_token."
    )


@pytest.mark.parametrize("command", ["erl", "mixture", "compare"])
def test_no_cluster_is_one_sentence_of_a_command_before_anything_is_written(
    command, tmp_path, capsys, monkeypatch
):
    run = tmp_path / "run"
    train = ["compare", "--folder", str(run)] if command == "compare" else training.words(command, run)
    assert main([*train, "--ray", "127.0.0.1:1"]) == 1
    assert "there is no Ray cluster at 127.0.0.1:1" in capsys.readouterr().err
    if command != "mixture":  # which has a worker for each agent
        assert main([*train, "--ray", "local", "--workers", "0"]) == 2
        assert "--workers must be at least 1" in capsys.readouterr().err
    if command == "compare":
        assert main([*train, "--cloud", "gs://bucket/x"]) != 0
        assert "--cloud needs --ray" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*train, "--ray", "local"]) == 1
    assert "Ray is not installed" in capsys.readouterr().err
    assert not list(run.glob("*/*"))
    assert command == "compare" or not run.exists()


def test_a_head_that_is_gone_is_noticed(monkeypatch):
    monkeypatch.setattr(ray_cluster, "PROBE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        head = ray_cluster.ClusterHead(
            SimpleNamespace(get_runtime_context=lambda: SimpleNamespace(gcs_address=address))
        )
        monkeypatch.setattr(ray_cluster, "HEAD_SECONDS", 0.3)
        head.check()
        assert not head.lost
    message = f"cluster, {address}, has not answered for 0.3 s; start the cluster"
    with pytest.raises(ClusterError, match=message):
        wait_until(head.check)  # it returns None
    assert head.lost


def test_collectors_notice_that_the_head_is_gone(tmp_path, monkeypatch):
    """With a Ray that answers everything, and a head that is a socket."""
    from ray import exceptions

    monkeypatch.setattr(ray_cluster, "PROBE_SECONDS", 0.0)
    monkeypatch.setattr(collectors, "POLL_SECONDS", 0.05)
    started = {**asdict(CollectorStatus("collector-0", pid=1)), "acknowledged": 0, "is_started": True}
    started["has_place"] = False
    ray = MagicMock(exceptions=exceptions)
    ray.wait.side_effect = lambda refs, **_: (refs, [])
    ray.get.side_effect = lambda ref: dict(started)
    cluster = ray_cluster.Cluster(ray, 1, 1.0, 0.0)
    monkeypatch.setattr(ray_cluster, "connect", lambda *_, **__: nullcontext(cluster))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ray.get_runtime_context().gcs_address = address
        them = collectors.Collectors(None, None, 1, tmp_path)
        monkeypatch.setattr(ray_cluster, "HEAD_SECONDS", 0.3)
        assert them.broadcast({}) == 1
        assert [each.alive for each in them.status()] == [True]
    message = f"cluster, {address}, has not answered for 0.3 s; start the cluster"
    with pytest.raises(ClusterError, match=message):
        wait_until(lambda: not them.status())  # there is always one
    with pytest.raises(ClusterError, match=message):
        them.broadcast({})
    assert repr(them) == "Collectors(1 of 1 alive)"
    them.close()
    ray.kill.assert_not_called()  # nobody would answer


def test_steps_of_workers_on_several_machines_need_a_bucket():
    def on(*hosts: str) -> ray_cluster.Cluster:
        nodes = [{"NodeManagerAddress": host, "Alive": host != "dead"} for host in hosts]
        return ray_cluster.Cluster(SimpleNamespace(nodes=lambda: nodes), 2, 1.0, 0.0)

    check_shared(on("10.0.0.1", "10.0.0.1", "dead"), None, "--push-to")
    check_shared(on("10.0.0.1", "10.0.0.2"), "gs://bucket/run", "--push-to")
    refused = "the steps of workers on 2 machines need a bucket; give one with --push-to URL."
    with pytest.raises(ConfigError) as error:
        check_shared(on("10.0.0.1", "10.0.0.2"), None, "--push-to")
    assert str(error.value) == refused
    assert refused in (Path(__file__).parents[2] / "docs" / "howto" / "ray.md").read_text()


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_a_node_that_leaves_the_cluster_while_it_is_asked_is_skipped(caplog, monkeypatch, seconds):
    from ray import exceptions

    nodes = [{"NodeID": digit * 56, "NodeManagerAddress": f"10.0.0.{digit}", "Alive": True} for digit in "78"]
    ray, until = MagicMock(exceptions=exceptions), time.monotonic() + seconds  # when Ray notices it
    ray.nodes = lambda: [nodes[0] | {"Alive": time.monotonic() < until}, nodes[1]]
    ray.get.side_effect = [exceptions.WorkerCrashedError(), ray_cluster.__version__]
    ray_cluster._check_lakepond(ray, nodes)
    assert "node 10.0.0.7 has left the Ray cluster" in caplog.text
    monkeypatch.setattr(ray_cluster, "LEAVE_SECONDS", 0.2)
    ray.get.side_effect = exceptions.WorkerCrashedError()
    with pytest.raises(ClusterError, match=r"node 10\.0\.0\.8 of the Ray cluster cannot import lakepond"):
        ray_cluster._check_lakepond(ray, nodes)


def test_a_node_without_free_memory():
    from ray import exceptions

    ray = MagicMock(exceptions=exceptions)
    ray.get.side_effect = exceptions.OutOfMemoryError(
        "Task was killed due to the node running low on memory."
    )
    with pytest.raises(ClusterError, match=r"node 10\.0\.0\.7 .* has too little free memory to start"):
        ray_cluster._check_lakepond(ray, [{"NodeID": "ab" * 28, "NodeManagerAddress": "10.0.0.7"}])
