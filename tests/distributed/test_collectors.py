"""Collectors on a real Ray cluster: what they record arrives once, whatever dies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import lakepond as lp
from worlds import Sees, all_obs, all_of, each_once, wait_until

QUICK = {"poll_every": "0.05s", "discover_every": "0.2s"}


@pytest.fixture
def start(connected, collectors):
    """Starts collectors on this cluster."""
    return collectors


def everything(bucket, tmp_path) -> np.ndarray:
    with lp.Lake.open(bucket, cache=tmp_path / "cache") as lake:
        return all_obs(lake)


def test_steps_arrive_once_though_a_worker_is_killed_and_a_node_removed(start, connected, bucket, tmp_path):
    with start() as collectors, lp.Replay.follow(bucket, capacity=1_000_000, **QUICK) as replay:
        assert collectors.broadcast({"value": 6}) == 1
        assert collectors.broadcast({"value": 7}) == 2
        wait_until(lambda: all(each.weights == 2 for each in collectors.status()))
        before = replay.recorded
        wait_until(lambda: replay.recorded > before + 1_000)
        assert set(np.unique(replay.recent(200).action)) == {7}
        status = collectors.status()
        assert len({each.pid for each in status}) == 3
        assert all(each.alive and each.steps_per_second > 0 and not each.error for each in status)
        assert "collector-2" in str(status)
        acknowledged: dict[int, int] = {}

        def learn_until(condition) -> None:
            """Sample while waiting: the learner never stops for a collector."""
            until = time.monotonic() + 60
            while not condition():
                assert time.monotonic() < until, str(collectors.status())
                replay.sample(32, timeout=5)
                for each in collectors.status():
                    acknowledged[each.pid] = max(acknowledged.get(each.pid, 0), each.acknowledged)
                time.sleep(0.01)

        learn_until(lambda: all(each.acknowledged > 100 for each in collectors.status()))
        victim = collectors.status()[0]
        os.kill(victim.pid, signal.SIGKILL)
        learn_until(
            lambda: collectors.status()[0].restarts == 1 and collectors.status()[0].acknowledged > 100
        )
        learn_until(lambda: collectors.status()[0].weights == 2)  # the new process gets them, too

        pids = {each.pid for each in collectors.status()}
        node = next(each for each in connected.nodes if pids & {w.pid for w in connected.workers(each)})
        connected.remove(node)
        learn_until(
            lambda: (
                sum(each.restarts for each in collectors.status()) > 1
                and all(each.acknowledged > 100 and each.age < 2 for each in collectors.status())
            )
        )
        connected.add()
        assert {each.pid for each in collectors.status()} != pids
        collectors.close()
        steps = each_once(everything(bucket, tmp_path))
        assert all(steps[pid] >= count for pid, count in acknowledged.items() if count)
        assert len(steps) >= 5
        wait_until(lambda: replay.recorded == sum(steps.values()))
        assert each_once(all_of(replay)) == steps


def test_a_restarted_collector_has_its_share_of_a_gpu_and_the_options_of_a_cloud_which_are_shown_nowhere(
    start, tmp_path, caplog
):
    from cloud.servers import SECRET, Moto  # not importable for workers

    (tmp_path / "server").mkdir()
    server = Moto(tmp_path / "server")
    server.start()
    try:
        with start(num=1, lake=server.cloud("run"), make_policy=Sees, gpus_per_collector=0.5) as collectors:
            wait_until(lambda: collectors.status()[0].acknowledged > 10)
            os.kill(collectors.status()[0].pid, signal.SIGKILL)
            wait_until(lambda: collectors.status()[0].restarts and collectors.status()[0].acknowledged > 10)
            shown = f"{collectors!r} {collectors.status()!r} {vars(collectors)!r} {caplog.text}"
        assert "bucket/run" in shown
        with lp.pull(tmp_path / "back", server.cloud("run")) as lake:
            assert len(each_once(all_obs(lake))) == 2
            assert (lake.steps(0, len(lake)).action == 1).all()  # both processes saw that GPU alone
    finally:
        server.kill()
    assert SECRET not in shown
    files = [file for file in Path(os.environ["RAY_TMPDIR"]).rglob("*") if file.is_file()]
    assert any("worker" in file.name for file in files)
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
