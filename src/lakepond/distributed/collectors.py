"""Collectors: Ray actors that fill a lake, each under its own name; the learner follows it.

    learner ──broadcast──▶ Ray's object store ──▶ collectors ──steps──▶ lake ──follow──▶ learner

Experience never travels through Ray. An actor that dies is restarted by Ray and continues its chain, or
starts another one on another machine. A thread of this process asks every actor for its status, gives those
that are behind the newest weights, makes them wait while the learner is behind, and notices if the head of
the cluster is gone.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.distributed import ray_cluster
from lakepond.distributed.collector import (
    RETRY_SECONDS,
    Collector,
    CollectorStatus,
    MakeEnvironment,
    MakePolicy,
)
from lakepond.errors import CloudError, ClusterError
from lakepond.flow.following import positions
from lakepond.formats import parse_seconds
from lakepond.paths import on_disk
from lakepond.types import Spec

log = logging.getLogger("lakepond")
POLL_SECONDS = 0.5
"""how often each collector is asked for its status, and given new weights"""
LEARNER_SECONDS = 2.0
"""how often the position of the learner is read"""
SILENT_SECONDS = 15.0
"""a collector that has not answered for longer is not alive"""
START_SECONDS = 300.0
STOP_SECONDS = 45.0


@dataclass(frozen=True)
class LiveStatus(CollectorStatus):
    """The status of one collector, as far as this process knows it."""

    alive: bool = False
    """whether it has answered in the last seconds"""
    age: float | None = None
    """seconds since it last answered; None: it never did"""
    restarts: int = 0
    """how often Ray has started it again"""
    acknowledged: int = 0
    """steps of its present process that are in the lake, whatever happens to its machine"""


class Statuses(tuple[LiveStatus, ...]):
    """One status for each collector; prints as a table."""

    def __str__(self) -> str:
        lines = [
            f"{'collector':<16} {'state':<8} {'steps':>10} {'per s':>8} {'weights':>7} {'restarts':>8}  host"
        ]
        for each in self:
            state = "silent" if not each.alive else "waiting" if each.waiting else "alive"
            lines.append(
                f"{each.writer:<16} {state:<8} {each.steps:>10} {each.steps_per_second:>8.1f} "
                f"{each.weights:>7} {each.restarts:>8}  {each.host}:{each.pid}"
            )
        lines += [f"{each.writer}: {each.error}" for each in self if each.error]
        return "\n".join(lines)


class Collectors:
    """Any number of collectors on a Ray cluster, for a training loop of one's own. Close it, or use `with`.

    Thread-safe. The lake stays when they are gone: the next ones continue it.
    """

    def __init__(
        self,
        make_env: MakeEnvironment,
        make_policy: MakePolicy,
        num: int,
        lake: str | Path | Cloud,
        *,
        envs_per_collector: int = 1,
        spec: Spec | None = None,
        address: str = ray_cluster.LOCAL,
        cpus_per_collector: float = 1.0,
        gpus_per_collector: float = 0.0,
        folder: str | Path | None = None,
        commit_every: float | str = "1s",
        name: str = "collector",
    ) -> None:
        """Start the collectors; return when the lake exists and the first of them collects.

        make_env: returns an environment with Gymnasium's interface. make_policy: returns a callable that
        takes a batch of observations and returns actions; with a method `load(params)` it takes what is
        broadcast. Both are called in the collectors' processes.
        num: number of collectors. lake: URL of a bucket, a `Cloud`, or a folder that all machines share. The
        options of a `Cloud`, which may hold secrets, go from this process to the collectors' and are stored
        nowhere in between; nothing shows them.
        envs_per_collector: environments of each, stepped one after another.
        spec: the fields of a step; default: from the environment's spaces.
        address: "local", "auto" or "host:port", see `ray_cluster.connect`; `ray.init` before is honoured.
        cpus_per_collector, gpus_per_collector: shares of a machine that each collector needs.
        folder: on each machine, where files are kept that belong to a bucket; default: a temporary one.
        commit_every: how often each collector commits and pushes; seconds, or text like "5s".
        name: collectors are the writers `<name>-0`, `<name>-1`, ...

        Raises `ClusterError` if the cluster cannot run them or the first one fails to start.
        """
        every = parse_seconds(commit_every)
        self._place = _Place.of(lake)
        self._version, self._weights = 0, None
        self._head_lost: str | None = None
        self._lock, self._end = threading.Lock(), threading.Event()
        self._behind = (False, 0.0)  # whether the learner is behind, and when that was read
        with ExitStack() as stack:
            cluster = stack.enter_context(
                ray_cluster.connect(
                    address,
                    workers=num,
                    cpus_per_worker=cpus_per_collector,
                    gpus_per_worker=gpus_per_collector,
                    bucket=self._place.bucket,
                )
            )
            self._ray, self._head = cluster.ray, ray_cluster.ClusterHead(cluster.ray)
            _warn_of_folder(self._ray, self._place)
            actor = self._ray.remote(_Actor).options(**cluster.options(), max_concurrency=2)
            how = {"envs": envs_per_collector, "spec": spec, "folder": folder, "commit_every": every}
            self._members = [
                _Member(f"{name}-{i}", actor.remote(make_env, make_policy, f"{name}-{i}", how))
                for i in range(num)
            ]
            stack.callback(self._stop_actors)
            self._learners = positions.Learners(Store.at(self._place.open()))
            self._thread = threading.Thread(target=self._watch, name="lakepond-collectors", daemon=True)
            self._thread.start()
            stack.callback(self._stop_watching)
            self._wait_for_first()
            self._stack = stack.pop_all()

    # --- for the learner -----------------------------------------------------------------------------

    def broadcast(self, params: Any) -> int:
        """Give all collectors new weights for `policy.load`; returns their number, 1 for the first.

        Returns at once: a collector takes the newest ones between two of its steps, those before are dropped.
        Raises `ClusterError` once the head of the cluster is lost.
        """
        self._check_head()
        reference = self._ray.put(params)
        with self._lock:
            self._version, self._weights = self._version + 1, reference
            return self._version

    def status(self) -> Statuses:
        """The status of each collector; prints as a table.

        Raises `ClusterError` once the head of the cluster is lost: the collectors end with it, and Ray ends
        this process about 40 s later.
        """
        self._check_head()
        return self._statuses()

    def close(self) -> None:
        """Stop all collectors after they have committed and pushed; Ray too, if it was started for them."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        found = self._statuses()
        return f"Collectors({sum(each.alive for each in found)} of {len(found)} alive)"

    def _statuses(self) -> Statuses:
        return Statuses(member.status() for member in self._members)

    def _check_head(self) -> None:
        if self._head_lost is not None:
            raise ClusterError(self._head_lost)

    # --- the thread ----------------------------------------------------------------------------------

    def _look_at_learner(self) -> None:
        """Read the position of the learner, in a thread of its own: a bucket may take minutes to fail."""
        while not self._end.wait(LEARNER_SECONDS):
            with suppress(CloudError, OSError):  # as it was the last time
                began = time.monotonic()
                self._behind = (self._learners.are_behind(), began)

    def _is_behind(self) -> bool:
        """Whether collectors wait for the learner; not if its position could not be read for a minute."""
        behind, at = self._behind
        return behind and time.monotonic() - at < positions.SILENT_SECONDS

    def _watch(self) -> None:
        threading.Thread(target=self._look_at_learner, name="lakepond-learner", daemon=True).start()
        while not self._end.wait(POLL_SECONDS):
            try:
                self._head.check()
                self._ask_all()
            except ClusterError as error:
                self._head_lost = str(error)
                log.error("%s", error)
                return
            except Exception:
                if not self._end.is_set():
                    log.exception("the collectors could not be asked for their status; trying again")

    def _ask_all(self) -> None:
        """Read the answers that are there, and ask those that have answered again."""
        waiting = {member.answer: member for member in self._members if member.answer is not None}
        if waiting:
            done, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for answer in done:
                member = waiting[answer]
                member.answer = None
                try:
                    member.answered(self._ray.get(answer))
                except self._ray.exceptions.RayError as error:
                    member.failed(
                        error, restarts=isinstance(error, self._ray.exceptions.ActorUnavailableError)
                    )
        with self._lock:
            version, weights = self._version, self._weights
        wait = self._is_behind()
        for member in self._members:
            if member.answer is None:
                new = (version, weights) if member.weights_sent < version else (0, None)
                member.weights_sent = max(member.weights_sent, new[0])
                place, member.place_sent = None if member.place_sent else self._place, True
                member.answer = member.actor.poll.remote(place, wait, *new)

    def _wait_for_first(self) -> None:
        until = time.monotonic() + START_SECONDS
        while not any(member.is_started for member in self._members):
            self._check_head()
            late = time.monotonic() > until
            for member in self._members:
                if member.last.error and (late or not member.is_restarting):
                    raise ClusterError(f"the collectors could not start: {member.last.error}")
            if late:
                raise ClusterError(
                    f"no collector has started within {START_SECONDS:.0f} s; see `ray status`."
                )
            time.sleep(0.05)

    def _stop_watching(self) -> None:
        self._end.set()
        self._thread.join()

    def _stop_actors(self) -> None:
        if self._head.lost:  # they have ended with their nodes, or do so soon, and nobody can be asked
            return
        ending = [member.actor.stop.remote() for member in self._members if member.status().alive]
        with suppress(self._ray.exceptions.RayError):
            late = self._ray.wait(ending, num_returns=len(ending), timeout=STOP_SECONDS)[1] if ending else []
            if late:
                log.warning(
                    "%d collectors did not stop within %.0f s; what they had not pushed is on their disks",
                    len(late),
                    STOP_SECONDS,
                )
        for member in self._members:
            self._ray.kill(member.actor)


@dataclass
class _Member:
    """One collector, as this process knows it."""

    writer: str
    actor: Any
    last: CollectorStatus = field(default_factory=lambda: CollectorStatus(""))
    answer: Any = None
    """what `poll` was asked for and has not answered yet"""
    weights_sent: int = 0
    place_sent: bool = False
    restarts: int = 0
    acknowledged: int = 0
    is_started: bool = False
    is_restarting: bool = False
    """whether the last error was that Ray could not reach it, and Ray starts it again if it is dead"""
    at: float | None = None
    logged: str | None = None
    """the last error of the collector itself that was logged"""

    def answered(self, found: dict[str, Any]) -> None:
        self.acknowledged, self.is_started = found.pop("acknowledged"), found.pop("is_started")
        self.place_sent, self.is_restarting = found.pop("has_place"), False
        status = CollectorStatus(**found)
        if self.last.pid and (status.pid, status.host) != (self.last.pid, self.last.host):
            self.restarts += 1
            self.weights_sent = 0  # the new process has none
        if status.error is not None and status.error != self.logged:
            log.warning("%s: %s", self.writer, status.error)
            self.logged = status.error
        self.last, self.at = status, time.monotonic()

    def failed(self, error: Exception, *, restarts: bool) -> None:
        """It is being restarted, or has lost an object; everything is sent again."""
        self.weights_sent, self.place_sent, self.is_restarting = 0, False, restarts
        self.last = replace(self.last, error=f"{type(error).__name__}: {ray_cluster.one_line(error)}")

    def status(self) -> LiveStatus:
        age = None if self.at is None else time.monotonic() - self.at
        return LiveStatus(
            **{**asdict(self.last), "writer": self.writer},
            alive=age is not None and age < SILENT_SECONDS,
            age=age,
            restarts=self.restarts,
            acknowledged=self.acknowledged,
        )


class _Actor:
    """Runs in a process of its own; a thread makes and runs the collector, so that `poll` always answers."""

    def __init__(
        self, make_env: MakeEnvironment, make_policy: MakePolicy, writer: str, how: dict[str, Any]
    ) -> None:
        ray_cluster.hide_gpus()
        self._make = partial(Collector, make_env, make_policy, writer=writer, **how)
        self._place: _Place | None = None
        self._has_place = threading.Event()
        self._collector: Collector | None = None
        self._status = CollectorStatus(writer, socket.gethostname(), os.getpid())
        self._end = threading.Event()
        self._wait = False
        self._weights: tuple[int, Any] | None = None
        self._thread = threading.Thread(target=self._run, name="lakepond-collect", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = RETRY_SECONDS
        self._has_place.wait()
        while not self._end.is_set():
            try:
                assert self._place is not None
                with self._make(lake=self._place.open()) as collector:
                    self._collector = collector
                    if self._weights is not None:
                        collector.load(*self._weights)
                    collector.waiting = self._wait
                    if not self._end.is_set():
                        collector.run()
            except Exception as error:
                log.exception("the collector has failed")
                if self._collector is not None and self._collector.steps:
                    pause = RETRY_SECONDS
                last = self._status if self._collector is None else self._collector.status
                self._status = replace(last, error=f"{type(error).__name__}: {error}")
                self._collector = None
            self._end.wait(pause)
            pause = min(2 * pause, 60.0)

    def poll(self, place: _Place | None, wait: bool, version: int, params: Any) -> dict[str, Any]:
        """The status; `place`: where the lake is, if this process does not know it yet.

        `wait`: whether to wait for the learner. Newer weights, if `version` is not 0.
        """
        collector, self._wait = self._collector, wait
        if place is not None:
            self._place = place
            self._has_place.set()
        if version:
            self._weights = (version, params)
        status, acknowledged = self._status, 0
        if collector is not None:
            collector.waiting = wait
            if version:
                collector.load(version, params)
            status, acknowledged = replace(collector.status, steps=collector.steps), collector.acknowledged()
        return {
            **asdict(status),
            "acknowledged": acknowledged,
            "is_started": collector is not None,
            "has_place": self._has_place.is_set(),
        }

    def stop(self) -> None:
        """Commit, push and end."""
        self._end.set()
        self._has_place.set()
        if self._collector is not None:
            self._collector.stop()
        self._thread.join()


@dataclass(frozen=True)
class _Place:
    """Where the lake is, on its way to an actor.

    A call of an actor's method carries small arguments from process to process, while those of its
    constructor are kept by Ray's head, so that it can start the actor again.
    """

    where: str
    """URL or folder"""
    settings: dict[str, Any] | None = field(default=None, repr=False)
    """those of a `Cloud`, which itself refuses to be pickled with options"""

    @classmethod
    def of(cls, lake: str | Path | Cloud) -> Self:
        if isinstance(lake, Cloud):
            return cls(str(lake), dict(vars(lake)))
        return cls(str(lake) if "://" in str(lake) else str(on_disk(lake).absolute()))

    @property
    def bucket(self) -> str | None:
        """Its URL, if nodes use it with what is in their own environment."""
        return self.where if "://" in self.where and self.settings is None else None

    def open(self) -> str | Cloud:
        return self.where if self.settings is None else Cloud(**self.settings)


def _warn_of_folder(ray: Any, place: _Place) -> None:
    hosts = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if "://" not in place.where and len(hosts) > 1:
        log.warning(
            "the lake %s is a folder and the cluster has %d machines: all of them must share that folder, or "
            "use a bucket",
            place.where,
            len(hosts),
        )
