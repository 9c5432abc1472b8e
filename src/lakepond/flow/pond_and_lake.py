"""Connects a replay's pond to its lake: open, commit steps before they are evicted, close."""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lakepond import forks
from lakepond.errors import LakeCorrupt, NoLakeToOpen, RecordError, ReplayClosed, SpecError
from lakepond.flow import lake_to_pond
from lakepond.flow.link_notes import link_note
from lakepond.flow.pond_to_lake import Handed, copy_of, hand_over
from lakepond.lake import writers
from lakepond.lake.files import TEMPORARY_SUFFIX
from lakepond.lake.format import commits, description
from lakepond.lake.format.commits import Commit, Start
from lakepond.lake.format.link_notes import cut_streams, end_note
from lakepond.lake.format.names import SOURCES
from lakepond.lake.read.lake import Lake, commit_to_follow
from lakepond.lake.write.commit_queue import Background
from lakepond.lake.write.disk_guard import parse_bytes
from lakepond.lake.write.reasons import Reasons
from lakepond.lake.write.writer import LakeWriter, create
from lakepond.pond import Pond
from lakepond.sampling.generators import set_state
from lakepond.types import Spec

if TYPE_CHECKING:
    from lakepond.cloud.place import Cloud
    from lakepond.flow.lake_and_cloud import CloudCopy

log = logging.getLogger("lakepond")
KEPT_SAVES = 2
"""saves of a replay that are kept: the newest, and the one before it"""
MOST_WAITING = 4
"""commits that may wait for space on the disk, each of up to a pond of steps, before recording is refused"""


class Outflow:
    """Commits the steps of a pond to its lake, at the latest before they are evicted."""

    def __init__(
        self,
        pond: Pond,
        writer: LakeWriter,
        generator: np.random.Generator,
        *,
        keeps_all: bool = True,
        cloud: CloudCopy | None = None,
    ) -> None:
        """`keeps_all`: commit steps before they leave the pond. `generator`: saved with every commit."""
        self._pond, self._cloud, self._generator = pond, cloud, generator
        self._handed = Handed(writer.next_rows(), writer.sources())
        self._ends: dict[int, tuple[bool, bool]] = {}  # flags of steps that changed after their hand-over
        self._committed_links = link_note(pond)
        if cloud is not None:  # before the other one, so that it is called after it
            weakref.finalize(self, _push_at_exit, weakref.ref(self))
        self.background = Background(writer, keeps_all=keeps_all)
        self.lock = threading.RLock()
        """held while steps are submitted for a commit; nothing is recorded meanwhile"""
        self.ended = threading.Event()
        """set when it is closed"""
        self._warned = 0  # failures that have been warned of
        self._asked_for: int | None = None  # the newest commit that `commit_and_push` has pushed
        self.push_failures = 0
        """how often `push_every` could not commit or push"""
        if cloud is not None:
            cloud.wait_with(self.background.wait_for_jobs)
            self.background.after_commit = cloud.committed
        self.background.drop_with(self, lambda: pond.recorded, self.submit_the_rest)
        forks.register(self)

    def restart_in_child(self) -> None:
        """Replace the lock in a forked child, where nothing can be written."""
        self.lock = threading.RLock()

    @property
    def path(self) -> Path:
        """The lake's folder."""
        return self.background.writer.path

    @property
    def url(self) -> str | None:
        """The place of the lake in the cloud, without anything secret; None without a cloud."""
        return None if self._cloud is None else str(self._cloud.cloud)

    def commit(self, note: dict[str, Any]) -> Future[Commit]:
        """Submit all new steps, to be written in the background.

        Atomic: after an interrupt either all steps were submitted, or none and the next commit does it.
        """
        self.background.check()
        with self.lock:
            since = self.background.taken
            if not self.background.keeps_all:
                since = max(since, self._pond.oldest)
            links = link_note(self._pond)
            done = hand_over(
                self._pond,
                since,
                self._handed,
                self.background,
                {**note, **links, **end_note(self._ends)},
                self._generator,
                self._ends,
            )
            self._ends, self._committed_links = {}, links
            return done

    @property
    def is_followed(self) -> bool:
        """Whether a copy of the replay can read all steps from the lake."""
        return self.background.keeps_all and not self.background.forked

    def commit_the_rest(self) -> None:
        """Make all steps durable, if all are kept."""
        if (done := self.submit_the_rest()) is not None:
            done.result()

    def submit_the_rest(self) -> Future[Commit] | None:
        """Submit all steps that were not submitted, if all are kept; None: there is nothing to submit."""
        self.background.check()
        is_new = self.background.taken < self._pond.recorded or bool(self._ends)
        if self.background.keeps_all and (is_new or link_note(self._pond) != self._committed_links):
            return self.commit({})
        return None

    def end(self, stream: int, *, terminated: bool, truncated: bool) -> int:
        """`Pond.end`; the next commit updates the flags of a step that was already submitted."""
        with self.lock:
            step = self._pond.end(stream, terminated=terminated, truncated=truncated)
            if 0 <= step < self.background.taken and not self.background.forked:
                place = self._pond.places(np.array([step]))
                flags = (bool(self._pond.columns[name][place][0]) for name in ("terminated", "truncated"))
                self._ends[step] = (next(flags), next(flags))
            return step

    def make_way(self, count: int) -> None:
        """Commit if `count` new steps would evict steps that are not in the lake yet.

        If that fails, the steps stay in memory and are retried with the next commit, up to `MOST_WAITING`.
        """
        background, pond = self.background, self._pond
        background.check()
        if background.keeps_all and pond.recorded + count - background.taken > pond.capacity:
            if count > pond.capacity:
                raise RecordError(
                    f"{count:,} steps in one call exceed the capacity of "
                    f"{pond.capacity:,}; record fewer at once."
                )
            if background.failure is not None and background.waiting >= MOST_WAITING:
                raise RecordError(
                    f"{background.waiting} commits are waiting to be written ({background.failure}) and no "
                    "more are kept in memory; nothing was recorded: free some space and commit() before "
                    "you continue."
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

    def push_every(self, seconds: float) -> None:
        """Commit and push new steps on a daemon thread, once per `seconds`, until `close`."""
        args = (weakref.ref(self), seconds)
        threading.Thread(target=_push_every, args=args, name="lakepond-push-every", daemon=True).start()

    def commit_and_push(self) -> None:
        """Commit the steps that are not committed yet, and push commits that were not pushed yet."""
        try:
            self.commit_the_rest()
        finally:  # a commit that was made before is pushed, though this one may have failed
            last = self.background.writer.last
            if self._cloud is not None and last is not None and last.number != self._asked_for:
                self._cloud.push_unless_refused()
                self._asked_for = None if self._cloud.pusher.gave_up_recently else last.number

    def lake(self, commit: int | None) -> Lake:
        """The lake, to read: the newest commit of this writer, or the one with that number."""
        segments = None if self._cloud is None else self._cloud.segments
        return Lake.open(self.path, commit, writer=self.background.writer.name, segments=segments)

    def close(self, *, discard: bool = False) -> None:
        """Commit the remaining steps, release the lake, and push if there is a cloud.

        If it raises, the connection stays open and `close` can be called again. `discard`: drop steps that
        could not be committed. Does nothing in a forked child.
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
            self.ended.set()
        if self._cloud is not None:
            self._cloud.close()


def _push_at_exit(outflow_ref: weakref.ref[Outflow]) -> None:
    """Push the last commit when the interpreter exits, as `close` does, unless it was closed."""
    outflow = outflow_ref()
    if outflow is not None and not outflow.ended.is_set() and not outflow.background.forked:
        assert outflow._cloud is not None
        outflow._cloud.close()


def _push_every(outflow: weakref.ref[Outflow], seconds: float) -> None:
    """Until the replay is closed or dropped. Errors are counted; each reason is logged once."""
    reasons = Reasons()
    while True:
        current = outflow()
        if current is None or current.background.stopped:
            return
        ended = current.ended
        try:
            current.commit_and_push()
            reasons.clear()
        except ReplayClosed:
            return
        except Exception as error:
            if ended.is_set():
                return
            current.push_failures += 1
            if reasons.is_new(error):
                text = f"{type(error).__name__}: {error}"
                log.warning("%s: new steps were not committed or pushed: %s", current.path, text)
        del current
        if ended.wait(seconds):
            return


def find_or_make(path: Path, spec: Spec | None, cloud: Cloud | None = None) -> Spec:
    """The spec of the lake at a path; the lake is created for `spec` if there is none.

    `cloud`: where none was pulled from, for the message.
    """
    if spec is not None and not (path / description.NAME).exists():
        create(path, description.describe(spec))
    elif spec is None and not (path / description.NAME).exists():
        where = path if cloud is None else f"{path}, and none was pulled from {cloud}"
        raise NoLakeToOpen(f"found no lake at {where}; pass a spec to create one.")
    known = description.read(path)
    if spec is not None and spec != known:
        raise SpecError(
            f"{path} was created with a different spec: {spec.differences(known)}. Omit spec to use that "
            "of the lake; to add a field, copy its steps to a new lake (docs/howto/add-a-field.md)."
        )
    return known


def continue_lake(
    pond: Pond,
    writer: LakeWriter,
    commit: int | Start | None,
    cloud: CloudCopy | None,
    generator: np.random.Generator,
) -> Outflow:
    """Load a new pond from the commit that its writer continues, and return its connection to the lake.

    `generator`: of the replay; set to the state that the commit stores.
    """
    path, name = writer.path, writer.name
    try:
        last = commit_to_follow(path, commit, name)
        if last is None and commit is None and commits.numbers(writers.home(path, name) / "commits"):
            raise LakeCorrupt(f"{path} has commits and none of them is intact; run `lakepond repair`.")
        if last is not None:
            writer.continue_from(last)
            if cloud is not None:
                cloud.continue_from(last)
            with Lake(path, pond.spec, {name: last}, None if cloud is None else cloud.segments) as lake:
                lake_to_pond.resume(lake, pond)
            pond.cut(cut_streams(last))
            if last.generator is not None:
                set_state(generator, last.generator)
        return Outflow(pond, writer, generator, cloud=cloud)
    except BaseException:
        writer.close()
        raise


def save_to(pond: Pond, path: Path, codec: str, merge_after: int, generator: np.random.Generator) -> Outflow:
    """Create a lake for saves of a pond; steps evicted between two saves are not stored."""
    writer = _new_lake(pond, path, codec, merge_after)
    return Outflow(pond, writer, generator, keeps_all=False)


def write_snapshot(
    pond: Pond, path: Path, codec: str, generator: np.random.Generator, note: dict[str, Any]
) -> Commit:
    """Write the live steps of a pond to a new lake, durable on return; the pond's own lake is unchanged."""
    writer = _new_lake(pond, path, codec, None)
    try:
        with pond.reading():  # steps and links of the same moment
            new, links = copy_of(pond, generator), link_note(pond)
        try:
            return writer.commit(new, {**note, **links})
        finally:
            new.release()
    finally:
        writer.close()


def _new_lake(pond: Pond, path: Path, codec: str, merge_after: int | None) -> LakeWriter:
    if path.exists() and not is_empty_lake(path):
        raise SpecError(f"{path} already exists; load it to continue with it, or save to another folder.")
    find_or_make(path, pond.spec)
    return LakeWriter(
        path,
        len(pond.leaves),
        codec=codec,
        max_steps=pond.capacity,
        keep_last=KEPT_SAVES,
        merge_after=merge_after,
    )


def is_empty_lake(path: Path) -> bool:
    """Whether a folder contains only a lake without a commit, for example after a killed first save."""
    own = {description.NAME, "segments", "commits", "lock", SOURCES}
    strange = any(each.name not in own and each.suffix != TEMPORARY_SUFFIX for each in path.iterdir())
    return not strange and not commits.numbers(path / "commits")


def check_saved(path: str | Path) -> None:
    """Raise `SpecError` unless the lake at a path was made by `save` or `snapshot`."""
    with Lake.open(path) as lake:
        if not lake.commit.note.get("saved"):
            raise SpecError(f"{path} was not written by `save`; use Replay.open to continue it.")


def cloud_copy(
    path: Path,
    spec: Spec | None,
    cloud: str | Cloud | None,
    pull: Literal["lazy", "all"] | None,
    local_budget: int | str | None,
    commit: int | None,
    writer: str,
) -> CloudCopy | None:
    """The cloud copy of a writer's chain, after pulling from it if asked; None without a cloud."""
    if cloud is None:
        if pull is not None or local_budget is not None:
            raise SpecError(
                "pull and local_budget need a cloud; pass its URL, like cloud='gs://bucket/demo'."
            )
        return None
    from lakepond.cloud.place import Cloud
    from lakepond.cloud.store import Store
    from lakepond.flow.lake_and_cloud import CloudCopy

    cloud, budget = Cloud.of(cloud), None if local_budget is None else parse_bytes(local_budget)
    if not writer:
        copy = CloudCopy(path, cloud, Store(cloud), budget)
        copy.begin(pull, commit)
        return copy
    if pull is not None:
        raise SpecError(
            f"pull={pull!r} and writer={writer!r} cannot be combined: only the writer without a name is "
            "continued from the cloud, and a named one from its own disk."
        )
    writers.check_own(writer)
    writers.home(path, writer)  # or its name is not valid
    return CloudCopy.of_named(path, cloud, spec, budget, writer)
