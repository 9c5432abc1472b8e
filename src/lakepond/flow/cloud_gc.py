"""Garbage in the cloud: commits that need not be kept, and segments that no commit names any more.

    LIST ──▶ read every commit ──▶ delete those that go ──▶ LIST ──▶ delete what none of the rest names
               and every checkpoint: the commits they name stay
               and every lease of a reader: the commits and segments it names stay, until it expires

Careful in every step: a dry run unless told otherwise; nothing younger than a day, by the server's own clock,
for a push that is under way sends segments before the commit that names them; nothing at all after a LIST
that failed or a commit that cannot be read; and commits that came in between keep what they name.
"""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from lakepond.cloud.bucket import Listed
from lakepond.cloud.place import Cloud
from lakepond.cloud.status import in_words
from lakepond.cloud.store import Store
from lakepond.errors import CloudCorrupt, CloudNotFound, LakeCorrupt, SpecError
from lakepond.flow import leases
from lakepond.flow.cloud_to_lake import Remote, look
from lakepond.flow.layout import LEASES, commit_name
from lakepond.lake import commits
from lakepond.lake.commits import Commit
from lakepond.lake.names import SEGMENT
from lakepond.lake.retention import CHECKPOINT, checkpointed, commit_of_state, deletable

log = logging.getLogger("lakepond")
DAY = 24 * 3600.0


@dataclass(frozen=True)
class Swept:
    """What was, or would be, deleted."""

    dry_run: bool
    commits: tuple[int, ...]
    segments: tuple[str, ...]
    bytes: int
    young: int
    """files that no commit names, but that are too young to go"""
    leased: tuple[int, ...] = ()
    """commits that would go, but that a reader with a valid lease needs"""

    def __str__(self) -> str:
        what = "would be deleted" if self.dry_run else "deleted"
        text = (
            f"{len(self.commits)} commits and {len(self.segments)} segments, {in_words(self.bytes)}, {what}"
        )
        text += f"; {len(self.leased)} commits are kept for readers on other machines" if self.leased else ""
        return text + (f"; {self.young} more are too young" if self.young else "")


def gc(
    cloud: str | Cloud,
    *,
    keep_last: int | None = None,
    keep_every: int | None = None,
    older_than: float = DAY,
    dry_run: bool = True,
    lake: str | Path | None = None,
) -> Swept:
    """Delete what no kept commit of a place in the cloud names; says what, and does it with `dry_run=False`.

    All commits are kept, or the newest `keep_last` and, beside them, each whose number is a multiple of
    `keep_every`, and each that a checkpoint of the run names which the lake belongs to. Only what is older
    than `older_than` seconds goes, and nothing that a reader with a valid lease needs. What the commits of a
    `lake` on this disk name is kept, too: its segments may be in the cloud alone; and so are the commits that
    the checkpoints beside it name.
    """
    if keep_last is not None and keep_last < 1:
        raise SpecError(f"keep_last must be at least 1, but is {keep_last!r}: a lake needs a commit.")
    if keep_every is not None and (keep_every < 1 or keep_last is None):
        raise SpecError("keep_every is a number of commits, at least 1, kept beside keep_last.")
    store = Store(Cloud.of(cloud))
    remote = _look(store)
    needed = _of_checkpoints(store.cloud, None if lake is None else Path(lake))
    going = deletable(remote.numbers, keep_last, keep_every, needed)
    now = time.time() if dry_run else _server_time(store)
    going = [number for number in going if now - remote.listed[commit_name(number)].modified > older_than]
    valid = _leases(store, remote.listed, now)
    leased = tuple(number for number in going if number in valid.commits)
    going = [number for number in going if number not in valid.commits]
    named = valid.segments | _named(store, [number for number in remote.numbers if number not in going])
    if lake is not None:
        folder = Path(lake) / "commits"
        named |= {name for n in commits.numbers(folder) for name in commits.read(folder, n).files()}
    loose = _loose(remote.listed, named)
    old = {name: told for name, told in loose.items() if now - told.modified > older_than}
    if not dry_run:
        old = _delete(store, going, old, set(remote.numbers), now)
    size = sum(told.size for told in old.values()) + sum(remote.listed[commit_name(n)].size for n in going)
    swept = Swept(
        dry_run,
        tuple(going),
        tuple(sorted(name.removeprefix("segments/") for name in old)),
        size,
        len(loose) - len(old),
        leased,
    )
    log.info("%s: %s", store.cloud, swept)
    return swept


def _look(store: Store) -> Remote:
    remote = look(store)
    if remote is None or not remote.numbers:
        raise CloudNotFound(f"there is no lake with a commit at {store.cloud}; nothing is deleted.")
    return remote


def _of_checkpoints(cloud: Cloud, lake: Path | None) -> set[int]:
    """The commits that checkpoints name, of the run around this place and around a lake on this disk.

    Raises if one cannot be read: the commit that it needs is not known then.
    """
    found = set() if lake is None else checkpointed(lake)
    if (run := _around(cloud)) is not None:
        above = Store(run)
        for name in above.list("checkpoints"):
            if not re.fullmatch(rf"checkpoints/{CHECKPOINT.pattern}/state\.json", name):
                continue
            try:
                found |= commit_of_state(above.read(name))
            except ValueError as error:
                raise CloudCorrupt(
                    f"{name} of {run} cannot be read, so the commit that it needs is not known; nothing is "
                    f"deleted. Delete that checkpoint by hand if it is not needed ({error})."
                ) from error
    return found


def _around(cloud: Cloud) -> Cloud | None:
    """The place above this one; None if this is a whole bucket."""
    scheme, bucket, prefix = cloud.parts()
    if not prefix and (scheme != "file" or len(Path(bucket).parts) < 2):
        return None
    return replace(cloud, url=cloud.url.rstrip("/").rpartition("/")[0])


def _named(store: Store, numbers: list[int]) -> set[str]:
    """Every file that these commits name; raises if one cannot be read: nobody knows what it names."""
    found: set[str] = set()
    for number in numbers:
        try:
            found |= set(Commit.from_json(store.read(commit_name(number)), commits.file_name(number)).files())
        except LakeCorrupt as error:
            raise CloudCorrupt(
                f"commit {number} of {store.cloud} cannot be read, so nobody knows what it names; nothing is "
                "deleted. Delete that commit by hand if it is not needed."
            ) from error
    return found


def _loose(listed: dict[str, Listed], named: set[str]) -> dict[str, Listed]:
    """The segments that no commit names; what lakepond did not write is left alone."""
    return {
        name: each
        for name, each in listed.items()
        if re.fullmatch(rf"segments/{SEGMENT.pattern}", name) and name.removeprefix("segments/") not in named
    }


class Leases(NamedTuple):
    """What readers on all machines need."""

    commits: set[int]
    segments: set[str]
    expired: list[str]


def _leases(store: Store, listed: dict[str, Listed], now: float) -> Leases:
    """The leases that are valid now, taken together; raises if one cannot be read, unless it is old."""
    found = Leases(set(), set(), [])
    for name, each in listed.items():
        if not re.fullmatch(rf"{LEASES}[0-9a-f]{{16}}\.json", name):
            continue
        try:
            needs = leases.parse(store.read(name))
        except CloudNotFound:  # the reader has ended
            continue
        except ValueError as error:
            if now - each.modified <= leases.SECONDS:
                raise CloudCorrupt(
                    f"{name} of {store.cloud} cannot be read, so it is not known which commits its reader "
                    f"needs; nothing is deleted. Delete it by hand if that reader has ended ({error})."
                ) from error
            needs = leases.Needs(0.0, frozenset(), frozenset())
        if now - each.modified > needs.seconds:
            found.expired.append(name)
        else:
            found.commits.update(needs.commits)
            found.segments.update(needs.segments)
    return found


def _delete(
    store: Store, going: list[int], old: dict[str, Listed], seen: set[int], now: float
) -> dict[str, Listed]:
    """Delete commits, then segments and expired leases; returns the segments that were deleted.

    Segments that are named by a commit or a lease that was put in the meantime are kept.
    """
    for number in going:
        store.delete(commit_name(number))
    remote = _look(store)
    if strange := [number for number in going if number in remote.numbers]:
        raise CloudCorrupt(f"commit {strange[0]} of {store.cloud} is there after it was deleted; stopped.")
    valid = _leases(store, remote.listed, now)
    new = valid.segments | _named(store, [number for number in remote.numbers if number not in seen])
    gone = {name: told for name, told in old.items() if name.removeprefix("segments/") not in new}
    for name in [*gone, *valid.expired]:
        store.delete(name)
    return gone


def _server_time(store: Store) -> float:
    """What the server's clock says: the age of a file is a matter of that clock, not of ours."""
    name = f"gc-{os.urandom(4).hex()}"
    store.replace(name, b"lakepond asks for the time")
    try:
        told = store.head(name)
        if told is None:
            raise CloudCorrupt(f"{store.cloud} lost a file it had acknowledged; nothing is deleted.")
        return told.modified
    finally:
        store.delete(name)
