"""Tasks on real Ray workers: done in spite of dead workers, with the share of a GPU that was asked for."""

from __future__ import annotations

import json
import time

import pytest

import worlds
from lakepond.cli import main
from lakepond.distributed import Collectors, ray_cluster, workers
from lakepond.distributed.workers import Workers
from lakepond.errors import ClusterError, SpecError
from worlds import Counts


def test_each_task_is_done_once_unless_it_kills_every_worker(connected, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "MOST_WORKERS_LOST", 2)
    with ray_cluster.connect(workers=2) as cluster, Workers(cluster, Counts) as pool:
        assert pool.map("square", [(i,) for i in range(20)]) == [i * i for i in range(20)]
        assert pool.map("gpus", [()] * 2) == ["", ""]
        died = tmp_path / "died"
        assert pool.map("die_once", [(died, i) for i in range(6)]) == list(range(6))
        assert died.exists()
        failed = dict(pool.each("die", [()]))[0]
        assert isinstance(failed, ClusterError)
        assert "2 workers died with this task" in str(failed)
        with pytest.raises(SpecError, match="-1 is negative"):
            pool.map("square", [(3,), (-1,)])


def test_each_worker_sees_its_share_of_a_gpu_and_no_other(connected):
    """Ray gives shares of as many GPUs as a node is said to have: here one each."""
    with pytest.raises(ClusterError, match="room for 0 workers with 3 CPUs each, not for 1"):
        ray_cluster.connect(workers=1, cpus_per_worker=3).__enter__()
    with ray_cluster.connect(workers=1, gpus_per_worker=1) as cluster, Workers(cluster, Counts) as pool:
        assert pool.map("gpus", [()]) == ["0"]


@pytest.mark.parametrize(
    "command",
    [
        ["train", "erl", "--preset", "demo", "--workers", "4", "--gpus-per-worker", "1", "--out"],
        ["train", "mixture", "--preset", "tiny", "--agents", "4", "--gpus-per-agent", "1", "--out"],
        ["compare", "--workers", "4", "--gpus-per-worker", "1", "--folder"],
    ],
    ids=["erl", "mixture", "compare"],
)
def test_too_few_gpus_are_one_sentence_before_a_run_starts(command, connected, tmp_path, capsys):
    run = tmp_path / "run"
    assert main([*command, str(run), "--ray", connected.address]) == 1
    assert (
        "the Ray cluster has too few resources for 4 workers: they need 4 GPUs (3 of 3 free); use fewer "
        "workers, a smaller share for each, or add nodes."
    ) in " ".join(capsys.readouterr().err.split())
    assert not list(run.glob("*/*"))


def test_a_node_that_cannot_use_the_bucket_is_named(connected, seaweed, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_cluster, "REACH_SECONDS", 0.2)
    refused = r"node 127\.0\.0\.1 of the Ray cluster cannot use s3://bucket/run: .*; give it the access"
    with ray_cluster.connect(workers=1, bucket=tmp_path.as_uri()):
        with pytest.raises(ClusterError, match=refused):  # the S3 server does not run in this file
            ray_cluster.connect(workers=1, bucket=seaweed.url("run")).__enter__()
        with pytest.raises(ClusterError, match=refused):
            Collectors(None, None, 1, seaweed.url("run"))


def test_another_version_of_ray(disconnected, cluster):
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


def test_a_connection_of_the_program_is_used_and_stays(disconnected, cluster, monkeypatch):
    with ray_cluster.connect(cluster.address, workers=1) as outer:
        with ray_cluster.connect("local", workers=2) as inner:
            assert inner.ray.get_runtime_context().gcs_address == cluster.address
        assert worlds.listening(cluster.processes()) <= worlds.LOOPBACK
        assert outer.ray.is_initialized()
        monkeypatch.setattr(ray_cluster, "__version__", "9.9.9")
        with pytest.raises(
            ClusterError, match=r"has lakepond .*, but this program has 9.9.9; install the same"
        ):
            ray_cluster.connect(workers=1).__enter__()
        monkeypatch.setattr(ray_cluster, "CHECK_SECONDS", 0)
        monkeypatch.setattr(ray_cluster, "_version", lambda: time.sleep(60))  # every node is too busy
        with pytest.raises(ClusterError, match=r"has started no process for 0 s; see `ray status`"):
            ray_cluster.connect(workers=1).__enter__()
    assert not outer.ray.is_initialized()
