"""The status of a run, from its folder, whether it runs or not (in a bucket: status_in_cloud).

Only small things are read: config.json, the end of metrics.jsonl, two commits, the names of checkpoints; of a
lake that was pushed the names of all files. No step and no row is read.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lakepond import machine, untrusted
from lakepond.cloud.store import Store
from lakepond.errors import LakeError, RunNotFound
from lakepond.flow.following import positions
from lakepond.flow.following.lag import is_alive
from lakepond.lake import elsewhere, writers
from lakepond.lake.format import commits
from lakepond.lake.format.commits import Commit
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk
from lakepond.runs import metrics
from lakepond.runs.run import CONFIG, Run
from lakepond.types import Spec

State = Literal["running", "stopped", "finished"]
TAIL_BYTES = 64 << 10
"""of the metrics that are read, from the end"""
UPLOAD = "upload.json"
"""in a run's folder: how its last push ended"""
COLLECTOR_NOTE = "collector"
"""what a collector stores with its commits"""
BACK = 8
"""commits back to which the lake's growth is measured"""


@dataclass(frozen=True)
class WriterStatus:
    """One of the writers of a lake."""

    name: str
    commit: int
    steps: int
    committed: float
    """when its newest commit was made, seconds since 1970"""
    alive: bool
    """whether that is at most 5 of its usual intervals ago, or less than a minute"""
    collector: dict[str, Any] | None = None
    """what a collector stored with it, see `lakepond.distributed.collector.CollectorStatus`"""


@dataclass(frozen=True)
class LearnerStatus:
    """A learner that follows the lake with a limit of samples per insert."""

    sampled: int
    inserted: int
    ahead: bool
    """whether collectors wait for it"""
    said: float
    """when, seconds since 1970"""


@dataclass(frozen=True)
class LakeStatus:
    """The lake of a run; of all its writers together."""

    commit: int
    commits_kept: int
    steps: int
    recorded: int
    rows: int
    bytes_on_disk: int
    bytes_plain: int
    committed: float
    """when its newest commit was made, seconds since 1970"""
    bytes_per_second: float | None
    """how fast it grows, over its last commits; None: not known, or several writers"""
    alive: bool
    """whether a writer is"""
    writers: tuple[WriterStatus, ...] = ()
    """if they have names"""
    learners: tuple[LearnerStatus, ...] = ()
    collector: dict[str, Any] | None = None
    """of the newest commit"""

    @property
    def ratio(self) -> float:
        """Ratio of the size without deduplication to the size on disk."""
        return self.bytes_plain / self.bytes_on_disk if self.bytes_on_disk else 1.0


@dataclass(frozen=True)
class UploadLag:
    """How far the cloud is behind the lake on this disk."""

    url: str
    pending: int
    """files of the newest commit that are not known to be there"""
    pending_bytes: int
    last_error: str | None


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, or of a lake without one, at one moment."""

    path: str
    trainer: str | None
    """None: a lake without a run"""
    state: State
    pid: int | None
    """the process that writes it, if it is on this machine"""
    unit: str
    """what is counted: generation, steps, or step of a run or lake without an end"""
    done: int | None
    total: int | None
    per_second: float | None
    eta_seconds: float | None
    logged: float | None
    """when it last logged, seconds since 1970"""
    rss_bytes: int | None
    device_bytes: int | None
    device_limit_bytes: int | None
    disk_free_bytes: int | None
    """None: it is in a bucket"""
    disk_full_seconds: float | None
    checkpoint: int | None
    lake: LakeStatus | None
    upload: UploadLag | None
    metrics: dict[str, Any]
    """the last line of the log"""
    problems: tuple[str, ...]
    """sentences about what is wrong"""


class RunFiles(NamedTuple):
    """The content of a run's files, without its lake."""

    trainer: str | None
    """None: a lake without a run"""
    config: Mapping[str, Any]
    lines: list[dict[str, Any]]
    """the last lines of the log"""
    checkpoint: int | None


def look(path: str | Path) -> RunStatus:
    """The status of the run or lake in a folder; `RunNotFound` if there is neither."""
    folder = on_disk(path)
    if not folder.exists():
        raise RunNotFound(f"{folder} does not exist; `lakepond ls` lists the runs and lakes below a folder.")
    run = Run.open(folder) if (folder / CONFIG).is_file() else None
    lake_folder = folder / "lake" if run else folder
    if run is None and not (folder / "lake.json").is_file():
        raise RunNotFound(
            f"{folder} is neither a run nor a lake; `lakepond ls {folder}` lists those below it."
        )
    problems: list[str] = []
    lake, upload = None, None
    if (lake_folder / "lake.json").is_file():
        try:
            with Lake.open(lake_folder) as opened:
                lake, upload = _lake(opened), _upload(folder, opened)
        except LakeError as error:
            problems.append(str(error))
    lines, known = _tail(folder / "metrics.jsonl"), run.checkpoints() if run else []
    checkpoint = known[-1] if known else None
    files = RunFiles(run.trainer, run.config, lines, checkpoint) if run else RunFiles(None, {}, lines, None)
    homes = [folder] if run else [writers.home(lake_folder, name) for name in writers.names(lake_folder)]
    pids = (machine.lock_holder(home / "lock") for home in homes)
    pid = next((pid for pid in pids if pid is not None), None)
    found = judge(str(path), files, lake, pid=pid, disk_free=machine.free_disk(folder))
    return replace(found, upload=upload, problems=tuple(problems))


def judge(
    path: str,
    run: RunFiles,
    lake: LakeStatus | None,
    *,
    pid: int | None = None,
    disk_free: int | None = None,
    alive: bool = False,
) -> RunStatus:
    """Derive the status from what was read; `alive`: a process on another machine writes it."""
    trainer, config, lines, checkpoint = run
    last = lines[-1] if lines else {}
    unit, total = _goal(config)
    done = last.get("step")
    if trainer is None and lake is not None:
        unit, done = "step", lake.recorded
    collecting = lake is not None and any(each.collector and each.alive for each in lake.writers)
    finished = total is not None and done is not None and done >= total
    running = pid is not None or (alive and not finished) or (trainer is None and collecting)
    per_second = _rate(lines) if trainer else None
    left = total - done if total is not None and done is not None else None
    full = None
    if disk_free is not None and pid is not None and lake is not None and lake.bytes_per_second:
        full = disk_free / lake.bytes_per_second
    return RunStatus(
        path=path,
        trainer=trainer,
        state="running" if running else "finished" if finished else "stopped",
        pid=pid,
        unit=unit,
        done=done,
        total=total,
        per_second=per_second,
        eta_seconds=left / per_second if left and per_second and not finished else None,
        logged=last.get("time"),
        rss_bytes=(machine.resident(pid) if pid is not None else None) or _number(last, "rss_bytes"),
        device_bytes=_number(last, "device_bytes"),
        device_limit_bytes=_number(last, "device_limit_bytes"),
        disk_free_bytes=disk_free,
        disk_full_seconds=full,
        checkpoint=checkpoint,
        lake=lake,
        upload=None,
        metrics=last,
        problems=(),
    )


def _number(line: Mapping[str, Any], name: str) -> int | None:
    value = line.get(name)
    return int(value) if metrics.is_number(value) else None


def _goal(config: Mapping[str, Any]) -> tuple[str, int | None]:
    """What a trainer counts, and how far it goes."""
    units = {"generations": "generation", "env_steps": "steps", "frames": "steps"}  # frames: in older runs
    for name, unit in units.items():
        total = config.get(name)
        if metrics.is_number(total) and isinstance(total, int):
            return unit, total
    return "step", None


def _rate(lines: list[dict[str, Any]]) -> float | None:
    """Steps per second: the median over pairs of lines, so a pause between two sessions does not count."""
    rates = [
        (new["step"] - old["step"]) / (new["time"] - old["time"])
        for old, new in pairwise(lines)
        if new["time"] > old["time"] and new["step"] > old["step"]
    ]
    return statistics.median(rates) if rates else None


def _tail(file: Path) -> list[dict[str, Any]]:
    """The last lines of a log; the first of them may be cut and is left out."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - TAIL_BYTES))
            data = opened.read()
    except FileNotFoundError:
        return []
    return parse_log(data if size <= TAIL_BYTES else data.partition(b"\n")[2])


def parse_log(data: bytes) -> list[dict[str, Any]]:
    """The complete lines of a log that have a step and a time."""
    complete = data[: data.rfind(b"\n") + 1]  # a line may be in the middle of being written
    found = []
    for line in complete.splitlines():
        with suppress(ValueError):  # incomplete after a crash; the trainer cuts it when it resumes
            values = metrics.parse_line(line)
            found.append(
                {k: v for k, v in values.items() if not isinstance(v, int | float) or metrics.is_number(v)}
            )
    return found


def _lake(lake: Lake) -> LakeStatus:
    found: dict[str, LakeStatus] = {}
    for name, newest in lake.heads.items():
        folder = writers.home(lake.path, name) / "commits"
        numbers = commits.numbers(folder)
        older = [number for number in numbers if number < newest.number][-BACK:]
        before = newest
        if older:
            with suppress(LakeError, FileNotFoundError):  # damaged, or just deleted: the rate is unknown
                before = commits.read(folder, older[0])
        found[name] = lake_status(lake.spec, newest, before, len(numbers))
    stats = lake.stats()
    return replace(
        together(found),
        rows=stats.rows,
        bytes_on_disk=stats.bytes_on_disk,
        learners=learners(Store.at(lake.path)),
    )


def together(found: dict[str, LakeStatus]) -> LakeStatus:
    """The status of a lake from those of its writers, by name."""
    newest = max(found.values(), key=lambda each: each.committed)
    return replace(
        newest,
        **{
            what: sum(getattr(each, what) for each in found.values())
            for what in ("commits_kept", "steps", "recorded", "rows", "bytes_on_disk", "bytes_plain")
        },
        bytes_per_second=newest.bytes_per_second if len(found) == 1 else None,
        alive=any(each.alive for each in found.values()),
        writers=tuple(
            WriterStatus(name, each.commit, each.steps, each.committed, each.alive, each.collector)
            for name, each in found.items()
            if list(found) != [""]
        ),
    )


def lake_status(spec: Spec, newest: Commit, before: Commit, kept: int) -> LakeStatus:
    """The status of a writer from its newest commit and an earlier one."""
    held, had = newest.totals.bytes, before.totals.bytes
    moment, earlier = (datetime.fromisoformat(commit.time).timestamp() for commit in (newest, before))
    return LakeStatus(
        commit=newest.number,
        commits_kept=kept,
        steps=newest.recorded - newest.oldest,
        recorded=newest.recorded,
        rows=sum(entry.count for listed in newest.rows for entry in listed),
        bytes_on_disk=held,
        bytes_plain=(newest.recorded - newest.oldest) * spec.step_nbytes,
        committed=moment,
        bytes_per_second=max(0.0, (held - had) / (moment - earlier)) if moment > earlier else None,
        alive=is_alive(
            max(0.0, time.time() - moment),
            (moment - earlier) / (newest.number - before.number) if newest.number > before.number else None,
        ),
        collector=note if isinstance(note := newest.note.get(COLLECTOR_NOTE), dict) else None,
    )


def learners(store: Store) -> tuple[LearnerStatus, ...]:
    """The learners of a lake, as they report themselves."""
    return tuple(
        LearnerStatus(each.sampled, each.inserted, each.ahead, each.modified)
        for each in positions.positions(store)
    )


def _upload(folder: Path, lake: Lake) -> UploadLag | None:
    """Files that are not uploaded yet, and the error of the last push; None if there was no push."""
    try:
        noted = untrusted.read_json(folder / UPLOAD)
    except (FileNotFoundError, ValueError):
        noted = {}
    noted = {name: value for name, value in noted.items() if isinstance(value, str)}
    there = elsewhere.known(lake.path)
    if not there and not noted:
        return None
    files = (file for head in lake.reader.heads for file in head.catalog.files())
    missing = {name: size for name, size in files if name not in there}
    urls = sorted(set(there.values()))
    if len(urls) > 1:  # of several writers
        urls = [urls[0].partition(f"/{writers.FOLDER}/")[0]]
    url = noted.get("url") or (urls[0] if urls else "an unknown place")
    return UploadLag(url, len(missing), sum(missing.values()), noted.get("last_error"))
