"""Leases: a reader lists the segments that it needs from the cloud; `gc` keeps them while the lease is valid.

    leases/<id>.json    {"seconds": 86400, "commits": [7], "segments": ["5f0c...rows", ...]}

A lease is valid for `seconds` from the moment it was last put, by the server's clock. A daemon thread renews
it every hour and when another commit is opened, and deletes it when the last one is closed. The lease of a
process that was killed expires.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from lakepond.cloud.layout import LEASES
from lakepond.cloud.store import Store
from lakepond.errors import CloudError, CloudRefused
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.names import SEGMENT

log = logging.getLogger("lakepond")
SECONDS = 24 * 3600.0
RENEW_SECONDS = 3600.0
RETRY_SECONDS = 60.0
LONGEST = 7 * SECONDS
"""a lease that asks for more seconds is valid for these"""


class Needs(NamedTuple):
    """The commits and segments that a lease protects."""

    seconds: float
    commits: frozenset[int]
    segments: frozenset[str]


def parse(data: bytes) -> Needs:
    """Parse a lease; raises ValueError if it is not valid."""
    try:
        lease: Any = json.loads(data)
        seconds = float(lease["seconds"])
        found = Needs(seconds, frozenset(lease["commits"]), frozenset(lease["segments"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"it is not a lease: {error!r}") from error
    if not (math.isfinite(seconds) and all(type(number) is int for number in found.commits)):
        raise ValueError("it has an invalid number")
    if not all(isinstance(name, str) for name in found.segments):
        raise ValueError(f"its segments are not named like {SEGMENT.pattern}")
    return found._replace(seconds=min(seconds, LONGEST))


class Lease:
    """The lease of one reader. Thread-safe. Errors are logged once and not raised."""

    def __init__(
        self, store: Store, *, newest: Callable[[], tuple[int, frozenset[str]] | None] = lambda: None
    ) -> None:
        """`newest`: the newest commit on this disk, and its files, which may be only in the cloud."""
        self.store, self._newest = store, newest
        self.name = f"{LEASES}{os.urandom(8).hex()}.json"
        self._pid = os.getpid()
        self._change = threading.Condition()
        self._pinned: dict[object, tuple[int, frozenset[str]]] = {}
        self._asked = self._served = 0
        self._thread: threading.Thread | None = None
        self._logged = False

    def pin(self, commit: Commit, names: frozenset[str]) -> Callable[[float], None]:
        """Protect a commit and its segments; returns a function that ends it, given a timeout in seconds."""
        if os.getpid() != self._pid:  # a forked child has no thread, and the client refuses to work there
            return lambda _: None
        key = object()
        with self._change:
            self._pinned[key] = (commit.number, names)
            self._asked += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="lakepond-lease", daemon=True)
                self._thread.start()
            self._change.notify_all()

        def unpin(wait: float) -> None:
            if os.getpid() != self._pid:  # the lease is that of the parent
                return
            with self._change:
                if self._pinned.pop(key, None) is not None:
                    self._asked += 1
                    self._change.notify_all()
                if wait and not self._pinned:  # so that a process that ends now leaves no lease behind
                    self._change.wait_for(lambda: self._thread is None, wait)

        return unpin

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; return whether the lease in the cloud has all pinned commits."""
        with self._change:
            return self._change.wait_for(lambda: self._served >= self._asked, timeout)

    def _work(self) -> None:
        while True:
            with self._change:
                asked, pinned = self._asked, list(self._pinned.values())
            done = self._write(pinned) if pinned else self._delete()
            with self._change:
                if done:
                    self._served = max(self._served, asked)
                if not self._pinned and not pinned:
                    self._thread = None
                    self._change.notify_all()
                    return
                self._change.notify_all()
                wait = RENEW_SECONDS if done else RETRY_SECONDS
                self._change.wait_for(lambda: self._asked != asked, wait)  # noqa: B023

    def _write(self, pinned: list[tuple[int, frozenset[str]]]) -> bool:
        newest = self._newest()
        needed = pinned if newest is None else [*pinned, newest]
        lease = {
            "seconds": SECONDS,
            "commits": sorted({number for number, _ in needed}),
            "segments": sorted({name for _, names in needed for name in names}),
        }
        return self._try(lambda: self.store.replace(self.name, json.dumps(lease).encode()))

    def _delete(self) -> bool:
        return self._try(lambda: self.store.delete(self.name))

    def _try(self, attempt: Callable[[], None]) -> bool:
        try:
            attempt()
        except (CloudError, OSError) as error:
            if not self._logged:
                self._logged = True
                why = "is not permitted" if isinstance(error, CloudRefused) else "failed"
                log.warning(
                    "%s: writing the lease of this reader %s, so a `gc` on another machine may delete what "
                    "it reads (warning once): %s",
                    self.store.cloud,
                    why,
                    error,
                )
            return False
        self._logged = False
        return True
