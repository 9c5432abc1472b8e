"""`gc` beside a writer and lazy readers on a real server, SeaweedFS: random moments, many times.

A writer pushes commits, two collectors delete all but the newest, and readers open commits lazily, the oldest
too. A reader that was opened reads every step. In the end two more runs leave the newest commit and its files.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import lakepond as lp
from cloud.servers import Seaweed
from faults.model import SPEC, check_lake, record
from faults.outcome import Outcome
from lakepond.cloud.layout import commit_numbers
from lakepond.cloud.store import Store

DRILL = "gc on a server"
COMMITS, STEPS = 8, 5
OLD = 1.5
"""seconds after which a file is old: far more than a push takes"""


def drill(scratch: Path, chance: random.Random, *, rounds: int) -> Outcome:
    """Some rounds, each at a place of its own."""
    outcome = Outcome(DRILL, "1 writer, 2 collectors, 3 readers")
    (scratch / "server").mkdir()
    server = Seaweed(scratch / "server")
    server.start()
    try:
        for number in range(rounds):
            with outcome.attempt(f"round {number}"):
                play(server.cloud(f"round-{number}"), scratch / str(number), chance, outcome)
    finally:
        server.kill()
    return outcome


def play(cloud: lp.Cloud, scratch: Path, chance: random.Random, outcome: Outcome) -> None:
    """One round: everything at once."""
    errors: list[Exception] = []
    ended = threading.Event()

    def thread(work: Callable[[random.Random], None]) -> threading.Thread:
        own = random.Random(chance.random())

        def run() -> None:
            try:
                work(own)
            except Exception as error:
                errors.append(error)

        started = threading.Thread(target=run)
        started.start()
        return started

    def write(_: random.Random) -> None:
        how = {"capacity": 3 * STEPS, "max_steps": 3 * STEPS, "cloud": cloud, "merge_after": None}
        with lp.Replay.open(scratch / "writer", SPEC, **how) as replay:
            for n in range(COMMITS):
                record(replay, n * STEPS, (n + 1) * STEPS)
                replay.commit()
                assert replay.push(wait=True, timeout=60).done
                time.sleep(0.3)

    def collect(own: random.Random) -> None:
        while not ended.is_set():
            time.sleep(own.uniform(0.0, 0.3))
            try:
                swept = lp.gc(cloud, keep_last=1, older_than=OLD, dry_run=False)
            except lp.CloudNotFound:  # nothing was pushed yet
                continue
            outcome.notes["commits deleted"] = outcome.notes.get("commits deleted", 0) + len(swept.commits)

    def read(own: random.Random) -> None:
        for n in range(6):
            time.sleep(own.uniform(0.0, 1.0))
            numbers = commit_numbers(Store(cloud).list("commits"))
            if not numbers:
                continue
            folder = scratch / f"reader-{threading.get_ident()}-{n}"
            try:
                lake = lp.pull(folder, cloud, commit=own.choice((None, numbers[0], numbers[0])), lazy=True)
            except lp.CloudNotFound:  # deleted before it was open
                outcome.count("readers that came too late")
                continue
            with lake:
                time.sleep(own.uniform(0.0, 2.0))
                check_lake(lake)
            outcome.count("readers")

    workers = [thread(write), *(thread(read) for _ in range(3))]
    collectors = [thread(collect) for _ in range(2)]
    for worker in workers:
        worker.join()
    ended.set()
    for collector in collectors:
        collector.join()
    for error in errors:
        raise error
    for _ in range(2):
        time.sleep(OLD + 1.0)
        lp.gc(cloud, keep_last=1, older_than=OLD, dry_run=False)
    left = Store(cloud).list()
    with lp.pull(scratch / "end", cloud) as lake:
        check_lake(lake)
        named = {f"segments/{name}" for name, _ in lake.files()}
        assert lake.commit.recorded == COMMITS * STEPS
    assert commit_numbers(left) == [COMMITS - 1], commit_numbers(left)
    assert {name for name in left if name.startswith("segments/")} == named
    assert not [name for name in left if name.startswith("leases/")]
