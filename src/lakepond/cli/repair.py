"""`lakepond repair`: back to what is whole."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tyro.conf import Positional

from lakepond.cli import NO, where, words


@dataclass(frozen=True)
class Repair:
    """Move what is damaged aside, into quarantine/, so that the lake is its newest whole commit.

    Example: lakepond repair runs/demo
    """

    path: Positional[Path]
    """a lake, or a run; nothing may be writing it"""
    json: bool = False
    """print JSON instead of lines"""

    def run(self) -> int | None:
        """Check every byte, move, tell; exit code 1 if no commit is whole."""
        from lakepond.lake.repair import repair

        folder = where.lake_folder(self.path)
        found = repair(folder)
        if self.json:
            words.print_json({"lake": folder, **asdict(found)})
        elif found.newest is None:
            print(f"{folder}: no commit is whole. What there was is in {folder / 'quarantine'}.")
        elif not found.quarantined:
            print(f"{folder}: whole, nothing to repair; the newest commit is {found.newest}.")
        else:
            print(f"{folder}: commit {found.newest} is the newest that is whole. Moved to quarantine/:")
            print("\n".join(f"  {name}" for name in found.quarantined))
        return NO if found.newest is None else None

    def interrupted(self) -> str:
        """What to know after Ctrl-C."""
        return "Nothing was deleted; run `lakepond repair` again to finish."
