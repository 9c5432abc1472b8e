"""`compare` on many machines: each run is a task of a Ray worker.

    driver    runs that are not done ──▶ worker    trains one in the folder that all share,
              result.json ◀───────────── worker    or in its own, and pushes it to the bucket as it goes

A run whose worker dies continues on another one from its newest checkpoint, and ends with the same bits. A
run that fails is tried again when the others are done. All that decides what is left to do is in the folder
or in the bucket, so the driver may die as well, and another one continues.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from lakepond import untrusted
from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.distributed import ray_cluster, reaper
from lakepond.distributed.workers import Workers
from lakepond.errors import CloudError, CloudNotFound, ClusterError, RunCorrupt
from lakepond.lake.files import write_bytes
from lakepond.lake.format import description
from lakepond.lake.format.sealed import strict
from lakepond.paths import on_disk
from lakepond.runs.copies import KNOWN, has_lake_of_run, is_run_in_cloud, pull_run, push_run
from lakepond.runs.metrics import Logger
from lakepond.trainers import compare, programs
from lakepond.trainers.compare import RESULT, SETTINGS, CompareConfig, Job
from lakepond.trainers.limits import check_limits

TRIES = 3
"""of a run that fails"""


class Outcome(NamedTuple):
    """The outcome of a run on a worker."""

    done: bool
    """False: another process is doing it"""
    lines: list[str]
    """for people"""
    result: dict[str, Any] | None
    """if it is in the bucket"""


class CompareWorker:
    """Does runs in an actor, one after another."""

    def __init__(
        self, config: CompareConfig, cloud: str | None, loggers: Sequence[Logger], debug_nans: bool, name: str
    ) -> None:
        programs.prepare_jax()
        jax.config.update("jax_debug_nans", debug_nans)  # type: ignore[no-untyped-call]
        self._config, self._cloud, self._loggers = config, cloud, loggers
        self._stack, self._folder = ExitStack(), Path()
        if cloud is not None:
            self._folder = self._stack.enter_context(reaper.folder(f"lakepond-compare-{name}-"))

    def train(self, job: Job) -> Outcome:
        """Do a run, or resume it from its last checkpoint."""
        lines: list[str] = []
        if self._cloud is None:
            done = compare.attempt(self._config, job, lines.append, loggers=self._loggers)
            return Outcome(done, lines, None)
        cloud = Cloud.of(_url(self._cloud, job))
        job = replace(job, folder=self._folder / job.game / job.arm / str(job.seed))
        shutil.rmtree(job.folder, ignore_errors=True)  # of a try that failed
        if is_run_in_cloud(cloud):
            pull_run(job.folder, cloud)
        elif has_lake_of_run(cloud):
            delete_incomplete(cloud)
        compare.attempt(self._config, job, lines.append, loggers=self._loggers, push_to=cloud.url)
        status = push_run(job.folder, cloud)
        if status is not None and not status.done:
            raise CloudError(f"{job.folder.name} is not completely uploaded: {status}")
        store = Store(cloud)
        for name in store.list("checkpoints"):  # as `attempt` has done here
            store.delete(name)
        result = untrusted.read_json(job.folder / RESULT)
        shutil.rmtree(job.folder)
        return Outcome(True, lines, result)

    def close(self) -> None:
        """Delete the folder of this worker."""
        self._stack.close()


def run(
    config: CompareConfig,
    folder: str | Path,
    address: str,
    *,
    workers: int = 2,
    gpus_per_worker: float = 0.0,
    cloud: str | None = None,
    loggers: Sequence[Logger] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> int:
    """Do every run that is not done on workers, and return how many are being done by others.

    address: "local", "auto" or host:port of a Ray cluster. cloud: URL of a bucket for the runs; the folder
    then has their results only. Raises `ClusterError` if runs have failed, after all others are done.
    """
    folder = on_disk(folder).absolute()
    check_limits(config, compare.LIMITS)
    jobs = compare.jobs(config, folder)
    for job in jobs:
        compare.arm_settings(config, job)  # or each worker would find that they are invalid
    settings = compare.settle(config, folder)
    if cloud is not None:
        _agree(config, settings, cloud)
        fetch_results(config, folder, cloud)
    compare.check_results(config, jobs)
    todo = [job for job in jobs if not job.done or (cloud is None and job.checkpoints.exists())]
    if not todo:
        return 0
    nans = jax.config.jax_debug_nans  # type: ignore[attr-defined]
    make = partial(CompareWorker, config, cloud, loggers, nans)
    with (
        ray_cluster.connect(
            address, workers=workers, gpus_per_worker=gpus_per_worker, bucket=cloud
        ) as cluster,
        Workers(cluster, make) as pool,
    ):
        return _do_all(pool, todo, tell)


def _do_all(pool: Workers, todo: list[Job], tell: Callable[[str], None]) -> int:
    failures: Counter[Job] = Counter()
    last: Exception | None = None
    while todo:
        again, progress = [], False
        for number, found in pool.each("train", [(job,) for job in todo]):
            job = todo[number]
            if isinstance(found, Exception):
                last, failures[job] = found, failures[job] + 1
                tell(f"{_name(job)} failed: {ray_cluster.one_line(found)}")
                again += [job] if failures[job] < TRIES else []
                progress = True
                continue
            for line in found.lines:
                tell(line)
            if found.result is not None:
                _write_result(job, found.result)
            elif found.done and not job.done:
                raise ClusterError(
                    f"a worker has done {_name(job)}, but {job.folder / RESULT} is not here; give a folder "
                    "that all machines share, or a bucket with --cloud URL."
                )
            again += [] if job.done else [job]
            progress = progress or job.done
        if again and not progress:
            return len(again)
        todo = again
    failed = [job for job, count in failures.items() if count >= TRIES]
    if failed:
        raise ClusterError(
            f"{len(failed)} of the runs failed {TRIES} times, {_name(failed[-1])} with: "
            f"{ray_cluster.one_line(last)}; the others are done, and the same command tries these again."
        ) from last
    return 0


def delete_incomplete(cloud: Cloud) -> None:
    """Delete what the first push of a run left whose worker was killed: the lake would refuse another one."""
    store, last = Store(cloud), f"lake/{description.NAME}"  # by which `has_lake_of_run` finds it
    for name in sorted(store.list(known=KNOWN), key=lambda name: name == last):
        store.delete(name)


def fetch_results(config: CompareConfig, folder: Path, cloud: str) -> None:
    """Download the results of the runs that are finished in the bucket."""
    store = Store.at(cloud)
    for job in compare.jobs(config, folder):
        if job.done:
            continue
        try:
            data = store.read(f"{job.game}/{job.arm}/{job.seed}/{RESULT}")
        except CloudNotFound:
            continue
        with untrusted.blaming(f"{_url(cloud, job)}/{RESULT}", RunCorrupt, "delete it, and run it again"):
            _write_result(job, dict(untrusted.parse_json(data)))


def _agree(config: CompareConfig, settings: bytes, cloud: str) -> None:
    """A bucket is one comparison, as a folder is."""
    store = Store.at(cloud)
    try:
        there = store.read(SETTINGS)
    except CloudNotFound:
        store.replace(SETTINGS, settings)
    else:
        compare.check_settings(config, there, cloud)


def _write_result(job: Job, result: dict[str, Any]) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    write_bytes(job.folder, RESULT, strict(result))


def _url(cloud: str, job: Job) -> str:
    return f"{cloud.rstrip('/')}/{job.game}/{job.arm}/{job.seed}"


def _name(job: Job) -> str:
    return f"{job.game} {job.arm} seed {job.seed}"
