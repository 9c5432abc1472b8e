"""The data of a report, read from a run's folder, whether the run is running, finished or was killed.

config.json · metrics.jsonl · checkpoints/*/state.json · lake/commits · lake/elsewhere · evaluation/
"""

from __future__ import annotations

import csv
from array import array
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from lakepond.errors import LakeError, LakepondError, RunCorrupt
from lakepond.lake.elsewhere import Segments, known
from lakepond.lake.format import commits, description
from lakepond.lake.read.catalog import Catalog
from lakepond.runs import Run
from lakepond.runs.metrics import LARGEST, is_number
from lakepond.runs.status import UPLOAD
from lakepond.types import Spec
from lakepond.untrusted import one_line, read_json

MOST_COMMITS = 300
"""most commits that are read, evenly spread, including the first and the last"""
ACCOUNTS = ("champion", "buy_and_hold", "random", "random_same_days")
"""the accounts of an evaluation"""
MOST_LISTED = 64
"""most members of a list that is drawn"""


class Series(NamedTuple):
    """A metric over the steps at which it was logged; its values are finite."""

    x: array[float]
    y: array[float]

    @classmethod
    def empty(cls) -> Self:
        """A series without a value."""
        return cls(array("d"), array("d"))


@dataclass(frozen=True)
class Reset:
    """All agents were replaced by clones of one."""

    step: float
    before: float | None
    after: float | None
    recovered: float | None
    """steps until the level before was reached again; None: not yet"""


@dataclass(frozen=True)
class CommitSize:
    """One commit of the lake."""

    number: int
    steps: int
    bytes: int
    plain: int
    seconds: float


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
    metrics: dict[str, Series] = field(default_factory=dict)
    lists: dict[str, list[Series]] = field(default_factory=dict)
    """metrics with a value for each agent"""
    resets: list[Reset] = field(default_factory=list)
    growth: list[CommitSize] = field(default_factory=list)
    commits: int = 0
    evaluations: list[SavedEvaluation] = field(default_factory=list)
    checkpoints: list[tuple[int, int]] = field(default_factory=list)
    """number and bytes"""
    uploads: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """destination: files of the newest commit that are there, their bytes, and the number of its files"""
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
    _read_checkpoints(found)
    if (run.lake_folder / description.NAME).exists():
        try:
            _read_lake(found, run.lake_folder)
        except (LakepondError, OSError) as error:
            found.problems.append(str(error))
    try:
        found.pushed = read_json(run.folder / UPLOAD)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        found.problems.append(f"{run.folder / UPLOAD} cannot be read: {one_line(error)}.")
    for result in sorted(run.folder.glob("evaluation/**/result.json")):
        try:
            found.evaluations.append(_read_evaluation(result))
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            found.problems.append(f"{result} cannot be read: {one_line(error)}.")
    return found


def take(found: RunFolder, line: dict[str, Any]) -> None:
    """Add one line of the log."""
    step, time = line.pop("step"), line.pop("time")
    found.first_time = time if found.first_time is None else found.first_time
    found.last_time = time
    for name, value in line.items():  # of a log with 100,000 lines, this runs millions of times
        kind = type(value)
        if (kind is float or kind is int) and -LARGEST < value < LARGEST:  # a number, and not a bool
            series = found.metrics.get(name)
            if series is None:
                series = found.metrics[name] = Series.empty()
            series.x.append(step)
            series.y.append(value)
        elif kind is list and 1 < len(value) <= MOST_LISTED:
            members = found.lists.get(name)
            if members is None:
                members = found.lists[name] = [Series.empty() for _ in value]
            for member, one in zip(members, value, strict=False):
                if is_number(one):
                    member.x.append(step)
                    member.y.append(one)


def find_resets(found: RunFolder) -> list[Reset]:
    """The resets that were logged, and how soon the evaluation reached the level before each again."""

    def logged(name: str) -> list[tuple[float, float]]:
        return list(zip(*found.metrics.get(name, Series.empty()), strict=True))

    before, after = dict(logged("evaluation_before")), dict(logged("evaluation_after"))
    evaluations, resets = logged("evaluation"), []
    for step, _ in logged("reset"):
        level = before.get(step)
        later = (x - step for x, y in evaluations if x > step and level is not None and y >= level)
        resets.append(Reset(step, level, after.get(step), next(later, None)))
    return resets


def _read_checkpoints(found: RunFolder) -> None:
    for state in sorted(found.folder.glob("checkpoints/[0-9]*/state.json")):
        if state.parent.name.isdigit():
            files = (file.stat().st_size for file in state.parent.iterdir() if file.is_file())
            found.checkpoints.append((int(state.parent.name), sum(files)))


def _read_lake(found: RunFolder, lake: Path) -> None:
    spec: Spec = description.read(lake)
    numbers = commits.numbers(lake / "commits")
    found.commits = len(numbers)
    most = min(MOST_COMMITS, len(numbers))
    picked = sorted({numbers[round(i * (len(numbers) - 1) / max(1, most - 1))] for i in range(most)})
    newest = None
    for number in picked:
        try:
            commit = commits.read(lake / "commits", number)
        except (LakeError, OSError) as error:
            found.problems.append(str(error))
            continue
        newest = commit
        steps = commit.recorded - commit.oldest
        size = commit.totals.bytes
        plain = steps * spec.step_nbytes
        found.growth.append(CommitSize(number, steps, size, plain, commit.seconds))
    there = known(lake)
    if newest is not None and there:
        files = dict(Catalog(newest, Segments(lake)).files())
        for name, url in there.items():
            if name in files:
                count, size, _ = found.uploads.get(url, (0, 0, 0))
                found.uploads[url] = (count + 1, size + files[name], len(files))


def _read_evaluation(file: Path) -> SavedEvaluation:
    result = read_json(file)
    for who in ACCOUNTS:
        account = result.get(who)
        values = account.items() if isinstance(account, dict) else ()
        result[who] = {name: value for name, value in values if is_number(value)}
    days: list[float] = []
    equity: dict[str, list[float]] = {}
    if (file.parent / "equity.csv").exists():
        with (file.parent / "equity.csv").open(newline="", encoding="utf-8") as table:
            for row in csv.DictReader(table):
                day = date.fromisoformat(row.pop("date"))
                days.append(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
                for name, value in row.items():
                    equity.setdefault(name, []).append(_float(value))
    trades = []
    if (file.parent / "trades.csv").exists():
        with (file.parent / "trades.csv").open(newline="", encoding="utf-8") as table:
            for trade in csv.DictReader(table):
                trades.append({name: value for name, value in trade.items() if isinstance(value, str)})
                if trades[-1].get("profit_percent"):
                    _float(trades[-1]["profit_percent"])
    return SavedEvaluation(str(result.get("part", file.parent.name)), result, days, equity, trades)


def _float(text: str) -> float:
    """A finite number; ValueError otherwise."""
    value = float(text)
    if not is_number(value):
        raise ValueError(f"{text[:60]!r} is not a finite number")
    return value
