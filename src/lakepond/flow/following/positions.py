"""Learners publish how far they are, so that collectors can wait for a slow one.

    followers/<16 hex digits>.json    {"count": 17, "sampled": 51200, "inserted": 8000, "ahead": true}

A follower with a limit of samples per insert replaces its object every few seconds, and deletes it at the
end. `ahead`: the collectors have inserted more than the learner can sample; they wait until it is false. No
clocks are compared: an object whose `count` has not changed for a minute is that of a dead learner, for which
nobody waits, and what is collected meanwhile stays in the lake.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from lakepond import untrusted
from lakepond.cloud.store import Store
from lakepond.errors import CloudError
from lakepond.flow.following.limits import Limits

log = logging.getLogger("lakepond")
FOLDER = "followers"
_NAME = re.compile(rf"{FOLDER}/[0-9a-f]{{16}}\.json")
PUBLISH_SECONDS = 2.0
SILENT_SECONDS = 60.0
FORGET_SECONDS = 86_400.0
"""objects that learners which were killed have left behind are deleted after this time"""


class Position:
    """Publishes how far one learner is, every `PUBLISH_SECONDS` at most."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store, self._limits = store, limits
        self._name = f"{FOLDER}/{os.urandom(8).hex()}.json"
        self._count, self._at, self._logged = 0, -PUBLISH_SECONDS, False
        self._before = (0, 0)
        self._closed = threading.Event()

    def publish(self) -> None:
        """Replace the object, if it is time to; an error is logged once.

        First called when the steps that were in the lake at the start were read. After `close`, which may be
        called meanwhile by another thread, no object is left.
        """
        if self._closed.is_set() or time.monotonic() - self._at < PUBLISH_SECONDS:
            return
        limits = self._limits
        if not self._count:  # what was there at the start is not for collectors to wait for
            self._before = (limits.inserted, limits.sampled)
        self._at, self._count = time.monotonic(), self._count + 1
        found = {"count": self._count, "sampled": limits.sampled, "inserted": limits.inserted}
        data = json.dumps({**found, "ahead": limits.is_ahead(*self._before)}, allow_nan=False).encode()
        try:
            if self._count == 1:
                self._delete_old()
            self._store.replace(self._name, data)
        except (CloudError, OSError) as error:
            if not self._logged:
                self._logged = True
                log.warning(
                    "%s: collectors do not learn how far this learner is, and do not wait for it: %s",
                    self._store.cloud,
                    error,
                )
        if self._closed.is_set():  # after the request: what `close` has deleted may have come back
            self._delete()

    def _delete_old(self) -> None:
        for name, each in self._store.list(FOLDER).items():
            if _NAME.fullmatch(name) and time.time() - each.modified > FORGET_SECONDS:
                self._store.delete(name)

    def close(self) -> None:
        """Delete the object. A request of `publish` is not waited for: that deletes the object again."""
        self._closed.set()
        if self._count:
            self._delete()

    def _delete(self) -> None:
        with suppress(CloudError, OSError):  # it is ignored after a minute
            self._store.delete(self._name)


@dataclass(frozen=True)
class PublishedPosition:
    """The last position that a learner has published."""

    name: str
    count: int
    sampled: int
    inserted: int
    ahead: bool
    modified: float
    """when, by the clock of the server, seconds since 1970"""


def positions(store: Store) -> list[PublishedPosition]:
    """The positions of all learners of a lake, also of dead ones: one LIST, and one GET for each."""
    found = []
    for name, listed in sorted(store.list(FOLDER).items()):
        if _NAME.fullmatch(name):
            with suppress(CloudError, OSError, ValueError, TypeError, KeyError):  # deleted, or invalid
                content = untrusted.parse_json(store.read(name, 1 << 16))
                count, sampled, inserted = (int(content[key]) for key in ("count", "sampled", "inserted"))
                found.append(
                    PublishedPosition(name, count, sampled, inserted, bool(content["ahead"]), listed.modified)
                )
    return found


class Learners:
    """All learners of a lake, as a collector sees them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, tuple[int, float]] = {}
        """the last count of each, and since when"""

    def are_behind(self) -> bool:
        """Whether there are learners and none of them needs steps now."""
        alive, now = [], time.monotonic()
        for position in positions(self._store):
            count, since = self._seen.get(position.name, (-1, now))
            if count != position.count:
                since = now
                self._seen[position.name] = (position.count, since)
            if now - since < SILENT_SECONDS:
                alive.append(position.ahead)
        return bool(alive) and all(alive)
