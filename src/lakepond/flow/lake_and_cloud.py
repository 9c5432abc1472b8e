"""The cloud copy of a replay's lake: pull, push and the local budget."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from lakepond.cloud.fetching import (
    CloudSegments,
    Fetcher,
    commit_of,
    fetch_commits,
    fetch_segments,
    keep_description,
    locked,
    look,
    read_description,
)
from lakepond.cloud.leases import Lease
from lakepond.cloud.place import Cloud
from lakepond.cloud.pusher import CLOSE_SECONDS, Pusher
from lakepond.cloud.status import UploadStatus
from lakepond.cloud.store import Store
from lakepond.errors import CloudConflict, CloudError, CloudUnreachable, LakeError, SpecError
from lakepond.flow.pond_and_lake import find_or_make
from lakepond.lake.format import commits, description
from lakepond.lake.format.commits import Commit
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.segments import Segments
from lakepond.lake.write.coalesced import CoalescedTask
from lakepond.types import Spec

T = TypeVar("T")
log = logging.getLogger("lakepond")
HELLO_SECONDS = 2.0
"""how long a start waits for the cloud's first answer before it says so"""
PULL_SECONDS = 60.0
"""how long a start that needs the cloud waits for it in all"""


class CloudCopy:
    """The copy of one replay's chain in the cloud."""

    def __init__(
        self, path: Path, cloud: Cloud, store: Store, budget: int | None = None, writer: str = ""
    ) -> None:
        """`store`: of the lake's place. `writer`: whose chain."""
        self.path, self.cloud = path, cloud
        self.pusher = Pusher(path, cloud, store=store, writer=writer)
        self._copy, self.store = self.pusher.copy, self.pusher.store
        home = self._copy.home
        self._fetcher = fetcher = Fetcher(self._copy)
        self.lease = Lease(self.store, home, newest=partial(_newest, home, CloudSegments(self.store, home)))
        self.segments = Segments(
            path,
            writer,
            fetch=fetcher,
            budget=budget,
            safe=self.pusher.elsewhere,
            pin=self.lease.pin,
            confirm=self.pusher.confirm,
            commit=partial(commit_of, self._copy),
        )
        self._unpin: Callable[[float], None] = lambda _: None
        fetcher.segments = self.segments
        self.pusher.segments = self.segments
        self._closing = False
        self._budget = CoalescedTask(
            partial(_keep_to_budget, self.segments, self.pusher),
            "lakepond-budget",
            f"{path} could not be kept to its local budget; commits continue",
        )
        self.committed: Callable[[], object] = (lambda: None) if budget is None else self._budget.signal
        """to be called after each commit: have the budget kept, on another thread"""

    @classmethod
    def of_named(
        cls, path: Path, cloud: Cloud, spec: Spec | None, budget: int | None, writer: str
    ) -> CloudCopy:
        """The copy of a named writer; creates its lake, from the `lake.json` in the cloud if there is one.

        An unreachable cloud is logged.
        """
        store = Store(cloud)
        away: CloudError | None = None
        if not (path / description.NAME).exists():
            try:
                data = answer(lambda: read_description(store), cloud, HELLO_SECONDS)
                if data is not None:
                    keep_description(path, store, data)
            except CloudError as error:
                away = error
        find_or_make(path, spec)
        copy = cls(path, cloud, store, budget, writer)
        if away is not None:
            copy._away(away)
        else:
            threading.Thread(target=copy._greet, name="lakepond-hello", daemon=True).start()
        return copy

    def begin(self, pull: Literal["lazy", "all"] | None, commit: int | None) -> None:
        """Pull if requested, before the lake is opened; refuse a location that contains another lake.

        An unreachable cloud is logged; it raises only if `pull` was requested and there is no local lake.
        """
        if pull not in (None, "lazy", "all"):
            raise SpecError(f"pull must be 'lazy', 'all' or None, but is {pull!r}.")
        here = (self.path / description.NAME).exists()
        if here and pull is None:
            threading.Thread(target=self._greet, name="lakepond-hello", daemon=True).start()
            return
        try:
            seconds = PULL_SECONDS if pull is not None and not here else HELLO_SECONDS
            remote = answer(lambda: look(self.store), self.cloud, seconds)
        except CloudError as error:
            if pull is not None and not here:
                raise
            self._away(error)
            return
        if remote is None:
            return
        if pull is None and remote.numbers:
            raise CloudConflict(
                f"{self.cloud} holds a lake of {len(remote.numbers)} commits already, and {self.path} none: "
                "pass pull='lazy' or pull='all' to continue it, or name another place for a new one."
            )
        if not remote.numbers and not here:  # named writers have created it
            keep_description(self.path, self.store, self.store.read(description.NAME))
        elif remote.numbers:
            with locked(self._copy):
                chosen = fetch_commits(self._copy, commit, remote)
            if pull == "all":
                fetch_segments(self._copy, chosen, self._fetcher)

    def _greet(self) -> None:
        try:
            self.store.list("commits")
        except CloudError as error:
            self._away(error)

    def _away(self, error: CloudError) -> None:
        log.warning(
            "%s: %s Training continues; everything is kept on this disk until then.", self.cloud, error
        )
        self.pusher.note(str(error))

    def continue_from(self, commit: Commit) -> None:
        """Protect a commit from `gc` until `close`, because later commits share its segments."""
        files = Catalog(commit, self.segments).files()
        self._unpin = self.segments.continue_from(commit, (name for name, _ in files))
        weakref.finalize(self, self._unpin, 0.0).atexit = False  # if the replay is dropped without `close`

    # --- while it runs ---------------------------------------------------------------------------

    def wait_with(self, wait: Callable[[], object]) -> None:
        """Call `wait` before each push, so that all submitted commits are on disk."""
        self.pusher.wait_for_commits = wait

    @property
    def failures(self) -> int:
        """Failed rounds of uploads, and failures to keep to the budget."""
        return self.pusher.failures + self._budget.failures

    def push(self) -> None:
        """Start uploading all commits on this disk."""
        self.pusher.push()

    def push_unless_refused(self) -> None:
        """`push`, but not soon after one that the user has to act upon."""
        if not self.pusher.gave_up_recently:
            self.pusher.push()

    def status(self) -> UploadStatus:
        """Return the progress of uploads."""
        return self.pusher.status()

    def wait(self, timeout: float) -> UploadStatus:
        """Wait for all uploads, at most `timeout` seconds; shows progress on a terminal."""
        from lakepond.cloud.progress import watching

        with watching(self.pusher.status):
            return self.pusher.wait(timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Push all commits, wait for a limited time, and log missing uploads. Can be repeated."""
        if not self._closing:
            self.pusher.push()
            self._closing = True
        until = time.monotonic() + timeout
        self._budget.close(timeout)  # first: it may push
        self.pusher.close(max(0.0, until - time.monotonic()))
        self._unpin(HELLO_SECONDS)


def _keep_to_budget(segments: Segments, pusher: Pusher) -> None:
    """Delete what is safe in the cloud; push if that is not enough, or half of the budget is not uploaded."""
    assert segments.budget is not None
    if segments.make_room(ask=False) or 2 * segments.unsafe_bytes() > segments.budget:
        pusher.push()


def answer(ask: Callable[[], T], cloud: Cloud, seconds: float) -> T:
    """What `ask` returns, called on a thread and waited for for a limited time; `CloudUnreachable` then."""
    found: list[T] = []
    errors: list[CloudError] = []

    def work() -> None:
        try:
            found.append(ask())
        except CloudError as error:
            errors.append(error)

    asking = threading.Thread(target=work, name="lakepond-hello", daemon=True)
    asking.start()
    asking.join(min(seconds, HELLO_SECONDS))
    if asking.is_alive() and seconds > HELLO_SECONDS:
        log.warning("%s: no answer within %.0f s; still waiting", cloud, HELLO_SECONDS)
        asking.join(seconds - HELLO_SECONDS)
    if errors:
        raise errors[0]
    if not found:
        raise CloudUnreachable(f"{cloud} does not answer within {seconds:.0f} s; check the network.")
    return found[0]


def _newest(path: Path, segments: CloudSegments) -> tuple[int, frozenset[str]] | None:
    """The number and the files of the newest commit on this disk; None if it cannot be read now."""
    try:
        number = commits.newest(path / "commits")
        if number is None:
            return None
        catalog = Catalog(commits.read(path / "commits", number), segments)
        return number, frozenset(name for name, _ in catalog.files())
    except (LakeError, CloudError, OSError):
        return None
