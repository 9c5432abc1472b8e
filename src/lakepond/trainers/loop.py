"""The loop of every trainer: signals, the guard of the disk, the log, checkpoints, pushes, and the end.

    with Loop(run, lake, Guard(run.folder)) as loop:
        while not done and loop.goes_on():
            ...                                             # the trainer's work
            loop.log(step, metrics, number)                 # one line, with what the guard sees
            loop.save(save, due=number % 4 == 0)            # again with the next portion if it fails

At the end of the block everything is saved and pushed, or `RunNotSaved` says what is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Self

from lakepond import stopping
from lakepond.guards import Guard
from lakepond.runs import Run
from lakepond.trainers.pushing import Pushing
from lakepond.trainers.saving import CHECKPOINTS, LOG, Saver


class Loop(Saver):
    """Runs one trainer; saving that fails does not stop it."""

    def __init__(
        self,
        run: Run,
        lake: Any,
        guard: Guard,
        uncommitted: Callable[[], int] | None = None,
        pushing: Pushing | None = None,
    ) -> None:
        """`lake`: closed at the end, may be None; `uncommitted`: its steps that no commit has."""
        of_lake = (lambda: 0) if lake is None else (lambda: int(lake.uncommitted))
        super().__init__(run, uncommitted or of_lake)
        self.guard, self._lake = guard, lake
        self._pushing = pushing or Pushing(run.folder, None)
        self._thread = ThreadPoolExecutor(1, "lakepond-save")
        self._saving: Future[object] | None = None
        self._save: Callable[[], object] | None = None
        self._saved = False

    def goes_on(self) -> bool:
        """Whether to train another portion; raises if a signal has come."""
        stopping.check()
        return not self.guard.stopping

    def log(self, step: int, metrics: Mapping[str, Any], number: int | None = None) -> None:
        """Append a line to the metrics; `number`: that of the portion, whose line has the guard's numbers."""
        line = metrics if number is None else {**metrics, **self.guard.check(number)}
        self.attempt(LOG, partial(self._run.log, step, line))

    def save(
        self,
        save: Callable[[], object],
        *,
        due: bool = True,
        background: Callable[[], object] | None = None,
        push: bool = False,
    ) -> None:
        """Save if it is due, or if something could not be saved; `save` attempts all parts.

        background: write the checkpoint on a thread instead, until `wait`; push: then push the run.
        """
        self._save, self._saved = save, background is not None
        if background is not None:
            self._saving = self._thread.submit(background)
            if push:
                self._pushing.begin(self._saving.result)
        elif due or self.failing:
            save()
            self._saved = due
        self.report()

    def wait(self) -> None:
        """Wait for a checkpoint in the background; before `log`, for it notes where the log ends."""
        saving, self._saving = self._saving, None
        if saving is not None:
            self.attempt(CHECKPOINTS, saving.result)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is None and self._save is not None:
                self.wait()
                if not self._saved:
                    self._save()
                self.finish(self._save)
                self._pushing.finish()
        finally:
            self._thread.shutdown()
            self.close(self._lake)
