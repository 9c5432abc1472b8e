"""How the steps of Ray workers come to the driver: through chains of a lake that only transports.

    worker    steps ──append──▶ its own chain ──commit, push──▶ `workers/` in the run's folder or bucket
    driver    run's own lake ◀──steps, in a fixed order── a `StepsLocation` for each task

A process that is started again has a chain of its own. What no `StepsLocation` names is never read, so a task
that is done twice is seen once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from lakepond.distributed import reaper
from lakepond.distributed.ray_cluster import Cluster
from lakepond.distributed.workers import Workers
from lakepond.errors import CloudError, ConfigError, SpecError
from lakepond.flow.following.chains import Chains, chains_at
from lakepond.lake import writers
from lakepond.lake.format import description
from lakepond.replay import Replay
from lakepond.runs.run import WORKERS
from lakepond.types import Batch, Spec

PUSH_SECONDS = 300.0


class StepsLocation(NamedTuple):
    """Where the steps of a task are: durable before the task is done."""

    chain: str
    commit: int
    first: int
    stop: int


class WorkerChain:
    """The chain of one worker; `replay` records its steps."""

    def __init__(self, place: str, name: str, spec: Spec, capacity: int, min_free: str) -> None:
        """`place`: folder or URL of the workers' lake; `capacity`: steps of a task."""
        self._writer = f"{name}-{os.urandom(4).hex()}"
        self._folder, self._pushes = Path(place), "://" in place
        with ExitStack() as stack:
            if self._pushes:
                self._folder = stack.enter_context(reaper.folder(f"lakepond-{name}-"))
            try:
                self.replay = Replay.open(
                    self._folder,
                    spec,
                    capacity,
                    cloud=place if self._pushes else None,
                    writer=self._writer,
                    min_free=min_free,
                    merge_after=None,
                )
            except SpecError as error:
                there = description.read(self._folder)
                if there == spec:
                    raise
                raise SpecError(
                    f"{place} is left over from another run and was created with a different spec: "
                    f"{spec.differences(there)}; delete {place}, or give another URL."
                ) from error
            self._stack = stack.pop_all()

    def store(self, first: int, note: dict[str, Any]) -> StepsLocation:
        """Commit what was recorded from number `first` on, and push it; where it is."""
        commit = self.replay.commit(note)
        chain = self._writer
        if self._pushes:
            status = self.replay.push(wait=True, timeout=PUSH_SECONDS)
            if not status.done:
                raise CloudError(f"the steps of {chain} could not be uploaded: {status}")
            chain = writers.chain_of(self._folder, chain)
        return StepsLocation(chain, commit.number, first, commit.recorded)

    def close(self) -> None:
        """Release the lake; what was not uploaded then is not needed."""
        self.replay.close()
        self._stack.close()


def check_shared(cluster: Cluster, push_to: str | None, option: str) -> None:
    """`ConfigError` if workers are on several machines and there is no bucket for their steps."""
    hosts = {node["NodeManagerAddress"] for node in cluster.ray.nodes() if node["Alive"]}
    if push_to is None and len(hosts) > 1:
        raise ConfigError(
            f"the steps of workers on {len(hosts)} machines need a bucket; give one with {option} URL."
        )


class WorkersLake:
    """The lake of all workers, as the driver reads it; on disk it is deleted at the start and at the end."""

    def __init__(self, folder: Path, push_to: str | None) -> None:
        """`folder`: that of the run."""
        self._folder = folder.absolute() / WORKERS
        self._url = None if push_to is None else f"{push_to.rstrip('/')}/{WORKERS}"
        self._chains: Chains | None = None
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def place(self) -> str:
        """Its folder or URL."""
        return self._url or str(self._folder)

    def steps(self, stored: StepsLocation, exclude: Sequence[str] = ()) -> Batch:
        """The steps of a task, in the order in which they were recorded."""
        if self._chains is None:
            self._chains = chains_at(self._url or self._folder)
        head = {stored.chain: self._chains.commit(stored.chain, stored.commit)}
        with self._chains.lake(head) as lake:
            return lake.steps(stored.first, stored.stop, exclude=exclude)

    def close(self) -> None:
        """Delete it on this disk: the run's lake has what was taken from it."""
        if self._chains is not None:
            self._chains.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class OnWorkers:
    """A part of a trainer that workers do; their steps come through their lake. Use it in a `with` block."""

    _workers: Workers
    _lake: WorkersLake

    def status(self) -> dict[str, Any]:
        """The metrics of the workers, as `lakepond watch` shows them."""
        return self._workers.status()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()
        self._lake.close()
