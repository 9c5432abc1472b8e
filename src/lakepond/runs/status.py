"""The status of a run, or of a lake without one, in a folder or in a bucket, whether it runs or not.

Only small things are read: config.json, the metrics (of a folder: their end), two commits of each writer, the
names of checkpoints; of a lake on this disk that was pushed, the names of all files. No step is read.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lakepond import machine, untrusted
from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.errors import CloudCorrupt, CloudNotFound, LakeError, RunNotFound
from lakepond.lake import elsewhere, writers
from lakepond.lake.format import description
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk
from lakepond.runs import metrics
from lakepond.runs.checkpoints import STATE
from lakepond.runs.lake_status import LakeStatus, LakeWatch
from lakepond.runs.run import CONFIG, METRICS, Run, checked

State = Literal["running", "stopped", "finished"]
TAIL_BYTES = 64 << 10
"""of the metrics that are read, from the end"""
UPLOAD = "upload.json"
"""in a run's folder: how its last push ended"""


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


def look(place: str | Path) -> RunStatus:
    """The status now of the run or lake in a folder or at a URL; see `watch`."""
    return watch(place)()


def watch(place: str | Path) -> Callable[[], RunStatus]:
    """A function that returns the present status of the run, or of the lake without one, at a place.

    place: a folder or a URL. In a bucket, the settings are read once, and the lake as `LakeWatch` says.
    Raises `RunNotFound` or `CloudNotFound` if there is neither.
    """
    if "://" not in str(place):
        folder = on_disk(place)
        here = LakeWatch(folder / "lake" if _in_folder(folder).trainer else folder)
        return lambda: _present(str(place), _in_folder(folder), here, folder)
    store = Store(Cloud.of(str(place)))
    config = _config(store)
    if not config and store.head(description.NAME) is None:
        raise CloudNotFound(f"there is neither a run nor a lake at {store.cloud}; push one there first.")
    there = LakeWatch((store.under("lake") if config else store).cloud)
    return lambda: _present(str(store.cloud), _in_bucket(store, config), there)


def _present(path: str, run: RunFiles, watched: LakeWatch, folder: Path | None = None) -> RunStatus:
    """Derive the status from what was read; `folder`: of the run or lake, None if it is in a bucket."""
    trainer, config, lines, checkpoint = run
    lake, upload, pid, disk_free, problems = None, None, None, None, list[str]()
    try:
        lake = watched.look()
        if folder is not None and lake is not None:
            upload = _upload(folder, folder / "lake" if trainer else folder)
    except LakeError as error:
        problems.append(str(error))
    if folder is not None:
        names = [] if trainer else writers.names(folder)
        homes = [folder] if trainer else [writers.home(folder, name) for name in names]
        pids = (machine.lock_holder(home / "lock") for home in homes)
        pid = next((pid for pid in pids if pid is not None), None)
        disk_free = machine.free_disk(folder)
    last = lines[-1] if lines else {}
    unit, total = _goal(config)
    done = last.get("step")
    if trainer is None and lake is not None:
        unit, done = "step", lake.recorded
    collecting = lake is not None and any(each.collector and each.alive for each in lake.writers)
    elsewhere_alive = folder is None and lake is not None and lake.alive
    finished = total is not None and done is not None and done >= total
    running = pid is not None or (elsewhere_alive and not finished) or (trainer is None and collecting)
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
        upload=upload,
        metrics=last,
        problems=tuple(problems),
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


def _in_folder(folder: Path) -> RunFiles:
    """The run in a folder; of a lake without one, nothing."""
    if not folder.exists():
        raise RunNotFound(f"{folder} does not exist; `lakepond ls` lists the runs and lakes below a folder.")
    if (folder / CONFIG).is_file():
        run = Run.open(folder)
        known = run.checkpoints()
        return RunFiles(run.trainer, run.config, _tail(folder / METRICS), known[-1] if known else None)
    if not (folder / description.NAME).is_file():
        raise RunNotFound(
            f"{folder} is neither a run nor a lake; `lakepond ls {folder}` lists those below it."
        )
    return RunFiles(None, {}, [], None)


def _in_bucket(store: Store, config: Mapping[str, Any]) -> RunFiles:
    """The run at a place; of a lake without one, nothing."""
    if not config:
        return RunFiles(None, {}, [], None)
    lines = list[dict[str, Any]]()
    with suppress(CloudNotFound):
        lines = _parse_log(store.read(METRICS))
    saved = sorted((name for name in store.folders("checkpoints") if name.isdecimal()), key=int, reverse=True)
    complete = (int(name) for name in saved if store.head(f"checkpoints/{name}/{STATE}") is not None)
    return RunFiles(config["trainer"], config["config"], lines, next(complete, None))


def _config(store: Store) -> dict[str, Any]:
    """The content of a run's config.json at a place; empty if there is none."""
    if store.head(CONFIG) is None:
        return {}
    try:
        return checked(untrusted.parse_json(store.read(CONFIG)))
    except (ValueError, KeyError, TypeError):
        wrong = f"{CONFIG} in {store.cloud} cannot be read as a run's settings; push the run again."
        raise CloudCorrupt(wrong) from None


def _tail(file: Path) -> list[dict[str, Any]]:
    """The last lines of a log; the first of them may be cut and is left out."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - TAIL_BYTES))
            data = opened.read()
    except FileNotFoundError:
        return []
    return _parse_log(data if size <= TAIL_BYTES else data.partition(b"\n")[2])


def _parse_log(data: bytes) -> list[dict[str, Any]]:
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


def _upload(folder: Path, lake: Path) -> UploadLag | None:
    """Files that are not uploaded yet, and the error of the last push; None if there was no push."""
    try:
        noted = untrusted.read_json(folder / UPLOAD)
    except (FileNotFoundError, ValueError):
        noted = {}
    noted = {name: value for name, value in noted.items() if isinstance(value, str)}
    there = elsewhere.known(lake)
    if not there and not noted:
        return None
    with Lake.open(lake) as opened:
        missing = {name: size for name, size in opened.files() if name not in there}
    urls = sorted(set(there.values()))
    if len(urls) > 1:  # of several writers
        urls = [urls[0].partition(f"/{writers.FOLDER}/")[0]]
    url = noted.get("url") or (urls[0] if urls else "an unknown place")
    return UploadLag(url, len(missing), sum(missing.values()), noted.get("last_error"))
