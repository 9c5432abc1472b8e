"""Saving that may fail: training continues without it, retries, and reports what is only in memory.

    saver.attempt(LOG, partial(run.log, step, metrics))     # retried by the next line
    saver.checkpoint(save)                                  # again with the next one
    saver.report()                                          # one sentence when something changes
    saver.finish(save)                                      # retries for ten minutes, then raises

A full disk, a quota, a disk that fails: nothing of this ends training. Steps stay in the queue of the lake's
writer and lines in the log's, in order, and are written when there is space again.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from lakepond import stopping
from lakepond.errors import RunNotSaved
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.runs import Run

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


class Saver:
    """Tries to save the parts of one run, and knows which of them cannot be saved at the moment."""

    def __init__(self, run: Run, uncommitted: Callable[[], int] = lambda: 0) -> None:
        """`uncommitted`: the number of steps that are not in the lake yet."""
        self._run, self.uncommitted = run, uncommitted
        self.failing: dict[str, OSError] = {}
        """the files that could not be written when they were tried last"""
        self._reported: Any = None

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
