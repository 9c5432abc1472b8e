"""`lakepond report`: an HTML page about one run or several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lakepond.cli import words
from lakepond.cli.options import Flag, optional


@dataclass(frozen=True)
class Report:
    """Write an HTML page about a run, or several side by side: curves, trades, lake, time, memory.

    Example: lakepond report runs/demo

    Example: lakepond report runs/a runs/b --out compared.html --figures figures
    """

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...", help_behavior_hint="")]
    """folders of runs; finished, running or stopped"""
    out: Annotated[Path | None, optional("FILE", "RUN/report.html; report.html for several")] = None
    """file to write; it needs no other file and no network"""
    figures: Annotated[Path | None, optional("FOLDER", "none")] = None
    """folder to write each figure to, as SVG and PNG"""
    json: Flag = False
    """print the names of the written files as JSON"""

    def run(self) -> None:
        from lakepond.errors import ConfigError
        from lakepond.report.page import write_report

        if not self.runs:
            raise ConfigError("report needs at least one run; `lakepond ls` lists the runs below a folder.")
        out = self.out or (self.runs[0] / "report.html" if len(self.runs) == 1 else Path("report.html"))
        written = write_report(self.runs, out, pictures=self.figures)
        if self.json:
            words.print_json({"page": written[0], "figures": written[1:]})
            return
        print(written[0])
        if len(written) > 1:
            words.talk(f"{len(written) - 1} figures are in {self.figures}.")
