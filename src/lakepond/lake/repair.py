"""Repair: back to what is whole; what is broken is moved aside, never deleted."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from lakepond.errors import LakeCorrupt, LakeNotFound
from lakepond.lake import commits, description
from lakepond.lake.files import WriterLock, sync_folder
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
    folder, segments, aside = path / "commits", path / "segments", path / "quarantine"
    with WriterLock(path / "lock"):
        good: set[str] = set()
        bad: list[Path] = []
        suspects: set[str] = set()
        newest = None
        for number in commits.numbers(folder):
            file = folder / commits.file_name(number)
            try:
                commit = commits.read(folder, number)
                check_files(path, commit)
                with Lake(path, spec, commit) as lake:
                    lake.verify()
            except (LakeCorrupt, LakeNotFound, OSError) as error:
                log.warning("commit %d of %s is not whole: %s", number, path, error)
                bad.append(file)
                suspects |= _named(file)
                continue
            good |= set(commit.files())
            newest = number
        bad += [segments / name for name in sorted(suspects - good) if (segments / name).exists()]
        if bad:
            aside.mkdir(exist_ok=True)
            for file in bad:
                file.rename(_unused(aside / file.name))
            for changed in (aside, folder, segments, path):
                sync_folder(changed)
    return Repaired(newest, tuple(file.name for file in bad))


def _unused(file: Path) -> Path:
    """A name that nothing has: what was moved aside before is not overwritten."""
    others = (file.with_name(f"{file.name}.{n}") for n in range(1, 1 << 20))
    return file if not file.exists() else next(other for other in others if not other.exists())


def _named(file: Path) -> set[str]:
    """The files a broken commit names, if it can still be read."""
    try:
        return set(commits.Commit.from_json(file.read_bytes(), file.name).files())
    except (LakeCorrupt, OSError):
        return set()
