"""Repair a lake: move damaged commits and files to `quarantine/`, so that the intact commits remain."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from lakepond.errors import LakeCorrupt, LakeNotFound, LakeTooNew
from lakepond.lake import writers
from lakepond.lake.elsewhere import known
from lakepond.lake.files import make_folders, sync_folder, write_path
from lakepond.lake.format import commits, description
from lakepond.lake.format.names import SOURCES, is_shared
from lakepond.lake.lock import WriterLock
from lakepond.lake.read.lake import Lake
from lakepond.lake.read.verify import THREADS, Check, checks
from lakepond.lake.read.weights import read_weights
from lakepond.types import Spec

log = logging.getLogger("lakepond")


@dataclass(frozen=True)
class Repaired:
    """Result of `repair`."""

    newest: int | None
    """the newest intact commit, which the lake now shows"""
    quarantined: tuple[str, ...]
    """files that were moved to the folder `quarantine`"""


def repair(path: str | Path, *, progress: Callable[[int, int], None] | None = None) -> Repaired:
    """Check every byte of every commit; move damaged commits and damaged files to the folder `quarantine`.

    Each file is read once, on two threads, however many commits name it. Nothing is deleted. progress: called
    as `progress(done, total)` after each commit. Raises `LakeNotFound` if `path` is not a lake, `LakeLocked`
    while a process writes it, and `LakeTooNew` if a later version wrote a part of it.
    """
    path = Path(path)
    spec = description.read(path)
    homes = {writer: writers.home(path, writer) for writer in writers.names(path)}
    with ExitStack() as locks:
        for home in homes.values():
            locks.enter_context(WriterLock(home / "lock"))
        known_commits = [(w, n) for w, home in homes.items() for n in commits.numbers(home / "commits")]
        newest = None
        moves: list[tuple[Path, Path]] = []  # a file, and the quarantine it goes to
        with ThreadPoolExecutor(THREADS, "lakepond-repair") as pool:
            verdicts = {writer: _Verdicts(path, spec, writer, pool) for writer in homes}
            for i, (writer, number) in enumerate(known_commits):
                home = homes[writer]
                if verdicts[writer].check(number):
                    newest = number if newest is None else max(newest, number)
                else:
                    moves.append((home / "commits" / commits.file_name(number), home / "quarantine"))
                if progress is not None:
                    progress(i + 1, len(known_commits))
        needed = {name for each in verdicts.values() for name in each.needed if is_shared(name)}
        for writer, home in homes.items():
            moves += [(file, home / "quarantine") for file in verdicts[writer].unneeded()]
        suspects = {name for each in verdicts.values() for name in each.suspects if is_shared(name)}
        moves += [
            (file, path / "quarantine")
            for name in sorted(suspects - needed)
            if (file := path / SOURCES / name).exists()
        ]
        for file, to in moves:
            make_folders(to)
            _move(file, _unused(to / file.name))
        for home in {home for home in homes.values() if any(to == home / "quarantine" for _, to in moves)}:
            (home / "commits" / commits.NEWEST).unlink(missing_ok=True)
        for changed in {folder for file, to in moves for folder in (to, to.parent, file.parent)}:
            sync_folder(changed)
    return Repaired(newest, tuple(file.name for file, _ in moves))


class _Verdicts:
    """Which files of a writer are intact; each is read once."""

    def __init__(self, path: Path, spec: Spec, writer: str, pool: ThreadPoolExecutor) -> None:
        self._path, self._spec, self._writer, self._pool = path, spec, writer, pool
        self._home = writers.home(path, writer)
        self._intact: set[str] = set()
        self._damaged: dict[str, LakeCorrupt] = {}
        self.suspects: set[str] = set()
        """files of damaged commits"""
        self.needed: set[str] = set()
        """files of intact commits"""

    def check(self, number: int) -> bool:
        """Whether a commit and all its files are intact."""
        try:
            commit = commits.read(self._home / "commits", number)
        except (LakeCorrupt, OSError) as error:
            self._report(number, error)
            return False
        names: list[str] = []
        try:
            with Lake(self._path, self._spec, {self._writer: commit}) as lake:
                found = [check for check in checks(lake) if not names.append(check.name)]  # type: ignore[func-returns-value]
                elsewhere = known(self._path)
                for check in found:
                    if (
                        check.name not in elsewhere
                        and lake.reader.heads[0].segments.local(check.name) is None
                    ):
                        raise LakeCorrupt(f"{check.name} is missing")
                self._run([check for check in found if check.name not in self._intact])
                head = lake.reader.heads[0]
                read_weights(replace(commit), head.segments, reachable=True)
        except LakeTooNew:
            raise
        except (LakeCorrupt, LakeNotFound, OSError) as error:
            self._report(number, error)
            self.suspects.update(names)
            return False
        self.needed.update(names)
        return True

    def _run(self, waiting: list[Check]) -> None:
        """Check files that were not checked yet; raises the first error."""
        todo = [check for check in waiting if check.name not in self._damaged]

        def result(check: Check) -> LakeCorrupt | None:
            try:
                check.run()
            except (LakeCorrupt, OSError) as error:
                return error if isinstance(error, LakeCorrupt) else LakeCorrupt(str(error))
            return None

        for check, error in zip(todo, self._pool.map(result, todo), strict=True):
            if error is None:
                self._intact.add(check.name)
            else:
                self._damaged[check.name] = error
        for check in waiting:
            if check.name in self._damaged:
                raise self._damaged[check.name]

    def unneeded(self) -> list[Path]:
        """Files of damaged commits that no intact commit needs."""
        folder = self._home / "segments"
        return [folder / name for name in sorted(self.suspects - self.needed) if (folder / name).exists()]

    def _report(self, number: int, error: Exception) -> None:
        log.warning("commit %d of %s is damaged: %s", number, self._home, error)


def _unused(file: Path) -> Path:
    """A name that no file has: earlier files in the quarantine are not overwritten."""
    others = (file.with_name(f"{file.name}.{n}") for n in range(1, 1 << 20))
    return file if not file.exists() else next(other for other in others if not other.exists())


def _move(file: Path, to: Path) -> None:
    """Rename a file, or copy it and then delete it if `segments/` is a link to another disk."""
    try:
        file.rename(to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise

        def copy(temporary: Path) -> None:
            shutil.copyfile(file, temporary)

        write_path(to, copy)
        file.unlink()
