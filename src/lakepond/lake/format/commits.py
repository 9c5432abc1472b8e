"""Commits: small files that say what a lake holds.

    commits/0000000042.json    number, parent, time, note, live steps, segments, files of rows, checksum

A commit names every file it needs by content; only a commit says what there is. It is written last and never
changed. The newest one that verifies is the lake; any other that is kept can be opened just as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Self

from lakepond.errors import LakeConflict, LakeCorrupt
from lakepond.lake.files import sync_folder, write_bytes
from lakepond.lake.format.blocks import ShardInfo
from lakepond.lake.format.names import COMMIT, DIGEST, entries
from lakepond.lake.format.sealed import seal, unseal
from lakepond.lake.format.steps import StepsInfo
from lakepond.sampling.generators import generator_in

NUMBER_LIMIT = 1 << 48
"""steps, rows and bytes are fewer: sums and products of two of them stay within 64 bits where it matters"""


class Start(Enum):
    """Given in place of a commit number to a writer that follows no commit."""

    EMPTY = "empty"
    """start with no steps under the next unused number; commits already on disk stay there"""


@dataclass(frozen=True)
class RowsFile:
    """Rows [first, first + shard.rows) of one leaf of the observations."""

    leaf: int
    first: int
    shard: ShardInfo

    @property
    def name(self) -> str:
        """The file's name in the folder of segments."""
        return f"{self.shard.digest}.rows"


@dataclass(frozen=True)
class Segment:
    """Steps [first, first + steps.steps) and the rows their windows name."""

    first: int
    steps: StepsInfo
    needs: tuple[str, ...]
    """the files of rows that its windows name, its own and older ones"""
    skip: int = 0
    """how many steps of its file come before `first`"""
    shift: tuple[int, ...] = ()
    """for each leaf what is added to the row numbers of its tracks"""
    writer: str = ""
    """whose it is; this, `skip` and `shift` are set by `writers.together` and never written"""

    @property
    def stop(self) -> int:
        """The id after its last step."""
        return self.first + self.steps.steps - self.skip

    @property
    def name(self) -> str:
        """The file's name in the folder of segments."""
        return f"{self.steps.digest}.steps"


@dataclass(frozen=True)
class Commit:
    """What a lake holds at one moment."""

    number: int
    parent: int | None
    time: str
    """when, by this machine's clock; commits are ordered by number, whatever the clock does"""
    note: dict[str, Any]
    """what the caller noted"""
    oldest: int
    recorded: int
    """the live steps are [oldest, recorded)"""
    segments: tuple[Segment, ...]
    rows: tuple[RowsFile, ...]
    next_rows: tuple[int, ...]
    """the number of the next new row, for each leaf"""
    priorities: StepsInfo | None = None
    priority_changes: tuple[StepsInfo, ...] = ()
    """what changed since `priorities` was written, in this order"""
    largest_priority: float = 1.0
    alpha: float | None = None
    """the exponent that the weights in `priorities` have"""
    generator: dict[str, str] | None = None
    """the state of the generator that samples are drawn with"""
    bytes_written: int = field(default=0, compare=False)
    """what this commit added to the disk, itself not counted"""
    seconds: float = field(default=0.0, compare=False)
    """how long it took, durable"""

    @property
    def weights(self) -> tuple[StepsInfo, ...]:
        """The files of priorities."""
        return () if self.priorities is None else (self.priorities, *self.priority_changes)

    def files(self) -> dict[str, int]:
        """Every file it names, with its size."""
        named = {segment.name: segment.steps.bytes for segment in self.segments}
        named |= {rows.name: rows.shard.bytes for rows in self.rows}
        return named | {f"{info.digest}.steps": info.bytes for info in self.weights}

    def to_json(self) -> bytes:
        """The file: JSON, sealed by a checksum."""
        told = dict(vars(self))
        told["segments"] = [
            {"first": s.first, "steps": vars(s.steps), "needs": s.needs} for s in self.segments
        ]
        told["rows"] = [{**vars(r), "shard": vars(r.shard)} for r in self.rows]
        told["priorities"] = None if self.priorities is None else vars(self.priorities)
        told["priority_changes"] = [vars(info) for info in self.priority_changes]
        if not self.priority_changes:
            del told["priority_changes"]
        if self.generator is None:
            del told["generator"]
        return seal(told)

    @classmethod
    def from_json(cls, data: bytes, name: str) -> Self:
        """A commit read back; `LakeCorrupt` unless it is, byte for byte, what was written."""
        try:
            told = unseal(data)
            told["note"] = dict(told["note"])
            told["segments"] = tuple(
                Segment(s["first"], StepsInfo(**s["steps"]), tuple(s["needs"])) for s in told["segments"]
            )
            told["rows"] = tuple(
                RowsFile(r["leaf"], r["first"], ShardInfo(**r["shard"])) for r in told["rows"]
            )
            told["next_rows"] = tuple(told["next_rows"])
            if told["priorities"] is not None:
                told["priorities"] = StepsInfo(**told["priorities"])
            told["priority_changes"] = tuple(StepsInfo(**c) for c in told.get("priority_changes", ()))
            commit = cls(**told)
            commit.check()
            return commit
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise LakeCorrupt(f"commit {name} is damaged: {error}; run `lakepond repair`.") from error

    def check(self) -> None:
        """ValueError or TypeError unless it makes sense: steps and rows in order, needs among the rows."""
        files: list[StepsInfo | ShardInfo] = [
            *(s.steps for s in self.segments),
            *(r.shard for r in self.rows),
            *self.weights,
        ]
        if not all(re.fullmatch(DIGEST, file.digest) for file in files):
            raise ValueError("it names a file with an invalid digest")
        self._check_numbers(files)
        if self.generator is not None:
            generator_in(self.generator)
        names = {rows.name for rows in self.rows}
        if not self.oldest <= self.recorded:
            raise ValueError(f"it is number {self.number} and has the steps [{self.oldest}, {self.recorded})")
        if self.segments:
            stops = [*(segment.first for segment in self.segments[1:]), self.recorded]
            if self.segments[0].first > self.oldest or [s.stop for s in self.segments] != stops:
                raise ValueError("its segments do not follow each other")
        elif self.oldest != self.recorded:
            raise ValueError("it names no segments")
        for segment in self.segments:
            if segment.steps.steps < 1 or not names.issuperset(segment.needs):
                raise ValueError(f"the segment of step {segment.first} needs what is not named")
        for leaf in range(len(self.next_rows)):
            mine = [rows for rows in self.rows if rows.leaf == leaf]
            stops = [*(rows.first for rows in mine[1:]), self.next_rows[leaf]]
            if any(r.first + r.shard.rows > to for r, to in zip(mine, stops, strict=False)):
                raise ValueError(f"the rows of leaf {leaf} are not in order")

    def _check_numbers(self, files: Sequence[StepsInfo | ShardInfo]) -> None:
        """ValueError or TypeError if a number is not valid, or is more than the files can hold."""
        numbers: list[Any] = [self.number, self.oldest, self.recorded, self.bytes_written, *self.next_rows]
        numbers += [0 if self.parent is None else self.parent]
        numbers += [segment.first for segment in self.segments]
        numbers += [n for rows in self.rows for n in (rows.leaf, rows.first)]
        numbers += [n for file in files for n in vars(file).values() if not isinstance(n, str)]
        for number in numbers:
            if type(number) is not int or not 0 <= number < NUMBER_LIMIT:
                raise ValueError(f"it has the number {number!r} where a count is expected")
        for real in (self.seconds, self.largest_priority, 0.0 if self.alpha is None else self.alpha):
            if type(real) not in (int, float) or not 0 <= real < math.inf:
                raise ValueError(f"it has the number {real!r} where a finite one of at least 0 is expected")
        datetime.fromisoformat(self.time).timestamp()
        for file in files:
            file.check_size()


def file_name(number: int) -> str:
    """A commit's file."""
    return f"{number:010d}.json"


def numbers(folder: Path) -> list[int]:
    """The commits in a folder, oldest first, intact or not: files with a commit's name, or links to files."""
    return sorted(int(entry.name[:-5]) for entry in entries(folder, COMMIT) if entry.is_file())


def next_number(*folders: Path) -> int:
    """A number whose file name is free in all these folders, above every one that is taken there."""
    taken = [int(entry.name[:-5]) for folder in folders for entry in entries(folder, COMMIT)]
    return max(taken, default=-1) + 1


def read(folder: Path, number: int) -> Commit:
    """One commit; `LakeCorrupt` if it is broken."""
    name = file_name(number)
    commit = Commit.from_json((folder / name).read_bytes(), name)
    if commit.number != number:
        raise LakeCorrupt(f"commit {name} says that it is number {commit.number}; run `lakepond repair`.")
    return commit


def write(folder: Path, commit: Commit, *, segments: Path) -> None:
    """Make a commit durable, after the folder of the segments it names.

    `LakeConflict` if another commit has its number: a commit that was acknowledged is never overwritten.
    """
    try:
        write_bytes(folder, file_name(commit.number), commit.to_json(), needs=segments, existing="refuse")
    except FileExistsError:
        if not is_there(folder, commit):  # a network file system may report the repetition of a success
            raise LakeConflict(
                f"another writer has published commit {commit.number} in {folder}; it was not overwritten; "
                "the steps since are held in memory. End one of the two writers, then open the lake again."
            ) from None
        sync_folder(folder)


def is_there(folder: Path, commit: Commit) -> bool:
    """Whether a folder has this very commit, byte for byte."""
    try:
        return (folder / file_name(commit.number)).read_bytes() == commit.to_json()
    except OSError:
        return False
