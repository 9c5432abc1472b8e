"""Uploads in the background: daemon threads, tried again for as long as the process lives, never in its way.

     submit ──▶ waiting ──▶ a worker sends one ──▶ done
                   ▲                │
                   └── later ◀── failed: reported in the status, and logged when the state changes

The disk is the queue: what is waiting here is a name and a way to read it again. Exit waits for nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lakepond import formats
from lakepond.cloud.pace import Backoff
from lakepond.cloud.place import Cloud
from lakepond.cloud.status import UploadStatus
from lakepond.errors import CloudConflict, CloudError, CloudForked

log = logging.getLogger("lakepond")
RATE_SECONDS = 30.0
"""length of the window over which the upload rate is measured"""


@dataclass
class Upload:
    """One file to be sent."""

    name: str
    size: int
    send: Callable[[], int]
    """one attempt: reads the file again, sends it and checks it; returns the bytes sent, 0 if it was there"""
    done: Callable[[], None] = lambda: None
    """called when it has arrived"""
    failed: Callable[[Exception], None] = lambda error: None
    """called when it is given up"""
    asked_at: float = field(default_factory=time.monotonic)
    not_before: float = 0.0
    backoff: Backoff | None = None


class Uploader:
    """Sends files to one place with some daemon threads, which start with the first file."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud, self._pid = cloud, os.getpid()
        self._change = threading.Condition()
        self._waiting: dict[str, Upload] = {}
        self._active: dict[str, Upload] = {}
        self._threads: list[threading.Thread] = []
        self._stop = False
        self._uploaded = self._uploaded_bytes = self._failed = 0
        self.errors = 0
        """tries that failed; the server may have been restarted meanwhile"""
        self._recent: list[tuple[float, int]] = []
        self._error: str | None = None
        self._state = "idle"

    def submit(self, *uploads: Upload) -> None:
        """Send these; each in place of what waits under the same name."""
        self.check_process()
        with self._change:
            if self._stop:
                raise CloudError(f"the connection to {self._cloud} is closed; open it again to upload more.")
            for upload in uploads:
                before = self._waiting.pop(upload.name, None)
                if before is not None:
                    upload.asked_at = before.asked_at
                self._waiting[upload.name] = upload
            self._update_state()
            while len(self._threads) < min(self._cloud.workers, len(self._waiting) + len(self._active)):
                name = f"lakepond-upload-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    if not self._threads:
                        raise
                    break
                self._threads.append(thread)
            self._change.notify_all()

    def check_process(self) -> None:
        """Raise `CloudForked` in a child: the threads that would send are in its parent."""
        if os.getpid() != self._pid:
            raise CloudForked(
                f"process {os.getpid()} was forked from the one that uploads to {self._cloud}; push there, "
                "or start this one with the method 'spawn' and open the cloud in it."
            )

    def forget_failures(self) -> None:
        """Reset the count of failures."""
        with self._change:
            self._failed = 0
            if self._error is not None and not self._waiting:
                self._error = None
            self._update_state()

    def _work(self) -> None:
        while True:
            with self._change:
                upload = self._next()
                if upload is None:
                    return
                self._active[upload.name] = upload
                self._update_state()
            error: Exception | None = None
            try:
                sent = upload.send()
                self._count(sent)  # first: who waits for the file may then ask for the status
                upload.done()
            except Exception as raised:
                error = raised
                if not self._comes_again(error):
                    upload.failed(error)
            with self._change:
                del self._active[upload.name]
                self._finished(upload, error)
                self._update_state()
                self._change.notify_all()

    def _next(self) -> Upload | None:
        """The first upload that may go now; None when there will be none."""
        while not self._stop:
            now = time.monotonic()
            in_flight = sum(upload.size for upload in self._active.values())
            soonest = None
            for upload in self._waiting.values():
                fits = not in_flight or in_flight + upload.size <= self._cloud.most_in_flight
                if upload.name not in self._active and fits and upload.not_before <= now:
                    return self._waiting.pop(upload.name)
                if upload.not_before > now:
                    soonest = min(soonest or upload.not_before, upload.not_before)
            self._change.wait(None if soonest is None else soonest - now)
        return None

    def _count(self, sent: int) -> None:
        with self._change:
            self._uploaded += sent > 0
            self._uploaded_bytes += sent
            self._recent.append((time.monotonic(), sent))

    def _finished(self, upload: Upload, error: Exception | None) -> None:
        if error is None:
            self._error = None
            for other in self._waiting.values():  # what failed may well go now, too
                other.not_before = 0.0
            return
        self.errors += 1
        self._error = str(error)
        if not isinstance(error, CloudError):  # an error of the disk, or a defect of lakepond
            self._error = f"{type(error).__name__}: {error}"
        if not self._comes_again(error):
            self._failed += 1
            log.error("%s: %s cannot be uploaded: %s", self._cloud, upload.name, self._error)
        elif upload.name not in self._waiting and isinstance(error, CloudError):
            upload.backoff = upload.backoff or Backoff(self._cloud.retry_cap)
            upload.not_before = time.monotonic() + upload.backoff.after(error)
            self._waiting[upload.name] = upload

    @staticmethod
    def _comes_again(error: Exception) -> bool:
        return isinstance(error, CloudError) and not isinstance(error, CloudConflict | CloudForked)

    def _update_state(self) -> None:
        """Report a change of state, once."""
        if self._error is not None and (self._waiting or self._active):
            state = "waiting"
        elif self._waiting or self._active:
            state = "sending"
        else:
            state = "failed" if self._failed else "idle"
        if state == self._state:
            return
        self._state = state
        left = [*self._waiting.values(), *self._active.values()]
        to_go = f"{len(left)} files, {formats.size(sum(upload.size for upload in left))} left"
        if state == "sending":
            log.info("%s: uploading, %s", self._cloud, to_go)
        elif state == "waiting":
            log.warning("%s: waiting to retry, %s: %s", self._cloud, to_go, self._error)
        elif state == "idle":
            sent = f"{self._uploaded} files, {formats.size(self._uploaded_bytes)}"
            log.info("%s: upload complete, %s since it was opened", self._cloud, sent)

    # --- how far it is ---------------------------------------------------------------------------

    def status(self) -> UploadStatus:
        """How far the uploads are."""
        with self._change:
            now = time.monotonic()
            self._recent = [(at, size) for at, size in self._recent if at > now - RATE_SECONDS]
            left = [*self._waiting.values(), *self._active.values()]
            oldest = min((upload.asked_at for upload in left), default=now)
            rate = 0.0
            if self._recent:
                rate = sum(size for _, size in self._recent) / max(0.1, now - self._recent[0][0] + 0.1)
            return UploadStatus(
                state=self._state,
                uploaded=self._uploaded,
                uploaded_bytes=self._uploaded_bytes,
                pending=len(left),
                pending_bytes=sum(upload.size for upload in left),
                failed=self._failed,
                lag_seconds=now - oldest,
                bytes_per_second=rate,
                last_error=self._error,
            )

    def wait(self, timeout: float) -> UploadStatus:
        """Return when nothing is on its way any more, or after `timeout` seconds."""
        until = time.monotonic() + timeout
        with self._change:
            while (self._waiting or self._active) and (left := until - time.monotonic()) > 0:
                self._change.wait(left)
        return self.status()

    def close(self) -> None:
        """Begin nothing more. What is on its way goes on as long as the process does."""
        with self._change:
            self._stop = True
            self._change.notify_all()
