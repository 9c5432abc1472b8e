"""SIGTERM, the notice of a spot machine: commit, push what the time allows, then end as before.

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
    """What a replay can do."""

    def commit(self, note: dict[str, Any] | None = None, *, wait: bool) -> Any:
        """Make all that was recorded durable."""

    def push(self) -> Any:
        """Send it, in the background."""

    def wait_for_uploads(self, timeout: float) -> Any:
        """Wait for it."""


def on_sigterm(replay: Saves, grace: float = 5.0) -> Callable[[], None]:
    """From now on SIGTERM commits and pushes for up to `grace` seconds before it does what it did before.

    Only in the main thread. Returns a function that takes it back. A machine that is taken away without any
    notice loses what was recorded since the last commit, and nothing else.
    """
    if threading.current_thread() is not threading.main_thread():
        raise SpecError("on_sigterm must be called in the main thread, where Python handles signals.")
    before = signal.getsignal(signal.SIGTERM)
    begun = threading.Event()

    def save() -> None:
        until = time.monotonic() + grace
        working = threading.Thread(target=_save, args=(replay, until), name="lakepond-save", daemon=True)
        working.start()
        working.join(grace)
        if working.is_alive():
            log.warning(
                "SIGTERM: the %.1f s are over before all is saved; the next start sends the rest", grace
            )
        os.kill(os.getpid(), signal.SIGTERM)  # the handler lets this one through

    def handle(number: int, frame: FrameType | None) -> None:
        if not begun.is_set():
            begun.set()
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
    with suppress(LakepondError, OSError):  # told where it happens; the process ends in any case
        replay.commit({"signal": "SIGTERM"}, wait=True)
        replay.push()
        replay.wait_for_uploads(max(0.0, until - time.monotonic()))
