"""Time in the cloud: how long to wait for an answer, before the next try, and between bytes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from lakepond.errors import CloudError, CloudNotFound, CloudRefused

T = TypeVar("T")
LEAST_TIMEOUT = 60.0
"""seconds for the smallest request"""


def timeout_for(size: int, min_rate: float, least: float = LEAST_TIMEOUT) -> float:
    """Seconds a request of `size` bytes may take: four times what `min_rate` bytes a second needs.

    Rounded up to `least` times a power of two, so that a few clients serve all sizes.
    """
    seconds = least
    while seconds < 4 * size / min_rate:
        seconds *= 2
    return seconds


class TokenBucket:
    """At most `rate` bytes a second, shared by all threads; the first second's worth goes at once."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._lock = threading.Lock()
        self._free_at = clock() - 1.0  # when all that was taken will have been paid for

    def take(self, size: int) -> None:
        """Return when `size` more bytes may be sent."""
        with self._lock:
            now = self._clock()
            start = max(self._free_at, now - 1.0)
            self._free_at = start + size / self._rate
            wait = start - now
        if wait > 0:
            self._sleep(wait)


class Backoff:
    """How long until the next try: random up to a bound that doubles; long at once where patience is needed.

    A client that was refused, or that finds no bucket, will not do better in a second: somebody has to act.
    """

    def __init__(self, cap: float, rng: random.Random | None = None) -> None:
        self._cap, self._rng = cap, rng or random.Random()
        self._tries = 0

    def after(self, error: CloudError) -> float:
        """Seconds to wait after this error."""
        self._tries += 1
        if isinstance(error, CloudRefused | CloudNotFound):
            return self._rng.uniform(self._cap / 2, self._cap)
        return self._rng.uniform(0.0, min(self._cap, 0.25 * 2.0 ** min(self._tries, 30)))


def patiently(
    attempt: Callable[[], T], *, for_seconds: float, cap: float = 60.0, stop: threading.Event | None = None
) -> T:
    """What `attempt` returns; unreachable servers are tried again for so long, everything else is raised.

    Once `stop` is set, nothing is tried again.
    """
    from lakepond.errors import CloudUnreachable

    backoff, until = Backoff(cap), time.monotonic() + for_seconds
    while True:
        try:
            return attempt()
        except CloudUnreachable as error:
            wait = backoff.after(error)
            if time.monotonic() + wait > until:
                raise
            if stop is None:
                time.sleep(wait)
            elif stop.wait(wait):
                raise
