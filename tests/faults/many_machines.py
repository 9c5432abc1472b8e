"""Many machines: 16 writers and one follower through a bucket; writers and the server are killed at random.

Every step says which writer recorded it and its number there. A writer notes each commit that returned, and
what it finds in its lake when it starts, in a file of its own: these steps are acknowledged. In the end the
follower must have every acknowledged step once, in the order of its writer, and nothing else.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np

import lakepond as lp
from cloud.servers import KEY, SECRET, Seaweed
from faults.outcome import Outcome

DRILL = "many machines"
WRITERS, SERVER_KILLS = 16, 5
SECONDS, ENDING = 600.0, 300.0
"""of killing, and at most until everything has arrived after it"""
SPEC = lp.Spec(obs=lp.Field((4, 16, 16), "uint8"), action=lp.Field((), "int32"))
WRITER = textwrap.dedent("""
    import signal, sys, threading, time
    import numpy as np
    import lakepond as lp
    from faults.many_machines import SPEC, step
    folder, url, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    how = {"cloud": lp.Cloud(url, retry_cap=2.0), "writer": f"w{number:02}", "push_every": "1s"}
    with lp.Replay.open(f"{folder}/lake", SPEC, 2_000, **how) as replay:
        with open(f"{folder}/acknowledged", "a") as acknowledged:
            if (held := replay.stats().recorded):  # committed before a kill that came before the note
                acknowledged.write(f"{held}\\n")
            while not ended.is_set():
                for _ in range(10):
                    replay.record(**step(number, replay.stats().recorded))
                acknowledged.write(f"{replay.commit().recorded}\\n")
                acknowledged.flush()
                ended.wait(0.5)
        replay.push(wait=True, timeout=240)
""")


def step(writer: int, number: int) -> dict[str, object]:
    """Step `number` of a writer; episodes have 50 steps."""

    def frames(stop: int) -> np.ndarray:
        return np.stack(
            [np.full((16, 16), (7 * writer + max(0, n)) % 251, np.uint8) for n in range(stop - 3, stop + 1)]
        )

    return {
        "obs": frames(number),
        "next_obs": frames(number + 1),
        "action": writer,
        "reward": float(number),
        "terminated": number % 50 == 49,
        "truncated": False,
        "stream": 0,
    }


def drill(
    scratch: Path, chance: random.Random, *, seconds: float = SECONDS, writers: int = WRITERS
) -> Outcome:
    """Kill writers and the server for so long, then compare what the follower has with what was recorded."""
    outcome = Outcome(DRILL, f"{writers} writers, 1 follower")
    (scratch / "server").mkdir()
    server = Seaweed(scratch / "server")
    server.start()
    own = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    env = {
        **os.environ,
        **own,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "PYTHONWARNINGS": "ignore",
    }
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    os.environ.update({name: env[name] for name in (*own, "AWS_ENDPOINT_URL")})
    url, running = server.url("run"), {}

    def begin(number: int) -> None:
        folder = scratch / f"machine{number}"
        folder.mkdir(exist_ok=True)
        with (folder / "log").open("ab") as log:
            line = [sys.executable, "-c", WRITER, str(folder), url, str(number)]
            running[number] = subprocess.Popen(line, env=env, stdout=log, stderr=log)

    try:
        for number in range(writers):
            begin(number)
        until = time.monotonic() + 120
        while True:
            try:
                follower = lp.Replay.follow(
                    url, capacity=1_000_000, poll_every="0.5s", discover_every="5s", cache=scratch / "cache"
                )
                break
            except (lp.CloudError, lp.LakeNotFound):
                assert time.monotonic() < until, "the lake did not appear in the bucket"
                time.sleep(1.0)
        kills = sorted(chance.uniform(0.1, 0.9) * seconds for _ in range(SERVER_KILLS))
        began, times, killed = time.monotonic(), list(kills), 0
        while (now := time.monotonic() - began) < seconds:
            if times and now >= times[0]:
                times.pop(0)
                server.kill()
                time.sleep(chance.uniform(0.0, 5.0))
                server.start()
            number = chance.randrange(writers)
            ended = running[number].poll()
            assert ended is None, f"writer {number} ended by itself with {ended}: {_log(scratch, number)}"
            running[number].kill()
            running[number].wait()
            killed += 1
            begin(number)
            time.sleep(chance.uniform(1.0, 5.0))
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        for number, process in running.items():
            assert process.wait(ENDING) == 0, f"writer {number}: {_log(scratch, number)}"
        outcome.notes.update(kills=killed, server_kills=SERVER_KILLS)
        _compare(outcome, scratch, follower, writers)
        follower.close()
    finally:
        for process in running.values():
            process.kill()
        server.kill()
    return outcome


def _compare(outcome: Outcome, scratch: Path, follower: lp.Replay, writers: int) -> None:
    acknowledged = {}
    for number in range(writers):
        lines = (scratch / f"machine{number}" / "acknowledged").read_text().split()
        acknowledged[number] = max(int(line) for line in lines)
    until = time.monotonic() + ENDING
    while follower.stats().recorded < sum(acknowledged.values()) and time.monotonic() < until:
        time.sleep(0.5)
    stats = follower.stats()
    outcome.notes.update(steps=stats.recorded, missed=sum(each.missed for each in follower.lag().writers))
    batch = follower.steps(np.arange(stats.recorded))
    for number, expected in acknowledged.items():
        with outcome.attempt(f"writer {number}"):
            mine = np.flatnonzero(batch.action == number)
            found = batch.reward[mine].astype(int)
            assert found.tolist() == list(range(len(found))), f"not in order, or twice: {_first_wrong(found)}"
            assert len(found) == expected, f"{expected} steps were acknowledged, {len(found)} arrived"
            for at in mine[:: max(1, len(mine) // 200)]:
                own = step(number, int(batch.reward[at]))
                assert (batch.obs[at] == own["obs"]).all(), f"step {batch.reward[at]} has other frames"
                assert (batch.next_obs[at] == own["next_obs"]).all(), (
                    f"step {batch.reward[at]} has other frames"
                )


def _first_wrong(found: np.ndarray) -> str:
    at = int(np.flatnonzero(found != np.arange(len(found)))[0])
    return f"place {at} has {found[max(0, at - 2) : at + 3].tolist()}"


def _log(scratch: Path, number: int) -> str:
    return (scratch / f"machine{number}" / "log").read_text()[-600:]
