"""Commits: small files that say what a lake holds.

    commits/0000000042.json    number, parent, time, note, live steps, segments, files of rows, checksum

A commit names every file it needs by content; only a commit says what there is. It is written last and never
changed. The newest one that verifies is the lake; any other that is kept can be opened just as well.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from lakepond.errors import LakeCorrupt
from lakepond.lake.blocks import ShardInfo
from lakepond.lake.checksum import new_digest
from lakepond.lake.files import write_whole
from lakepond.lake.steps import StepsInfo


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

    @property
    def stop(self) -> int:
        """The id after its last step."""
        return self.first + self.steps.steps

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
    largest_priority: float = 1.0
    alpha: float | None = None
    """the exponent that the weights in `priorities` have"""
    bytes_written: int = field(default=0, compare=False)
    """what this commit added to the disk, itself not counted"""
    seconds: float = field(default=0.0, compare=False)
    """how long it took, durable"""

    def files(self) -> dict[str, int]:
        """Every file it names, with its size."""
        named = {segment.name: segment.steps.bytes for segment in self.segments}
        named |= {rows.name: rows.shard.bytes for rows in self.rows}
        if self.priorities is not None:
            named[f"{self.priorities.digest}.steps"] = self.priorities.bytes
        return named

    def to_json(self) -> bytes:
        """The file: sorted JSON with a checksum of all the rest."""
        told = asdict(self)
        return json.dumps({**told, "checksum": _checksum(told)}, sort_keys=True, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, name: str) -> Self:
        """A commit read back; `LakeCorrupt` unless it is, byte for byte, what was written."""
        try:
            told = json.loads(data)
            checksum = told.pop("checksum")
            if checksum != _checksum(told):
                raise ValueError("its checksum does not match")
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
            return cls(**told)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LakeCorrupt(f"commit {name} is not what was written: {error}; see `repair`.") from error


def _checksum(told: dict[str, Any]) -> str:
    digest = new_digest()
    digest.update(json.dumps(told, sort_keys=True).encode())
    return digest.hexdigest()


def file_name(number: int) -> str:
    """A commit's file."""
    return f"{number:010d}.json"


def numbers(folder: Path) -> list[int]:
    """The commits that are there, oldest first, whole or not."""
    found = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit()]
    return sorted(found)


def read(folder: Path, number: int) -> Commit:
    """One commit; `LakeCorrupt` if it is broken."""
    name = file_name(number)
    commit = Commit.from_json((folder / name).read_bytes(), name)
    if commit.number != number:
        raise LakeCorrupt(f"commit {name} says that it is number {commit.number}; see `repair`.")
    return commit


def write(folder: Path, commit: Commit) -> None:
    """Make a commit durable."""
    data = commit.to_json()

    def fill(file: Any) -> None:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]

    write_whole(folder, fill, lambda _: file_name(commit.number))
