"""Tables with bars, the same on the terminal, in Markdown and in JSON."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

Cell = str | float | int | bool | None
PACKAGES = [
    "numpy",
    "numba",
    "pyarrow",
    "zstandard",
    "cpprb",
    "stable-baselines3",
    "tianshou",
    "torchrl",
    "tensordict",
    "torch",
    "ale-py",
]


@dataclass
class Section:
    """One table and what must be known to read it."""

    title: str
    columns: list[str]
    notes: list[str] = field(default_factory=list)
    rows: list[list[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        """One more row; a bool is a bar reached or missed, None is "not applicable"."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns in {self.title!r}")
        self.rows.append(list(cells))

    @property
    def missed(self) -> int:
        """How many bars were missed."""
        return sum(cell is False for row in self.rows for cell in row)

    def markdown(self) -> str:
        """Heading, table, notes."""
        lines = [self.columns, *[[show(cell) for cell in row] for row in self.rows]]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]

        def line(cells: list[str]) -> str:
            padded = [
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
            ]
            return "| " + " | ".join(padded) + " |"

        rule = (
            "|"
            + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths))
            + "|"
        )
        table = [line(lines[0]), rule, *map(line, lines[1:])]
        return (
            "\n".join([f"## {self.title}", "", *table, "", *[f"- {note}" for note in self.notes]]).rstrip()
            + "\n"
        )

    def as_json(self) -> dict[str, object]:
        """The numbers as they were measured."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows, "missed": self.missed, "notes": self.notes}


def show(cell: Cell) -> str:
    """Three digits that matter."""
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "pass" if cell else "**FAIL**"
    if isinstance(cell, str):
        return cell
    if abs(cell) >= 100 or cell == int(cell):
        return f"{cell:,.0f}"
    return f"{cell:.3g}"


def machine() -> dict[str, str]:
    """What a reader needs to compare: processor, cores, memory, load, date, versions."""
    facts = {"date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")}
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = model[0].split(": ")[1] if model else platform.machine()
    cores = len(os.sched_getaffinity(0))
    kernel = platform.release().split("-")[0]
    facts["machine"] = f"{cores} cores of {processor}, {memory:.0f} GB, Linux {kernel}"
    facts["load before"] = f"{os.getloadavg()[0]:.1f} processes"
    versions = [f"Python {platform.python_version()}"]
    for package in ["lakepond", *PACKAGES]:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{package} not installed")
    facts["versions"] = ", ".join(versions)
    return facts


def print_report(run: Callable[[bool], list[Section]]) -> None:
    """Run one benchmark by itself, `--quick` if the command line says so, and print what it measured."""
    for name, fact in machine().items():
        print(f"- {name}: {fact}")
    for section in run("--quick" in sys.argv):
        print(section.markdown())
