"""Uploads of a writer's chain in the background: every file once, each commit after its files.

    commits on disk ──▶ upload missing files ──▶ HEAD ──▶ publish each commit

Readers rely on commits only and never walk folders. A segment is put once, verified, and recorded in a list
beside the lake; a commit is put after the server has shown all of its files. So a reader always finds the
newest complete commit.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lakepond import background, formats
from lakepond.cloud.chains import ChainCopy
from lakepond.cloud.copying import Copier
from lakepond.cloud.pace import Backoff
from lakepond.cloud.place import Cloud
from lakepond.cloud.slots import Changed
from lakepond.cloud.status import UploadStatus
from lakepond.cloud.store import Store
from lakepond.cloud.uploader import Uploader
from lakepond.errors import CloudConflict, CloudError, CloudForked
from lakepond.lake import writers
from lakepond.lake.segments import Segments

log = logging.getLogger("lakepond")
CLOSE_SECONDS = 30.0
"""seconds that `close` waits for uploads, unless the cloud is known to be unreachable"""


class Pusher:
    """Uploads the chain of one writer to the cloud on a background thread. Thread-safe."""

    def __init__(self, path: Path, cloud: Cloud, *, store: Store | None = None, writer: str = "") -> None:
        """`store`: of the lake's place. `writer`: whose chain; the one without a name by default."""
        self.path, self.cloud = path, cloud
        lake = store if store is not None else Store(cloud)
        self.copy = ChainCopy(path, lake, writers.chain_of(path, writer))
        self.store, self.elsewhere = self.copy.store, self.copy.elsewhere
        self.segments: Segments | None = None
        """asked to keep to its budget after a push"""
        self.wait_for_commits: Callable[[], object] = lambda: None
        """returns when commits that were handed over are on disk"""
        self._uploader = Uploader(cloud)
        self._copier = Copier(self.copy, self._uploader)
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = self._served = 0
        self._asked_at = 0.0
        self._stop = False
        self._error: str | None = None
        self._failed = False
        self._gave_up_at = -math.inf
        self._reported: str | None = None  # why the last push was given up
        self.failures = 0
        """rounds that failed"""

    # --- asking ----------------------------------------------------------------------------------

    def push(self) -> None:
        """Start uploading all commits on this disk; returns immediately."""
        self._uploader.check_process()
        with self._change:
            if self._stop:
                raise CloudError(f"the connection to {self.cloud} is closed; open the replay again to push.")
            exiting = None
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="lakepond-push", daemon=True)
                try:
                    thread.start()  # may fail; the next push tries again
                    self._thread = thread
                except RuntimeError as error:
                    if not background.is_exiting(error):
                        raise
                    exiting = str(error)
            if self._asked == self._served:
                self._asked_at = time.monotonic()
            self._asked += 1
            self._failed, self._error = False, exiting
            self._uploader.forget_failures()
            self._change.notify_all()

    def wait(self, timeout: float) -> UploadStatus:
        """Wait until all uploads have completed or failed, at most `timeout` seconds."""
        with self._change:
            self._change.wait_for(lambda: self._served >= self._asked or self._stop, timeout)
        return self.status()

    def status(self) -> UploadStatus:
        """Return the progress of uploads."""
        status = self._uploader.status()
        with self._change:
            busy = self._asked > self._served
            state = "sending" if busy else "idle"
            error = self._error or (status.last_error if busy else None)
            if self._failed:
                state = "failed"
            elif busy and error is not None:
                state = "waiting"
            copier = self._copier
            pending_files, pending_bytes = copier.pending()
            return replace(
                status,
                state=state,
                uploaded=status.uploaded + copier.commit_files,
                uploaded_bytes=status.uploaded_bytes + copier.commit_bytes,
                pending=pending_files,
                pending_bytes=pending_bytes,
                lag_seconds=time.monotonic() - self._asked_at if busy else 0.0,
                last_error=error,
                pushed=copier.pushed,
                over_budget_bytes=0 if self.segments is None else self.segments.over_budget(),
                conditions=self.store.server.conditions,
            )

    @property
    def gave_up_recently(self) -> bool:
        """Whether a push was given up within the longest time between two attempts: the user must act."""
        return time.monotonic() - self._gave_up_at < self.cloud.retry_cap

    def confirm(self, ask: bool) -> bool:
        """Whether the list of uploaded files is up to date; `ask`: make a LIST if necessary."""
        return self._copier.confirm(ask)

    def note(self, error: str) -> None:
        """Record an error that occurred before a push."""
        with self._change:
            self._error = error

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Wait for uploads for a limited time, stop, and log what is missing."""
        until = time.monotonic() + timeout
        while self._asked > self._served and self.status().state != "waiting":
            if self.wait(min(0.2, max(0.0, until - time.monotonic()))).done or time.monotonic() >= until:
                break
        status = self.status()
        with self._change:
            self._stop = True
            self._change.notify_all()
            unfinished = self._asked > self._served
        self._copier.stop()
        self._uploader.close()
        if status.pending or unfinished:  # which files are missing may not be known yet
            size = formats.size(status.pending_bytes)
            files = f"{status.pending} files, {size}," if status.pending else "commits"
            log.warning(
                "%s: %s are not in the cloud yet; the next push from %s uploads them%s",
                self.cloud,
                files,
                self.path,
                f" ({status.last_error})" if status.last_error else "",
            )

    # --- doing -----------------------------------------------------------------------------------

    def _work(self) -> None:
        backoff = Backoff(self.cloud.retry_cap)
        while True:
            with self._change:
                self._change.wait_for(lambda: self._stop or self._asked > self._served)
                if self._stop:
                    return
                asked = self._asked
            try:
                self.wait_for_commits()
                self._copier.round()
                if self.segments is not None:
                    self.segments.make_room()
            except Changed:
                continue
            except (CloudConflict, CloudForked) as error:
                self._give_up(asked, str(error))
            except CloudError as error:
                self.failures += 1
                if self._error is None:
                    log.warning("%s: waiting to retry: %s", self.cloud, error)
                with self._change:
                    self._error = str(error)
                    wait = backoff.after(error)
                    self._change.wait_for(lambda: self._stop or self._asked != asked, wait)  # noqa: B023
                continue
            except Exception as error:  # of the lake or its disk: training continues, the user must act
                self._give_up(asked, f"{type(error).__name__}: {error}")
            else:
                self._reported = None
                with self._change:
                    self._error, self._served = None, max(self._served, asked)
                    self._change.notify_all()
            backoff = Backoff(self.cloud.retry_cap)

    def _give_up(self, asked: int, error: str) -> None:
        self.failures += 1
        if error != self._reported:
            log.error("%s: the push stopped; push again to continue: %s", self.cloud, error)
        self._reported, self._gave_up_at = error, time.monotonic()
        with self._change:
            self._error, self._failed, self._served = error, True, max(self._served, asked)
            self._change.notify_all()
