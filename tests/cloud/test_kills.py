"""Servers and machines that are killed, -9, in the middle: a few times here, often in a soak.

LAKEPOND_CLOUD_KILLS=20 pytest tests/cloud/test_kills.py        20 server kills and 50 machine kills
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import servers
from small_runs import SPEC, agrees, environment, record, whole

import lakepond as lp
from lakepond.cloud.store import Store

SOAK = int(os.environ.get("LAKEPOND_CLOUD_KILLS", "0"))
"""kills of each server in a soak; 0: the few of every day"""
MACHINES = SOAK * 5 // 2 if SOAK else 2


def train_while_a_server_dies(server: servers.Server, kills: int, name: str, tmp_path: Path) -> None:
    """Record, sample, commit and push all the while; the server is killed in the middle, again and again."""
    rng, chance = np.random.default_rng(0), random.Random(0)
    cloud = server.cloud(name)
    over = threading.Event()

    def die() -> None:
        for _ in range(kills):
            time.sleep(chance.uniform(0.05, 0.6))
            server.kill()
            time.sleep(chance.uniform(0.0, 0.3))
            server.start()
        over.set()

    killer = threading.Thread(target=die, daemon=True)
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=300, cloud=cloud) as replay:
        killer.start()
        while not over.is_set() or replay.stats().recorded < 200:
            begin = replay.stats().recorded
            record(replay, begin, begin + 20)
            agrees(replay.sample(4, rng=rng))  # training never stops
            replay.commit()
            replay.push()
            time.sleep(0.1)
        killer.join()
        assert replay.push(wait=True, timeout=120).done
        recorded = replay.stats().recorded
        marked = [
            segment for segment, _ in replay.lake().files() if segment in replay._cloud.pusher.elsewhere
        ]
    there = Store(cloud).list("segments")
    assert all(f"segments/{segment}" in there for segment in marked)
    with lp.pull(tmp_path / "there", cloud) as lake:
        whole(lake, recorded)


KINDS = [servers.Rclone, servers.Azurite] if SOAK else [servers.Rclone]  # Azurite takes its time to start


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_everything_arrives_though_the_server_is_killed(kind, name, tmp_path):
    if kind is servers.Azurite:
        kind.install()
    folder = tmp_path / "server"
    folder.mkdir()
    server = kind(folder)
    server.start()
    try:
        train_while_a_server_dies(server, SOAK or 2, name, tmp_path)
    finally:
        server.kill()


def test_everything_arrives_though_the_server_forgets_all_it_had(name, tmp_path):
    """moto keeps all in memory: killed, it has lost every segment and commit that it acknowledged."""
    folder = tmp_path / "server"
    folder.mkdir()
    server = servers.Moto(folder)
    server.start()
    try:
        train_while_a_server_dies(server, SOAK or 1, name, tmp_path)
    finally:
        server.kill()


if SOAK:

    def test_everything_arrives_though_seaweed_is_killed(name, tmp_path):
        folder = tmp_path / "server"
        folder.mkdir()
        server = servers.Seaweed(folder)
        server.start()
        try:
            train_while_a_server_dies(server, SOAK, name, tmp_path)
        finally:
            server.kill()


MACHINE = """
    import json, sys
    import lakepond as lp
    from small_runs import SPEC, record
    cloud = lp.Cloud(sys.argv[1], options=json.loads(sys.argv[2]), retry_cap=0.2)
    replay = lp.Replay.open(sys.argv[3], SPEC, capacity=300, cloud=cloud, pull="lazy")
    print("open", replay.stats().recorded, flush=True)
    while True:
        begin = replay.stats().recorded
        record(replay, begin, begin + 20)
        commit = replay.commit()
        print("committed", commit.number, commit.recorded, flush=True)
        assert replay.push(wait=True, timeout=60).done
        print("pushed", commit.number, commit.recorded, flush=True)
"""


def test_a_machine_that_is_killed_leaves_the_newest_whole_commit(moto, chaos, name, tmp_path):
    """Each machine begins with an empty disk, resumes from the cloud, and dies at some moment of a push."""
    proxy, chance = chaos(moto), random.Random(1)
    proxy.rate = 200_000  # slow enough that most kills hit a push
    number, recorded = -1, 0
    for machine in range(MACHINES):
        process = subprocess.Popen(
            [
                *[sys.executable, "-c", textwrap.dedent(MACHINE), moto.url(name)],
                *[json.dumps(moto.options(proxy.port)), str(tmp_path / f"machine-{machine}")],
            ],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        opened = process.stdout.readline().split()
        assert opened == ["open", str(recorded)]  # all that was pushed before, and nothing else
        timer = threading.Timer(chance.uniform(0.3, 2.0), process.send_signal, [signal.SIGKILL])
        timer.start()
        for line in process.stdout:
            word, *numbers = line.split()
            if word == "pushed":
                number, recorded = map(int, numbers)
        process.wait()
        process.stdout.close()
        there = Store(moto.cloud(name)).list("commits")
        assert there or number < 0
        if there:
            with lp.pull(tmp_path / f"look-{machine}", moto.cloud(name)) as lake:
                assert lake.commit.number >= number  # it may have arrived before it was acknowledged
                recorded = lake.commit.recorded
                whole(lake, recorded)
    assert number >= 0
