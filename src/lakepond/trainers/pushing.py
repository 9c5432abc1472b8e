"""A run to the cloud now and then, in the background; what fails is loud and never stops training."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lakepond import stopping
from lakepond.errors import LakepondError

log = logging.getLogger("lakepond")
WAIT_SECONDS = 600.0
"""for the last push, at the end of a run"""


class Pushing:
    """Pushes a run's folder on a thread that does not outlive the process; one push at a time."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self._folder, self._url = folder, url
        self._thread: threading.Thread | None = None
        if url is not None:
            from lakepond.cloud.place import Cloud

            Cloud.of(url)  # refuse an invalid URL now

    def begin(self, ready: Callable[[], object]) -> bool:
        """Push once `ready` has returned; False, and nothing happens, while the last push is on its way."""
        if self._url is None or (self._thread is not None and self._thread.is_alive()):
            return False
        self._thread = threading.Thread(target=self._push, args=(ready,), name="lakepond-push", daemon=True)
        self._thread.start()
        return True

    def _push(self, ready: Callable[[], object]) -> None:
        from lakepond.cloud.place import Cloud
        from lakepond.runs.copies import push_run

        assert self._url is not None
        try:
            ready()
            status = push_run(self._folder, Cloud.of(self._url), timeout=WAIT_SECONDS)
            if status is not None and not status.done:
                log.warning("%s is not completely uploaded yet: %s", self._folder, status)
        except (LakepondError, OSError) as error:  # a checkpoint may also have been deleted meanwhile
            log.warning("pushing %s failed, the next push uploads the rest: %s", self._folder, error)

    def finish(self) -> None:
        """Push what is left and wait for it, within bounds; a signal ends the wait."""
        if self._url is None:
            return
        until = time.monotonic() + WAIT_SECONDS
        while not self.begin(lambda: None):
            if not self._ended_by(until):
                break
        if not self._ended_by(until):
            log.warning(
                "%s is not completely uploaded yet; `lakepond push %s %s` uploads the rest.",
                self._folder,
                self._folder,
                self._url,
            )

    def _ended_by(self, until: float) -> bool:
        """Wait for the push; whether it has ended."""
        assert self._thread is not None
        while self._thread.is_alive() and (left := until - time.monotonic()) > 0:
            stopping.check()
            self._thread.join(min(left, stopping.CHECK_SECONDS))
        return not self._thread.is_alive()
