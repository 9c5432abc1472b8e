"""How every trainer starts: from a checkpoint with the commit of the lake it names, or new.

    how = Resume(start_over=False)
    with Run.create(folder, ..., prepare=how.prepare) as run:
        checkpoint, lake = how.take_up(run, arrays, state, open_lake)

A new run writes checkpoint 0, its initial state, before its lake exists. So a run that was killed at any
later moment has a checkpoint to resume from, and experience without any checkpoint is not of an interrupted
start: it is never deleted, and training into its folder is refused.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lakepond.errors import ConfigError, LakeCorrupt, LakeError, LakeNotFound, RunCorrupt, RunNotFound
from lakepond.lake import elsewhere, writers
from lakepond.lake.files import sync_folder
from lakepond.lake.format import commits, description
from lakepond.lake.format.commits import Start
from lakepond.lake.format.names import folder_of
from lakepond.lake.lock import WriterLock
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.read.lake import Lake
from lakepond.lake.segments import Segments
from lakepond.paths import on_disk
from lakepond.runs.checkpoints import Checkpoint, Checkpoints
from lakepond.runs.run import CONFIG, METRICS, WORKERS, Run

log = logging.getLogger("lakepond")
OLD = "old-"
"""how the names of the folders begin that `start_over` moves a run's files to"""
OWN: tuple[str, ...] = (
    "lake",
    WORKERS,
    "checkpoints",
    METRICS,
    "market.json",
    "result.json",
    "upload.json",
    "evaluation",
    "report.html",
    "tensorboard",
    "wandb",
    CONFIG,
)
"""what a run writes to its folder, in the order in which `start_over` moves it"""


class Closable(Protocol):
    """A replay or a lake that is being written."""

    def close(self) -> Any:
        """Release its lock."""


Opened = TypeVar("Opened", bound=Closable | None)


@dataclass(frozen=True)
class Resume:
    """How a trainer treats what its folder holds."""

    required: bool = False
    """there must be a run to resume"""
    number: int | None = None
    """resume from this checkpoint; None: from the newest that can be used"""
    start_over: bool = False
    """move the files of the folder to a dated one and start a new run"""

    def find(self, folder: str | Path) -> None:
        """`RunNotFound` if there must be a run in `folder` and there is none; before anything is created."""
        folder = on_disk(folder)
        if self.start_over and self.required:
            raise ConfigError("--resume and --start-over exclude each other; give one of them.")
        if self.required and not (folder / CONFIG).is_file():
            names = [each.parent.name for each in folder.absolute().parent.glob(f"*/{CONFIG}")]
            near = difflib.get_close_matches(folder.name, names, 3, 0.5)
            listed = " or ".join(str(folder.with_name(name)) for name in near)
            hint = f"did you mean {listed}?" if near else "`lakepond ls` lists the runs below a folder."
            raise RunNotFound(f"{folder} has no run to resume; {hint}")

    def prepare(self, folder: Path) -> None:
        """Refuse to train into `folder`, or move its files away; the caller holds the folder's lock.

        `LakeLocked` if a process writes the lake in it. Nothing is written unless `start_over` moves files.
        """
        with _no_writer(folder / "lake"):
            if self.start_over:
                move_away(folder)
                return
            known = Checkpoints(folder / "checkpoints").numbers()
            if not known and (held := _data(folder)):
                raise ConfigError(
                    f"{folder} contains {held} and no checkpoint; choose another folder (--out), or move "
                    f"that to {folder}/{OLD}<time> and train there (--start-over)."
                )

    def take_up(
        self,
        run: Run,
        arrays: Mapping[str, Any],
        state: Mapping[str, Any],
        open_lake: Callable[[int | Start], Opened],
    ) -> tuple[Checkpoint | None, Opened]:
        """The checkpoint that training resumes from, None for a new run, and the lake opened at its commit.

        `arrays` and `state` are those of a new run; they are saved as checkpoint 0. `state["lake_commit"]` is
        the number of a commit, None for an empty lake. Later checkpoints and metrics are dropped once the
        lake is open, that is, while no other process can write it.
        """

        def at(number: int) -> tuple[Checkpoint, Opened]:
            """A checkpoint, and the lake at its commit."""
            checkpoint = run.load(number, like=arrays)
            _check_state(checkpoint, state)
            run.log_end(checkpoint)
            commit = checkpoint.state["lake_commit"] if "lake_commit" in state else None
            if commit is None:
                return checkpoint, open_lake(Start.EMPTY)
            Lake.open(run.lake_folder, commit, writer="").close()  # else opening to write creates a lake
            try:
                return checkpoint, open_lake(commit)
            except LakeCorrupt:
                _check_here(run.folder, commit)
                raise

        checkpoint: Checkpoint | None = None
        if self.number is not None:
            checkpoint, lake = at(self.number)
        elif run.checkpoints():
            checkpoint, lake = _newest_usable(run, at)
        else:
            run.save(0, arrays, state)
            lake = open_lake(Start.EMPTY)
        try:
            if checkpoint is not None:
                run.rewind(checkpoint)
            run.start_session()
        except BaseException:
            if lake is not None:
                lake.close()
            raise
        return checkpoint, lake


def _newest_usable(run: Run, at: Callable[[int], tuple[Checkpoint, Opened]]) -> tuple[Checkpoint, Opened]:
    """The newest checkpoint that can be resumed, and the lake at its commit; `RunCorrupt` if there is none.

    Checkpoint 0 is used only if it is the only one: it has nothing to resume.
    """
    known = run.checkpoints()
    skipped: list[str] = []
    for number in reversed([each for each in known if each] or known):
        try:
            found = at(number)
        except (RunCorrupt, LakeCorrupt, LakeNotFound) as error:
            skipped.append(f"checkpoint {number}: {error}")
            continue
        for each in skipped:
            log.warning("%s: skipping %s", run.folder, each)
        if skipped:
            log.warning(
                "%s: resuming from checkpoint %d; the later ones are kept as checkpoints/*.dropped.",
                run.folder,
                number,
            )
        return found
    raise RunCorrupt(
        f"no checkpoint of {run.folder} can be resumed ({' '.join(skipped)}); restore the files, pull "
        f"the run from the bucket it was pushed to, or start over (--start-over), which moves its files "
        f"to {run.folder}/{OLD}<time>."
    )


def move_away(folder: Path) -> Path | None:
    """Move the files of a run to `<folder>/old-<UTC time>` and return that; None if there are none.

    The caller holds the locks of the run and of its lake. If it is killed, another call moves the rest.
    """
    held = [folder / name for name in OWN if (folder / name).is_symlink() or (folder / name).exists()]
    if not held:
        return None
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in count(1):
        old = folder / (f"{OLD}{now}" if number == 1 else f"{OLD}{now}-{number}")
        try:
            old.mkdir()
            break
        except FileExistsError:
            continue
    sync_folder(folder)  # or a power cut loses the new folder with what is moved to it
    for path in held:
        path.rename(old / path.name)
    sync_folder(old)
    sync_folder(folder)
    log.warning("moved the files of %s to %s", folder, old)
    return old


@contextmanager
def _no_writer(lake: Path) -> Iterator[None]:
    """Until this ends no other process writes the lake; `LakeLocked` if one does now."""
    with ExitStack() as locks:
        if (lake / description.NAME).exists():
            for name in writers.names(lake):
                locks.enter_context(WriterLock(writers.home(lake, name) / "lock"))
        yield


def _data(folder: Path) -> str:
    """What a folder holds of experience and metrics, in words; empty if nothing."""
    lake, found = folder / "lake", []
    homes = [writers.home(lake, name) for name in writers.names(lake)]
    if kept := sum(len(commits.numbers(home / "commits")) for home in homes):
        try:
            with Lake.open(lake) as opened:
                steps = f"{len(opened):,} steps"
        except LakeError as error:
            steps = f"unreadable steps ({error})"
        found.append(f"{steps} in {kept:,} commits of {lake}")
    file = folder / METRICS
    if file.is_file() and (size := file.stat().st_size):
        found.append(f"{size:,} bytes of {file}")
    return " and ".join(found)


def _check_state(checkpoint: Checkpoint, like: Mapping[str, Any]) -> None:
    """`RunCorrupt` unless a checkpoint's state has the entries of a new run's, each of the same kind."""
    commit = checkpoint.state.get("lake_commit")
    wrong = [
        name for name in like if name not in checkpoint.state or not _fits(checkpoint.state[name], like[name])
    ]
    if commit is not None and (type(commit) is not int or commit < 0):
        wrong.append("lake_commit")
    if wrong:
        raise RunCorrupt(f"state.json of {checkpoint.folder} has no valid {wrong[0]}.")


def _fits(value: Any, like: Any) -> bool:
    """Whether a value from JSON is of the kind of another; None stands for a number that is not known yet."""
    if isinstance(like, Mapping):
        return isinstance(value, dict) and all(
            name in value and _fits(value[name], like[name]) for name in like
        )
    if isinstance(like, list):
        return isinstance(value, list) and all(type(each) in (int, float) for each in value)
    return type(value) in (int, float) or (value is None and like is None)


def _check_here(folder: Path, commit: int) -> None:
    """`LakeError` if files of a commit are only in the cloud: they are not lost, so nothing is skipped."""
    lake = folder / "lake"
    there = elsewhere.known(lake)
    away: list[str] = []

    def note_away(name: str) -> bool:
        gone = name in there and not (lake / folder_of(name) / name).exists()
        away.extend([name] if gone else [])
        return gone

    found = commits.read(lake / "commits", commit)
    catalog = Catalog(found, Segments(lake))
    for leaf, listed in found.lists():
        for name, _ in catalog.files_below(leaf, listed, skip=note_away):  # of a manifest that is here
            note_away(name)
    for info in found.weights:
        note_away(f"{info.digest}.steps")
    if away:
        url = there[away[0]].removesuffix("/lake")
        raise LakeError(
            f"{len(away):,} files of commit {commit} of {lake} are only at {url}; "
            f"`lakepond pull {url} {folder}` fetches them."
        )
