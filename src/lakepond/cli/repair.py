"""`lakepond repair`: restore the newest intact commit of a damaged lake."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tyro.conf import Positional

from lakepond.cli import NO, where, words
from lakepond.cli.options import Json


@dataclass(frozen=True)
class Repair:
    """Restore the newest intact commit of a damaged lake; damaged files are moved to quarantine/.

    Example: lakepond repair runs/demo
    """

    path: Positional[Path]
    """a lake, or a run; no process may be writing it"""
    json: Json = False

    def run(self) -> int | None:
        from lakepond.lake.repair import repair

        folder = where.lake_folder(self.path)
        with words.progress("checking every commit") as progress:
            found = repair(folder, progress=progress)
        if self.json:
            words.print_json({"lake": folder, **asdict(found)})
        elif found.newest is None:
            print(f"{folder}: no commit is intact. The damaged files are in {folder / 'quarantine'}.")
        elif not found.quarantined:
            print(f"{folder}: intact, nothing to repair; the newest commit is {found.newest}.")
        else:
            print(f"{folder}: commit {found.newest} is the newest intact commit. Moved to quarantine/:")
            print("\n".join(f"  {name}" for name in found.quarantined))
        return NO if found.newest is None else None

    def interrupted(self) -> str:
        return "Nothing was deleted; run `lakepond repair` again to finish."
