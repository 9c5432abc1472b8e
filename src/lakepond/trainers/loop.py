"""The loop of every trainer: signals, the guard of the disk, the log, checkpoints, pushes, and the end.

    with Loop(run, lake, Guard(run.folder)) as loop:
        while not done and loop.continues():
            ...                                             # the trainer's work
            loop.log(step, metrics, number)                 # one line, with what the guard sees
            loop.save(save, due=number % 4 == 0)            # again with the next portion if it fails

Saving may fail: training continues without it, retries, and reports what is only in memory. A full disk, a
quota, a disk that fails: nothing of this ends training. Steps stay in the queue of the lake's writer and
lines in the log's, in order, and are written when there is space again. At the end of the block everything is
saved and pushed, or `RunNotSaved` says what is lost.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from lakepond import stopping
from lakepond.errors import RunNotSaved
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.guards import Guard
from lakepond.runs import Run
from lakepond.runs.metrics import Logger
from lakepond.runs.resume import Resume
from lakepond.trainers.pushing import Pushing

log = logging.getLogger("lakepond")
T = TypeVar("T")
STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE)
"""what a disk may recover from; any other error ends training"""
LAKE, CHECKPOINTS, LOG = "lake", "checkpoints", "metrics.jsonl"
RETRY_SECONDS = 5.0
"""between two tries, while training pauses"""
FINAL_SECONDS = 600.0
"""for which the end of training is retried"""
MOST_WAITING_BYTES = 1 << 30
"""of steps from device ponds that wait for the disk; then training pauses"""

MAY_CHANGE = ("keep_every", "keep_last", "min_free", "push_to", "push_every")
"""settings of every trainer that may differ when a run is resumed"""


class Taken(NamedTuple):
    """A checkpoint that is not on disk yet."""

    number: int
    arrays: dict[str, Any]
    state: dict[str, Any]
    recorded: int
    """steps in the commit of the lake that it names"""


def create_run(
    folder: str | Path,
    trainer: str,
    config: Any,
    how: Resume,
    loggers: Sequence[Logger],
    *,
    keep_last: int = 3,
) -> Run:
    """`Run.create` as the trainers of games call it; `keep_last`: newest checkpoints that are always kept."""
    return Run.create(
        folder,
        trainer,
        config,
        may_change=MAY_CHANGE,
        loggers=loggers,
        keep_last=keep_last,
        keep_every=config.keep_every,
        prepare=how.prepare,
    )


class Loop:
    """Runs one trainer; saving that fails does not stop it."""

    def __init__(
        self,
        run: Run,
        lake: Any,
        guard: Guard,
        uncommitted: Callable[[], int] | None = None,
        pushing: Pushing | None = None,
    ) -> None:
        """`lake`: closed at the end, may be None; `uncommitted`: its steps that no commit has."""
        of_lake = (lambda: 0) if lake is None else (lambda: int(lake.uncommitted))
        self._run, self.uncommitted = run, uncommitted or of_lake
        self.guard, self._lake = guard, lake
        self.failing: dict[str, OSError] = {}
        """the files that could not be written when they were tried last"""
        self._reported: Any = None
        self._pushing = pushing or Pushing(run.folder, None)
        self._thread = ThreadPoolExecutor(1, "lakepond-save")
        self._saving: Future[object] | None = None
        self._save: Callable[[], object] | None = None
        self._saved = False
        self._taken: Taken | None = None

    def continues(self) -> bool:
        """Whether to train another portion; raises if a signal has come."""
        stopping.check()
        return not self.guard.stopping

    def log(self, step: int, metrics: Mapping[str, Any], number: int | None = None) -> None:
        """Append a line to the metrics; `number`: that of the portion, whose line has the guard's numbers."""
        line = metrics if number is None else {**metrics, **self.guard.check(number)}
        self.attempt(LOG, partial(self._run.log, step, line))

    def save(
        self,
        save: Callable[[], object],
        *,
        due: bool = True,
        background: Callable[[], object] | None = None,
        push: bool = False,
    ) -> None:
        """Save if it is due, or if something could not be saved; `save` attempts all parts.

        background: write the checkpoint on a thread instead, until `wait`; push: push the run afterwards.
        """
        self._save, self._saved = save, background is not None
        if background is not None:
            self._saving = self._thread.submit(background)
            if push:
                self._pushing.begin(self._saving.result)
        elif due or self.failing:
            save()
            self._saved = due
            if push:
                self._pushing.begin(lambda: None)
        self.report()

    def take(self, number: int, arrays: dict[str, Any], state: dict[str, Any]) -> None:
        """Note a checkpoint of this moment, all of whose steps were poured; `write_taken` writes it."""
        recorded = 0 if self._lake is None else self._lake.recorded
        state = {**state, "metrics_bytes": self._run.metrics_bytes}
        self._taken = Taken(number, arrays, state, recorded)

    def write_taken(self) -> None:
        """Write the checkpoint that was taken last, unless it is on disk; keep a copy if that fails."""
        if self._taken is None:
            return
        number, arrays, state, recorded = self._taken
        commit = None
        if self._lake is not None:
            commit = self.attempt(LAKE, partial(self._lake.commit_at, recorded))
            if commit is None and recorded and LAKE not in self.failing:
                self._taken = None  # too late: `keep_last` has deleted its commit; the next one is written
                return
        state = {**state, "lake_commit": None if commit is None else commit.number}
        if LAKE not in self.failing and self.checkpoint(partial(self._run.save, number, arrays, state)):
            self._taken = None
        else:  # training reuses the memory of the arrays
            import jax

            self._taken = self._taken._replace(arrays=jax.tree.map(np.array, arrays))

    def wait(self) -> None:
        """Wait for a checkpoint in the background; before `log`, for it notes where the log ends."""
        saving, self._saving = self._saving, None
        if saving is not None:
            self.attempt(CHECKPOINTS, saving.result)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is None and self._save is not None:
                self.wait()
                if not self._saved:
                    self._save()
                self.finish(self._save)
                self._pushing.finish()
        finally:
            self._thread.shutdown()
            self.close(self._lake)

    # --- saving that may fail ---

    def attempt(self, name: str, save: Callable[[], T]) -> T | None:
        """Save the part `name`; None, with the reason in `failing`, if it cannot be written."""
        try:
            saved = save()
        except OSError as error:
            if error.errno not in STORAGE_ERRORS:
                raise
            self.failing[name] = error
            return None
        self.failing.pop(name, None)
        return saved

    def checkpoint(self, save: Callable[[], object]) -> bool:
        """Write a checkpoint, after the lines of the log that it counts; whether it is on disk."""
        self.attempt(LOG, self._run.flush)
        if LOG not in self.failing:
            self.attempt(CHECKPOINTS, save)
        else:
            self.failing[CHECKPOINTS] = self.failing[LOG]
        return CHECKPOINTS not in self.failing

    def require(self, name: str, save: Callable[[], T], why: str) -> T:
        """Save what training cannot continue without: it pauses until that is done, or a signal comes."""
        while True:
            saved = self.attempt(name, save)
            if name not in self.failing:
                return saved  # type: ignore[return-value]
            self.report(f"training pauses, {why}, and tries again every {RETRY_SECONDS:g} s")
            stopping.sleep(RETRY_SECONDS)

    def make_room(self, lake: DeviceLake) -> None:
        """Before a pour: wait if the pours that are not on disk take too much memory."""
        if lake.waiting_bytes >= MOST_WAITING_BYTES:
            why = f"because steps of {lake.waiting_bytes:,} bytes are held in memory"
            self.require(LAKE, lake.wait, why)

    def finish(self, save: Callable[[], object]) -> None:
        """At the end of training: call `save`, which attempts all parts, until nothing fails.

        Raises RunNotSaved with what is lost when that takes longer than `FINAL_SECONDS`.
        """
        until = time.monotonic() + FINAL_SECONDS
        while self.failing:
            save()
            self.attempt(LOG, self._run.flush)
            self.report(f"training has ended and tries to save for up to {FINAL_SECONDS:g} s")
            if not self.failing:
                return
            if time.monotonic() >= until:
                raise RunNotSaved(
                    f"training has ended, but could not be saved for {FINAL_SECONDS:g} s "
                    f"({self._reasons()}). Lost: {self._only_in_memory()}. Free some space and resume."
                )
            stopping.sleep(RETRY_SECONDS)

    def report(self, doing: str = "training continues without saving and tries again") -> None:
        """Log what cannot be saved and what is only in memory, when that changes, and when it works again."""
        state = {name: error.errno for name, error in self.failing.items()}
        if state:
            if self._reported != (state, doing):
                held = self._only_in_memory()
                log.warning("%s: %s. Only in memory: %s.", self._reasons(), doing, held)
            self._reported = (state, doing)
        elif self._reported is not None:
            self._reported = None
            log.warning("%s: saving works again; nothing was lost.", self._run.folder)

    def _reasons(self) -> str:
        return "; ".join(
            f"{self._run.folder / name}: {_reason(error)}" for name, error in self.failing.items()
        )

    def _only_in_memory(self) -> str:
        known = self._run.checkpoints()
        parts = [f"the training since checkpoint {known[-1]}" if known else "the training so far"]
        if steps := self.uncommitted():
            parts.append(f"{steps:,} steps that no commit holds")
        if lines := self._run.unwritten:
            parts.append(f"{lines} line{'s' * (lines > 1)} of {LOG}")
        return ", ".join(parts)

    def close(self, lake: Any) -> None:
        """Close a lake or a replay, None too; what the disk does not take is lost, and reported as that.

        It does not raise for want of space: `finish` has done that.
        """
        if lake is None:
            return
        try:
            lake.close()
        except OSError as error:
            if error.errno not in STORAGE_ERRORS:
                raise
            log.error(
                "%s: %s. %s steps that were not committed are lost.",
                self._run.lake_folder,
                _reason(error),
                f"{self.uncommitted():,}",
            )
            lake.close(discard=True)


def _reason(error: OSError) -> str:
    """Why a file could not be written. The path and the next step, which a `LakeFull` has, are left out."""
    if error.errno is not None and isinstance(error.__cause__, OSError):
        return os.strerror(error.errno)
    return error.strerror or str(error)
