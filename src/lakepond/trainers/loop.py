"""The loop of every trainer: signals, the guard of the disk, the log, checkpoints, pushes, and the end.

    with Loop(run, lake, Guard(run.folder)) as loop:
        while not done and loop.continues():
            ...                                             # the trainer's work
            loop.log(step, metrics, number)                 # one line, with what the guard sees
            loop.save(save, due=number % 4 == 0)            # again with the next portion if it fails

At the end of the block everything is saved and pushed, or `RunNotSaved` says what is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from lakepond import stopping
from lakepond.guards import Guard
from lakepond.runs import Run
from lakepond.runs.metrics import Logger
from lakepond.runs.resume import Resume
from lakepond.trainers.pushing import Pushing
from lakepond.trainers.saving import CHECKPOINTS, LAKE, LOG, Saver


class Taken(NamedTuple):
    """A checkpoint that is not on disk yet."""

    number: int
    arrays: dict[str, Any]
    state: dict[str, Any]
    recorded: int
    """steps in the commit of the lake that it names"""


MAY_CHANGE = ("keep_every", "keep_last", "min_free", "push_to", "push_every")
"""settings of every trainer that may differ when a run is resumed"""


def create_run(
    folder: str | Path,
    trainer: str,
    config: Any,
    how: Resume,
    loggers: Sequence[Logger],
    *,
    keep_last: int = 3,
) -> Run:
    """`Run.create` as the trainers of games call it; `keep_last`: newest checkpoints that are always kept."""
    return Run.create(
        folder,
        trainer,
        config,
        may_change=MAY_CHANGE,
        loggers=loggers,
        keep_last=keep_last,
        keep_every=config.keep_every,
        prepare=how.prepare,
    )


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
        self._taken: Taken | None = None

    def continues(self) -> bool:
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

        background: write the checkpoint on a thread instead, until `wait`; push: push the run afterwards.
        """
        self._save, self._saved = save, background is not None
        if background is not None:
            self._saving = self._thread.submit(background)
            if push:
                self._pushing.begin(self._saving.result)
        elif due or self.failing:
            save()
            self._saved = due
            if push:
                self._pushing.begin(lambda: None)
        self.report()

    def take(self, number: int, arrays: dict[str, Any], state: dict[str, Any]) -> None:
        """Note a checkpoint of this moment, all of whose steps were poured; `write_taken` writes it."""
        recorded = 0 if self._lake is None else self._lake.recorded
        state = {**state, "metrics_bytes": self._run.metrics_bytes}
        self._taken = Taken(number, arrays, state, recorded)

    def write_taken(self) -> None:
        """Write the checkpoint that was taken last, unless it is on disk; keep a copy if that fails."""
        if self._taken is None:
            return
        number, arrays, state, recorded = self._taken
        commit = None
        if self._lake is not None:
            commit = self.attempt(LAKE, partial(self._lake.commit_at, recorded))
            if commit is None and recorded and LAKE not in self.failing:
                self._taken = None  # too late: `keep_last` has deleted its commit; the next one is written
                return
        state = {**state, "lake_commit": None if commit is None else commit.number}
        if LAKE not in self.failing and self.checkpoint(partial(self._run.save, number, arrays, state)):
            self._taken = None
        else:  # training reuses the memory of the arrays
            import jax

            self._taken = self._taken._replace(arrays=jax.tree.map(np.array, arrays))

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
