"""Signals that stop a trainer between two pieces of work, never inside one.

An exception that a signal handler raises inside a JAX callback, where environments of the host are stepped,
is lost or becomes another one; inside a callback of llvmlite it ends the process. So while a trainer runs, or
numba compiles for a store, a first signal is only noted::

    with deferring("generation"):  # or as a decorator
        while ...:
            check()  # raises KeyboardInterrupt or Terminated if a signal has come
            ...

A second signal raises at once, wherever the program is; should that exception be lost, `check` still raises.
"""

from __future__ import annotations

import _thread
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

log = logging.getLogger("lakepond")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CHECK_SECONDS = 0.1
"""how often `sleep` looks for a signal"""


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a rented machine sends it before it ends, or SIGHUP: stops the program like Ctrl-C."""

    def __init__(self, signum: int = signal.SIGTERM) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class _Deferred:
    """The signal that a running trainer has received, if any."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.signum: int | None = None
        self.ending = False

    def receive(self, signum: int, _: FrameType | None) -> None:
        if self.ending or self.signum is None:
            self.signum = signum
            again = "press Ctrl-C" if signum == signal.SIGINT else f"send {signal.Signals(signum).name}"
            text = f"\nlakepond: stopping after this {self.unit}; {again} again to stop now\n"
            with suppress(OSError):  # not sys.stderr: a handler may interrupt a write to it
                os.write(2, text.encode())
            return
        raise _interrupt(signum)


_deferred: _Deferred | None = None


@contextmanager
def deferring(unit: str) -> Iterator[None]:
    """Note SIGINT, SIGTERM and SIGHUP until `check` is called; `unit` is what is finished before that.

    A signal that no `check` has seen raises at the end. Signals that are ignored stay ignored, and a handler
    that the program has installed itself stays in place. Nested uses and uses outside of the main thread,
    where Python handles no signals, do nothing.
    """
    global _deferred
    if _deferred is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    state = _deferred = _Deferred(unit)
    before = {name: signal.getsignal(name) for name in SIGNALS}
    before = {name: handler for name, handler in before.items() if _is_ours(handler)}
    failed: Exception | None = None
    try:
        for name in before:
            signal.signal(name, state.receive)
        yield
    except Exception as error:
        failed = error
    finally:
        state.ending = True
        _deferred = None
        _restore(before)
    if state.signum is not None:
        if failed is not None:  # perhaps what a JAX callback made of the exception of a second signal
            log.warning("stopped by a signal; there was an error as well: %s", failed)
        raise _interrupt(state.signum) from failed
    if failed is not None:
        raise failed


def _is_ours(handler: Any) -> bool:
    """Whether a handler is Python's default or one of `terminate_as_interrupt`."""
    default = handler in (signal.SIG_DFL, signal.default_int_handler)
    return default or isinstance(getattr(handler, "__self__", None), _Raised)


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    """Install these handlers, all of them even if one that is back raises because a signal arrives."""
    try:
        for name, handler in handlers.items():
            signal.signal(name, handler)
    except BaseException:
        _restore(handlers)
        raise


def check() -> None:
    """Raise KeyboardInterrupt or Terminated if a signal has come since `deferring` began."""
    state = _deferred
    if state is None or state.signum is None or threading.current_thread() is not threading.main_thread():
        return
    raise _interrupt(state.signum)


def sleep(seconds: float) -> None:
    """Wait; a signal ends it as `check` does."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(left, CHECK_SECONDS))
    check()


class _Raised:
    """Raises at a signal, and remembers it: its exception may be dropped or become another one.

    During an import, and while numba compiles or loads machine code, the signal is delivered again a moment
    later, until that is done: a C extension that is being initialised turns the exception into another one,
    llvmlite drops it in a callback and continues with half an object, which ends the process. A second signal
    raises at once.
    """

    def __init__(self, hook: Callable[[Any], object]) -> None:
        self.signum: int | None = None
        self.active = True
        self._hook, self._again = hook, False

    def receive(self, signum: int, frame: FrameType | None) -> None:
        again, self._again = self._again, False
        first, self.signum = again or self.signum is None, signum
        if first and _is_loading(frame):
            self._deliver_later()
            return
        raise _interrupt(signum)

    def dropped(self, exception: Any) -> None:
        """Instead of `sys.unraisablehook`: deliver the signal again a moment later."""
        if issubclass(exception.exc_type, KeyboardInterrupt) and self.signum is not None:
            self._deliver_later()
        else:
            self._hook(exception)

    def _deliver_later(self) -> None:
        _thread.start_new_thread(self._deliver, ())  # `threading` has a lock that a handler may not wait for

    def _deliver(self) -> None:
        time.sleep(CHECK_SECONDS)
        if self.active and self.signum is not None:
            self._again = True
            os.kill(os.getpid(), self.signum)


def _is_loading(frame: FrameType | None) -> bool:
    """Whether a module is being imported, or numba is at work, on the stack of this frame."""
    while frame is not None:
        library = str(frame.f_globals.get("__name__")).partition(".")[0]
        if frame.f_code.co_filename.startswith("<frozen importlib") or library in ("numba", "llvmlite"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Make SIGTERM raise Terminated at once, as SIGINT raises KeyboardInterrupt, wherever the program is.

    Python drops an exception that is raised in a finalizer or a callback of its garbage collector, and an
    import may turn it into another one. In both cases the signal is delivered again. If it has become another
    exception elsewhere, this raises what the signal should have raised.
    """
    if threading.current_thread() is not threading.main_thread():  # the main thread decides
        yield
        return
    hook, state = sys.unraisablehook, _Raised(sys.unraisablehook)
    before = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.default_int_handler
    try:
        sys.unraisablehook = state.dropped
        for name in before:
            signal.signal(name, state.receive)
        yield
    except Exception as error:
        if state.signum is None:
            raise
        raise _interrupt(state.signum) from error
    finally:
        state.active = False
        sys.unraisablehook = hook
        _restore(before)


def _interrupt(signum: int) -> KeyboardInterrupt:
    return KeyboardInterrupt() if signum == signal.SIGINT else Terminated(signum)
