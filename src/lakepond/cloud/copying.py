"""One round of a push: upload the files that a chain lacks, and publish each commit once its files are there.

    commits on disk ──▶ files that are new ──▶ PUT ──▶ HEAD ──▶ the commit's slot ──▶ boundary

A chain in a bucket is a log. The slot of each number is created once and never replaced, and the next slot is
created only by a machine that knows the content of the newest one: it published it, pulled it, or compared it
byte for byte. So a chain never has two histories, whatever several machines do at the same time.

A LIST shows what a chain has in the first round of a process, and in the first one after an error. Other
rounds ask for new objects only.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from lakepond.cloud import leases
from lakepond.cloud.bucket import Listed
from lakepond.cloud.chains import ChainCopy, Skip, parse_slot, read_boundary
from lakepond.cloud.fetching import CloudSegments
from lakepond.cloud.layout import commit_name, commit_numbers, segment_name
from lakepond.cloud.store import Store
from lakepond.cloud.uploader import Upload, Uploader
from lakepond.errors import (
    CloudConflict,
    CloudCorrupt,
    CloudError,
    CloudNotFound,
    CloudUnreachable,
    LakeCorrupt,
)
from lakepond.formats import ranges
from lakepond.lake.elsewhere import Segments
from lakepond.lake.format import commits, description
from lakepond.lake.format.checksum import Digest
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.names import is_shared
from lakepond.lake.format.sealed import unseal
from lakepond.lake.links import check_folders, read_regular
from lakepond.lake.read.catalog import Catalog, added_files

log = logging.getLogger("lakepond")
MOST_COMMITS = 200
"""commits that are planned together: bounds the memory of a first push"""
MOST_HEADS = 16
"""files of one commit that are asked for one by one; more are found by a LIST"""
RECENT_SECONDS = 6 * 3600.0
"""how long a file that was sent is too new for any `gc`"""
CONFIRMED_SECONDS = 600.0
"""how long a file that a LIST has shown in the cloud may leave the disk without another LIST"""


class Planned(NamedTuple):
    """A commit on this disk that should be in the cloud."""

    commit: Commit
    data: bytes
    """its file"""
    files: dict[str, int]
    """the files that it needs and the commit before it does not, with their sizes"""


@dataclass
class Shown:
    """What a LIST has shown of the chain."""

    slots: dict[int, Listed]
    files: dict[str, Listed]
    boundary: int
    """no slot below this number may be created"""


class Changed(Exception):
    """A file was deleted during the round, because its commit expired: plan again."""


class Copier:
    """Uploads the chain of one writer, one round at a time."""

    def __init__(self, copy: ChainCopy, uploader: Uploader) -> None:
        self._copy = copy
        self.path, self.store, self.cloud = copy.path, copy.store, copy.store.cloud
        self._lake, self._home, self._elsewhere = copy.lake, copy.home, copy.elsewhere
        self._commits, self._segments = self._home / "commits", Segments(self.path, copy.writer)
        self._manifests = CloudSegments(copy.store, self._home)
        self._uploader = uploader
        self._change = threading.Condition()
        self._stop = False
        self.to_go: dict[str, int] = {}
        """files that are not known to be there, with their sizes"""
        self.commit_files = self.commit_bytes = 0
        """commits that were put, and their bytes"""
        self.pushed: int | None = None
        """the newest commit that is known to be complete there"""
        self._next: int | None = None  # the slot that is created next; None: a LIST has to show it
        self._tip: Listed | None = None  # the newest slot
        self._before: Commit | None = None  # the newest commit whose files are all there
        self._errors = 0  # failed uploads that were taken into account
        self._sent_at: dict[str, float] = {}  # when files were sent that no commit there names yet
        self._compared: set[int] = set()  # commits there that have the content of those here
        self._left_out: set[int] = set()  # commits that are not sent; reported once
        self._listed_at = -math.inf  # when a LIST has shown which files are there
        self._described = False  # whether `lake.json` was compared and put
        self._old_description = False  # whether the one there is of an earlier version

    def round(self) -> None:
        """Upload all current commits; raises the first error.

        `Changed`: plan again. `CloudConflict`: the user must decide. Other `CloudError`s can be retried.
        """
        check_folders(self._commits, self._segments.folder)
        if self._home != self.path:
            check_folders(self._home.parent, self._home)
        listing = self._next is None
        try:
            if not listing and not self._still_there():
                listing, self._next = True, None
            self._copy_commits()
        except BaseException as error:
            if listing or not isinstance(error, Changed):  # the state of the chain is not certain any more
                self._next = None
            raise

    def stop(self) -> None:
        """Stop waiting for uploads."""
        with self._change:
            self._stop = True
            self._change.notify_all()

    def confirm(self, ask: bool) -> bool:
        """Whether a recent LIST has confirmed which files are in the cloud; with `ask`, one may be made."""
        if ask and time.monotonic() - self._listed_at > CONFIRMED_SECONDS:
            try:
                self._forget_deleted(self.store.list("segments"))
            except CloudError:
                return False
        return time.monotonic() - self._listed_at <= CONFIRMED_SECONDS

    # --- this disk and the cloud ------------------------------------------------------------------

    def _copy_commits(self) -> None:
        shown = None
        here = self._numbers_here()
        if not here:
            return
        newest = here[-1]
        if self._next is None:
            self._before, self._described = None, False
            self._expect(self._plan(here[:MOST_COMMITS]))
            shown = self._look(here)
            here = self._to_copy(here, shown)
        for start in range(0, len(here), MOST_COMMITS):
            self._some_commits(here[start : start + MOST_COMMITS], newest, shown)

    def _numbers_here(self) -> list[int]:
        """The commits on this disk; those from the next slot on, if it is known."""
        newest = commits.newest(self._commits)
        if newest is None:
            return []
        if self._next is None or newest - self._next > MOST_COMMITS:
            return [number for number in commits.numbers(self._commits) if number >= (self._next or 0)]
        numbers = range(self._next, newest + 1)
        return [number for number in numbers if (self._commits / commits.file_name(number)).is_file()]

    def _still_there(self) -> bool:
        """Whether the newest slot is there, as it was: a server that forgot it may have forgotten more."""
        self._errors = self._uploader.errors
        if self._tip is None:
            return True
        found = self.store.head(self._tip.name)
        return found is not None and found.size == self._tip.size

    def _look(self, here: list[int]) -> Shown:
        """LIST the chain, and find out which slot is the next; raises `CloudConflict` if it is another's."""
        self._errors = self._uploader.errors
        self._compare_descriptions()
        listed = self.store.list("commits")
        slots = {number: listed[commit_name(number)] for number in commit_numbers(listed)}
        files = self.store.list("segments")
        self._forget_deleted(files)
        shown = Shown(slots, files, read_boundary(self.store))  # read after the LIST: `gc` raises it first
        self._compare(here, slots)
        self._find_next(shown)
        return shown

    def _compare(self, here: list[int], slots: dict[int, Listed]) -> None:
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

    def _find_next(self, shown: Shown) -> None:
        """Find the next slot; None if the newest commit there is not known to this machine."""
        self._next, self._tip = shown.boundary, None
        for number in sorted(shown.slots, reverse=True):
            if self._tip is None:
                self._tip, self._next = shown.slots[number], max(self._next, number + 1)
            if number in self._compared:
                return
            data = self.store.read(commit_name(number))
            found = parse_slot(data, number) if _sound(data) else None
            if isinstance(found, Skip):
                self._next = max(self._next, found.to)
            else:
                self._next = self._next if self._knows(number, data) else None
                return

    def _to_copy(self, here: list[int], shown: Shown) -> list[int]:
        """The commits that should be there: those that are, whose files are checked, and those that are not.

        Not sent are commits that are older than all that the cloud keeps: a `gc` deleted them there.
        `CloudConflict` if the newest one here was never there, and another machine has published.
        """
        slots, tip = shown.slots, max(shown.slots, default=-1)
        first = max(min(slots, default=0), shown.boundary)
        newest = here[-1]
        if newest not in self._compared:
            new = newest > tip if self._next is None else newest >= first
            if (new and self._next is None) or (not new and not self._was_there(newest)):
                raise self._published_by_another(tip, "which does not exist at")
        wanted = {number for number in here if number in self._compared}
        if self._next is not None:
            absent = [number for number in here if number not in slots and number >= first]
            ordered = sorted(slots)
            wanted.update(n for n in absent if n >= self._next or not self._is_skipped(n, ordered))
        left_out = [number for number in here if number not in wanted]
        self._leave_out(left_out, f"{self.cloud} keeps commits from {first} on")
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
        if self._home != self.path:
            hint = "this disk is a copy of another machine's: give the writer here another name."
        return CloudConflict(
            f"another machine has published commit {number} in {self.cloud}, {how} {self._home}; nothing "
            f"was overwritten: {hint}"
        )

    def _leave_out(self, numbers: list[int], why: str) -> None:
        """Report commits that are not sent, once."""
        if new := [number for number in numbers if number not in self._left_out]:
            self._left_out.update(new)
            log.warning("%s: commit %s of %s is not pushed", why, ranges(new), self._home)

    def _forget_deleted(self, files: dict[str, Listed]) -> None:
        """Forget that files on this disk are in the cloud as well if a `gc`, say, has deleted them there."""
        here = (file.name for file in self._segments.folder.glob("*"))
        gone = [name for name in here if name in self._elsewhere and f"segments/{name}" not in files]
        if gone:
            self._elsewhere.doubt(gone)
        self._listed_at = time.monotonic()

    # --- lake.json -------------------------------------------------------------------------------

    def _compare_descriptions(self) -> None:
        """Raise `CloudConflict` if the place has a different lake."""
        mine = read_regular(self.path / description.NAME)
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
                f"{self._lake.cloud} contains a different lake from {self.path}; nothing was overwritten: "
                "push this one to another place, or pull that one to a fresh folder."
            )
        self._old_description = description.format_of(theirs) < description.format_of(mine)
        self._described = not self._old_description  # a later one is not replaced

    def _put_description(self) -> None:
        """Have `lake.json` there; and learn, from a second one, whether the server honours conditions."""
        if self._described:
            return
        data, server = read_regular(self.path / description.NAME), self._lake.server
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

    # --- sending ---------------------------------------------------------------------------------

    def _some_commits(self, numbers: list[int], newest: int, shown: Shown | None) -> None:
        """Upload the files of some commits, several at a time, and publish each commit after its own."""
        plan = self._plan(numbers, newest, shown)
        left: set[str] = set()
        errors: dict[str, Exception] = {}

        def finish(name: str, error: Exception | None) -> None:
            if error is None:
                self._elsewhere.add([name])
            with self._change:
                left.discard(name)
                self.to_go.pop(name, None)
                if error is not None:
                    errors[name] = error
                self._change.notify_all()

        uploads: dict[str, Upload] = {}
        for planned in plan:
            for name, size in planned.files.items():
                found = None if shown is None else self._find(name, shown)
                listed = shown is None or (found is not None and found.size == size)
                if not (listed and name in self._elsewhere):
                    uploads[name] = Upload(
                        segment_name(name),
                        size,
                        send=lambda name=name, found=found: self._send_one(name, found),  # type: ignore[misc]
                        done=lambda name=name: finish(name, None),  # type: ignore[misc]
                        failed=lambda error, name=name: finish(name, error),  # type: ignore[misc]
                    )
        left.update(uploads)
        with self._change:
            self.to_go = {name: upload.size for name, upload in uploads.items()}
        self._uploader.submit(*uploads.values())
        published = None
        for planned in plan:
            self._wait(planned.files, left, errors)
            sent = {n: size for n, size in planned.files.items() if shown is None or n in uploads}
            number = planned.commit.number
            if shown is None or number not in shown.slots:
                published = number
                self._publish_safely(planned, sent)
            else:
                self._check_arrived(sent)
            self.pushed, self._before = number, planned.commit
        if published is not None:
            log.info("%s: commit %d is complete in the cloud", self.cloud, published)

    def _plan(
        self, numbers: Iterable[int], newest: int | None = None, shown: Shown | None = None
    ) -> list[Planned]:
        """The commits with the new files of each; commits that are not complete here are left out.

        newest: the newest commit here; if it cannot be sent, `LakeCorrupt`. None: files are not checked.
        """
        found: list[Planned] = []
        before = self._before
        for number in numbers:
            name = commits.file_name(number)
            try:
                data = read_regular(self._commits / name)
                commit = Commit.from_json(data, name)
                planned = Planned(commit, data, self._added(commit, before))
            except FileNotFoundError:
                raise Changed from None
            except (LakeCorrupt, CloudNotFound) as error:
                self._leave_out([number], str(error))
                continue
            lost = None if newest is None else self._lost(planned, shown)
            if lost is None:
                found.append(planned)
                before = commit
                continue
            why = f"commit {number} needs {lost}, which is neither at {self._home} nor in {self.cloud}"
            if number == newest:
                raise LakeCorrupt(f"{why}; run `lakepond repair`.")
            self._leave_out([number], why)
        return found

    def _added(self, commit: Commit, before: Commit | None) -> dict[str, int]:
        catalog = Catalog(commit, self._manifests)
        try:
            return added_files(catalog, None if before is None else Catalog(before, self._manifests))
        except (LakeCorrupt, CloudNotFound):
            if before is None:
                raise
            return added_files(catalog, None)  # a manifest of the one before is gone with it

    def _lost(self, planned: Planned, shown: Shown | None) -> str | None:
        """A file of a commit that is neither here nor there; None if there is none."""
        for name, size in planned.files.items():
            if self._segments.local(name) is not None:
                continue
            if shown is None:
                there = name in self._elsewhere
            else:
                found = self._find(name, shown)
                there = found is not None and found.size == size
            if not there:
                if not (self._commits / commits.file_name(planned.commit.number)).exists():
                    raise Changed
                return name
        return None

    def _expect(self, plan: list[Planned]) -> None:
        """Report the files that may have to be sent, before the cloud is asked."""
        with self._change:
            self.to_go = {
                name: size
                for planned in plan
                for name, size in planned.files.items()
                if name not in self._elsewhere
            }

    def _wait(self, names: Iterable[str], left: set[str], errors: dict[str, Exception]) -> None:
        """Return when these files have arrived; raises if one was given up."""
        with self._change:
            self._change.wait_for(lambda: left.isdisjoint(names) or self._stop)
            if self._stop and not left.isdisjoint(names):
                raise CloudUnreachable(
                    f"the connection to {self.cloud} was closed before everything was uploaded."
                )
        for name in names:
            if isinstance(error := errors.get(name), FileNotFoundError):
                raise Changed from None
            if error is not None:
                raise error

    def _send_one(self, name: str, found: Listed | None) -> int:
        """Have one segment there; returns how many bytes were sent for it."""
        file, place = self._segments.local(name), self._copy.place(name)
        if found is None and is_shared(name):  # another writer may have sent it
            found = place.head(segment_name(name))
        if file is None:
            if found is None:
                raise FileNotFoundError(name)
            check_content(place, name, found.size)  # it is there alone: its name says the content
            return 0
        if found is not None and place.holds(segment_name(name), read_regular(file), found):
            return 0
        started = leases.clock()
        size = place.keep(segment_name(name), lambda: read_regular(file))
        if size:
            self._sent_at[name] = started
        return size

    def _find(self, name: str, shown: Shown) -> Listed | None:
        """A segment in the cloud; None if it is not there. What all writers share is not in the LIST."""
        return self._lake.head(segment_name(name)) if is_shared(name) else shown.files.get(segment_name(name))

    def _check_arrived(self, files: dict[str, int]) -> None:
        """Raise, to be tried again, unless the server has these files: it may have lost what it took."""
        asked = [name for name in files if len(files) <= MOST_HEADS or is_shared(name)]
        there = {segment_name(name): self._copy.place(name).head(segment_name(name)) for name in asked}
        if len(asked) < len(files):
            there |= self.store.list("segments")
        lost = [
            name
            for name, size in files.items()
            if (found := there.get(segment_name(name))) is None or found.size != size
        ]
        if lost:
            self._elsewhere.drop(lost)
            raise CloudUnreachable(
                f"{self.cloud} does not have {len(lost)} files that it acknowledged ({lost[0]}, ...); they "
                "are uploaded again."
            )

    # --- publishing ------------------------------------------------------------------------------

    def _publish_safely(self, planned: Planned, sent: dict[str, int]) -> None:
        """Publish a commit whose files are all there, and stay there: `gc` deletes none of them meanwhile.

        It deletes nothing that was put a short time ago. Other files that no commit may name yet are
        protected by a lease until the commit does.
        """
        started = leases.clock()
        old = {
            name: size
            for name, size in planned.files.items()
            if started - self._sent_at.pop(name, -math.inf) > RECENT_SECONDS
        }
        with leases.protecting(self.store, old.keys()) if old else nullcontext():
            self._check_arrived({**sent, **old})
            self._publish(planned)
        if leases.clock() - started > RECENT_SECONDS:  # this machine was suspended
            self._check_arrived(planned.files)

    def _publish(self, planned: Planned) -> None:
        """Create the slot of a commit, after a skip if it is not the next one."""
        if self._uploader.errors != self._errors and not self._still_there():
            raise CloudUnreachable(f"{self.cloud} does not have commits that it acknowledged; it is listed.")
        self._put_description()
        number = planned.commit.number
        assert self._next is not None
        while self._next < number:
            self._next = self._skip(Skip(self._next, number))
        self._create(number, planned.data)  # below the next slot if the server has lost it
        self._next = max(self._next, number + 1)
        self._compared.add(number)
        self.commit_bytes += len(planned.data)
        self.commit_files += 1

    def _skip(self, skip: Skip) -> int:
        """Say in a slot that the next commit is at a later number; returns that number."""
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


def check_content(store: Store, name: str, size: int) -> None:
    """Raise `CloudCorrupt` unless the content of a segment in the cloud is the one that it is named after."""
    digest = Digest()
    for piece in store.stream(segment_name(name), size):
        digest.update(piece)
    if digest.hexdigest() != name.partition(".")[0]:
        raise CloudCorrupt(
            f"segment {name} in {store.cloud} is damaged: its content does not match the digest in its "
            "name; push it again from a disk that has it, or open an older commit."
        )


def _sound(data: bytes) -> bool:
    """Whether a description or a commit matches its own checksum."""
    try:
        unseal(data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    return True
