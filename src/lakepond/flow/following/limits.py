"""`sample` waits for `min_steps`, and for the limit of samples per insert (Reverb's `SampleToInsertRatio`).

A call waits until at least `min_steps` steps are in the pond and the steps sampled so far are at most
`samples_per_insert` times those inserted. It is not split, so the limit may be exceeded by less than one
batch. A sequence of T steps counts as T samples. Inserting never waits: writers do not know their readers.
Collectors of `lakepond.distributed` wait before they record, see `positions`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from lakepond import forks
from lakepond.errors import SampleTimeout

log = logging.getLogger("lakepond")
AHEAD_SHARE, AHEAD_STEPS = 0.1, 1_000
"""how far collectors may be ahead of what the limit allows to sample: this share of it and these steps"""
REASON_SECONDS = 30.0
"""how long a call waits before it logs why"""


class Limits:
    """Counts what was inserted and sampled, and makes `sample` wait. Thread-safe."""

    def __init__(self, min_steps: int, samples_per_insert: float | None) -> None:
        self.min_steps, self.samples_per_insert = max(1, min_steps), samples_per_insert
        self.inserted = self.sampled = 0
        self.restart_in_child()
        self._pid = os.getpid()
        forks.register(self)

    def restart_in_child(self) -> None:
        """No thread waits in a forked child."""
        self._change = threading.Condition()

    def restore(self, sampled: int, inserted: int) -> None:
        """Continue with the counts of a snapshot."""
        self.sampled, self.inserted = sampled, inserted

    def insert(self, count: int) -> None:
        """Note that steps were appended."""
        with self._change:
            self.inserted += count
            self._change.notify_all()

    def wait(
        self, count: int, timeout: float, steps: Callable[[], int], reason: Callable[[str], str]
    ) -> None:
        """Wait until `count` steps may be sampled, and count them.

        steps: how many are in the pond. reason: turns what is missing into the message of `SampleTimeout`.
        """
        with self._change:
            if (missing := self._missing(steps())) is None:
                self.sampled += count
                return
            began, logged = time.monotonic(), False
            while missing is not None:
                waited = time.monotonic() - began
                if waited >= timeout or os.getpid() != self._pid:
                    raise SampleTimeout(reason(missing))
                if waited >= REASON_SECONDS and not logged:
                    logged = True
                    log.warning("sample() is waiting: %s", reason(missing))
                self._change.wait(min(timeout - waited, 1.0))
                missing = self._missing(steps())
            self.sampled += count

    def is_ahead(self, inserted: int, sampled: int) -> bool:
        """Whether more was inserted than is needed to sample at the limit, since the counts had these values.

        False while `sample` waits for inserts: after a snapshot, the total counts may require more of them.
        """
        with self._change:
            if self.samples_per_insert is None or self._is_exceeded():
                return False
            needed = (self.sampled - sampled) / self.samples_per_insert
            return self.inserted - inserted > self.min_steps + (1 + AHEAD_SHARE) * needed + AHEAD_STEPS

    def undo(self, count: int) -> None:
        """Steps that were counted could not be sampled."""
        with self._change:
            self.sampled -= count

    def _missing(self, steps: int) -> str | None:
        if steps < self.min_steps:
            return f"{steps:,} steps are in memory, and min_steps is {self.min_steps:,}"
        if self._is_exceeded():
            return (
                f"{self.sampled:,} steps were sampled and {self.inserted:,} inserted, and samples_per_insert "
                f"is {self.samples_per_insert:g}"
            )
        return None

    def _is_exceeded(self) -> bool:
        return self.samples_per_insert is not None and self.sampled > self.samples_per_insert * self.inserted
