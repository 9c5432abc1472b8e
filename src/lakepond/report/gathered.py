"""The data of a report, read from a run's folder, whether the run is running, finished or was killed.

config.json · metrics.jsonl · checkpoints/*/state.json · lake/commits · lake/elsewhere · evaluation/
"""

from __future__ import annotations

import csv
from array import array
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from lakepond.errors import LakeError, LakepondError, RunCorrupt
from lakepond.lake.format import commits, description
from lakepond.report.commits import summarise, uploads
from lakepond.runs import Run
from lakepond.runs.metrics import LARGEST, is_number
from lakepond.runs.status import UPLOAD
from lakepond.untrusted import one_line, read_json

MOST_COMMITS = 300
"""most commits that are read, evenly spread, including the first and the last"""
ACCOUNTS = ("champion", "buy_and_hold", "random", "random_same_targets")
"""the accounts of an evaluation"""
MOST_LISTED = 64
"""most members of a list that is drawn"""


@dataclass(frozen=True)
class Series:
    """A metric over the steps at which it was logged; its values are finite."""

    x: array[float] = field(default_factory=lambda: array("d"))
    y: array[float] = field(default_factory=lambda: array("d"))


class Reset(NamedTuple):
    """All agents were replaced by clones of one."""

    step: float
    before: float | None
    after: float | None
    recovered: float | None
    """steps until the level before was reached again; None: not yet"""


@dataclass(frozen=True)
class SavedEvaluation:
    """A champion on days it was not trained on."""

    part: str
    result: dict[str, Any]
    days: list[float]
    """seconds since 1970"""
    equity: dict[str, list[float]]
    trades: list[dict[str, str]]


@dataclass
class RunFolder:
    """One run."""

    name: str
    folder: Path
    about: dict[str, Any]
    """all of config.json"""
    metrics: defaultdict[str, Series] = field(default_factory=lambda: defaultdict(Series))
    lists: dict[str, list[Series]] = field(default_factory=dict)
    """metrics with a value for each agent"""
    resets: list[Reset] = field(default_factory=list)
    growth: list[dict[str, Any]] = field(default_factory=list)
    """commits of the lake, see `commits.summarise`"""
    commits: int = 0
    evaluations: list[SavedEvaluation] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    """bytes of each"""
    uploads: list[dict[str, Any]] = field(default_factory=list)
    """where the newest commit is, see `commits.uploads`"""
    pushed: dict[str, Any] = field(default_factory=dict)
    """the result of the last push: `url`, `time`, `last_error`"""
    first_time: float | None = None
    last_time: float | None = None
    running: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def trainer(self) -> str:
        """Its name."""
        return str(self.about["trainer"])

    @property
    def x_name(self) -> str:
        """The unit of the steps of the log."""
        names = {"erl": "generation", "single": "steps", "mixture": "steps", "live": "steps"}
        return names.get(self.trainer, "step")

    def last(self, name: str) -> float | None:
        """The newest value of a metric."""
        return self.metrics[name].y[-1] if name in self.metrics else None

    def highest(self, name: str) -> float | None:
        """The highest value of a metric."""
        return max(self.metrics[name].y) if name in self.metrics else None

    @contextmanager
    def reading(self, file: Path) -> Iterator[None]:
        """List why a file cannot be read, unless there is none."""
        try:
            yield
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            self.problems.append(f"{file} cannot be read: {one_line(error)}.")


def gather(folder: str | Path) -> RunFolder:
    """Read a run; what cannot be read is listed in `problems`."""
    run = Run.open(folder)
    found = RunFolder(run.folder.resolve().name, run.folder, run.about, running=run.locked())
    try:
        for line in run.history():
            take(found, line)
    except RunCorrupt as error:
        found.problems.append(f"the log is read up to an invalid line: {one_line(error)}.")
    found.resets = find_resets(found)
    for state in sorted(found.folder.glob("checkpoints/[0-9]*/state.json")):
        if state.parent.name.isdigit():
            found.checkpoints.append(sum(f.stat().st_size for f in state.parent.iterdir() if f.is_file()))
    if (run.lake_folder / description.NAME).exists():
        try:
            _read_lake(found, run.lake_folder)
        except (LakepondError, OSError) as error:
            found.problems.append(str(error))
    with found.reading(run.folder / UPLOAD):
        found.pushed = read_json(run.folder / UPLOAD)
    for result in sorted(run.folder.glob("evaluation/**/result.json")):
        with found.reading(result):
            found.evaluations.append(_read_evaluation(result))
    return found


def take(found: RunFolder, line: dict[str, Any]) -> None:
    """Add one line of the log."""
    step, time = line.pop("step"), line.pop("time")
    found.first_time = time if found.first_time is None else found.first_time
    found.last_time = time
    for name, value in line.items():  # of a log with 100,000 lines, this runs millions of times
        kind = type(value)
        if (kind is float or kind is int) and -LARGEST < value < LARGEST:  # a number, and not a bool
            series = found.metrics[name]
            series.x.append(step)
            series.y.append(value)
        elif kind is list and 1 < len(value) <= MOST_LISTED:
            members = found.lists.get(name) or found.lists.setdefault(name, [Series() for _ in value])
            for member, one in zip(members, value, strict=False):
                if is_number(one):
                    member.x.append(step)
                    member.y.append(one)


def find_resets(found: RunFolder) -> list[Reset]:
    """The resets that were logged, and how soon the evaluation reached the level before each again."""

    def logged(name: str) -> list[tuple[float, float]]:
        series = found.metrics.get(name, Series())
        return list(zip(series.x, series.y, strict=True))

    before, after = dict(logged("evaluation_before")), dict(logged("evaluation_after"))
    evaluations, resets = logged("evaluation"), []
    for step, _ in logged("reset"):
        level = before.get(step)
        later = (x - step for x, y in evaluations if x > step and level is not None and y >= level)
        resets.append(Reset(step, level, after.get(step), next(later, None)))
    return resets


def _read_lake(found: RunFolder, lake: Path) -> None:
    spec = description.read(lake)
    numbers = commits.numbers(lake / "commits")
    found.commits = len(numbers)
    most = min(MOST_COMMITS, len(numbers))
    newest = None
    for number in sorted({numbers[round(i * (len(numbers) - 1) / max(1, most - 1))] for i in range(most)}):
        try:
            newest = commits.read(lake / "commits", number)
        except (LakeError, OSError) as error:
            found.problems.append(str(error))
        else:
            found.growth.append(summarise(newest, spec))
    found.uploads = [] if newest is None else uploads(lake, newest)


def _read_evaluation(file: Path) -> SavedEvaluation:
    result = read_json(file)
    for who in ACCOUNTS:
        account = result.get(who)
        values = account.items() if isinstance(account, dict) else ()
        result[who] = {name: value for name, value in values if is_number(value)}
    days: list[float] = []
    equity: defaultdict[str, list[float]] = defaultdict(list)
    for row in _read_table(file.parent / "equity.csv"):
        days.append(datetime.fromisoformat(row.pop("date")).replace(tzinfo=UTC).timestamp())
        for name, value in row.items():
            equity[name].append(_float(value))
    trades = [
        {name: value for name, value in trade.items() if isinstance(value, str)}
        for trade in _read_table(file.parent / "trades.csv")
    ]
    for trade in trades:
        _float(trade.get("profit_percent") or "0")
    return SavedEvaluation(str(result.get("part", file.parent.name)), result, days, equity, trades)


def _read_table(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by the names of their columns; none if there is no file."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as table:
        return list(csv.DictReader(table))


def _float(text: str) -> float:
    """A finite number; ValueError otherwise."""
    value = float(text)
    if not is_number(value):
        raise ValueError(f"{text[:60]!r} is not a finite number")
    return value
