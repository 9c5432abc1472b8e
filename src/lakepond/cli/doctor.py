"""`lakepond doctor`: is this machine ready for a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from lakepond.cli import DONE, NO, words

COLOURS = {"pass": "green", "warn": "yellow", "fail": "bold red"}


@dataclass(frozen=True)
class Doctor:
    """Look whether this machine is ready for a run; exit code 1 if it is not.

    Example: lakepond doctor --path runs --cloud gs://my-bucket/runs
    """

    path: Path = Path()
    """where runs will be: that disk is tried"""
    cloud: Annotated[str | None, arg(metavar="URL", help_behavior_hint="(default: no bucket is tried)")] = (
        None
    )
    """a bucket to write to, read from and delete from"""
    warm_up: bool = False
    """compile now what the first replay on this machine would compile, in about ten seconds"""
    json: bool = False
    """print JSON instead of lines"""

    def run(self) -> int:
        """Print each check as it is done."""
        from lakepond.doctor import examine
        from lakepond.doctor.warm_up import warm_up

        out, found = words.console(), []
        checks = chain(examine(self.path, self.cloud), (warm_up() for _ in range(self.warm_up)))
        for check in checks:
            found.append(check)
            if not self.json:
                colour = COLOURS[check.verdict]
                told = check.told if check.next_step is None else f"{check.told}\n[dim]→ {check.next_step}[/]"
                out.print(words.line((f"[{colour}]{check.verdict}[/]", 4), (check.name, 11), (told, 0)))
        ready = all(check.verdict != "fail" for check in found)
        if self.json:
            words.print_json({"ready": ready, "checks": [asdict(check) for check in found]})
        elif not ready:
            words.talk("This machine is not ready.")
        return DONE if ready else NO
