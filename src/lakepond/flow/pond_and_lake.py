"""A pond and its lake, kept together for one replay: opened, poured in time, and closed."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lakepond import forks
from lakepond.errors import LakeCorrupt, RecordError, SpecError
from lakepond.flow import lake_to_pond
from lakepond.flow.pond_to_lake import Handed, hand_over
from lakepond.lake import commits, description, writers
from lakepond.lake.background import Background
from lakepond.lake.commits import Commit, Start
from lakepond.lake.files import ASIDE
from lakepond.lake.guard import parse_bytes
from lakepond.lake.lake import Lake, commit_to_follow
from lakepond.lake.writer import LakeWriter, create
from lakepond.pond import Pond
from lakepond.types import Spec

if TYPE_CHECKING:
    from lakepond.cloud.place import Cloud
    from lakepond.flow.lake_and_cloud import CloudCopy

KEPT_SAVES = 2
"""how many saves of a replay are kept: the newest, and the one before it"""
MOST_WAITING = 4
"""commits that may wait for space on the disk, each of up to a pond of steps, before recording is refused"""


class Outflow:
    """Where a pond goes on into its lake: what is recorded is committed, at the latest before it leaves."""

    def __init__(
        self, pond: Pond, writer: LakeWriter, *, keeps_all: bool = True, cloud: CloudCopy | None = None
    ) -> None:
        """`keeps_all`: whether steps are committed before they leave the pond."""
        self._pond, self._cloud = pond, cloud
        self._handed = Handed(writer.next_rows())
        self.background = Background(writer, keeps_all=keeps_all)
        self.lock = threading.RLock()
        """hand-overs come one after another, and nothing is recorded meanwhile"""
        self._warned = 0  # failures that have been warned of
        if cloud is not None:
            cloud.settle_with(self.background.settle)
        self.background.drop_with(self, lambda: pond.recorded)
        forks.register(self)

    def restart_in_child(self) -> None:
        """In a forked child nothing can be written; what tries to must not wait for the parent's threads."""
        self.lock = threading.RLock()

    @property
    def path(self) -> Path:
        """The lake's folder."""
        return self.background.writer.path

    def commit(self, note: dict[str, Any]) -> Future[Commit]:
        """Hand over all that is new, to be written in the background.

        Interrupted at any moment, all of it has been handed over, or nothing has, and the next commit does.
        """
        self.background.check()
        with self.lock:
            since = self.background.taken
            if not self.background.keeps_all:
                since = max(since, self._pond.oldest)
            done = hand_over(self._pond, since, self._handed, self.background, note)
            if self._cloud is not None:
                done.add_done_callback(self._keep_to_budget)
            return done

    def commit_the_rest(self) -> None:
        """Make durable what is not yet, if all is kept."""
        self.background.check()
        if self.background.keeps_all and self.background.taken < self._pond.recorded:
            self.commit({}).result()

    def make_way(self, count: int) -> None:
        """Commit before steps that are not in the lake yet make room for new ones.

        If that fails they are held beside the pond, and tried again with the next commit, within bounds.
        """
        background, pond = self.background, self._pond
        background.check()
        if background.keeps_all and pond.recorded + count - background.taken > pond.capacity:
            if count > pond.capacity:
                raise RecordError(f"{count:,} steps at once do not fit a capacity of {pond.capacity:,}.")
            if background.failure is not None and background.waiting >= MOST_WAITING:
                raise RecordError(
                    f"{background.waiting} commits wait to be written ({background.failure}) and no more are "
                    "held in memory; nothing was recorded: free some space and commit() before going on."
                )
            with suppress(OSError):  # reported below
                self.commit({"automatic": True}).result()
        if background.failure is not None and background.failures != self._warned:
            self._warned = background.failures
            warnings.warn(
                f"a commit failed and will be tried again with the next one: {background.failure}",
                RuntimeWarning,
                stacklevel=3,
            )

    def lake(self, commit: int | None) -> Lake:
        """The lake, to read: the newest commit of this writer, or the one with that number."""
        segments = None if self._cloud is None else self._cloud.segments
        return Lake.open(self.path, commit, writer=self.background.writer.name, segments=segments)

    def close(self, *, discard: bool = False) -> None:
        """Commit the rest, release the lake, and push, if there is a cloud.

        If it raises, nothing has ended and it can be called again. With `discard`, what could not be
        committed is given up. In a forked child it does nothing.
        """
        if self.background.forked:
            return
        with self.lock:  # nothing is recorded between the last commit and the end
            if discard:
                self.background.discard(self._pond.recorded)
            else:
                if not self.background.stopped:  # nor interrupted before it had ended
                    self.commit_the_rest()
                self.background.close()
        if self._cloud is not None:
            self._cloud.close()

    def _keep_to_budget(self, done: Future[Commit]) -> None:
        if self._cloud is not None and done.exception() is None:
            self._cloud.committed()


def find_or_make(path: Path, spec: Spec | None) -> Spec:
    """The spec of the lake at a path, which is made for `spec` if there is none."""
    if spec is not None and not (path / description.NAME).exists():
        create(path, description.describe(spec))
    elif spec is None and not (path / description.NAME).exists():
        raise SpecError(f"there is no lake at {path}; give the spec to make one.")
    known = description.read(path)
    if spec is not None and spec != known:
        raise SpecError(f"{path} was made for another spec; leave it out to take that of the lake.")
    return known


def go_on(pond: Pond, writer: LakeWriter, commit: int | Start | None, cloud: CloudCopy | None) -> Outflow:
    """Fill a new pond from the commit that its writer follows, and return where it pours to."""
    path, name = writer.path, writer.name
    try:
        last = commit_to_follow(path, commit, name)
        if last is None and commit is None and commits.numbers(writers.home(path, name) / "commits"):
            raise LakeCorrupt(f"{path} has commits and none of them is intact; see `repair`.")
        if last is not None:
            writer.go_on_from(last)
            if cloud is not None:
                cloud.continue_from(last)
            with Lake(path, pond.spec, last, None if cloud is None else cloud.segments) as lake:
                begin = max(last.oldest, last.recorded - pond.capacity)
                pond.start_at(begin)
                lake_to_pond.resume(lake, pond, np.arange(begin, last.recorded))
                lake_to_pond.restore_priorities(lake, pond)
        return Outflow(pond, writer, cloud=cloud)
    except BaseException:
        writer.close()
        raise


def save_to(pond: Pond, path: Path, codec: str, merge_after: int) -> Outflow:
    """A new lake for what a pond holds when it is saved: steps that leave between two saves are not kept."""
    if path.exists() and not is_empty_lake(path):
        raise SpecError(f"{path} exists already; load it to continue with it, or save to another folder.")
    find_or_make(path, pond.spec)
    writer = LakeWriter(
        path,
        len(pond.leaves),
        codec=codec,
        max_steps=pond.capacity,
        keep_last=KEPT_SAVES,
        merge_after=merge_after,
    )
    return Outflow(pond, writer, keeps_all=False)


def is_empty_lake(path: Path) -> bool:
    """Whether a folder holds nothing but a lake without a commit, as a killed first save leaves it."""
    own = {description.NAME, "segments", "commits", "lock"}
    strange = any(each.name not in own and each.suffix != ASIDE for each in path.iterdir())
    return not strange and not commits.numbers(path / "commits")


def check_saved(path: str | Path) -> None:
    """`SpecError` unless `save` made what is at a path."""
    with Lake.open(path) as lake:
        if not lake.commit.note.get("saved"):
            raise SpecError(
                f"{path} was not made by `save` but keeps all experience; Replay.open goes on with it."
            )


def cloud_copy(
    path: Path,
    cloud: str | Cloud | None,
    pull: Literal["lazy", "all"] | None,
    local_budget: int | str | None,
    commit: int | None,
    writer: str,
) -> CloudCopy | None:
    """The cloud of a lake, if there is one, with what is to be pulled brought here."""
    if cloud is None:
        if pull is not None or local_budget is not None:
            raise SpecError(
                "pull and local_budget need a cloud; give its URL, like cloud='gs://bucket/demo'."
            )
        return None
    if writer:
        raise SpecError(
            f"writer={writer!r} and a cloud do not go together: a lake of several writers stays on its disk."
        )
    from lakepond.flow.lake_and_cloud import CloudCopy

    copy = CloudCopy(path, cloud, None if local_budget is None else parse_bytes(local_budget))
    copy.begin(pull, commit)
    return copy
