"""The status of a run or a lake in a bucket; see `status.py`.

A look LISTs the learners, the writers and the commits of each. Those in the next `DISCOVER_SECONDS` only ask
each writer for its next commit, one GET.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from lakepond import background, untrusted
from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.errors import CloudCorrupt, CloudNotFound, LakeCorrupt, LakeNotFound
from lakepond.flow.following.chains import Chains, chains_at
from lakepond.lake.format import description
from lakepond.lake.format.commits import Commit
from lakepond.runs.checkpoints import STATE
from lakepond.runs.copies import lake_of
from lakepond.runs.run import CONFIG, checked
from lakepond.runs.status import (
    BACK,
    LakeStatus,
    LearnerStatus,
    RunFiles,
    RunStatus,
    judge,
    lake_status,
    learners,
    parse_log,
    together,
)

DISCOVER_SECONDS = 30.0
ASKED_AT_A_TIME = 16


def watch_in_cloud(url: str) -> Callable[[], RunStatus]:
    """A function that returns the present status of the run, or of the lake without one, at a URL."""
    store = Store(Cloud.of(url))
    config = _config(store)
    place = lake_of(store.cloud) if config else store.cloud
    if not config and store.head(description.NAME) is None:
        raise CloudNotFound(f"there is neither a run nor a lake at {store.cloud}; push one there first.")
    lake: LakeInCloud | None = None

    def look() -> RunStatus:
        nonlocal lake
        if lake is None and Store(place).head(description.NAME) is not None:
            lake = LakeInCloud(chains_at(place))
        status = None if lake is None else lake.look()
        files = RunFiles(None, {}, [], None)
        if config:
            files = RunFiles(config["trainer"], config["config"], _log(store), _checkpoint(store))
        return judge(str(store.cloud), files, status, alive=status is not None and status.alive)

    return look


class LakeInCloud:
    """The newest commits of the writers of a lake, read again at each look."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self._writers: dict[str, _Recent] = {}
        self._learners: tuple[LearnerStatus, ...] = ()
        self._discovered = -DISCOVER_SECONDS

    def look(self) -> LakeStatus | None:
        """The lake now; None if it has no commit."""
        if time.monotonic() - self._discovered >= DISCOVER_SECONDS:
            self._writers = {name: _Recent() for name in self._chains.names()}
            self._learners = learners(self._chains.store)
            self._discovered = time.monotonic()
        for _ in background.results(self._update, self._writers, ASKED_AT_A_TIME, "lakepond-status"):
            pass
        seen = {name: each for name, each in self._writers.items() if each.last}
        if not seen:
            return None
        spec = self._chains.spec
        status = together(
            {name: lake_status(spec, each.last[-1], each.last[0], each.kept) for name, each in seen.items()}
        )
        listed = [s for each in seen.values() for leaf in each.last[-1].sources for s in leaf]
        shared = {(s.digest, s.bytes): s for s in listed}.values()  # stored once for all writers
        return replace(
            status,
            learners=self._learners,
            rows=status.rows - sum(s.rows for s in listed) + sum(s.rows for s in shared),
            bytes_on_disk=status.bytes_on_disk - sum(s.bytes for s in listed) + sum(s.bytes for s in shared),
        )

    def _update(self, name: str) -> None:
        writer, chains = self._writers[name], self._chains
        if not writer.last:
            numbers = chains.numbers(name)
            writer.kept = len(numbers)
            for number in [*numbers[-1 - BACK : -1][:1], *numbers[-1:]]:
                try:
                    writer.last.append(chains.commit(name, number))
                except (LakeCorrupt, LakeNotFound):  # damaged, or just deleted
                    continue
            return
        while (commit := chains.next(name, writer.last[-1].number)) is not None:
            writer.last.append(commit)
            writer.kept += 1


@dataclass
class _Recent:
    last: deque[Commit] = field(default_factory=lambda: deque(maxlen=BACK + 1))
    """its last commits, oldest first; one of `BACK` commits ago and the newest, to begin with"""
    kept: int = 0


def _config(store: Store) -> dict[str, Any]:
    """The settings of the run at a place; empty if there is none."""
    if store.head(CONFIG) is None:
        return {}
    try:
        return checked(untrusted.parse_json(store.read(CONFIG)))
    except (ValueError, KeyError, TypeError):
        wrong = f"{CONFIG} in {store.cloud} cannot be read as a run's settings; push the run again."
        raise CloudCorrupt(wrong) from None


def _log(store: Store) -> list[dict[str, Any]]:
    try:
        return parse_log(store.read("metrics.jsonl"))
    except CloudNotFound:
        return []


def _checkpoint(store: Store) -> int | None:
    """The newest complete one."""
    saved = sorted((name for name in store.folders("checkpoints") if name.isdecimal()), key=int, reverse=True)
    complete = (name for name in saved if store.head(f"checkpoints/{name}/{STATE}") is not None)
    return next((int(name) for name in complete), None)
