"""Work that commits ask for and do not wait for: on a thread of its own, one run at a time.

A signal returns at once. Signals that come during a run are served by one more run; then the thread ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from lakepond import background, forks
from lakepond.lake.write.reasons import Reasons

log = logging.getLogger("lakepond")


class CoalescedTask:
    """Calls a function on a daemon thread after it was signalled, once for all signals of a moment.

    Thread-safe. An error of the function is counted, and logged once for each reason until a success; the
    next signal tries it again. A forked child has no such thread; its first signal starts one.
    """

    def __init__(self, run: Callable[[], object], name: str, failed: str) -> None:
        """`name`: of the thread. `failed`: what is logged before the error."""
        self._run, self._name, self._text = run, name, failed
        self._reasons = Reasons()
        self.failures = 0
        """runs that failed"""
        self._closed = False
        self.restart_in_child()
        forks.register(self)

    def restart_in_child(self) -> None:
        """No thread runs here, and nobody is in the lock."""
        self._change = threading.Condition()
        self._signalled = self._running = False

    def signal(self) -> None:
        """Have one run begin after this moment; returns at once. Does nothing after `close`."""
        with self._change:
            if self._closed:
                return
            self._signalled = True
            if not self._running:
                try:
                    threading.Thread(target=self._work, name=self._name, daemon=True).start()
                except RuntimeError as error:
                    if not background.is_exiting(error):
                        raise
                    return  # the next process does it
                self._running = True

    def close(self, timeout: float) -> bool:
        """Start no run for later signals; wait for the present ones, at most `timeout` seconds.

        Returns whether all have ended.
        """
        with self._change:
            self._closed = True
            return self._change.wait_for(lambda: not self._running, timeout)

    def _work(self) -> None:
        while True:
            with self._change:
                if not self._signalled:
                    self._running = False
                    self._change.notify_all()
                    return
                self._signalled = False
            try:
                self._run()
                self._reasons.clear()
            except BaseException as error:
                self.failures += 1
                if self._reasons.is_new(error):
                    log.warning("%s (reported once): %s: %s", self._text, type(error).__name__, error)
