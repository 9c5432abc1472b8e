"""What `Collectors` knows of its actors, without a cluster."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from lakepond.distributed import collectors as module
from lakepond.distributed import ray_cluster
from lakepond.distributed.collector import CollectorStatus
from lakepond.distributed.collectors import Collectors, _Actor, _Member, _Place
from lakepond.errors import ClusterError
from worlds import Constant, wait_until


def bare(**state) -> Collectors:
    """Collectors without actors."""
    made = object.__new__(Collectors)
    head = SimpleNamespace(check=lambda: None, lost=False)
    vars(made).update(_end=threading.Event(), _head_lost=None, _behind=(False, 0.0), _head=head, **state)
    return made


def test_a_bucket_that_does_not_answer_stops_neither_polls_nor_collectors(monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(module, "LEARNER_SECONDS", 0.01)
    monkeypatch.setattr("lakepond.flow.following.positions.SILENT_SECONDS", 0.3)
    hung, answers, waits = threading.Event(), iter([True]), []

    def are_behind():
        return next(answers, None) or hung.wait(60)

    collectors = bare(_learners=SimpleNamespace(are_behind=are_behind))
    collectors._ask_all = lambda: waits.append(collectors._is_behind())
    collectors._thread = threading.Thread(target=collectors._watch, daemon=True)
    collectors._thread.start()
    try:
        wait_until(lambda: True in waits and not waits[-1], 10)  # they wait, and then no longer
        began = time.monotonic()
        collectors._stop_watching()
        assert time.monotonic() - began < 30  # of the 60 s that the bucket takes
    finally:
        hung.set()


def test_a_process_that_dies_before_its_collector_exists_is_a_restart(monkeypatch):
    monkeypatch.setattr(ray_cluster, "hide_gpus", lambda: None)
    released = threading.Event()
    actors = []

    def start() -> _Actor:
        actors.append(_Actor(released.wait, Constant, "c0", {"envs": 1}))
        return actors[-1]

    member = _Member("c0", None)
    try:
        member.answered(start().poll(_Place("nowhere"), False, 1, {"value": 1}))
        assert member.place_sent
        assert member.last.pid == os.getpid()
        member.weights_sent = 1
        monkeypatch.setattr(os, "getpid", lambda: 1)
        member.answered(start().poll(None, False, 0, None))
        assert (member.restarts, member.place_sent, member.weights_sent) == (1, False, 0)
    finally:
        for actor in actors:
            actor._end.set()
            actor._has_place.set()
        released.set()


def test_an_error_of_a_collector_is_logged_once(caplog):
    member, status = _Member("c0", None), CollectorStatus("c0", pid=1)
    for error in (None, "the policy failed", None, "the policy failed", "the disk is full"):
        found = asdict(replace(status, error=error))
        member.answered({**found, "acknowledged": 0, "is_started": True, "has_place": True})
    logged = [each.getMessage() for each in caplog.records if each.funcName == "answered"]
    assert logged == ["c0: the policy failed", "c0: the disk is full"]


def test_the_pause_after_an_error_is_short_again_once_steps_were_recorded(monkeypatch):
    monkeypatch.setattr(ray_cluster, "hide_gpus", lambda: None)
    steps, pauses = iter([0, 0, 5, 0]), []

    class Fails:
        def __init__(self, **_):
            self.steps, self.status = next(steps), CollectorStatus("c0")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            """Nothing is open."""

        def run(self):
            raise OSError("the disk is full")

    actor = _Actor(None, Constant, "c0", {})
    actor._make, actor._place = Fails, _Place("nowhere")
    actor._end = SimpleNamespace(is_set=lambda: len(pauses) == 4, wait=pauses.append)
    actor._has_place.set()
    actor._thread.join(30)
    assert pauses == [1, 2, 1, 2]


def test_an_actor_that_is_restarted_during_the_start_does_not_end_it(monkeypatch):
    monkeypatch.setattr(module, "START_SECONDS", 0.2)
    away, well = _Member("c0", None), _Member("c1", None)
    collectors = bare(_members=[away, well])
    away.failed(RuntimeError("the actor is unavailable"), restarts=True)
    with pytest.raises(ClusterError, match="could not start: RuntimeError: the actor is unavailable"):
        collectors._wait_for_first()  # after START_SECONDS
    monkeypatch.setattr(module, "START_SECONDS", 60.0)
    threading.Timer(0.2, setattr, (well, "is_started", True)).start()
    collectors._wait_for_first()
    well.is_started = False
    away.failed(RuntimeError("the actor died"), restarts=False)
    with pytest.raises(ClusterError, match="could not start: RuntimeError: the actor died"):
        collectors._wait_for_first()
