"""One round of a push: what this disk has and the cloud has not goes there, segments first, commits last.

commits on disk ──▶ LIST ──▶ send what is not there ──▶ LIST ──▶ publish the commits
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from lakepond.cloud.bucket import Listed
from lakepond.cloud.store import Store
from lakepond.cloud.uploader import Upload, Uploader
from lakepond.errors import CloudConflict, CloudCorrupt, CloudUnreachable, LakeCorrupt
from lakepond.lake import commits, description, writers
from lakepond.lake.checksum import Digest
from lakepond.lake.commits import Commit
from lakepond.lake.elsewhere import Elsewhere
from lakepond.lake.sealed import unseal

log = logging.getLogger("lakepond")


@dataclass(frozen=True)
class Plan:
    """What this disk has and the cloud should."""

    commits: dict[int, tuple[Commit, bytes]]
    """by number: the commit, and its file's bytes"""

    def files(self) -> dict[str, int]:
        """Every file that they name, with its size."""
        return {name: size for commit, _ in self.commits.values() for name, size in commit.files().items()}


class Changed(Exception):
    """A file left the disk, because its commit is kept no longer: plan again."""


class Copier:
    """Brings a place in the cloud to what a lake on this disk holds, a round at a time."""

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
        """the newest commit that is whole there, as far as it is known"""
        self._published: set[int] = set()  # commits that were seen there; the newest is looked at again
        self._unsure: set[str] = set()  # commits that may have arrived changed
        self._known_same = False  # whether this lake was compared with the one there

    def round(self) -> None:
        """Bring the cloud to what the disk holds now; raises what is in the way.

        `Changed`: begin again. A `CloudConflict` needs somebody; other `CloudError`s, another try.
        """
        if others := writers.names(self.path)[1:]:
            raise CloudConflict(
                f"{self.path} has several writers ({', '.join(others[:8])}, ...), which the cloud does not "
                "know how to hold; nothing was sent: keep this lake on its disk."
            )
        plan = self._plan()
        listed = self._list()
        if lost := {number for number in self._published if _commit_name(number) not in listed}:
            self._published -= lost
            plan = self._plan()
        self._compare(plan, listed)
        self._leave_out_lost(plan, listed)
        if self._send(plan, listed):
            listed = self._list()  # not what we think that we sent: what is there
        self._publish(plan, listed)

    def stop(self) -> None:
        """Wait for nothing more."""
        with self._change:
            self._stop = True
            self._change.notify_all()

    def _list(self) -> dict[str, Listed]:
        """What is there, but for commits that may have arrived changed."""
        return {name: told for name, told in self.store.list().items() if name not in self._unsure}

    def _put(self, name: str, data: bytes) -> None:
        """Publish a commit or the description; one that may have arrived changed is published again."""
        self._unsure.add(name)
        self.store.publish(name, data, _sound)
        self._unsure.discard(name)

    def _plan(self) -> Plan:
        found: dict[int, tuple[Commit, bytes]] = {}
        folder = self.path / "commits"
        numbers = commits.numbers(folder)
        for number in numbers:
            if number in self._published and number != numbers[-1]:
                continue
            try:
                data = (folder / commits.file_name(number)).read_bytes()
                found[number] = (Commit.from_json(data, commits.file_name(number)), data)
            except FileNotFoundError:
                raise Changed from None
            except LakeCorrupt as error:
                log.warning("%s: commit %d is not pushed: %s", self.cloud, number, error)
        plan = Plan(found)
        with self._change:
            self.to_go = {name: size for name, size in plan.files().items() if name not in self._elsewhere}
        return plan

    def _compare(self, plan: Plan, listed: dict[str, Listed]) -> None:
        """Raise `CloudConflict` if the place holds another lake; once, and before anything is sent there."""
        if self._known_same:
            return
        mine = (self.path / description.NAME).read_bytes()
        there = [number for number in plan.commits if _commit_name(number) in listed]
        if description.NAME in listed:
            pairs = [(description.NAME, mine)]
            if there:
                pairs.append((_commit_name(max(there)), plan.commits[max(there)][1]))
            other = [name for name, data in pairs if not self.store.holds(name, data, listed[name])]
            for name in other:
                if not _sound(self.store.read(name)):  # changed on its way there
                    self._unsure.add(name)
                    del listed[name]
            if any(name in listed for name in other):
                raise CloudConflict(
                    f"{self.cloud} holds another lake than {self.path}; nothing was overwritten: push this "
                    "one elsewhere, or pull that one and go on from it."
                )
        self._known_same = True

    def _leave_out_lost(self, plan: Plan, listed: dict[str, Listed]) -> None:
        """Push without commits whose files are neither here nor there; not without the newest."""
        for number, (commit, _) in list(plan.commits.items()):
            for name, size in commit.files().items():
                told = listed.get(f"segments/{name}")
                if (self.path / "segments" / name).exists() or (told is not None and told.size == size):
                    continue
                if not (self.path / "commits" / commits.file_name(number)).exists():
                    raise Changed
                lost = f"commit {number} needs {name}, which is neither at {self.path} nor in {self.cloud}"
                if number == max(plan.commits):
                    raise LakeCorrupt(f"{lost}; see `repair`.")
                log.error("%s; it is not pushed", lost)
                del plan.commits[number]
                break

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
            told = listed.get(f"segments/{name}")
            if told is not None and told.size == size and name in self._elsewhere:
                continue
            left.add(name)
            uploads.append(
                Upload(
                    f"segments/{name}",
                    size,
                    send=lambda name=name, told=told: self._send_one(name, told),  # type: ignore[misc]
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
            raise CloudUnreachable(f"the uploads to {self.cloud} were closed before all was sent.")
        for error in errors:
            if isinstance(error, FileNotFoundError):
                raise Changed from None
            raise error
        return bool(uploads)

    def _send_one(self, name: str, told: Listed | None) -> int:
        """Have one segment there; returns how many bytes were sent for it."""
        file = self.path / "segments" / name
        if told is not None and not file.exists():  # it is there alone: its name tells whether it is right
            check_content(self.store, name, told.size)
            return 0
        if told is not None and self.store.holds(f"segments/{name}", file.read_bytes(), told):
            return 0
        return self.store.keep(f"segments/{name}", file.read_bytes)

    def _publish(self, plan: Plan, listed: dict[str, Listed]) -> None:
        """Put the commits that are not there, each after all that it names was seen there."""
        new = [number for number in plan.commits if _commit_name(number) not in listed]
        if new:
            self._put_description(listed)
        numbers = [
            int(name[8:-5]) for name in listed if name.startswith("commits/") and name.endswith(".json")
        ]
        mine = {*self._published, *plan.commits, *commits.numbers(self.path / "quarantine")}
        for number, (commit, data) in sorted(plan.commits.items()):
            self._check_arrived(commit, listed)
            if number not in new:
                self._published.add(number)
                self.pushed = number
                continue
            if strange := [other for other in numbers if other > number and other not in mine]:
                raise CloudConflict(
                    f"{self.cloud} holds commit {strange[-1]}, which {self.path} does not know: another run "
                    "went on from here. Pull that one, or push this one elsewhere."
                )
            self._put(_commit_name(number), data)
            self._published.add(number)
            self.pushed = number
            self.commit_bytes += len(data)
            self.commit_files += 1
        if new:
            log.info("%s: commit %d is whole in the cloud", self.cloud, new[-1])

    def _check_arrived(self, commit: Commit, listed: dict[str, Listed]) -> None:
        lost = [
            name
            for name, size in commit.files().items()
            if (told := listed.get(f"segments/{name}")) is None or told.size != size
        ]
        if lost:
            self._elsewhere.drop(lost)
            raise CloudUnreachable(
                f"{self.cloud} does not have {len(lost)} files that it acknowledged ({lost[0]}, ...); they "
                "are sent again."
            )

    def _put_description(self, listed: dict[str, Listed]) -> None:
        """Have `lake.json` there; and learn, from a second one, whether the server honours conditions."""
        if description.NAME in listed and self.store.conditions is not None:
            return
        self._put(description.NAME, (self.path / description.NAME).read_bytes())
        if description.NAME in listed and self.store.conditions is None:  # a second one was taken
            self.store.conditions = False
            log.warning(
                "%s ignores conditions: two runs that write to one place would not be noticed", self.cloud
            )


def check_content(store: Store, name: str, size: int) -> None:
    """Raise `CloudCorrupt` unless the content of a segment in the cloud is the one that it is named after."""
    digest = Digest()
    for piece in store.stream(f"segments/{name}", size):
        digest.update(piece)
    if digest.hexdigest() != name.partition(".")[0]:
        raise CloudCorrupt(
            f"segment {name} in {store.cloud} is not what was written: its content has another name; push it "
            "again from a disk that has it, or open an older commit."
        )


def _sound(data: bytes) -> bool:
    """Whether a description or a commit is one that somebody wrote, by its own checksum."""
    try:
        unseal(data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    return True


def _commit_name(number: int) -> str:
    return f"commits/{commits.file_name(number)}"
