"""Collectors on a Ray that this process has started."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

import lakepond as lp
from lakepond.errors import ClusterError
from worlds import Counting, wait_until


@pytest.fixture
def start(local, collectors):
    """Starts collectors on this Ray."""
    return collectors


def test_collectors_wait_for_a_slow_learner_and_not_for_a_dead_one(start, bucket, monkeypatch):
    monkeypatch.setattr("lakepond.flow.following.limits.AHEAD_STEPS", 100)
    monkeypatch.setattr("lakepond.flow.following.positions.PUBLISH_SECONDS", 0.1)
    monkeypatch.setattr("lakepond.flow.following.positions.SILENT_SECONDS", 1.0)
    monkeypatch.setattr("lakepond.distributed.collectors.LEARNER_SECONDS", 0.1)
    with start(num=1) as collectors:
        replay = lp.Replay.follow(
            bucket, capacity=100_000, samples_per_insert=4.0, poll_every="0.05s", discover_every="0.2s"
        )
        wait_until(lambda: all(each.waiting for each in collectors.status()))
        before = replay.recorded
        time.sleep(0.5)
        assert replay.recorded - before < 150  # of about 250 that it could record
        while collectors.status()[0].waiting:  # a learner that samples is not ahead any more
            with suppress(lp.SampleTimeout):  # it has sampled all that it may
                replay.sample(256, timeout=0.1)
        replay._follower.stop()  # it dies and leaves its position behind
        replay._follower._thread.join()
        steps = sum(each.steps for each in collectors.status())
        wait_until(lambda: sum(each.steps for each in collectors.status()) > steps + 500)
        assert not any(each.waiting for each in collectors.status())


class Bad(Counting):
    def __init__(self) -> None:
        raise OSError("the ROM is missing")


def test_bad_input_is_one_sentence(start, tmp_path):
    with pytest.raises(ClusterError, match="could not start: OSError: the ROM is missing"):
        start(num=1, make_env=Bad)
    lp.Replay.open(tmp_path / "other", lp.Spec(obs=lp.Field((2,), "float32"))).close()
    with pytest.raises(ClusterError, match=r"could not start: .*was created with a different spec"):
        start(num=1, lake=tmp_path / "other", folder=None)
