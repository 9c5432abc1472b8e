"""Commits on a thread of their own, in order; what fails is kept and tried again with the next one."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from lakepond.lake.commits import Commit
from lakepond.lake.handover import HandOver
from lakepond.lake.writer import LakeWriter


class Job(NamedTuple):
    """One commit to be made."""

    new: HandOver
    note: dict[str, Any]
    done: Future[Commit]


class Background:
    """Hands over to the writer, one job at a time. Daemon: a process that exits does not wait for it."""

    def __init__(self, writer: LakeWriter) -> None:
        self.writer = writer
        self.failure: BaseException | None = None
        """why the oldest job has not been done yet, if it was tried"""
        self.submitted = 0
        """how many jobs there have been, or one more, if one was interrupted"""
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        self._stop = self._dropped = False
        self._thread = threading.Thread(target=self._work, name="lakepond-commit", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that are not done."""
        return len(self._jobs)

    @property
    def taken(self) -> int:
        """The id after the last step that was submitted, or that the lake has."""
        with self._lock:
            if self._jobs:
                return self._jobs[-1].new.stop
            return 0 if self.writer.last is None else self.writer.last.recorded

    def submit(self, new: HandOver, note: dict[str, Any]) -> Future[Commit]:
        """Commit this after all that was handed over before it."""
        job = Job(new, note, Future())
        with self._lock:  # not the condition: an interrupt in its Python would leave it locked
            self.submitted += 1
            self._jobs.append(job)  # this is the moment: interrupted before it, nothing has happened
            self.failure = None  # try again
            self._change.notify_all()
        return job.done

    def settle(self) -> None:
        """Return when all that was submitted is on disk, or failed."""
        with self._change:
            waiting = [job.done for job in self._jobs]
        wait(waiting)

    def flush(self) -> Commit | None:
        """Have every job on disk, failed ones tried again; returns the newest commit.

        Raises why one could not be written: all that are not done then stay queued.
        """
        with self._change:
            if self.failure is not None:  # the thread waits, and who waited for these has had the error
                self._jobs = deque(job._replace(done=Future()) for job in self._jobs)
                self.failure = None
                self._change.notify_all()
            last = self._jobs[-1].done if self._jobs else None
        return self.writer.last if last is None else last.result()

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._stop or (self._jobs and self.failure is None))
                if not self._jobs or self.failure is not None:
                    break
                job = self._jobs[0]
            try:
                commit = self.writer.commit(job.new, job.note)
                job.new.release()
            except BaseException as error:  # ENOSPC, say: the job stays first in line, its rows stay held
                with self._change:
                    self.failure = error
                    waiting = list(self._jobs)
                    self._change.notify_all()
                for each in waiting:
                    if not each.done.done():
                        each.done.set_exception(error)
                continue
            with self._change:
                self._jobs.popleft()
                self._change.notify_all()
            if not job.done.done():
                job.done.set_result(commit)
            del job, commit  # or what they hold would stay until the next one
        if self._dropped:
            self.writer.close()

    def drop(self) -> None:
        """Nobody will submit more: finish what was handed over, and let others write. Does not wait."""
        with self._change:
            self._dropped = self._stop = True
            self._change.notify_all()

    def close(self) -> None:
        """Finish what can be finished; raises why something could not be."""
        with self._change:
            self.failure = None
            self._stop = True
            self._change.notify_all()
        self._thread.join()
        self.writer.close()
        if self.failure is not None:
            raise self.failure
