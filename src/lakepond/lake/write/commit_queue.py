"""Commits on a thread of their own, in order. A commit that fails stays queued and is retried with the next.

The thread ends when its owner closes it, discards what is queued, or is garbage-collected, or when the
interpreter exits; only then is the lake's lock released. Nothing here refers to the owner or to a caller's
stack frames, so an owner that nobody uses any more is always collected, also after a failure.
"""

from __future__ import annotations

import logging
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from lakepond import forks
from lakepond.errors import ForkedReplay, ReplayClosed
from lakepond.formats import counted
from lakepond.lake.format.commits import Commit
from lakepond.lake.write.handover import HandOver
from lakepond.lake.write.reasons import Reasons
from lakepond.lake.write.writer import LakeWriter

log = logging.getLogger("lakepond")
EXIT_SECONDS = 300.0
"""seconds that the exit of the interpreter waits for commits of a writer that was not closed"""


@dataclass
class CommitJob:
    """One commit to be made."""

    new: HandOver
    note: dict[str, Any]
    done: Future[Commit] | None
    """None once it has failed: an exception refers to the frames of those who waited"""


class Background:
    """Writes submitted jobs one at a time. Its thread is a daemon: a process that exits does not wait for it.

    In a forked child, which has no such thread, `submit` and `flush` raise and the rest does nothing.
    """

    def __init__(self, writer: LakeWriter, *, keeps_all: bool = True) -> None:
        """`keeps_all`: whether every recorded step is meant to be committed."""
        self.writer, self.keeps_all = writer, keeps_all
        self.failure: str | None = None
        """why the oldest job could not be written when it was tried last; None: it is about to be tried"""
        self.failures = 0
        """failed tries so far"""
        self.submitted = 0
        """jobs submitted so far, or one more if a `submit` was interrupted"""
        self._jobs: deque[CommitJob] = deque()
        self._lock = threading.Lock()
        self._wake: SimpleQueue[None] = SimpleQueue()  # unlike a condition, usable by the garbage collector
        self.stopped = False
        """whether it ends, or has ended"""
        self.forked = False
        """whether this is a child of the process that writes"""
        self.after_commit: Callable[[], object] = lambda: None
        """called on the thread after each commit; must return at once, and not refer to the owner"""
        self._give_up = False
        self._recorded = 0
        self._reasons = Reasons()
        self._cleanup_failures = 0
        self._thread = threading.Thread(target=self._work, name="lakepond-commit", daemon=True)
        self._thread.start()
        forks.register(self)

    def drop_with(
        self,
        owner: object,
        recorded: Callable[[], int] = lambda: 0,
        submit_rest: Callable[[], object] | None = None,
    ) -> None:
        """End when `owner` is garbage-collected, or when the interpreter exits.

        `recorded`: steps it had recorded by then. `submit_rest`: its method that submits those that were not
        submitted; called at exit only.
        """
        release = weakref.finalize(owner, self._drop, recorded)
        release.atexit = False
        rest = None if submit_rest is None else weakref.WeakMethod(submit_rest)
        weakref.finalize(self, _finish, weakref.ref(self), release, rest)

    @property
    def waiting(self) -> int:
        """Jobs that are not done."""
        return len(self._jobs)

    @property
    def taken(self) -> int:
        """The id after the last step that was submitted, or that the lake has."""
        with self._lock:
            return self._taken()

    def _taken(self) -> int:
        if self._jobs:
            return self._jobs[-1].new.stop
        return 0 if self.writer.last is None else self.writer.last.recorded

    @property
    def background_failures(self) -> int:
        """Failed merges and deletions of old files, which do not affect commits."""
        return self._cleanup_failures + self.writer.maintenance.failures

    def check(self) -> None:
        """Raise unless jobs can be submitted: not in a forked child, nor after the end."""
        if self.forked:
            raise ForkedReplay(
                f"this process was forked from the one that writes {self.writer.path}: record and commit "
                "there, or open the lake here under a name of its own, writer='worker-1'."
            )
        if self.stopped:
            raise ReplayClosed(
                f"the writer of {self.writer.path} is closed; open the lake again to continue."
            )

    def submit(self, new: HandOver, note: dict[str, Any]) -> Future[Commit]:
        """Commit this after all jobs before it, which are tried again if they failed."""
        self.check()
        done: Future[Commit] = Future()
        done.set_running_or_notify_cancel()  # a job cannot be cancelled
        job = CommitJob(new, note, done)
        with self._lock:
            self.check()  # a thread that has ended would never take it
            self.submitted += 1
            self._jobs.append(job)  # this is the moment: interrupted before it, nothing has happened
            self.failure = None
        self._wake.put(None)
        return done

    def wait_for_jobs(self) -> None:
        """Return when each job submitted so far is on disk, or has failed."""
        with self._lock:
            waiting = [job.done for job in self._jobs if job.done is not None]
        wait(waiting)

    def flush(self) -> Commit | None:
        """Have every job on disk, failed ones tried again; returns the newest commit.

        Raises why one could not be written: all that are not done then stay queued.
        """
        if self.forked:
            self.check()
        with self._lock:
            last = self._jobs[-1] if self._jobs else None
            if last is not None and last.done is None:
                last.done = Future()
            done = None if last is None else last.done
            self.failure = None
        self._wake.put(None)
        return self.writer.last if done is None else done.result()

    def close(self) -> None:
        """`flush`, then end the thread and release the lake. If it raises, nothing has ended."""
        if not self.forked:
            if self._thread.is_alive():
                self.flush()
            self._end()

    def discard(self, recorded: int = 0) -> None:
        """Give up what is queued, and say how many of `recorded` steps that leaves uncommitted; then end."""
        if not self.forked:
            self._recorded, self._give_up = recorded, True
            self._end()

    def _end(self) -> None:
        self.stopped = True
        self._wake.put(None)
        self._thread.join()

    def _drop(self, recorded: Callable[[], int]) -> None:
        """The owner is gone: try what is queued once more, then end. Runs at any moment: takes no lock."""
        self._recorded = recorded()
        self.stopped, self.failure = True, None
        self._wake.put(None)

    def restart_in_child(self) -> None:
        """A forked child has no thread to write with."""
        self.forked = True

    # --- on the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        stopping = False
        while not stopping:
            self._wake.get()
            stopping = self.stopped
            while self._jobs and self.failure is None and not self._give_up:
                self._write(self._jobs[0])
        with self._lock:
            left = list(self._jobs)
            lost = sum(job.new.steps for job in left)
            if self.keeps_all:
                lost += max(0, self._recorded - self._taken())
            self._jobs.clear()
        if lost:
            why = "they were discarded" if self._give_up else "call close() or use `with`"
            why = f"{self.failure}; {why}" if self.failure else why
            were = f"{counted(lost, 'step')} {'was' if lost == 1 else 'were'}"
            log.warning("%s not committed to %s: %s", were, self.writer.path, why)
        self._release(left)
        self._guarded(self.writer.close)

    def _release(self, left: list[CommitJob]) -> None:
        for job in left:
            if job.done is not None:
                job.done.set_exception(
                    ReplayClosed(f"the writer of {self.writer.path} was closed before that.")
                )
            self._guarded(job.new.release)
        left.clear()

    def _write(self, job: CommitJob) -> None:
        before, failures = self.writer.last, self._cleanup_failures
        try:
            self.writer.commit(job.new, job.note)
        except BaseException as error:  # for example, ENOSPC
            if self.writer.last is before:
                del job  # the exception refers to this frame
                self._fail(error)
                return
            self._report(error)
        with self._lock:
            self._jobs.popleft()  # published: what follows cannot undo it
        self._guarded(job.new.release)
        if job.done is not None:
            assert self.writer.last is not None
            job.done.set_result(self.writer.last)
        self._guarded(self.after_commit)
        self._guarded(self.writer.clean_up)
        if self._cleanup_failures == failures:
            self._reasons.clear()

    def _fail(self, error: BaseException) -> None:
        """Keep all jobs queued, and have those who wait for them raise."""
        _clear_frames(error)
        with self._lock:
            self.failure = str(error) or type(error).__name__
            self.failures += 1
            waiting = [job.done for job in self._jobs if job.done is not None]
            for job in self._jobs:
                job.done = None
        for done in waiting:
            done.set_exception(error)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException as error:
            self._report(error)

    def _report(self, error: BaseException) -> None:
        """Log what failed after a commit, once for each reason until all after a commit succeeds.

        The commit is durable, and those to come are not affected.
        """
        _clear_frames(error)
        self._cleanup_failures += 1
        if self._reasons.is_new(error):
            log.warning(
                "%s: the commit is durable; only cleaning up after it failed (reported once): %s: %s",
                self.writer.path,
                type(error).__name__,
                error,
            )


def _finish(
    background_ref: weakref.ref[Background],
    release: Callable[[], object],
    submit_rest: weakref.WeakMethod[Callable[[], object]] | None,
) -> None:
    """At the exit of the interpreter: write what a writer was given and its owner recorded, then end it."""
    background = background_ref()
    if background is None or background.forked or not background._thread.is_alive():
        return
    submit = None if submit_rest is None or background.stopped else submit_rest()
    try:
        if submit is not None:
            submit()
    except Exception as error:
        log.warning("%s: the last steps cannot be committed: %s", background.writer.path, error)
    del submit
    release()
    background._thread.join(EXIT_SECONDS)
    if background._thread.is_alive():
        log.warning("%s: no commit within %.0f s; not waiting", background.writer.path, EXIT_SECONDS)


def _clear_frames(error: BaseException) -> None:
    """Forget the local variables of the failed calls: an exception that a caller keeps must not keep rows."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
