"""What a commit lists: files of steps, files of rows, and manifests, which list more of them.

    steps   Segment   steps [first, stop)                 manifest   Manifest of steps [first, stop)
    rows    RowsFile  rows [first, stop) of one leaf                 or of rows of one leaf

Entries of one list are sorted by `first` and do not overlap.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lakepond.lake.format.blocks import ShardInfo
from lakepond.lake.format.names import DIGEST
from lakepond.lake.format.ranges import Ranges
from lakepond.lake.format.steps import StepsInfo

NUMBER_LIMIT = 1 << 48
"""steps, rows and bytes are fewer: sums and products of two of them stay within 64 bits where it matters"""


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the steps [first, stop)."""

    first: int
    steps: StepsInfo
    needs: tuple[Ranges, ...]
    """for each leaf, ranges of row numbers that contain all rows that its windows refer to"""

    @property
    def stop(self) -> int:
        """The id after its last step."""
        return self.first + self.steps.steps

    @property
    def name(self) -> str:
        """The file's name in the folder of segments."""
        return f"{self.steps.digest}.steps"

    @property
    def bytes(self) -> int:
        """The file's size."""
        return self.steps.bytes

    @property
    def files(self) -> int:
        """1, as `Manifest.files`."""
        return 1

    @property
    def count(self) -> int:
        """Its steps."""
        return self.steps.steps


@dataclass(frozen=True, slots=True)
class RowsFile:
    """A file of the rows [first, stop) of one leaf of the observations."""

    leaf: int
    first: int
    shard: ShardInfo
    source: bool = False
    """it is a part of a row source, in the lake's folder `sources`, which all writers share"""

    @property
    def stop(self) -> int:
        """The number after its last row."""
        return self.first + self.shard.rows

    @property
    def name(self) -> str:
        """The file's name in its folder."""
        return f"{self.shard.digest}.{'source' if self.source else 'rows'}"

    @property
    def bytes(self) -> int:
        """The file's size."""
        return self.shard.bytes

    @property
    def files(self) -> int:
        """1, as `Manifest.files`."""
        return 1

    @property
    def count(self) -> int:
        """Its rows."""
        return self.shard.rows


@dataclass(frozen=True, slots=True)
class Source:
    """A row source whose rows are the rows [first, stop) of one leaf, in files that all writers share."""

    digest: str
    """of its rows, whatever the files"""
    first: int
    rows: int
    files: int
    bytes: int
    """of its files"""

    @property
    def stop(self) -> int:
        """The number after its last row."""
        return self.first + self.rows


@dataclass(frozen=True, slots=True)
class Manifest:
    """A file that lists others. What is here is enough to find an entry, and to count without reading it."""

    level: int
    """1 to `FLAT_LEVEL`: it lists files; above: manifests of lower levels"""
    first: int
    stop: int
    """all its entries are in [first, stop)"""
    files: int
    """files below it, other manifests not counted"""
    count: int
    """steps or rows in these files"""
    bytes: int
    """bytes of these files"""
    digest: str
    size: int
    """of its own file"""
    needs: tuple[Ranges, ...] = ()
    """of steps: as in `Segment`, for all steps below it"""

    @property
    def name(self) -> str:
        """The manifest's name in the folder of segments."""
        return f"{self.digest}.manifest"


File = Segment | RowsFile
Entry = Segment | RowsFile | Manifest
Entries = tuple[Entry, ...]


def to_json(entry: Entry) -> dict[str, Any]:
    """An entry as a commit or a manifest has it."""
    if isinstance(entry, Segment):
        return {"first": entry.first, **_fields(entry.steps), "needs": entry.needs}
    if isinstance(entry, RowsFile):
        source = {"source": True} if entry.source else {}
        return {"first": entry.first, **_fields(entry.shard), **source}
    fields = {name: getattr(entry, name) for name in Manifest.__dataclass_fields__}
    if not entry.needs:
        del fields["needs"]
    return {"manifest": fields.pop("digest"), **fields}


def from_json(entry: Any, leaf: int | None) -> Entry:
    """The entry of a list of steps (`leaf` None) or of rows; ValueError, TypeError or KeyError if invalid."""
    if "manifest" in entry:
        known = {
            n: entry[n] for n in Manifest.__dataclass_fields__ if n in entry and n not in ("digest", "needs")
        }
        found: Entry = Manifest(**known, digest=entry["manifest"], needs=_ranges(entry.get("needs", ())))
    elif leaf is None:
        info = StepsInfo(entry["steps"], entry["bytes"], entry["digest"])
        found = Segment(entry["first"], info, _ranges(entry["needs"]))
    else:
        shard = ShardInfo(**{name: entry[name] for name in ShardInfo.__dataclass_fields__})
        found = RowsFile(leaf, entry["first"], shard, entry.get("source", False))
    return found


def check(entries: Sequence[Entry], leaves: int) -> None:
    """ValueError or TypeError unless the entries of one list are possible, in order and do not overlap."""
    at = 0
    for entry in entries:
        _check_entry(entry, leaves)
        if entry.first < at:
            raise ValueError(f"its files are not in order at {entry.first}")
        at = entry.stop


def _check_entry(entry: Entry, leaves: int) -> None:
    numbers = [entry.first, entry.stop, entry.bytes]
    if isinstance(entry, Manifest):
        numbers += [entry.level, entry.files, entry.count, entry.size]
        digest, holds = entry.digest, 1 <= entry.level <= 16 and 0 < entry.count <= entry.stop - entry.first
    elif isinstance(entry, Segment):
        entry.steps.check_size()
        digest, holds = entry.steps.digest, entry.steps.steps >= 1
        numbers.append(entry.steps.steps)
    else:
        shard = entry.shard
        numbers += [shard.rows, shard.row_bytes, shard.block_rows]
        shard.check_size()
        digest, holds = shard.digest, shard.rows >= 1 and 0 <= entry.leaf < leaves
        if type(entry.source) is not bool:
            raise ValueError(f"the entry at {entry.first} has the source {entry.source!r}")
    needs = () if isinstance(entry, RowsFile) else entry.needs
    if not isinstance(digest, str) or not re.fullmatch(DIGEST, digest):
        raise ValueError("it names a file with an invalid digest")
    if needs and len(needs) != leaves:
        raise ValueError(f"the entry at {entry.first} needs rows of {len(needs)} observations, not {leaves}")
    check_counts([*numbers, *(n for ranges in needs for pair in ranges for n in pair)])
    if not holds:
        raise ValueError(f"the entry at {entry.first} holds nothing, or more than it can")


def check_sources(sources: Sequence[Source], stop: int) -> None:
    """ValueError or TypeError unless the sources of a leaf are possible, in order, and below row `stop`."""
    at = 0
    for source in sources:
        check_counts([source.first, source.rows, source.files, source.bytes])
        named = isinstance(source.digest, str) and re.fullmatch(DIGEST, source.digest)
        if not named or not at <= source.first < source.stop <= stop:
            raise ValueError(f"its source of rows {source.first} to {source.stop} is invalid")
        at = source.stop


def check_counts(numbers: Sequence[Any]) -> None:
    """ValueError unless all of these are counts: integers of at least 0 below `NUMBER_LIMIT`."""
    for number in numbers:
        if type(number) is not int or not 0 <= number < NUMBER_LIMIT:
            raise ValueError(f"it has the number {number!r} where a count is expected")


def _ranges(needs: Any) -> tuple[Ranges, ...]:
    return tuple(tuple((start, stop) for start, stop in ranges) for ranges in needs)


def _fields(info: StepsInfo | ShardInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in info.__dataclass_fields__}
