"""Garbage collection in the cloud: expired commits, and segments that no commit refers to.

    LIST ──▶ read every commit ──▶ delete expired ones ──▶ LIST ──▶ delete unreferenced segments
               and every checkpoint: its commits are kept
               and every lease of a reader: its commits and segments are kept until it expires

Safety: a dry run by default. Nothing younger than a day by the server's clock is deleted, because a push
uploads segments before the commit that refers to them. Nothing is deleted after a failed LIST or if a commit
is unreadable. Segments of commits that were published meanwhile are kept.
"""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from lakepond.cloud import leases
from lakepond.cloud.bucket import Listed
from lakepond.cloud.chains import parse_slot
from lakepond.cloud.fetching import CloudSegments, Remote, look
from lakepond.cloud.layout import LEASES, commit_name
from lakepond.cloud.place import Cloud
from lakepond.cloud.status import in_words
from lakepond.cloud.store import Store
from lakepond.errors import CloudCorrupt, CloudNotFound, LakeCorrupt, SpecError
from lakepond.lake.format import commits
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.names import SEGMENT
from lakepond.lake.read.catalog import Catalog, new_files
from lakepond.lake.write.retention import CHECKPOINT, checkpointed, commit_of_state, deletable

log = logging.getLogger("lakepond")
DAY = 24 * 3600.0


@dataclass(frozen=True)
class Swept:
    """Result of `gc`: what was deleted, or would be deleted without `dry_run`."""

    dry_run: bool
    commits: tuple[int, ...]
    segments: tuple[str, ...]
    bytes: int
    young: int
    """unreferenced files that are newer than `older_than`"""
    leased: tuple[int, ...] = ()
    """commits that are kept only because a reader has a valid lease on them"""

    def __str__(self) -> str:
        what = "would be deleted" if self.dry_run else "deleted"
        text = (
            f"{len(self.commits)} commits and {len(self.segments)} segments, {in_words(self.bytes)}, {what}"
        )
        text += f"; {len(self.leased)} commits are kept for readers on other machines" if self.leased else ""
        return text + (f"; {self.young} more are too recent to delete" if self.young else "")


def gc(
    cloud: str | Cloud,
    *,
    keep_last: int | None = None,
    keep_every: int | None = None,
    older_than: float = DAY,
    dry_run: bool = True,
    lake: str | Path | None = None,
) -> Swept:
    """Delete old commits and unreferenced files of a lake in the cloud; by default only report them.

    keep_last, keep_every: keep the newest `keep_last` commits and those whose number is a multiple of
    `keep_every`; default: all. Commits that a checkpoint of the run refers to are always kept.
    older_than: minimum age of a deleted file, in seconds. dry_run: report without deleting.
    lake: a local copy of the lake; files that its commits and checkpoints refer to are kept, because its
    segments may exist only in the cloud.

    Files that a reader with a valid lease needs are kept. Raises `SpecError` for invalid arguments,
    `CloudNotFound` if the location has no lake with a commit.
    """
    if keep_last is not None and keep_last < 1:
        raise SpecError(f"keep_last must be at least 1, but is {keep_last!r}: a lake needs a commit.")
    if keep_every is not None and (keep_every < 1 or keep_last is None):
        raise SpecError("keep_every must be at least 1 and given together with keep_last.")
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
        here: dict[str, int] = {}
        for number in commits.numbers(folder):
            new_files(Catalog(commits.read(folder, number), CloudSegments(store, Path(lake))), here)
        named |= here.keys()
    loose = _loose(remote.listed, named)
    old = {name: found for name, found in loose.items() if now - found.modified > older_than}
    if not dry_run:
        old = _delete(store, going, old, set(remote.numbers), now)
    size = sum(found.size for found in old.values()) + sum(remote.listed[commit_name(n)].size for n in going)
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
    """All files that these commits refer to; raises if a commit is unreadable."""
    found: dict[str, int] = {}
    for number in numbers:
        try:
            slot = parse_slot(store.read(commit_name(number)), number)
            if isinstance(slot, Commit):
                new_files(Catalog(slot, CloudSegments(store)), found)
        except LakeCorrupt as error:
            raise CloudCorrupt(
                f"commit {number} of {store.cloud} cannot be read, so it is not known which files it "
                "uses; nothing is "
                "deleted. Delete that commit by hand if it is not needed."
            ) from error
    return set(found)


def _loose(listed: dict[str, Listed], named: set[str]) -> dict[str, Listed]:
    """The segments that no commit names; what lakepond did not write is left alone."""
    return {
        name: each
        for name, each in listed.items()
        if re.fullmatch(rf"segments/{SEGMENT.pattern}", name) and name.removeprefix("segments/") not in named
    }


class Leases(NamedTuple):
    """The commits and segments that readers on all machines need."""

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
        raise CloudCorrupt(
            f"commit {strange[0]} of {store.cloud} still exists after it was deleted; gc stopped."
        )
    valid = _leases(store, remote.listed, now)
    new = valid.segments | _named(store, [number for number in remote.numbers if number not in seen])
    gone = {name: found for name, found in old.items() if name.removeprefix("segments/") not in new}
    for name in [*gone, *valid.expired]:
        store.delete(name)
    return gone


def _server_time(store: Store) -> float:
    """What the server's clock says: the age of a file is a matter of that clock, not of ours."""
    name = f"gc-{os.urandom(4).hex()}"
    store.replace(name, b"lakepond asks for the time")
    try:
        found = store.head(name)
        if found is None:
            raise CloudCorrupt(f"{store.cloud} lost a file that it had acknowledged; nothing was deleted.")
        return found.modified
    finally:
        store.delete(name)
