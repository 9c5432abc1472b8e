"""The slots of a chain in the cloud, as one machine knows them: a log that it may extend.

Each slot is created once and never replaced, and the next one is created only by a machine that knows the
content of the newest one: it published it, pulled it, or compared it byte for byte. So a chain never has two
histories, whatever several machines do at the same time.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import dataclass

from lakepond.cloud.arrays import Listing
from lakepond.cloud.bucket import Listed
from lakepond.cloud.chains import ChainCopy, Skip, parse_slot, read_boundary
from lakepond.cloud.layout import commit_name
from lakepond.errors import CloudConflict, CloudNotFound
from lakepond.lake.format import commits, description
from lakepond.lake.format.sealed import unseal
from lakepond.lake.links import read_regular

log = logging.getLogger("lakepond")


@dataclass
class Shown:
    """What a LIST has shown of the chain."""

    slots: dict[int, Listed]
    files: Listing
    boundary: int
    """no slot below this number may be created"""

    @property
    def first(self) -> int:
        """The oldest number that is kept there for good, or may still be created."""
        return max(min(self.slots, default=0), self.boundary)


class Changed(Exception):
    """A file was deleted during the round, because its commit expired: plan again."""


class Slots:
    """The commits of one chain, here and in the cloud, and the `lake.json` of its lake."""

    def __init__(self, copy: ChainCopy) -> None:
        self._copy = copy
        self.store, self.cloud = copy.store, copy.store.cloud
        self._lake, self._home, self._elsewhere = copy.lake, copy.home, copy.elsewhere
        self._commits = self._home / "commits"
        self.next: int | None = None
        """the slot that is created next; None: a LIST has to show it"""
        self._tip: Listed | None = None  # the newest slot
        self._compared: set[int] = set()  # commits there that have the content of those here
        self._described = False  # whether `lake.json` was compared and put
        self._old_description = False  # whether the one there is of an earlier version

    def still_there(self) -> bool:
        """Whether the newest slot is there, as it was: a server that forgot it may have forgotten more."""
        if self._tip is None:
            return True
        found = self.store.head(self._tip.name)
        return found is not None and found.size == self._tip.size

    def compare(self, here: list[int], slots: dict[int, Listed]) -> None:
        """Compare every commit that is here and there; raises `CloudConflict` if two differ.

        A slot that was damaged on its way there is removed from `slots`, to be published again.
        """
        self._compared.intersection_update(slots)
        for number in [number for number in here if number in slots and number not in self._compared]:
            try:
                mine = read_regular(self._commits / commits.file_name(number))
            except FileNotFoundError:
                raise Changed from None
            try:
                if self.store.holds(commit_name(number), mine, slots[number]):
                    self._compared.add(number)
                    continue
                theirs = self.store.read(commit_name(number))
            except CloudNotFound:  # deleted in the meantime
                theirs = b""
            if not _sound(theirs):
                del slots[number]
            elif _sound(mine) and not isinstance(parse_slot(theirs, number), Skip):
                raise self._published_by_another(number, "with different content from the one at")

    def find_next(self, shown: Shown) -> None:
        """Find the next slot; None if the newest commit there is not known to this machine."""
        self.next, self._tip = shown.boundary, None
        for number in sorted(shown.slots, reverse=True):
            if self._tip is None:
                self._tip, self.next = shown.slots[number], max(self.next, number + 1)
            if number in self._compared:
                return
            data = self.store.read(commit_name(number))
            found = parse_slot(data, number) if _sound(data) else None
            if isinstance(found, Skip):
                self.next = max(self.next, found.to)
            else:
                self.next = self.next if self._knows(number, data) else None
                return

    def wanted(self, here: list[int], shown: Shown) -> list[int]:
        """The commits that should be there: those that are, whose files are checked, and those that are not.

        Not sent are commits that are older than all that the cloud keeps: a `gc` deleted them there.
        `CloudConflict` if another machine has published, and the newest one here was never there, or is below
        the boundary.
        """
        slots, tip = shown.slots, max(shown.slots, default=-1)
        first = shown.first
        newest = here[-1]
        if newest not in self._compared:
            new = newest > tip if self.next is None else newest >= first
            if (new and self.next is None) or (not new and not self._was_there(newest)):
                raise self._published_by_another(tip, "which does not exist at")
        elif newest < shown.boundary and self.next is None:
            # created after a `gc` freed its number, and the answer was lost; it is left to the next `gc`,
            # because it may also be a commit that the other machine continued and that a snapshot names
            raise self._published_by_another(tip, "which does not exist at")
        wanted = {number for number in here if number in self._compared}
        if self.next is not None:
            absent = [number for number in here if number not in slots and number >= first]
            ordered = sorted(slots)
            wanted.update(n for n in absent if n >= self.next or not self._is_skipped(n, ordered))
        return sorted(wanted)

    def _is_skipped(self, number: int, slots: list[int]) -> bool:
        """Whether the slot before a number, which has none, is a skip over it; or else the server lost it."""
        at = bisect_left(slots, number)
        if not at or slots[at - 1] in self._compared:
            return False
        found = parse_slot(self.store.read(commit_name(slots[at - 1])), slots[at - 1])
        return isinstance(found, Skip) and found.to > number

    def _knows(self, number: int, data: bytes) -> bool:
        """Whether a commit that is there, and not on this disk, was published or pulled by this machine."""
        name = commits.file_name(number)
        quarantined = self._home / "quarantine" / name  # it was pulled, but a file of it was missing
        if quarantined.is_file() and quarantined.read_bytes() == data:
            return True
        return self._copy.was_there(number, data)

    def _was_there(self, number: int) -> bool:
        """Whether a commit on this disk was published once, or pulled."""
        return self._copy.was_there(number, read_regular(self._commits / commits.file_name(number)))

    def _published_by_another(self, number: int, how: str) -> CloudConflict:
        hint = "pull that lake to a fresh folder to continue from it, or push this one to another place."
        if self._home != self._copy.path:
            hint = "this disk is a copy of another machine's: give the writer here another name."
        return CloudConflict(
            f"another machine has published commit {number} in {self.cloud}, {how} {self._home}; nothing "
            f"was overwritten: {hint}"
        )

    # --- creating --------------------------------------------------------------------------------

    def publish(self, number: int, data: bytes) -> None:
        """Create the slot of a commit, after a skip if it is not the next one."""
        assert self.next is not None
        while self.next < number:
            self.next = self._skip(Skip(self.next, number))
        self._create(number, data)  # below the next slot if the server has lost it
        self.next = max(self.next, number + 1)
        self._compared.add(number)

    def _skip(self, skip: Skip) -> int:
        """Create a slot that refers to a later number for the next commit; returns that number."""
        try:
            self._create(skip.number, skip.to_json())
            return skip.to
        except CloudConflict:
            data = self.store.read(commit_name(skip.number))
            found = parse_slot(data, skip.number)
            if isinstance(found, Skip) and found.to <= skip.to:  # of a process that was stopped after it
                return found.to
            if self._knows(skip.number, data):  # a commit of ours that has arrived late
                return skip.number + 1
            raise

    def _create(self, number: int, data: bytes) -> None:
        """Create one slot; raises `CloudConflict` if it has another content, or may not be created."""
        name = commit_name(number)
        self._elsewhere.note_slot(number, data)  # first: it is recognised though its answer may be lost
        try:
            created = self.store.publish(name, data, _sound)
        except CloudConflict:
            if not (self._commits / commits.file_name(number)).exists() and b'"skip_to"' not in data:
                raise Changed from None  # another process on this disk has published what follows it
            raise self._published_by_another(number, "with different content from the one at") from None
        if number < read_boundary(self.store):
            if created:
                self.store.delete(name)
            raise CloudConflict(
                f"commit {number} of {self._home} is older than all that {self.cloud} keeps since its last "
                "`gc`; it was not published: pull that lake to a fresh folder to continue from it, or push "
                "this one to another place."
            )
        if self._tip is None or self._tip.name <= name:
            self._tip = Listed(name, len(data), None, 0.0)

    # --- lake.json -------------------------------------------------------------------------------

    def compare_descriptions(self) -> None:
        """Raise `CloudConflict` if the place has a different lake."""
        self._described = False
        mine = read_regular(self._copy.path / description.NAME)
        try:
            if self._lake.holds(description.NAME, mine):
                return
            theirs = self._lake.read(description.NAME)
        except CloudNotFound:
            return
        if not _sound(theirs):  # damaged on its way: put again
            return
        if not description.same_lake(mine, theirs):
            raise CloudConflict(
                f"{self._lake.cloud} contains a different lake from {self._copy.path}; nothing was "
                "overwritten: push this one to another place, or pull that one to a fresh folder."
            )
        self._old_description = description.format_of(theirs) < description.format_of(mine)
        self._described = not self._old_description  # a later one is not replaced

    def put_description(self) -> None:
        """Have `lake.json` there; and learn, from a second one, whether the server honours conditions."""
        if self._described:
            return
        data, server = read_regular(self._copy.path / description.NAME), self._lake.server
        if self._old_description:
            self._lake.replace(description.NAME, data)
            self._old_description = False
        if self._lake.head(description.NAME) is None:
            self._lake.publish(description.NAME, data, _sound)
        if server.conditions is None and self._lake.publish(description.NAME, data, _sound):
            server.conditions = False
            log.warning(
                "%s does not support conditional writes: two runs that push to one URL would not be noticed",
                self._lake.cloud,
            )
        self._described = True


def _sound(data: bytes) -> bool:
    """Whether a description or a commit matches its own checksum."""
    try:
        unseal(data)
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return True
