"""Run: the folder of one training run, created once, resumed any number of times."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from lakepond import machine, untrusted
from lakepond.errors import LakeLocked, RunCorrupt, RunLocked, RunMismatch, RunNotFound
from lakepond.lake.files import make_folders, sync_folder, write_bytes
from lakepond.lake.format.sealed import as_stored, strict
from lakepond.lake.lock import WriterLock
from lakepond.paths import on_disk
from lakepond.runs import metrics, session, settings
from lakepond.runs.checkpoints import Checkpoint, Checkpoints
from lakepond.runs.metrics import Logger, Metrics
from lakepond.runs.settings import as_json

log = logging.getLogger("lakepond")
CONFIG, METRICS, LOCK = "config.json", "metrics.jsonl", "lock"
WORKERS = "workers"
"""lake through which the steps of workers reach the run, whose own lake has all of them"""


class Run:
    """A run's folder. `create` holds its lock until `close`; `open` only reads.

    with Run.create("runs/demo", trainer="erl", config=config) as run:
        run.log(step, {"reward": 1.0})
        run.save(1, arrays={"population": params}, state={"generation": 1, "lake_commit": 7})
    """

    def __init__(
        self, folder: Path, about: Mapping[str, Any], *, keep_last: int = 3, keep_every: int = 0
    ) -> None:
        self.folder = folder
        self.lake_folder = folder / "lake"
        self.trainer: str = about["trainer"]
        self.config: dict[str, Any] = about["config"]
        self.about = dict(about)
        """all of config.json: trainer, random id, settings, machine, versions, time of creation, sessions"""
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
        prepare: Callable[[Path], None] = lambda _: None,
    ) -> Run:
        """Make the folder, or open an existing run to train it if trainer and settings are the same.

        `config` is a dataclass; `may_change` names the settings that may differ from those of the existing
        run (how long it runs, how much it prints), which then become the run's own. `prepare` is called with
        the folder once this process holds its lock and before anything is written; it may raise to refuse.
        """
        folder = on_disk(folder)
        make_folders(folder)
        try:
            lock = WriterLock(folder / LOCK)
        except LakeLocked:
            raise RunLocked(
                f"{folder} is being trained by another process; wait for it or choose another folder."
            ) from None
        try:
            prepare(folder)
            there = _read(folder) if (folder / CONFIG).exists() else None
            about = (
                _about(trainer, as_json(config))
                if there is None
                else _updated(folder, there, trainer, config, may_change)
            )
            run = cls(folder, about, keep_last=keep_last, keep_every=keep_every)
            if about != there:
                run._write_config()
            name = folder.resolve().name
            if name.isdecimal():  # the seed of a run of a comparison: its game and arm, too
                name = "/".join(folder.resolve().parts[-3:])
            run._metrics = Metrics(
                folder / METRICS,
                loggers,
                run_name=name,
                run_id=about.get("id", name),  # runs of earlier versions have none
                config=about["config"],
            )
            sync_folder(folder)  # or a power cut loses a new log, name and all
        except BaseException:
            lock.close()
            raise
        run._lock = lock
        return run

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in `folder`, to read; a process may be training it at the same time."""
        folder = on_disk(folder)
        return cls(folder, _read(folder))

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one line to the metrics; if the disk does not take it, raise and keep it for `flush`."""
        self._writing().log(step, values)

    def flush(self) -> None:
        """Write the lines of the metrics that could not be written before; raises if they still cannot."""
        self._writing().flush()

    @property
    def unwritten(self) -> int:
        """Lines of the metrics that are only in memory."""
        return self._writing().waiting

    @property
    def metrics_bytes(self) -> int:
        """Length of the metrics, with the lines that are only in memory: what a checkpoint notes."""
        return self._writing().end

    def history(self) -> Iterator[dict[str, Any]]:
        """The lines of the metrics so far, one at a time."""
        return metrics.read(self.folder / METRICS)

    def last_line(self) -> dict[str, Any]:
        """The last line of the metrics."""
        last = None
        for line in self.history():
            last = line
        if last is None:
            raise RunCorrupt(f"{self.folder / METRICS} has no lines of this run; there is nothing to report.")
        return last

    def save(self, number: int, arrays: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
        """Write checkpoint `number`: pytrees of arrays by name, and what else is needed to resume, as JSON.

        Numbers in `state` that are not finite are stored as the strings "NaN", "Infinity" and "-Infinity";
        they are numbers again when it is read.
        `metrics_bytes` in `state`: the property of that name when the state was taken, if that is earlier.
        """
        return self._checkpoints.save(number, arrays, {"metrics_bytes": self._writing().mark(), **state})

    def load(self, number: int | None = None, *, like: Mapping[str, Any]) -> Checkpoint:
        """The newest intact checkpoint, or one by number; `like` names the pytrees to read, in their form."""
        return self._checkpoints.load(number, like)

    def checkpoints(self) -> list[int]:
        """Numbers of the finished checkpoints, in order."""
        return self._checkpoints.numbers()

    def state(self, number: int | None = None) -> dict[str, Any]:
        """The state saved with checkpoint `number`, or with the newest; empty before the first one."""
        known = self.checkpoints()
        return self._checkpoints.state(known[-1] if number is None else number) if known else {}

    def log_end(self, checkpoint: Checkpoint) -> int:
        """The length of the metrics when `checkpoint` was saved; `RunCorrupt` if they cannot be cut there."""
        mark = checkpoint.state.get("metrics_bytes")
        return self._writing().checked(mark, f"checkpoint {checkpoint.number}")

    def rewind(self, checkpoint: Checkpoint | None) -> None:
        """Resume from `checkpoint`, or from the beginning: drop later checkpoints, then later metrics.

        In this order, because a checkpoint needs the metrics up to it: killed in between, the run resumes
        from `checkpoint` or from one that has not been dropped yet.
        """
        mark = self.log_end(checkpoint) if checkpoint else 0
        self._checkpoints.drop_after(checkpoint.number if checkpoint else -1)
        self._writing().cut(mark)

    def start_session(self) -> None:
        """Add this process, its machine and its versions to config.json; warn if they differ from the last.

        Called once it is certain that this process trains the run.
        """
        self._writing()
        sessions, now = self.about.get("sessions", []), session.present()
        differ = session.differences(sessions[-1] if sessions else self.about, now)
        if differ:
            log.warning(
                "%s was last trained on another machine or with other versions (%s): it resumes with the "
                "same data, but results may differ in the last bits from those of a run that was not moved.",
                self.folder,
                "; ".join(f"{name} {old} there, {new} here" for name, old, new in differ),
            )
        self.about["sessions"] = [*sessions, now]
        self._write_config()

    def locked(self) -> bool:
        """Whether a process is training this run now; asks the system, takes no lock."""
        return self._lock is not None or machine.lock_holder(self.folder / LOCK) is not None

    def close(self) -> None:
        """Close the metrics and release the lock; raises if lines of the metrics are lost."""
        metrics, self._metrics = self._metrics, None
        lock, self._lock = self._lock, None
        try:
            if metrics is not None:
                metrics.close()
        finally:
            if lock is not None:
                lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self.close()
        except OSError as failed:
            if error is None:
                raise
            log.error("%s", failed)

    def _write_config(self) -> None:
        write_bytes(self.folder, CONFIG, strict(self.about, indent=1))

    def _writing(self) -> Metrics:
        if self._metrics is None:
            raise RunLocked(f"{self.folder} was opened for reading; use Run.create to train.")
        return self._metrics


def _about(trainer: str, config: dict[str, Any]) -> dict[str, Any]:
    """All of config.json for a new run."""
    now = session.present()
    return {
        "trainer": trainer,
        "id": secrets.token_hex(6),
        "config": config,
        "created": now.pop("started"),
        **now,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _updated(
    folder: Path, there: Mapping[str, Any], trainer: str, config: Any, may_change: Sequence[str]
) -> dict[str, Any]:
    """config.json of an existing run with the settings it is resumed with; `RunMismatch` if they differ."""
    if there["trainer"] != trainer:
        raise RunMismatch(
            f"{folder} is a run of the trainer {there['trainer']!r}, not {trainer!r}; choose another folder."
        )
    known, unknown = settings.completed(config, there["config"], trainer)
    here = as_json(config)
    old, new = (
        settings.flat({name: value for name, value in each.items() if name not in may_change})
        for each in (known, here)
    )
    differ = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    if differ:
        shown = ", ".join(f"{name} {old.get(name)!r} there, {new.get(name)!r} here" for name in differ[:4])
        more = f" and {len(differ) - 4} more" if len(differ) > 4 else ""
        raise RunMismatch(
            f"{folder} was started with other settings ({shown}{more}); "
            "use those to resume it, or choose another folder."
        )
    settings.warn_of_unknown(folder, unknown)
    return {**there, "config": settings.merged(there["config"], here)}


def _read(folder: Path) -> dict[str, Any]:
    try:
        return checked(untrusted.read_json(folder / CONFIG))
    except (FileNotFoundError, NotADirectoryError):
        raise RunNotFound(
            f"{folder} is not a run: it has no {CONFIG}. Give the folder that a trainer wrote to."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise RunNotFound(f"{folder / CONFIG} cannot be read as a run's settings.") from None


def checked(about: Any) -> dict[str, Any]:
    """The content of a config.json; ValueError, KeyError or TypeError if it is not that of a run."""
    fits = isinstance(about["trainer"], str) and isinstance(about["config"], dict)
    if not fits or not all(isinstance(each, dict) for each in about.get("sessions", [])):
        raise TypeError
    return dict(as_stored(about))  # earlier versions wrote numbers that are not finite as such
