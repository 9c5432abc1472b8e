"""Garbage collection in one chain, and among the row sources that all chains share.

    LIST ──▶ read every commit that is kept ──▶ raise the boundary ──▶ mark the garbage in `garbage.json`
    what an earlier run has marked:  announce ──▶ LIST ──▶ delete commits ──▶ LIST ──▶ delete segments

A file is deleted by the second run that finds it unused, and never while a commit that exists, or a valid
lease, names it. `leases.py` explains why no lease comes too late. Only commits below the boundary are
deleted, which was raised a run before: a machine that was suspended meanwhile cannot publish such a number.

    sources:  mark what no kept commit of any chain names; announce ──▶ LIST leases, then commits ──▶ delete
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lakepond import formats
from lakepond.cloud import leases
from lakepond.cloud.bucket import Listed
from lakepond.cloud.chains import SKIP_BYTES, Skip, parse_slot, read_boundary
from lakepond.cloud.fetching import CloudSegments
from lakepond.cloud.layout import (
    BOUNDARY,
    GARBAGE,
    LEASES,
    SOURCES_GARBAGE,
    commit_name,
    commit_numbers,
)
from lakepond.cloud.store import Store
from lakepond.errors import CloudCorrupt, CloudNotFound, LakeCorrupt
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.names import SEGMENT, SOURCES
from lakepond.lake.read.catalog import Catalog, new_files
from lakepond.lake.write.retention import deletable

SOURCE = rf"{SOURCES}/[0-9a-f]{{40}}\.source"


class Marks:
    """The objects that an earlier run has found unused: when each was put, and when it was marked.

    Both by the server's clock. The list is an object; if it is unreadable, all is marked again.
    """

    def __init__(self, store: Store, name: str, now: float, older_than: float) -> None:
        self._store, self._name, self._now, self._older_than = store, name, now, older_than

    def mark(self, garbage: dict[str, Listed]) -> set[str]:
        """Mark objects that are unused now; returns those that have been for long enough."""
        before = self._read()
        new = {name: (each.modified, self._now) for name, each in garbage.items()}
        marks = {name: mark for name, mark in before.items() if mark[0] == new.get(name, (None,))[0]}
        if before != new | marks:
            self._store.replace(self._name, json.dumps({"marked": new | marks}, allow_nan=False).encode())
        return {name for name, (_, at) in marks.items() if self._now - at >= self._older_than}

    def _read(self) -> dict[str, tuple[float, float]]:
        try:
            marked = json.loads(self._store.read(self._name))["marked"]
            return {name: (float(modified), float(at)) for name, (modified, at) in marked.items()}
        except CloudNotFound:
            return {}
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return {}


@dataclass(frozen=True)
class ChainSwept:
    """What `gc` deleted of one writer; a dry run: all that two runs would delete."""

    commits: tuple[int, ...] = ()
    segments: tuple[str, ...] = ()
    bytes: int = 0
    """of the deleted commits and segments"""
    marked: tuple[str, ...] = ()
    """unused objects that the first run at least `older_than` later deletes"""
    marked_bytes: int = 0
    young: int = 0
    """unused segments that are newer than `older_than`"""
    leased: tuple[int, ...] = ()
    """commits that are kept only because a reader has a valid lease on them"""

    def in_words(self, dry_run: bool) -> str:
        """A sentence for the user."""
        text = f"{len(self.commits)} commits and {len(self.segments)} segments, "
        text += f"{formats.size(self.bytes)}, {'would be deleted' if dry_run else 'deleted'}"
        if self.marked:
            size = formats.size(self.marked_bytes)
            text += f"; {len(self.marked)} files, {size}, are marked for a later run"
        text += f"; {len(self.leased)} commits are kept for readers on other machines" if self.leased else ""
        return text + (f"; {self.young} more are too recent to delete" if self.young else "")


class KeepRules(NamedTuple):
    """Which commits are kept, and how old a file has to be."""

    keep_last: int | None
    keep_every: int | None
    older_than: float


class ChainCollector:
    """Collects the garbage of one chain; for one run."""

    def __init__(
        self,
        store: Store,
        rules: KeepRules,
        named: Callable[[], set[int]],
        files: Collection[str],
        now: float,
    ) -> None:
        """`named`: the commits that checkpoints and snapshots need; asked again before anything is deleted.

        `files`: segments that are kept in any case. `now`: by the server's clock.
        """
        self._store, self._rules, self._named, self._also, self._now = store, rules, named, files, now
        self._read: set[int] = set()
        self._files: dict[str, int] = {}  # of the commits in `_read`, with their sizes
        self._marks = Marks(store, GARBAGE, now, rules.older_than)

    def run(self, dry_run: bool) -> ChainSwept:
        """Mark the garbage, and delete what was marked long enough ago; a dry run reports all of it."""
        listed = self._list()
        valid = leases.valid(self._store, listed, self._now)
        expired = self._expired(listed)
        numbers = [number for number in expired if number not in valid.commits]
        self._read_files(set(commit_numbers(listed)) - set(numbers))
        loose = [name for name in listed if self._is_loose(name, valid)]
        old = [name for name in loose if self._is_old(listed[name])]
        garbage = {*map(commit_name, numbers), *old}
        due = garbage
        if not dry_run:
            boundary = self._raise_boundary(numbers, listed)
            due = self._marks.mark({name: listed[name] for name in garbage})
            due -= {commit_name(number) for number in numbers if number >= boundary}
            due = self._delete(due, listed) if due else due
            for name in valid.expired:
                self._store.delete(name)
        left = garbage - due
        return ChainSwept(
            commits=tuple(commit_numbers(due)),
            segments=tuple(sorted(_segment(name) for name in due if name.startswith("segments/"))),
            bytes=sum(listed[name].size for name in due),
            marked=tuple(sorted(left)),
            marked_bytes=sum(listed[name].size for name in left),
            young=len(loose) - len(old),
            leased=tuple(number for number in expired if number in valid.commits),
        )

    def names(self) -> set[str]:
        """The files that the commits that were kept name; after `look`: all that exist, and leases."""
        return set(self._files)

    def look(self) -> None:
        """Read the leases and commits that exist now."""
        listed = self._list()
        self._files |= dict.fromkeys(leases.valid(self._store, listed, self._now).segments, 0)
        self._read_files(commit_numbers(listed))

    def _list(self) -> dict[str, Listed]:
        """The objects of the chain; `CloudNotFound` if it has a folder of commits without commits.

        Leases come first: what a writer has protected until it was named is named by a commit that is listed.
        """
        found: dict[str, Listed] = {}
        for folder in (LEASES, "commits", "segments"):
            found |= self._store.list(folder)
        if not commit_numbers(found) and "commits" in self._store.folders():
            raise CloudNotFound(f"there is no commit in {self._store.cloud}; nothing is deleted.")
        return found

    # --- what is garbage -------------------------------------------------------------------------

    def _expired(self, listed: dict[str, Listed]) -> list[int]:
        """The slots that are old and that the rules do not keep; leases are not considered."""
        slots = commit_numbers(listed)
        small = (number for number in slots if listed[commit_name(number)].size <= SKIP_BYTES)
        skips = {number for number in small if isinstance(self._slot(number), Skip)}
        numbers = [number for number in slots if number not in skips]
        going = deletable(numbers, self._rules.keep_last, self._rules.keep_every, self._named())
        if self._rules.keep_last is not None and numbers:
            newest = numbers[-self._rules.keep_last :]  # readers find each of them from the one before
            going += [number for number in skips if number < newest[0]]
        return [number for number in sorted(going) if self._is_old(listed[commit_name(number)])]

    def _is_old(self, each: Listed) -> bool:
        return self._now - each.modified > self._rules.older_than

    def _is_loose(self, name: str, valid: leases.Leases) -> bool:
        """Whether it is a segment that nothing names; what lakepond did not write is left alone."""
        file = _segment(name)
        return (
            re.fullmatch(rf"segments/{SEGMENT.pattern}", name) is not None
            and file not in self._files
            and file not in valid.segments
            and file not in self._also
        )

    def _read_files(self, numbers: Iterable[int]) -> None:
        """Note the files of these commits; `CloudCorrupt` if one cannot be read."""
        for number in sorted(set(numbers) - self._read):
            slot = self._slot(number)
            if isinstance(slot, Commit):
                try:
                    new_files(Catalog(slot, CloudSegments(self._store)), self._files)
                except LakeCorrupt as error:
                    raise self._unreadable(number) from error
            self._read.add(number)

    def _slot(self, number: int) -> Commit | Skip:
        try:
            return parse_slot(self._store.read(commit_name(number)), number)
        except LakeCorrupt as error:
            raise self._unreadable(number) from error

    def _unreadable(self, number: int) -> CloudCorrupt:
        return CloudCorrupt(
            f"commit {number} of {self._store.cloud} cannot be read, so it is not known which files it uses; "
            "nothing is deleted. Delete that commit by hand if it is not needed."
        )

    # --- what is changed -------------------------------------------------------------------------

    def _raise_boundary(self, numbers: list[int], listed: dict[str, Listed]) -> int:
        """Let no slot up to the newest of these be created again; returns the boundary as it was before."""
        try:
            before = read_boundary(self._store)
        except CloudCorrupt:  # the newest commit stays: no machine publishes a number below it
            before, numbers = 0, commit_numbers(listed)[-1:]
        if numbers and numbers[-1] >= before:
            self._store.replace(BOUNDARY, json.dumps({"first": numbers[-1] + 1}, allow_nan=False).encode())
        return before

    def _delete(self, due: set[str], listed: dict[str, Listed]) -> set[str]:
        """Delete commits, then segments, of those that are still unused; returns which."""
        with leases.collecting(self._store) as collecting:
            going = self._still_unused(due, listed)
            gone = {name for name in going if name.startswith("commits/")}
            for name in sorted(gone):
                collecting.renew()
                self._store.delete(name)
            going = self._still_unused(going, listed)
            if strange := sorted(gone & going):
                raise CloudCorrupt(
                    f"{strange[0]} of {self._store.cloud} still exists after it was deleted; gc stopped."
                )
            for name in sorted(going):
                collecting.renew()
                self._store.delete(name)
            return gone | going

    def _still_unused(self, due: set[str], listed: dict[str, Listed]) -> set[str]:
        """Of objects that were found unused, those that exist unchanged and that nothing names by now."""
        now = self._list()
        valid = leases.valid(self._store, now, self._now)
        needed = valid.commits | self._named()
        commits = {name for number in needed if (name := commit_name(number)) in due}
        due = {name for name in due - commits if name in now and now[name].modified == listed[name].modified}
        gone = {name for name in due if name.startswith("commits/")}
        self._read_files(number for number in commit_numbers(now) if commit_name(number) not in gone)
        return gone | {name for name in due if self._is_loose(name, valid)}


class SourceCollector:
    """Collects the row sources of a lake that no commit of any chain names; for one run."""

    def __init__(
        self, store: Store, rules: KeepRules, collectors: dict[str, ChainCollector], now: float
    ) -> None:
        """`collectors`: those of all chains, after they have run."""
        self._store, self._rules, self._collectors, self._now = store, rules, collectors, now
        self._marks = Marks(store, SOURCES_GARBAGE, now, rules.older_than)

    def run(
        self, dry_run: bool, also: Collection[str], new: Callable[[], dict[str, ChainCollector]]
    ) -> ChainSwept:
        """Mark and delete as a `ChainCollector` does.

        also: files that are kept. new: returns a collector of each chain that exists now.
        """
        listed = self._list()
        named = set[str]().union(also, *(each.names() for each in self._collectors.values()))
        named |= leases.valid(self._store, self._store.list(LEASES), self._now).segments
        loose = {name: each for name, each in listed.items() if _source(name) not in named}
        old = {
            name: each for name, each in loose.items() if self._now - each.modified > self._rules.older_than
        }
        due = set(old) if dry_run else self._marks.mark(old)
        if due and not dry_run:
            with leases.collecting(self._store) as collecting:
                due &= self._still_unused(listed, also, new)
                for name in sorted(due):
                    collecting.renew()
                    self._store.delete(name)
        left = old.keys() - due
        return ChainSwept(
            segments=tuple(sorted(map(_source, due))),
            bytes=sum(listed[name].size for name in due),
            marked=tuple(sorted(left)),
            marked_bytes=sum(listed[name].size for name in left),
            young=len(loose) - len(old),
        )

    def _list(self) -> dict[str, Listed]:
        found = self._store.list(SOURCES)
        return {name: each for name, each in found.items() if re.fullmatch(SOURCE, name)}

    def _still_unused(
        self, listed: dict[str, Listed], also: Collection[str], new: Callable[[], dict[str, ChainCollector]]
    ) -> set[str]:
        """Sources that exist unchanged, and that no lease and then no commit of any chain names by now."""
        named = {*also, *leases.valid(self._store, self._store.list(LEASES), self._now).segments}
        for collector in (new() | self._collectors).values():
            collector.look()
            named |= collector.names()
        now = self._list()
        return {
            name
            for name, each in now.items()
            if _source(name) not in named and name in listed and each.modified == listed[name].modified
        }


def _source(name: str) -> str:
    return name.removeprefix(f"{SOURCES}/")


def _segment(name: str) -> str:
    return name.removeprefix("segments/")
