"""Commits on a thread of their own, in order; what fails is kept and tried again with the next one."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
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
        self._jobs: deque[Job] = deque()
        self._change = threading.Condition()
        self._stop = self._dropped = False
        self._thread = threading.Thread(target=self._work, name="lakepond-commit", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that are not done."""
        return len(self._jobs)

    def submit(self, new: HandOver, note: dict[str, Any]) -> Future[Commit]:
        """Commit this after all that was handed over before it."""
        job = Job(new, note, Future())
        with self._change:
            self._jobs.append(job)
            self.failure = None  # try again
            self._change.notify_all()
        return job.done

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
