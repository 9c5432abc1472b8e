"""Repair: back to the commits that are intact; what is broken is moved to `quarantine/`, never deleted."""

from __future__ import annotations

import errno
import logging
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lakepond.errors import LakeCorrupt, LakeNotFound
from lakepond.lake import commits, description, writers
from lakepond.lake.files import WriterLock, make_folders, sync_folder, write_path
from lakepond.lake.lake import Lake, check_files

log = logging.getLogger("lakepond")


@dataclass(frozen=True)
class Repaired:
    """What a repair found."""

    newest: int | None
    """the newest commit that is whole, now the lake"""
    quarantined: tuple[str, ...]
    """files that were moved to the folder `quarantine`"""


def repair(path: str | Path) -> Repaired:
    """Check every byte of every commit; move those that are not whole, and what broke them, aside."""
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
        for folder, number in [
            (home / "commits", n) for home in homes for n in commits.numbers(home / "commits")
        ]:
            file = folder / commits.file_name(number)
            try:
                commit = commits.read(folder, number)
                check_files(path, commit)
                with Lake(path, spec, commit) as lake:
                    lake.verify()
            except (LakeCorrupt, LakeNotFound, OSError) as error:
                log.warning("commit %d of %s is not whole: %s", number, folder.parent, error)
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
