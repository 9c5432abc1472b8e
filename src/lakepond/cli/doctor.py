"""`lakepond doctor`: check this machine before a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

from lakepond.cli import DONE, NO, words
from lakepond.cli.options import Flag, Json, optional

COLOURS = {"pass": "green", "warn": "yellow", "fail": "bold red"}


@dataclass(frozen=True)
class Doctor:
    """Check this machine before a run: software, disk, memory, bucket; exit code 1 if it is not ready.

    Example: lakepond doctor --path runs --cloud gs://my-bucket/runs
    """

    path: Path = Path()
    """folder for the runs; its disk is tested"""
    cloud: Annotated[str | None, optional("URL", "no bucket is tested")] = None
    """a bucket to test by writing, reading and deleting a small object"""
    warm_up: Flag = False
    """compile the functions that the first replay on this machine would compile, about ten seconds"""
    json: Json = False

    def run(self) -> int:
        from lakepond.doctor import examine
        from lakepond.doctor.software import warm_up

        out, found = words.console(), []
        checks = chain(examine(self.path, self.cloud), (warm_up() for _ in range(self.warm_up)))
        for check in checks:
            found.append(check)
            if not self.json:
                colour = COLOURS[check.verdict]
                step = "" if check.next_step is None else f"\n→ {check.next_step}"
                verdict = words.styled((check.verdict, colour))
                result = words.styled(check.result, (step, "dim"))
                out.print(words.line((verdict, 4), (check.name, 11), (result, 0)))
        ready = all(check.verdict != "fail" for check in found)
        if self.json:
            words.print_json({"ready": ready, "checks": [asdict(check) for check in found]})
        elif not ready:
            words.talk("This machine is not ready.")
        return DONE if ready else NO
