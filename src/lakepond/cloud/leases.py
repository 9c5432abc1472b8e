"""Leases: a reader lists the segments that it needs from the cloud; `gc` keeps them while the lease is valid.

    leases/<id>.json    {"seconds": 86400, "commits": [7], "segments": ["5f0c...rows", ...]}
    leases/<id>.gc      exists while a `gc` deletes something in this chain

A lease on row sources is in `leases/` of the lake, because all writers share them.

A lease is valid for `seconds` from the moment it was last put, by the server's clock. A daemon thread renews
it every hour and when another commit is opened, and deletes it when the last one is closed. The lease of a
process that was killed expires.

No lease comes too late. A `gc` puts its object, LISTs the leases, deletes, and deletes its object. A reader
puts its lease, then LISTs: if there is no `.gc` object, each `gc` has ended or will see the lease. If there
is one, the reader waits. Then it checks that what it needs is still there.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lakepond.cloud.bucket import Listed
from lakepond.cloud.layout import LEASES, commit_name
from lakepond.cloud.pace import patiently
from lakepond.cloud.store import Store
from lakepond.errors import (
    CloudCorrupt,
    CloudError,
    CloudNotFound,
    CloudRefused,
    CloudUnreachable,
)
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.names import SEGMENT

log = logging.getLogger("lakepond")
SECONDS = 24 * 3600.0
RENEW_SECONDS = 3600.0
RETRY_SECONDS = 60.0
LONGEST = 7 * SECONDS
"""a lease that asks for more seconds is valid for these"""
FIRST_SECONDS = 2.0
"""how long a reader waits for its lease before it continues without it, and logs that"""
GC_SECONDS = 3600.0
"""after which the object of a `gc` is ignored: it was killed"""
GC_RENEW_SECONDS = 600.0
GC_LOOK_SECONDS = 0.5
GC_LOOK_MOST_SECONDS = 10.0
"""between two looks whether a `gc` still deletes: the first pause, which doubles, and the longest one"""
_LEASE = re.compile(rf"{LEASES}[0-9a-f]{{16}}\.json")
_GC = re.compile(rf"{LEASES}[0-9a-f]{{16}}\.gc")


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


class Leases(NamedTuple):
    """The commits and segments that readers on all machines need."""

    commits: set[int]
    segments: set[str]
    expired: list[str]
    """objects of readers and of runs of `gc` that have ended without deleting them"""


def valid(store: Store, listed: dict[str, Listed], now: float) -> Leases:
    """The leases that are valid now, taken together; raises if one cannot be read, unless it is old."""
    found = Leases(set(), set(), [])
    for name, each in listed.items():
        if _GC.fullmatch(name) and now - each.modified > SECONDS:
            found.expired.append(name)
        if not _LEASE.fullmatch(name):
            continue
        try:
            needs = parse(store.read(name))
        except CloudNotFound:  # the reader has ended
            continue
        except ValueError as error:
            if now - each.modified <= SECONDS:
                raise CloudCorrupt(
                    f"{name} of {store.cloud} cannot be read, so it is not known which commits its reader "
                    f"needs; nothing is deleted. Delete it by hand if that reader has ended ({error})."
                ) from error
            needs = Needs(0.0, frozenset(), frozenset())
        if now - each.modified > needs.seconds:
            found.expired.append(name)
        else:
            found.commits.update(needs.commits)
            found.segments.update(needs.segments)
    return found


# --- on the side of `gc` -------------------------------------------------------------------------


class Collecting:
    """The object that shows that a `gc` deletes in this chain."""

    def __init__(self, store: Store) -> None:
        self._store, self.name = store, _new_name("gc")
        self._at = -math.inf

    def renew(self) -> None:
        """Put it, or put it again before readers ignore it; `CloudUnreachable` if that may have happened."""
        passed = clock() - self._at
        if math.inf > passed > GC_SECONDS / 2:
            raise CloudUnreachable(
                f"{self._store.cloud}: this machine was suspended for {passed:,.0f} s while `gc` deleted; it "
                "stopped: run it again."
            )
        if passed > GC_RENEW_SECONDS:
            self._at = clock()
            self._store.replace(self.name, b"{}")


@contextmanager
def collecting(store: Store) -> Iterator[Collecting]:
    """Announce, until the end of the block, that something is deleted.

    After an error the object stays: a DELETE without an answer may be applied later. Readers ignore it after
    an hour.
    """
    announced = Collecting(store)
    announced.renew()
    yield announced
    store.delete(announced.name)


def server_time(store: Store) -> float:
    """The time by the server's clock: the age of a file is a matter of that clock, not of ours."""
    probe = _new_name("json")
    store.replace(probe, _content((), ()))  # a lease on nothing, which nobody waits for
    try:
        found = store.head(probe)
    finally:
        store.delete(probe)
    if found is None:
        raise CloudCorrupt(f"{store.cloud} lost a file that it had acknowledged; try again.")
    return found.modified


# --- on the side of readers and writers ----------------------------------------------------------


def gc_is_deleting(store: Store, lease: str) -> bool:
    """Whether a `gc` may delete something in this chain without having seen a lease that was put before."""
    listed = store.list(LEASES)
    if lease not in listed:  # lost, or deleted by a `gc`: nothing is protected
        return True
    now = listed[lease].modified
    return any(_GC.fullmatch(name) and now - each.modified < GC_SECONDS for name, each in listed.items())


@contextmanager
def protecting(store: Store, names: Collection[str] = (), numbers: Collection[int] = ()) -> Iterator[None]:
    """Keep segments and commits that are in the cloud until the end of the block, when something names them.

    Raises `CloudUnreachable`, to be tried again, while a `gc` deletes.
    """
    lease = _new_name("json")
    store.replace(lease, _content(numbers, names))
    try:
        if gc_is_deleting(store, lease):
            raise CloudUnreachable(f"`gc` deletes files in {store.cloud} now; it is retried.")
        yield
    finally:
        with suppress(CloudError):  # it expires
            store.delete(lease)


class Lease:
    """The lease of one reader. Thread-safe. Errors in writing it are logged once and not raised."""

    def __init__(
        self,
        store: Store,
        path: Path | None = None,
        *,
        newest: Callable[[], tuple[int, frozenset[str]] | None] = lambda: None,
    ) -> None:
        """`store`: the place of the chain. `path`: the folder whose `segments/` has what is on this disk.

        `newest`: the newest commit on this disk, and its files, which may be only in the cloud.
        """
        self.store, self._path, self._newest = store, path, newest
        self.name = _new_name("json")
        self._pid = os.getpid()
        self._change = threading.Condition()
        self._pinned: dict[object, tuple[int, frozenset[str]]] = {}
        self._safe: frozenset[str] = frozenset()  # segments that no `gc` deletes while this lease is renewed
        self._asked = self._served = self._tried = 0
        self._waiting_since: float | None = None  # for the end of a `gc`
        self._thread: threading.Thread | None = None
        self._logged = False

    def pin(self, commit: Commit, names: frozenset[str]) -> Callable[[float], None]:
        """Protect a commit and its segments; returns a function that ends it, given a timeout in seconds.

        Waits until they are protected. Raises `CloudNotFound` if a `gc` has deleted some of them, and
        `CloudUnreachable` if one is deleting for so long. If the lease cannot be written, returns without.
        """
        if os.getpid() != self._pid:  # a forked child has no thread, and the client refuses to work there
            return lambda _: None
        key = object()
        with self._change:
            known = names <= self._safe
            self._pinned[key] = (commit.number, names)
            self._asked += 1
            asked = self._asked
            if self._thread is None:
                self.name = _new_name("json")  # a DELETE of the last one may be on its way
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

        if not known:
            try:
                if self._wait_until_safe(asked):
                    self._check_there(commit, names)
            except BaseException:
                unpin(0.0)
                raise
        return unpin

    def _wait_until_safe(self, asked: int) -> bool:
        """Wait for the lease; returns whether it was written."""
        until = time.monotonic() + FIRST_SECONDS
        with self._change:
            while max(self._served, self._tried) < asked and (left := until - time.monotonic()) > 0:
                self._change.wait(left)
                if self._waiting_since is not None:
                    until = self._waiting_since + self.store.cloud.patience
            if self._served < asked and self._waiting_since is not None:
                raise CloudUnreachable(
                    f"a `gc` has been deleting files in {self.store.cloud} for "
                    f"{self.store.cloud.patience:.0f} s; open the lake again when it has ended."
                )
            return self._served >= asked

    def _check_there(self, commit: Commit, names: frozenset[str]) -> None:
        """Raise `CloudNotFound` if a `gc` has deleted segments of a commit before the lease was written."""
        cloud = self.store.cloud
        again = partial(patiently, for_seconds=cloud.patience, cap=cloud.retry_cap)
        if again(lambda: self.store.head(commit_name(commit.number))) is not None:
            return  # a `gc` deletes it before its segments
        listed = again(lambda: self.store.list("segments"))
        here = None if self._path is None else self._path / "segments"
        gone = [
            name
            for name in names
            if f"segments/{name}" not in listed and not (here is not None and (here / name).exists())
        ]
        if gone:
            raise CloudNotFound(
                f"a `gc` has deleted commit {commit.number} in {self.store.cloud} and {len(gone)} of its "
                "files that are not on this disk; open another commit."
            )

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; return whether the lease in the cloud has all pinned commits."""
        with self._change:
            return self._change.wait_for(lambda: self._served >= self._asked, timeout)

    def _work(self) -> None:
        while True:
            with self._change:
                asked, pinned = self._asked, list(self._pinned.values())
            done = self._attempt(asked, pinned)
            with self._change:
                if not self._pinned and not pinned:
                    self._thread, self._safe = None, frozenset()
                    self._change.notify_all()
                    return
                self._change.notify_all()
                wait = RENEW_SECONDS if done else RETRY_SECONDS
                self._change.wait_for(lambda: self._asked != asked, wait)  # noqa: B023

    def _attempt(self, asked: int, pinned: list[tuple[int, frozenset[str]]]) -> bool:
        """Write or delete the lease once; returns whether that worked."""
        done = self._try(lambda: self._write(pinned) if pinned else self.store.delete(self.name))
        with self._change:
            self._waiting_since = None
            self._tried = max(self._tried, asked)
            if done:
                self._served = max(self._served, asked)
        return done

    def _write(self, pinned: list[tuple[int, frozenset[str]]]) -> None:
        """Put the lease; return when each later `gc` sees it before it deletes, or nothing is pinned."""
        newest = self._newest()
        needed = pinned if newest is None else [*pinned, newest]
        names = frozenset(name for _, names in needed for name in names)
        data = _content({number for number, _ in needed}, names)
        pause = GC_LOOK_SECONDS
        while True:
            self.store.replace(self.name, data)
            if not gc_is_deleting(self.store, self.name):
                break
            with self._change:
                if self._waiting_since is None:
                    self._waiting_since = time.monotonic()
                    self._change.notify_all()
                if self._change.wait_for(lambda: not self._pinned, pause):
                    return
            pause = min(2 * pause, GC_LOOK_MOST_SECONDS)
        self._safe = names

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


def _new_name(ending: str) -> str:
    return f"{LEASES}{os.urandom(8).hex()}.{ending}"


def _content(numbers: Collection[int], names: Collection[str]) -> bytes:
    lease = {"seconds": SECONDS, "commits": sorted(numbers), "segments": sorted(names)}
    return json.dumps(lease, allow_nan=False).encode()


def clock() -> float:
    """Seconds; also those that this machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
