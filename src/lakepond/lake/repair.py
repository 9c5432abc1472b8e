"""Repair a lake: move damaged commits and files to `quarantine/`, so that the intact commits remain."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lakepond.errors import LakeCorrupt, LakeNotFound
from lakepond.lake import writers
from lakepond.lake.files import WriterLock, make_folders, sync_folder, write_path
from lakepond.lake.format import commits, description
from lakepond.lake.read.lake import Lake, check_files

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

    Nothing is deleted. progress: called as `progress(done, total)` after each checked file, in thousandths of
    a commit. Raises `LakeNotFound` if `path` is not a lake, `LakeLocked` while a process writes it.
    """
    path = Path(path)
    spec = description.read(path)
    segments, aside = path / "segments", path / "quarantine"
    homes = [writers.home(path, writer) for writer in writers.names(path)]
    with ExitStack() as locks:
        for home in homes:
            locks.enter_context(WriterLock(home / "lock"))
        good: set[str] = set()
        bad: list[tuple[Path, Path]] = []  # where it is, and the quarantine it goes to
        suspects: set[str] = set()
        newest = None
        known = [(home / "commits", n) for home in homes for n in commits.numbers(home / "commits")]
        for i, (folder, number) in enumerate(known):

            def part(done: int, total: int, before: int = i) -> None:
                if progress is not None:
                    progress(1000 * before + 1000 * done // max(1, total), 1000 * len(known))

            file = folder / commits.file_name(number)
            try:
                commit = commits.read(folder, number)
                check_files(path, commit)
                with Lake(path, spec, commit) as lake:
                    lake.verify(progress=part)
            except (LakeCorrupt, LakeNotFound, OSError) as error:
                log.warning("commit %d of %s is damaged: %s", number, folder.parent, error)
                bad.append((file, folder.parent / "quarantine"))
                suspects |= _named(file)
                continue
            good |= set(commit.files())
            newest = number if newest is None else max(newest, number)
        broken = [segments / name for name in sorted(suspects - good) if (segments / name).exists()]
        bad += [(file, aside) for file in broken]
        for file, to in bad:
            make_folders(to)
            _move(file, _unused(to / file.name))
        for changed in {folder for file, to in bad for folder in (to, to.parent, file.parent)}:
            sync_folder(changed)
    return Repaired(newest, tuple(file.name for file, _ in bad))


def _unused(file: Path) -> Path:
    """A name that nothing has: what was moved aside before is not overwritten."""
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


def _named(file: Path) -> set[str]:
    """The files a broken commit names, if it can still be read."""
    try:
        return set(commits.Commit.from_json(file.read_bytes(), file.name).files())
    except (LakeCorrupt, OSError):
        return set()
