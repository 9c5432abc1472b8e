"""One round of a push: upload the files that the cloud does not have, segments first, commits last.

commits on disk ──▶ LIST ──▶ send what is not there ──▶ LIST ──▶ publish the commits
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lakepond.cloud.bucket import Listed
from lakepond.cloud.fetching import CloudSegments
from lakepond.cloud.layout import KNOWN, commit_name, commit_numbers
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
from lakepond.lake import writers
from lakepond.lake.elsewhere import Elsewhere, known
from lakepond.lake.format import commits, description
from lakepond.lake.format.checksum import Digest
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.sealed import unseal
from lakepond.lake.links import check_folders, read_regular
from lakepond.lake.read.catalog import Catalog, new_files

log = logging.getLogger("lakepond")
MOST_COMMITS = 1000
"""commits that are planned together: bounds the memory of a first push"""
CONFIRMED_SECONDS = 600.0
"""how long a file that a LIST has shown in the cloud may leave the disk without another LIST"""


class Planned(NamedTuple):
    """A commit on this disk that should be in the cloud."""

    commit: Commit
    data: bytes
    """its file"""
    files: dict[str, int]
    """the files that it needs and no commit before it in the plan, with their sizes"""


@dataclass(frozen=True)
class Plan:
    """The oldest commits on this disk that should be in the cloud."""

    commits: dict[int, Planned]
    """by number, sorted"""
    newest: int | None
    """the newest commit on this disk"""

    @property
    def is_last(self) -> bool:
        """Whether there are no later ones."""
        return not self.commits or max(self.commits) == self.newest

    def files(self) -> dict[str, int]:
        """All files that the commits refer to, with their sizes."""
        return {name: size for planned in self.commits.values() for name, size in planned.files.items()}


class Changed(Exception):
    """A file was deleted during the round, because its commit expired: plan again."""


class Copier:
    """Uploads a lake to the cloud, one round at a time."""

    def __init__(self, path: Path, store: Store, elsewhere: Elsewhere, uploader: Uploader) -> None:
        self.path, self.store, self.cloud = path, store, store.cloud
        self._elsewhere, self._uploader = elsewhere, uploader
        self._change = threading.Condition()
        self._stop = False
        self.to_go: dict[str, int] = {}
        """files that are not known to be there, with their sizes"""
        self.commit_files = self.commit_bytes = 0
        """commits that were put, and their bytes"""
        self.pushed: int | None = None
        """the newest commit that is known to be complete there"""
        self._published: set[int] = (
            set()
        )  # commits that were seen there, complete; the newest is checked again
        self._compared: set[int] = set()  # commits there that are known to be this lake's
        self._left_out: set[int] = set()  # commits that are not sent; reported once
        self._unsure: set[str] = set()  # commits that may have arrived changed
        self._listed_at = -math.inf  # when a LIST has shown which files are there
        self._same_lake = False  # whether `lake.json` was compared with the one there
        self._old_description = False  # whether that one is of an earlier version

    def round(self) -> None:
        """Upload all current commits; raises the first error.

        `Changed`: plan again. `CloudConflict`: the user must decide. Other `CloudError`s can be retried.
        """
        if others := writers.names(self.path)[1:]:
            raise CloudConflict(
                f"{self.path} has several writers ({', '.join(others[:8])}, ...), and a bucket "
                "cannot store such a lake; nothing was uploaded: keep this lake on its disk."
            )
        check_folders(self.path / "commits", self.path / "segments")
        while not self._some_commits():
            pass

    def _some_commits(self) -> bool:
        """Upload the oldest commits that are not there yet; returns whether these were all."""
        plan = self._plan()
        listed = self._list()
        if lost := {number for number in self._published if commit_name(number) not in listed}:
            self._published -= lost
            self._compared -= lost
            plan = self._plan()
        self._forget_deleted(listed)
        self._leave_out_deleted(plan, listed)
        self._compare(plan, listed)
        self._leave_out_lost(plan, listed)
        if self._send(plan, listed):
            listed = self._list()  # what is really in the cloud, not what was sent
            self._compare(plan, listed)  # another machine may have published in the meantime
        self._publish(plan, listed)
        return plan.is_last

    def stop(self) -> None:
        """Stop waiting for uploads."""
        with self._change:
            self._stop = True
            self._change.notify_all()

    def _list(self) -> dict[str, Listed]:
        """The objects there, without commits that may have arrived changed."""
        listed = self.store.list(known=KNOWN)
        return {name: each for name, each in listed.items() if name not in self._unsure}

    def _put(self, name: str, data: bytes) -> None:
        """Publish a commit or the description; one that may have arrived changed is published again."""
        self._unsure.add(name)
        self.store.publish(name, data, _sound)
        self._unsure.discard(name)

    def _plan(self) -> Plan:
        found: dict[int, Planned] = {}
        folder, segments = self.path / "commits", CloudSegments(self.store, self.path)
        numbers = commits.numbers(folder)
        seen: dict[str, int] = {}
        for number in numbers:
            if number in self._published and number != numbers[-1]:
                continue
            if len(found) == MOST_COMMITS:
                break
            try:
                data = read_regular(folder / commits.file_name(number))
                commit = Commit.from_json(data, commits.file_name(number))
                files = new_files(Catalog(commit, segments), seen)
                found[number] = Planned(commit, data, files)
            except FileNotFoundError:
                raise Changed from None
            except (LakeCorrupt, CloudNotFound) as error:
                log.warning("%s: commit %d is not pushed: %s", self.cloud, number, error)
        plan = Plan(found, numbers[-1] if numbers else None)
        with self._change:
            self.to_go = {name: size for name, size in plan.files().items() if name not in self._elsewhere}
        return plan

    def _forget_deleted(self, listed: dict[str, Listed]) -> None:
        """Forget that files on this disk are in the cloud as well if a `gc`, say, has deleted them there."""
        here = (file.name for file in (self.path / "segments").glob("*"))
        gone = [name for name in here if name in self._elsewhere and f"segments/{name}" not in listed]
        if gone:
            self._elsewhere.doubt(gone)
        self._listed_at = time.monotonic()

    def confirm(self, ask: bool) -> bool:
        """Whether a recent LIST has confirmed which files are in the cloud; with `ask`, one may be made."""
        if ask and time.monotonic() - self._listed_at > CONFIRMED_SECONDS:
            try:
                self._forget_deleted(self.store.list("segments"))
            except CloudError:
                return False
        return time.monotonic() - self._listed_at <= CONFIRMED_SECONDS

    def _compare(self, plan: Plan, listed: dict[str, Listed]) -> None:
        """Raise `CloudConflict` if another machine has published there; called before anything is sent.

        Every commit that is on this disk and in the cloud must have the same bytes in both. If there is a new
        one to publish, the newest one there must be known to this machine, or its steps would be hidden.
        """
        there = commit_numbers(listed)
        self._compared.intersection_update(there)
        mine = read_regular(self.path / description.NAME)
        if description.NAME in listed and not self._same_lake:
            if not self._holds(description.NAME, mine, listed) and not self._upgrades(mine):
                raise CloudConflict(
                    f"{self.cloud} contains a different lake from {self.path}; nothing was overwritten: "
                    "push this one to another place, or pull that one to a fresh folder."
                )
            self._same_lake = True
        for number in plan.commits.keys() & set(there) - self._compared:
            if not self._holds(commit_name(number), plan.commits[number].data, listed):
                raise self._published_by_another(number, "with different content from the one at")
            self._compared.add(number)
        there = commit_numbers(listed)
        if there and there[-1] not in self._compared and plan.commits.keys() - set(there):
            if not self._knows(there[-1]):
                raise self._published_by_another(there[-1], "which does not exist at")
            self._compared.add(there[-1])

    def _upgrades(self, mine: bytes) -> bool:
        """Whether the cloud has this lake in another version; an earlier one is replaced before a commit."""
        theirs = self.store.read(description.NAME)
        same = _sound(theirs) and description.same_lake(mine, theirs)
        self._old_description = same and description.format_of(theirs) < description.format_of(mine)
        return same

    def _holds(self, name: str, data: bytes, listed: dict[str, Listed]) -> bool:
        """Whether the cloud has these bytes; what was damaged on its way there is left out of `listed`."""
        try:
            if self.store.holds(name, data, listed[name]):
                return True
            damaged = not _sound(self.store.read(name))
        except CloudNotFound:  # deleted in the meantime
            damaged = True
        if damaged:
            self._unsure.add(name)
            del listed[name]
        return damaged

    def _knows(self, number: int) -> bool:
        """Whether a commit that is there, and not on this disk, was published or pulled by this machine."""
        name = commits.file_name(number)
        try:
            data = self.store.read(commit_name(number))
            if (self.path / "quarantine" / name).is_file():  # it was pulled, but a file of it was missing
                return (self.path / "quarantine" / name).read_bytes() == data
            mine = known(self.path)  # every file that a process on this disk has sent or pulled
            return all(file in mine for file in Commit.from_json(data, name).named())
        except LakeCorrupt:
            return False

    def _was_there(self, commit: Commit) -> bool:
        """Whether all files of a commit were at this place once."""
        listed = Elsewhere(self.path, self._elsewhere.url)  # as it is on disk now
        return all(file in listed for file in commit.named())

    def _published_by_another(self, number: int, how: str) -> CloudConflict:
        return CloudConflict(
            f"another machine has published commit {number} in {self.cloud}, {how} {self.path}; nothing was "
            "uploaded: pull that lake to a fresh folder to continue from it, or push this one to "
            "another place."
        )

    def _leave_out_deleted(self, plan: Plan, listed: dict[str, Listed]) -> None:
        """Do not send commits that are older than all that the cloud keeps: a `gc` deleted them there.

        `CloudConflict` if the newest one here is among them and was never there: another machine continued.
        """
        kept = commit_numbers(listed)
        deleted = [number for number in plan.commits if kept and number < kept[0]]
        if deleted and deleted[-1] == plan.newest and not self._was_there(plan.commits[deleted[-1]].commit):
            raise self._published_by_another(kept[-1], "which does not exist at")
        self._drop(plan, deleted)
        self._leave_out(deleted, f"{self.cloud} keeps commits from {kept[0] if kept else 0} on")

    def _leave_out(self, numbers: list[int], why: str) -> None:
        """Report commits that are not sent, once."""
        if new := [number for number in numbers if number not in self._left_out]:
            self._left_out.update(new)
            log.warning("%s: commit %s of %s is not pushed", why, ranges(new), self.path)

    def _leave_out_lost(self, plan: Plan, listed: dict[str, Listed]) -> None:
        """Push without commits whose files are neither here nor there; not without the newest."""
        lost: set[str] = set()
        dropped: list[int] = []
        for number, planned in plan.commits.items():
            for name, size in planned.files.items():
                found = listed.get(f"segments/{name}")
                if (self.path / "segments" / name).exists() or (found is not None and found.size == size):
                    continue
                if not (self.path / "commits" / commits.file_name(number)).exists():
                    raise Changed
                lost.add(name)
            catalog = Catalog(planned.commit, CloudSegments(self.store, self.path))
            needs = catalog.files() if lost else ()
            missing = next((name for name, _ in needs if name in lost), None)
            if missing is not None:
                why = f"commit {number} needs {missing}, which is neither at {self.path} nor in {self.cloud}"
                if number == plan.newest:
                    raise LakeCorrupt(f"{why}; run `lakepond repair`.")
                self._leave_out([number], why)
                dropped.append(number)
        self._drop(plan, dropped)
        self._published.update(dropped)  # they are not planned again

    def _drop(self, plan: Plan, numbers: list[int]) -> None:
        """Remove commits from a plan; files that later ones share with them are counted there."""
        if not numbers:
            return
        kept = {number: plan.commits[number] for number in plan.commits if number not in numbers}
        plan.commits.clear()
        seen: dict[str, int] = {}
        for number, planned in kept.items():
            files = new_files(Catalog(planned.commit, CloudSegments(self.store, self.path)), seen)
            plan.commits[number] = planned._replace(files=files)

    def _send(self, plan: Plan, listed: dict[str, Listed]) -> bool:
        """Send every file that is not there, or not known to be right; whether there was any."""
        left: set[str] = set()
        errors: list[Exception] = []

        def finish(name: str, error: Exception | None) -> None:
            if error is None:
                self._elsewhere.add([name])
            with self._change:
                left.discard(name)
                self.to_go.pop(name, None)
                errors.extend([] if error is None else [error])
                self._change.notify_all()

        uploads = []
        for name, size in plan.files().items():
            found = listed.get(f"segments/{name}")
            if found is not None and found.size == size and name in self._elsewhere:
                continue
            left.add(name)
            uploads.append(
                Upload(
                    f"segments/{name}",
                    size,
                    send=lambda name=name, found=found: self._send_one(name, found),  # type: ignore[misc]
                    done=lambda name=name: finish(name, None),  # type: ignore[misc]
                    failed=lambda error, name=name: finish(name, error),  # type: ignore[misc]
                )
            )
        with self._change:
            self.to_go = {upload.name.removeprefix("segments/"): upload.size for upload in uploads}
        self._uploader.submit(*uploads)
        with self._change:
            self._change.wait_for(lambda: not left or self._stop)
        if self._stop and left:
            raise CloudUnreachable(
                f"the connection to {self.cloud} was closed before everything was uploaded."
            )
        for error in errors:
            if isinstance(error, FileNotFoundError):
                raise Changed from None
            raise error
        return bool(uploads)

    def _send_one(self, name: str, found: Listed | None) -> int:
        """Have one segment there; returns how many bytes were sent for it."""
        file = self.path / "segments" / name
        if found is not None and not file.exists():  # it is there alone: its name tells whether it is right
            check_content(self.store, name, found.size)
            return 0
        if found is not None and self.store.holds(f"segments/{name}", read_regular(file), found):
            return 0
        return self.store.keep(f"segments/{name}", lambda: read_regular(file))

    def _publish(self, plan: Plan, listed: dict[str, Listed]) -> None:
        """Put the commits that are not there, each after all that it names was seen there."""
        new = [number for number in plan.commits if commit_name(number) not in listed]
        if new:
            self._put_description(listed)
        for number, (_, data, files) in sorted(plan.commits.items()):
            self._check_arrived(files, listed)
            if number not in new:
                self._published.add(number)
                self.pushed = number
                continue
            self._put(commit_name(number), data)
            self._compared.add(number)
            self._published.add(number)
            self.pushed = number
            self.commit_bytes += len(data)
            self.commit_files += 1
        if new:
            log.info("%s: commit %d is complete in the cloud", self.cloud, new[-1])

    def _check_arrived(self, files: dict[str, int], listed: dict[str, Listed]) -> None:
        lost = [
            name
            for name, size in files.items()
            if (found := listed.get(f"segments/{name}")) is None or found.size != size
        ]
        if lost:
            self._elsewhere.drop(lost)
            raise CloudUnreachable(
                f"{self.cloud} does not have {len(lost)} files that it acknowledged ({lost[0]}, ...); they "
                "are uploaded again."
            )

    def _put_description(self, listed: dict[str, Listed]) -> None:
        """Have `lake.json` there; and learn, from a second one, whether the server honours conditions."""
        if self._old_description:
            self.store.replace(description.NAME, read_regular(self.path / description.NAME))
            self._old_description = False
        if description.NAME in listed and self.store.server.conditions is not None:
            return
        self._put(description.NAME, read_regular(self.path / description.NAME))
        if description.NAME in listed and self.store.server.conditions is None:  # a second one was taken
            self.store.server.conditions = False
            log.warning(
                "%s does not support conditional writes: two runs that push to one URL would not be noticed",
                self.cloud,
            )


def check_content(store: Store, name: str, size: int) -> None:
    """Raise `CloudCorrupt` unless the content of a segment in the cloud is the one that it is named after."""
    digest = Digest()
    for piece in store.stream(f"segments/{name}", size):
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
