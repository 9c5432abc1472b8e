"""One round of a push: upload the files that a chain lacks, and publish each commit once its files are there.

    commits on disk ──▶ files that are new ──▶ PUT ──▶ HEAD ──▶ the commit's slot ──▶ boundary

A LIST shows what a chain has in the first round of a process, and in the first one after an error. Other
rounds ask for new objects only. `slots.py` says who may create the next slot.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lakepond.cloud import arrays, leases
from lakepond.cloud.arrays import FILE, Files, Listing
from lakepond.cloud.bucket import Listed
from lakepond.cloud.chains import ChainCopy, read_boundary
from lakepond.cloud.fetching import CloudSegments, check_content
from lakepond.cloud.layout import commit_name, commit_numbers, segment_name
from lakepond.cloud.sending import Sending
from lakepond.cloud.slots import Changed, Shown, Slots
from lakepond.cloud.store import Store
from lakepond.cloud.uploader import Uploader
from lakepond.errors import CloudError, CloudNotFound, CloudUnreachable, LakeCorrupt
from lakepond.formats import ranges
from lakepond.lake.format import commits
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.names import is_shared
from lakepond.lake.links import check_folders, read_regular
from lakepond.lake.read.catalog import Catalog, added_files
from lakepond.lake.segments import Segments

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
    files: Files
    """the files that it needs and the commit before it does not"""


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
        self._sending: Sending | None = None
        self._expected = (0, 0)  # files that may have to be sent, and their bytes, before the cloud is asked
        self.commit_files = self.commit_bytes = 0
        """commits that were put, and their bytes"""
        self.pushed: int | None = None
        """the newest commit that is known to be complete there"""
        self._slots = Slots(copy)
        self._before: Commit | None = None  # the newest commit whose files are all there
        self._errors = 0  # failed uploads that were taken into account
        self._files = np.empty(0, FILE)  # of the commits that were planned last
        self._sent = np.empty(0, FILE)  # of other commits: files that were sent and that none there names yet
        # files that are there, and that no commit there names as far as known
        self._arrived: set[str] = set()
        self._gone: set[str] = set()  # files that were there once: a `gc`, or two, may be deleting them
        self._left_out: set[int] = set()  # commits that are not sent; reported once
        self._unsendable: str | None = None  # why the newest commit is not sent
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
            if self._sending is not None:
                self._sending.close()

    def pending(self) -> tuple[int, int]:
        """How many files are not known to be there, and their bytes."""
        with self._change:
            sending = self._sending
            return self._expected if sending is None else (sending.pending_files, sending.pending_bytes)

    def confirm(self, ask: bool) -> bool:
        """Whether a recent LIST has confirmed which files are in the cloud; with `ask`, one may be made."""
        if ask and leases.clock() - self._listed_at > CONFIRMED_SECONDS:
            try:
                self._list_segments()
            except CloudError:
                return False
        return leases.clock() - self._listed_at <= CONFIRMED_SECONDS

    # --- this disk and the cloud ------------------------------------------------------------------

    def _copy_commits(self) -> None:
        shown = None
        here = self._numbers_here()
        if not here:
            return
        newest = here[-1]
        if self._slots.next is None:
            self._before = None
            self._expect(here[:MOST_COMMITS])
            shown = self._look(here)
            wanted = self._slots.wanted(here, shown)
            self._leave_out(
                [number for number in here if number not in wanted],
                f"{self.cloud} keeps commits from {shown.first} on",
            )
            here = wanted
        self._unsendable = None
        for start in range(0, len(here), MOST_COMMITS):
            self._some_commits(here[start : start + MOST_COMMITS], newest, shown)
        if self._unsendable is not None:
            raise LakeCorrupt(self._unsendable)

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
        files = self._list_segments()
        shown = Shown(slots, files, read_boundary(self.store))  # read after the LIST: `gc` raises it first
        self._slots.compare(here, slots)
        self._slots.find_next(shown)
        return shown

    def _leave_out(self, numbers: list[int], why: str) -> None:
        """Report commits that are not sent, once."""
        if new := [number for number in numbers if number not in self._left_out]:
            self._left_out.update(new)
            log.warning("%s: commit %s of %s is not pushed", why, ranges(new), self._home)

    def _list_segments(self) -> Listing:
        """LIST the segments; forgets that files on this disk are there as well if a `gc` has deleted them."""
        # before the LIST, which may lack what arrives during it
        there = [*self._elsewhere.names(), *self._arrived.copy()]
        files = Listing(self.store.scan("segments"))
        gone = [name for name in there if files.get(name) is None and (self._segments.folder / name).exists()]
        if gone:
            self._gone.update(gone)
            self._arrived.difference_update(gone)
            self._elsewhere.doubt(gone)
        self._listed_at = leases.clock()
        return files

    # --- sending ---------------------------------------------------------------------------------

    def _some_commits(self, numbers: list[int], newest: int, shown: Shown | None) -> None:
        """Upload the files of some commits, several at a time, and publish each commit after its own."""
        plan = self._plan(numbers, newest, shown)
        files = self._join(plan)
        shared = self._choose(files, shown)

        def send(at: int, name: str) -> int:
            found = None if shown is None else shared.get(name) if is_shared(name) else shown.files.get(name)
            started = leases.clock()
            size = self._send_one(name, found)
            if size and name not in self._gone:
                files["sent_at"][at] = started
            return size

        sending = Sending(self._uploader, files, send, self._arrived.add)
        with self._change:
            self._sending = sending
            if self._stop:
                sending.close()
        stop = 0
        published = None
        for planned in plan:
            stop += len(planned.files)
            if not sending.wait(stop):
                raise CloudUnreachable(
                    f"the connection to {self.cloud} was closed before everything was uploaded."
                )
            sent = planned.files["send"] | (shown is None)
            number = planned.commit.number
            if shown is None or number not in shown.slots:
                published = number
                self._publish_safely(planned, sent)
            else:
                self._check_arrived(planned.files[sent])
            self._list_published(planned.files)
            self.pushed, self._before = number, planned.commit
        if published is not None:
            log.info("%s: commit %d is complete in the cloud", self.cloud, published)

    def _list_published(self, files: Files) -> None:
        """List the files of a published commit: a `gc` keeps them now, and they may leave this disk."""
        self._elsewhere.add(arrays.names(files))
        if self._arrived:
            self._arrived.difference_update(arrays.names(files))

    def _join(self, plan: list[Planned]) -> Files:
        """Have the files of all planned commits in one array, with the times when they were sent before."""
        files = np.concatenate([np.empty(0, FILE), *(planned.files for planned in plan)])
        start = 0
        for i, planned in enumerate(plan):
            stop = start + len(planned.files)
            plan[i] = planned._replace(files=files[start:stop])
            start = stop
        sent = np.concatenate([self._sent, self._files[self._files["sent_at"] > -math.inf]])
        if len(sent):
            _, new, old = np.intersect1d(files["key"], sent["key"], return_indices=True)
            files["sent_at"][new] = sent["sent_at"][old]
            sent = np.delete(sent, old)
        self._sent, self._files = sent, files
        return files

    def _choose(self, files: Files, shown: Shown | None) -> dict[str, Listed | None]:
        """Set `send` of the files that are not there; returns the entries of those that all writers share."""
        shared: dict[str, Listed | None] = {}
        files["send"] = arrays.first_of_each(files)
        for at, (name, size) in enumerate(arrays.sizes(files)):
            found = None
            if shown is not None and files["send"][at]:
                found = self._find(name, shown)
                if is_shared(name):
                    shared[name] = found
            listed = shown is None or (found is not None and found.size == size)
            files["send"][at] &= not (listed and self._is_there(name))
        return shared

    def _is_there(self, name: str) -> bool:
        """Whether a file was found intact there, by this process or by one that published its commit."""
        return name in self._elsewhere or name in self._arrived

    def _plan(
        self, numbers: Iterable[int], newest: int | None = None, shown: Shown | None = None
    ) -> list[Planned]:
        """The commits with the new files of each; commits that are not complete here are left out.

        newest: the newest commit here; if it cannot be sent, `_unsendable` says why. None: files are not
        checked.
        """
        found: list[Planned] = []
        before = self._before
        for number in numbers:
            name = commits.file_name(number)
            try:
                data = read_regular(self._commits / name)
                commit = Commit.from_json(data, name)
                planned = Planned(commit, data, self._added(commit, before))
            except (LakeCorrupt, FileNotFoundError) as error:  # CloudNotFound is one
                why = f"commit {number} cannot be read: {error}"
            else:
                lost = None if newest is None else self._lost(planned, shown)
                if lost is None:
                    found.append(planned)
                    before = commit
                    continue
                why = f"commit {number} needs {lost}, which is neither at {self._home} nor in {self.cloud}"
            if not (self._commits / name).exists():  # deleted meanwhile
                raise Changed
            if number == newest:
                self._unsendable = f"{why}; run `lakepond repair`."
            else:
                self._leave_out([number], why)
        return found

    def _added(self, commit: Commit, before: Commit | None) -> Files:
        catalog = Catalog(commit, self._manifests)
        if before is not None:
            with suppress(LakeCorrupt, CloudNotFound):  # a manifest of the one before is gone with it
                return arrays.as_array(added_files(catalog, Catalog(before, self._manifests)).items())
        return arrays.as_array(catalog.files())

    def _lost(self, planned: Planned, shown: Shown | None) -> str | None:
        """A file of a commit that is neither here nor there; None if there is none."""
        for name, size in arrays.sizes(planned.files):
            if self._segments.local(name) is not None:
                continue
            if shown is None:
                there = self._is_there(name)
            else:
                found = self._find(name, shown)
                there = found is not None and found.size == size
            if not there:
                return name
        return None

    def _expect(self, numbers: list[int]) -> None:
        """Report the files that may have to be sent, before the cloud is asked."""
        files = np.concatenate([np.empty(0, FILE), *(planned.files for planned in self._plan(numbers))])
        files = files[arrays.first_of_each(files)]
        new = np.fromiter((not self._is_there(name) for name in arrays.names(files)), bool)
        with self._change:
            self._sending, self._expected = None, (int(new.sum()), int(files["size"][new].sum()))

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
        return place.keep(segment_name(name), lambda: read_regular(file))

    def _find(self, name: str, shown: Shown) -> Listed | None:
        """A segment in the cloud; None if it is not there. What all writers share is not in the LIST."""
        return self._lake.head(segment_name(name)) if is_shared(name) else shown.files.get(name)

    def _check_arrived(self, files: Files) -> None:
        """Raise, to be tried again, unless the server has these files: it may have lost what it took."""
        asked = arrays.shared(files) | (len(files) <= MOST_HEADS)
        listing = Listing() if asked.all() else Listing(self.store.scan("segments"))
        lost = []
        for (name, size), ask in zip(arrays.sizes(files), asked, strict=True):
            found = self._copy.place(name).head(segment_name(name)) if ask else listing.get(name)
            if found is None or found.size != size:
                lost.append(name)
        if lost:
            self._gone.update(lost)
            self._arrived.difference_update(lost)
            self._elsewhere.drop(lost)
            raise CloudUnreachable(
                f"{self.cloud} does not have {len(lost)} files that it acknowledged ({lost[0]}, ...); they "
                "are uploaded again."
            )

    # --- publishing ------------------------------------------------------------------------------

    def _publish_safely(self, planned: Planned, sent: NDArray[np.bool_]) -> None:
        """Publish a commit whose files are all there, and stay there: `gc` deletes none of them meanwhile.

        It deletes nothing that was put a short time ago. Other files that no commit may name yet are
        protected by a lease until the commit does. So are files that had to be put again, and row sources,
        which other machines may have put before: one `gc` may have deleted them, and another one be about to.
        """
        started = leases.clock()
        files = planned.files
        old = (started - files["sent_at"] > RECENT_SECONDS) | arrays.shared(files)
        files["sent_at"] = -math.inf
        places: dict[Store, list[str]] = {}
        for name in arrays.names(files[old]):
            places.setdefault(self._copy.place(name), []).append(name)
        with ExitStack() as stack:
            for place, names in places.items():
                stack.enter_context(leases.protecting(place, names))
            self._check_arrived(files[sent | old])
            self._publish(planned)
        if self._gone:
            self._gone.difference_update(arrays.names(files))
        if leases.clock() - started > RECENT_SECONDS:  # this machine was suspended
            self._check_arrived(files)

    def _publish(self, planned: Planned) -> None:
        """Publish a commit whose files are all there."""
        if self._uploader.errors != self._errors and not self._still_there():
            raise CloudUnreachable(f"{self.cloud} does not have commits that it acknowledged; it is listed.")
        self._slots.put_description()
        self._slots.publish(planned.commit.number, planned.data)
        self.commit_bytes += len(planned.data)
        self.commit_files += 1
