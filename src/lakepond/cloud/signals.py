"""Commit and push on SIGTERM, the preemption notice of spot machines, then run the previous handler.

    signal ──▶ the handler returns at once ──▶ a thread commits, pushes ──▶ the signal again, as before

The handler itself does nothing but start that thread: a handler runs between any two instructions of the
main thread, which may be in the middle of recording a step.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Protocol

from lakepond.errors import LakepondError, SpecError

log = logging.getLogger("lakepond")


class Saves(Protocol):
    """The methods of a replay that the handler calls."""

    def commit(self, note: dict[str, Any] | None = None, *, wait: bool) -> Any:
        """Commit all steps."""

    def push(self) -> Any:
        """Upload commits in the background."""

    def wait_for_uploads(self, timeout: float) -> Any:
        """Wait for the uploads."""


def on_sigterm(replay: Saves, grace: float = 5.0) -> Callable[[], None]:
    """Install a SIGTERM handler that commits and pushes, then runs the previous handler.

    grace: maximum seconds for commit and push. Returns a function that restores the previous handler. Call it
    in the main thread. A machine that is stopped without notice loses only the steps recorded since the last
    commit.
    """
    if threading.current_thread() is not threading.main_thread():
        raise SpecError("on_sigterm must be called in the main thread, where Python handles signals.")
    before = signal.getsignal(signal.SIGTERM)
    started = threading.Event()

    def save() -> None:
        until = time.monotonic() + grace
        working = threading.Thread(target=_save, args=(replay, until), name="lakepond-save", daemon=True)
        working.start()
        working.join(grace)
        if working.is_alive():
            log.warning(
                "SIGTERM: not everything was saved within %.1f s; the next start uploads the rest", grace
            )
        os.kill(os.getpid(), signal.SIGTERM)  # the handler lets this one through

    def handle(number: int, frame: FrameType | None) -> None:
        if not started.is_set():
            started.set()
            log.warning("SIGTERM: saving for up to %.1f s", grace)
            threading.Thread(target=save, name="lakepond-sigterm", daemon=True).start()
            return
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def undo() -> None:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, before)

    signal.signal(signal.SIGTERM, handle)
    return undo


def _save(replay: Saves, until: float) -> None:
    with suppress(LakepondError, OSError):  # reported where it happens; the process ends in any case
        replay.commit({"signal": "SIGTERM"}, wait=True)
        replay.push()
        replay.wait_for_uploads(max(0.0, until - time.monotonic()))
