"""One round of a push: upload the files that a chain lacks, and publish each commit once its files are there.

    commits on disk ──▶ files that are new ──▶ PUT ──▶ HEAD ──▶ the commit's slot ──▶ boundary

A LIST shows what a chain has in the first round of a process, and in the first one after an error. Other
rounds ask for new objects only. `slots.py` says who may create the next slot.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

from lakepond.cloud import leases
from lakepond.cloud.bucket import Listed
from lakepond.cloud.chains import ChainCopy, read_boundary
from lakepond.cloud.fetching import CloudSegments, check_content
from lakepond.cloud.layout import commit_name, commit_numbers, segment_name
from lakepond.cloud.slots import Changed, Shown, Slots
from lakepond.cloud.uploader import Upload, Uploader
from lakepond.errors import CloudError, CloudNotFound, CloudUnreachable, LakeCorrupt
from lakepond.formats import ranges
from lakepond.lake.elsewhere import Segments
from lakepond.lake.format import commits
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.names import is_shared
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


class Copier:
    """Uploads the chain of one writer, one round at a time."""

    def __init__(self, copy: ChainCopy, uploader: Uploader) -> None:
        self._copy = copy
        self.path, self.store, self.cloud = copy.path, copy.store, copy.store.cloud
        self._lake, self._home, self._elsewhere = copy.lake, copy.home, copy.elsewhere
        self._places = {copy.lake, copy.store}
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
        self._slots = Slots(copy)
        self._before: Commit | None = None  # the newest commit whose files are all there
        self._errors = 0  # failed uploads that were taken into account
        self._sent_at: dict[str, float] = {}  # when files were sent that no commit there names yet
        self._gone: set[str] = set()  # files that were there once: a `gc`, or two, may be deleting them
        self._left_out: set[int] = set()  # commits that are not sent; reported once
        self._listed_at = -math.inf  # when a LIST has shown which files are there

    def round(self) -> None:
        """Upload all current commits; raises the first error.

        `Changed`: plan again. `CloudConflict`: the user must decide. Other `CloudError`s can be retried.
        """
        check_folders(self._commits, self._segments.folder)
        if self._home != self.path:
            check_folders(self._home.parent, self._home)
        listing = self._slots.next is None
        try:
            if not listing and not self._still_there():
                listing, self._slots.next = True, None
            self._copy_commits()
        except BaseException as error:
            if listing or not isinstance(error, Changed):  # the state of the chain is not certain any more
                self._slots.next = None
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
        if self._slots.next is None:
            self._before = None
            self._expect(self._plan(here[:MOST_COMMITS]))
            shown = self._look(here)
            wanted = self._slots.wanted(here, shown)
            self._leave_out(
                [number for number in here if number not in wanted],
                f"{self.cloud} keeps commits from {shown.first} on",
            )
            here = wanted
        for start in range(0, len(here), MOST_COMMITS):
            self._some_commits(here[start : start + MOST_COMMITS], newest, shown)

    def _numbers_here(self) -> list[int]:
        """The commits on this disk; those from the next slot on, if it is known."""
        newest = commits.newest(self._commits)
        if newest is None:
            return []
        if self._slots.next is None or newest - self._slots.next > MOST_COMMITS:
            return [number for number in commits.numbers(self._commits) if number >= (self._slots.next or 0)]
        numbers = range(self._slots.next, newest + 1)
        return [number for number in numbers if (self._commits / commits.file_name(number)).is_file()]

    def _still_there(self) -> bool:
        """Whether the server still has the newest slot, after the errors so far."""
        self._errors = self._uploader.errors
        return self._slots.still_there()

    def _look(self, here: list[int]) -> Shown:
        """LIST the chain, and find out which slot is the next; raises `CloudConflict` if it is another's."""
        self._errors = self._uploader.errors
        self._slots.compare_descriptions()
        listed = self.store.list("commits")
        slots = {number: listed[commit_name(number)] for number in commit_numbers(listed)}
        files = self.store.list("segments")
        self._forget_deleted(files)
        shown = Shown(slots, files, read_boundary(self.store))  # read after the LIST: `gc` raises it first
        self._slots.compare(here, slots)
        self._slots.find_next(shown)
        return shown

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
            self._gone.update(gone)
            self._elsewhere.doubt(gone)
        self._listed_at = time.monotonic()

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
        if size and name not in self._gone:
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
            self._gone.update(lost)
            self._elsewhere.drop(lost)
            raise CloudUnreachable(
                f"{self.cloud} does not have {len(lost)} files that it acknowledged ({lost[0]}, ...); they "
                "are uploaded again."
            )

    # --- publishing ------------------------------------------------------------------------------

    def _publish_safely(self, planned: Planned, sent: dict[str, int]) -> None:
        """Publish a commit whose files are all there, and stay there: `gc` deletes none of them meanwhile.

        It deletes nothing that was put a short time ago. Other files that no commit may name yet are
        protected by a lease until the commit does. So are files that had to be put again, and row sources,
        which other machines may have put before: one `gc` may have deleted them, and another one be about to.
        """
        started = leases.clock()
        old = {
            name: size
            for name, size in planned.files.items()
            if started - self._sent_at.pop(name, -math.inf) > RECENT_SECONDS or is_shared(name)
        }
        places = {place: [name for name in old if self._copy.place(name) is place] for place in self._places}
        with ExitStack() as stack:
            for place, names in places.items():
                if names:
                    stack.enter_context(leases.protecting(place, names))
            self._check_arrived({**sent, **old})
            self._publish(planned)
        self._gone.difference_update(planned.files)
        if leases.clock() - started > RECENT_SECONDS:  # this machine was suspended
            self._check_arrived(planned.files)

    def _publish(self, planned: Planned) -> None:
        """Publish a commit whose files are all there."""
        if self._uploader.errors != self._errors and not self._still_there():
            raise CloudUnreachable(f"{self.cloud} does not have commits that it acknowledged; it is listed.")
        self._slots.put_description()
        self._slots.publish(planned.commit.number, planned.data)
        self.commit_bytes += len(planned.data)
        self.commit_files += 1
