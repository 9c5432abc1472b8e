"""`lakepond report`: one page about one run or several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lakepond.cli import words


@dataclass(frozen=True)
class Report:
    """Write one page about a run, or about several side by side: curves, trades, lake, time, memory.

    Example: lakepond report runs/demo

    Example: lakepond report runs/a runs/b --out compared.html --figures figures
    """

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...")]
    """folders of runs; finished, running or dead"""
    out: Annotated[
        Path | None,
        arg(metavar="FILE", help_behavior_hint="(default: RUN/report.html; of several: report.html)"),
    ] = None
    """the page; it needs no other file and no network"""
    figures: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = None
    """where to write each figure as SVG and as PNG"""
    json: bool = False
    """print the files written as JSON"""

    def run(self) -> None:
        """Read, write, tell where."""
        from lakepond.errors import ConfigError
        from lakepond.report.page import write_report

        if not self.runs:
            raise ConfigError("report needs at least one run; `lakepond ls` lists those below a folder.")
        out = self.out or (self.runs[0] / "report.html" if len(self.runs) == 1 else Path("report.html"))
        written = write_report(self.runs, out, pictures=self.figures)
        if self.json:
            words.print_json({"page": written[0], "figures": written[1:]})
            return
        print(written[0])
        if len(written) > 1:
            words.talk(f"{len(written) - 1} figures are in {self.figures}.")
