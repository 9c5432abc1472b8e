"""Run: the folder of one training run, created once, gone on with as often as needed."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from lakepond import machine, untrusted
from lakepond._version import __version__
from lakepond.errors import LakeLocked, RunLocked, RunMismatch, RunNotFound
from lakepond.lake.files import WriterLock, write_whole
from lakepond.runs import metrics
from lakepond.runs.checkpoints import Checkpoint, Checkpoints
from lakepond.runs.metrics import Logger, Metrics

CONFIG = "config.json"
LIBRARIES = ("numpy", "jax", "jaxlib", "optax", "gymnax", "ale-py", "gymnasium")


class Run:
    """A run's folder. `create` holds its lock until `close`; `open` only reads.

    with Run.create("runs/demo", trainer="erl", config=config) as run:
        run.log(step, {"reward": 1.0})
        run.save(1, arrays={"population": params}, state={"generation": 1, "lake_commit": 7})
    """

    def __init__(
        self, folder: Path, told: Mapping[str, Any], *, keep_last: int = 3, keep_every: int = 0
    ) -> None:
        self.folder = folder
        self.lake_folder = folder / "lake"
        self.trainer: str = told["trainer"]
        self.config: dict[str, Any] = told["config"]
        self.told = dict(told)
        """all of config.json: trainer, settings, machine, versions, when"""
        self._checkpoints = Checkpoints(folder / "checkpoints", keep_last=keep_last, keep_every=keep_every)
        self._lock: WriterLock | None = None
        self._metrics: Metrics | None = None

    @classmethod
    def create(
        cls,
        folder: str | Path,
        trainer: str,
        config: Any,
        *,
        may_change: Sequence[str] = (),
        loggers: Sequence[Logger] = (),
        keep_last: int = 3,
        keep_every: int = 0,
    ) -> Run:
        """Make the folder, or take up the one that is there if trainer and settings are the same.

        `config` is a dataclass; `may_change` names the settings that may differ from those of the run that is
        being taken up (how long it runs, how much it prints), which then become the run's own.
        """
        folder = Path(folder)
        told = _about(trainer, as_json(config))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = WriterLock(folder / "lock")
        except LakeLocked:
            raise RunLocked(
                f"{folder} is being trained by another process; wait for it or choose another folder."
            ) from None
        try:
            if (folder / CONFIG).exists():
                there = _read(folder)
                _same_or_raise(folder, there, told, may_change)
                told = {**there, "config": told["config"]}
            if told != (_read(folder) if (folder / CONFIG).exists() else None):
                data = json.dumps(told, indent=1).encode()
                write_whole(folder, lambda file: file.write(data), lambda _: CONFIG)
            run = cls(folder, told, keep_last=keep_last, keep_every=keep_every)
            run._metrics = Metrics(
                folder / "metrics.jsonl", loggers, run_name=folder.resolve().name, config=told["config"]
            )
        except BaseException:
            lock.close()
            raise
        run._lock = lock
        return run

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in `folder`, to read; a process may be training it at the same time."""
        folder = Path(folder)
        return cls(folder, _read(folder))

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one line to the metrics."""
        self._writing().log(step, values)

    def history(self) -> Iterator[dict[str, Any]]:
        """The lines of the metrics so far, one at a time."""
        return metrics.read(self.folder / "metrics.jsonl")

    def save(self, number: int, arrays: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
        """Write checkpoint `number`: pytrees of arrays by name, and what else is needed to go on, as JSON."""
        return self._checkpoints.save(number, arrays, {**state, "metrics_bytes": self._writing().mark()})

    def load(self, number: int | None = None, *, like: Mapping[str, Any]) -> Checkpoint:
        """The newest whole checkpoint, or one by number; `like` names the pytrees to read, in their form."""
        return self._checkpoints.load(number, like)

    def checkpoints(self) -> list[int]:
        """Numbers of the finished checkpoints, in order."""
        return self._checkpoints.numbers()

    def state(self, number: int | None = None) -> dict[str, Any]:
        """What checkpoint `number`, or the newest, noted; empty before the first one."""
        known = self.checkpoints()
        return self._checkpoints.state(known[-1] if number is None else number) if known else {}

    def rewind(self, checkpoint: Checkpoint | None) -> None:
        """Go on from `checkpoint`, or from the beginning: later checkpoints and later metrics go."""
        self._writing().cut(checkpoint.state["metrics_bytes"] if checkpoint else 0)
        self._checkpoints.drop_after(checkpoint.number if checkpoint else -1)

    def locked(self) -> bool:
        """Whether a process is training this run now; asks the system, takes no lock."""
        return self._lock is not None or machine.lock_holder(self.folder / "lock") is not None

    def close(self) -> None:
        """Close the metrics and let others write."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _writing(self) -> Metrics:
        if self._metrics is None:
            raise RunLocked(f"{self.folder} was opened to read; Run.create opens it to train.")
        return self._metrics


def as_json(config: Any) -> dict[str, Any]:
    """The settings of a dataclass as JSON would return them: paths as text, tuples as lists."""
    return dict(json.loads(json.dumps(dataclasses.asdict(config), default=str)))


def _about(trainer: str, config: dict[str, Any]) -> dict[str, Any]:
    libraries = {}
    for name in LIBRARIES:
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "trainer": trainer,
        "config": config,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "lakepond": __version__,
        "python": platform.python_version(),
        "libraries": libraries,
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _read(folder: Path) -> dict[str, Any]:
    try:
        config = untrusted.read_json(folder / CONFIG)
        if not isinstance(config["trainer"], str) or not isinstance(config["config"], dict):
            raise TypeError
    except (FileNotFoundError, NotADirectoryError):
        raise RunNotFound(
            f"{folder} is no run: it has no {CONFIG}. Name the folder that a trainer wrote to."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise RunNotFound(f"{folder / CONFIG} cannot be read as a run's settings.") from None
    return config


def _same_or_raise(
    folder: Path, there: Mapping[str, Any], here: Mapping[str, Any], may_change: Sequence[str]
) -> None:
    if there["trainer"] != here["trainer"]:
        raise RunMismatch(
            f"{folder} is a run of the trainer {there['trainer']!r}, not {here['trainer']!r}; "
            "choose another folder."
        )
    old, new = there["config"], here["config"]
    differ = [
        name for name in sorted({*old, *new}) if name not in may_change and old.get(name) != new.get(name)
    ]
    if differ:
        shown = ", ".join(f"{name} {old.get(name)!r} there, {new.get(name)!r} here" for name in differ[:4])
        more = f" and {len(differ) - 4} more" if len(differ) > 4 else ""
        raise RunMismatch(
            f"{folder} was begun with other settings ({shown}{more}); "
            "use those to go on, or choose another folder."
        )
