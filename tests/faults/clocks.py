"""Drill 4, clock jumps: the wall clock of this process jumps by hours and years, in both directions.

Commits, checkpoints and the cloud are ordered by number, so nothing is lost or reordered, and `gc` measures
age by the clock of the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import lakepond as lp
from faults.model import SPEC, check_and_continue, check_lake, record
from faults.operations import check_run, open_run, save_checkpoint
from faults.outcome import Outcome

DRILL = "clock jumps"
HOUR = 3600.0
JUMPS = (-40 * 365 * 24 * HOUR, -365 * 24 * HOUR, -25 * HOUR, -HOUR, HOUR, 25 * HOUR, 20 * 365 * 24 * HOUR)


class Clock:
    """The wall clock, `ahead` seconds off; monotonic clocks never jump."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._time = time.time

    def time(self) -> float:
        """What `time.time` returns."""
        return self._time() + self.ahead

    def time_ns(self) -> int:
        """What `time.time_ns` returns."""
        return int(self.time() * 1e9)


@contextlib.contextmanager
def jumping() -> Iterator[Clock]:
    """Replace the wall clock of this process."""
    clock, gmtime = Clock(), time.gmtime
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch("time.time", clock.time))
        patches.enter_context(mock.patch("time.time_ns", clock.time_ns))
        patches.enter_context(
            mock.patch("time.gmtime", lambda at=None: gmtime(clock.time() if at is None else at))
        )
        for module in ("lakepond.lake.write.writer",):  # takes datetime.now
            patches.enter_context(mock.patch(f"{module}.datetime", _datetime(clock)))
        yield clock


def _datetime(clock: Clock) -> type:
    import datetime

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(clock.time(), tz)

    return Jumping


def walk(scratch: Path, chance: random.Random) -> None:
    """Commit, push, pull, save checkpoints and compact, with a jump before each."""
    path, cloud = scratch / "lake", f"file://{scratch / 'bucket'}"
    with jumping() as clock:
        with lp.Replay.open(path, SPEC, capacity=30, keep_last=3, merge_after=4, cloud=cloud) as replay:
            for stop in range(6, 61, 6):
                clock.ahead = chance.choice(JUMPS)
                record(replay, stop - 6, stop)
                assert replay.commit().recorded == stop
                clock.ahead = chance.choice(JUMPS)
                assert replay.push(wait=True, timeout=20).done
                with lp.Lake.open(path) as lake:
                    assert lake.commit.recorded == stop  # the newest by number
        with open_run(scratch) as run:
            for number in range(1, 7):
                clock.ahead = chance.choice(JUMPS)
                save_checkpoint(run, number, number)
        clock.ahead = chance.choice(JUMPS)
        check_run(scratch, {"acknowledged": 6, "handed_over": 6})
        clock.ahead = chance.choice(JUMPS)
        with lp.pull(scratch / "there", cloud) as lake:
            assert lake.commit.recorded == 60
            check_lake(lake)
        clock.ahead = chance.choice(JUMPS)
        with lp.Lake.open(path) as lake:
            lake.compact(keep_last=2)
        check_and_continue(path, 60, 60)


def walk_gc(scratch: Path, chance: random.Random) -> None:
    """`gc` deletes what is old by the server's clock, however wrong the local clock is."""
    path, bucket = scratch / "lake", scratch / "bucket"
    cloud = f"file://{bucket}"
    with lp.Replay.open(path, SPEC, capacity=30, keep_last=1, cloud=cloud) as replay:
        for stop in (10, 20, 30):
            record(replay, stop - 10, stop)
            replay.commit()
            assert replay.push(wait=True, timeout=20).done
    with jumping() as clock:
        clock.ahead = chance.choice(JUMPS)
        young = lp.gc(cloud, keep_last=1, dry_run=False)
        assert not young.commits, f"the clock is off by {clock.ahead} s: commits {young.commits} were deleted"
        assert not young.segments, f"the clock is off by {clock.ahead} s: {young.segments} were deleted"
        for file in (bucket / "commits").iterdir():
            os.utime(file, (time.time() - clock.ahead - 48 * HOUR,) * 2)  # two days old, by the server
        for _ in range(2):  # the first one marks
            clock.ahead = chance.choice(JUMPS)
            old = lp.gc(cloud, keep_last=1, dry_run=False)
            make_marks_older(bucket)
        assert old.commits == (0, 1), f"the clock is off by {clock.ahead} s: only {old.commits} were deleted"
        with lp.pull(scratch / "there", cloud) as lake:
            assert lake.commit.recorded == 30
            check_lake(lake)


def make_marks_older(bucket: Path) -> None:
    """Let what a `gc` has marked be marked two days ago, by the server's clock."""
    file = bucket / "garbage.json"
    if file.exists():
        marked = json.loads(file.read_bytes())["marked"]
        marked = {name: [modified, at - 48 * HOUR] for name, (modified, at) in marked.items()}
        file.write_text(json.dumps({"marked": marked}))


def walk_lease(scratch: Path, chance: random.Random) -> None:
    """A replay on another machine that was resumed lazily reads its steps after a `gc` there."""
    path, bucket = scratch / "lake", scratch / "bucket"
    cloud = f"file://{bucket}"
    how: dict[str, Any] = {"max_steps": 30, "keep_last": 1, "merge_after": None}
    with lp.Replay.open(path, SPEC, capacity=30, cloud=cloud, **how) as replay:
        for stop in (5, 10, 15, 20):
            record(replay, stop - 5, stop)
            replay.commit()
        assert replay.push(wait=True, timeout=20).done
        with (
            lp.Replay.open(scratch / "there", capacity=5, cloud=cloud, pull="lazy") as reader,
            jumping() as clock,
        ):
            for stop in (50, 80):
                clock.ahead = chance.choice(JUMPS)
                record(replay, stop - 30, stop)
                replay.commit()
                assert replay.push(wait=True, timeout=20).done
            for file in (*(bucket / "commits").iterdir(), *(bucket / "segments").iterdir()):
                os.utime(file, (time.time() - clock.ahead - 48 * HOUR,) * 2)
            for _ in range(2):
                clock.ahead = chance.choice(JUMPS)
                lp.gc(cloud, keep_last=1, dry_run=False)
                make_marks_older(bucket)
            with reader.lake() as lake:
                assert lake.commit.recorded == 20
                check_lake(lake)


WALKS = {"commit, push, checkpoint, pull, compact": walk, "gc": walk_gc, "gc beside a reader": walk_lease}


def drill(name: str, scratch: Path, chance: random.Random, *, rounds: int) -> Outcome:
    """One walk as often as asked, each with other jumps."""
    outcome = Outcome(DRILL, name)
    for number in range(rounds):
        with outcome.attempt(f"round {number}"):
            WALKS[name](scratch / str(number), chance)
    return outcome
