"""Commits: small files that list the content of a lake at one moment.

    commits/0000000042.json    number, parent, time, note, live steps, files, checksum
    commits/newest             the number of a recent commit: where to look first

A commit lists the newest files itself and all older ones through manifests, by digest, so its size does not
grow with the lake. It is written last and never changed. The newest intact one is the state of the lake; any
other that is kept can be opened just as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Self

from lakepond.errors import LakeConflict, LakeCorrupt
from lakepond.lake.files import sync_folder, write_bytes
from lakepond.lake.format.blocks import ShardInfo
from lakepond.lake.format.entries import (
    Entries,
    Entry,
    Manifest,
    RowsFile,
    Segment,
    Source,
    check,
    check_counts,
    check_sources,
    from_json,
    to_json,
)
from lakepond.lake.format.names import COMMIT, entries
from lakepond.lake.format.ranges import Ranges, union
from lakepond.lake.format.sealed import parse, reader, seal, unseal
from lakepond.lake.format.steps import StepsInfo
from lakepond.lake.format.version import SOURCES, check_version, version
from lakepond.sampling.generators import generator_in

NEWEST = "newest"


class Start(Enum):
    """Given in place of a commit number to a writer that follows no commit."""

    EMPTY = "empty"
    """start with no steps under the next unused number; commits already on disk stay there"""


class Totals(NamedTuple):
    """The files of a commit, its own and its manifests' files not counted."""

    files: int
    bytes: int


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
    segments: Entries
    """files of steps; those of which no step is live do not belong to the commit"""
    rows: tuple[Entries, ...]
    """files of rows, for each leaf; those that do not meet `live_rows` do not belong to the commit"""
    live_rows: tuple[Ranges, ...]
    """for each leaf, ranges of row numbers that contain all rows of live steps"""
    next_rows: tuple[int, ...]
    """the number of the next new row, for each leaf"""
    sources: tuple[tuple[Source, ...], ...] = ()
    """for each leaf the row sources that its rows contain, in order; empty if there are none"""
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

    def lists(self) -> list[tuple[int | None, Entries]]:
        """The list of steps, as None, and the list of rows of each leaf, as its number."""
        return [(None, self.segments), *enumerate(self.rows)]

    @property
    def totals(self) -> Totals:
        """Files and bytes; exact, but that manifests with some dead files count in full."""
        listed = [entry for _, each in self.lists() for entry in each]
        return Totals(
            sum(entry.files for entry in listed) + len(self.weights),
            sum(each.bytes for each in (*listed, *self.weights)),
        )

    def named(self) -> dict[str, int]:
        """The files that the commit itself names, manifests among them, with their sizes."""
        listed = [entry for _, each in self.lists() for entry in each]
        found = {e.name: e.size if isinstance(e, Manifest) else e.bytes for e in listed}
        return found | {f"{info.digest}.steps": info.bytes for info in self.weights}

    def to_json(self) -> bytes:
        """The file: JSON, sealed by a checksum."""
        content = {**(version(SOURCES) if self.sources else version()), **vars(self)}
        content["sources"] = [[asdict(source) for source in listed] for listed in self.sources]
        if not self.sources:
            del content["sources"]
        content["steps"] = [to_json(entry) for entry in content.pop("segments")]
        content["rows"] = [[to_json(entry) for entry in listed] for listed in self.rows]
        content["priorities"] = None if self.priorities is None else vars(self.priorities)
        content["priority_changes"] = [vars(info) for info in self.priority_changes]
        if not self.priority_changes:
            del content["priority_changes"]
        if self.generator is None:
            del content["generator"]
        return seal(content)

    @classmethod
    @reader("commit {name} is damaged: {error}; run `lakepond repair`.")
    def from_json(cls, data: bytes, name: str) -> Self:
        """A commit read back; `LakeCorrupt` if it is damaged, `LakeTooNew` if a later version wrote it."""
        check_version(parse(data), f"commit {name}")  # first: a later one may be sealed differently
        content = unseal(data)
        if check_version(content, f"commit {name}") == 1:
            content = _from_format_1(content)
        commit = cls(
            segments=tuple(from_json(entry, None) for entry in content["steps"]),
            rows=tuple(
                tuple(from_json(entry, leaf) for entry in listed)
                for leaf, listed in enumerate(content["rows"])
            ),
            live_rows=tuple(tuple((a, b) for a, b in ranges) for ranges in content["live_rows"]),
            next_rows=tuple(content["next_rows"]),
            sources=tuple(tuple(_known(Source, s) for s in each) for each in content.get("sources", ())),
            priorities=_weights(content["priorities"]),
            priority_changes=tuple(_known(StepsInfo, c) for c in content.get("priority_changes", ())),
            note=dict(content["note"]),
            **{key: content[key] for key in _PLAIN if key in content},
        )
        commit.check()
        return commit

    def check(self) -> None:
        """ValueError or TypeError unless it is possible: counts, and files in order without gaps in steps."""
        leaves = len(self.rows)
        check_counts([self.number, self.oldest, self.recorded, self.bytes_written, *self.next_rows])
        check_counts([0 if self.parent is None else self.parent])
        check_counts([n for ranges in self.live_rows for pair in ranges for n in pair])
        check_counts([info.steps for info in self.weights])
        for info in self.weights:  # in a lake without steps they have none
            check([Segment(0, replace(info, steps=info.steps or 1), ())], leaves)
        for real in (self.seconds, self.largest_priority, 0.0 if self.alpha is None else self.alpha):
            if type(real) not in (int, float) or not 0 <= real < math.inf:
                raise ValueError(f"it has the number {real!r} where a finite one of at least 0 is expected")
        datetime.fromisoformat(self.time).timestamp()
        if self.generator is not None:
            generator_in(self.generator)
        if not self.oldest <= self.recorded or not len(self.next_rows) == len(self.live_rows) == leaves:
            raise ValueError(f"it is number {self.number} and has the steps [{self.oldest}, {self.recorded})")
        for leaf, listed in self.lists():
            check(listed, leaves)
            if leaf is not None and listed and listed[-1].stop > self.next_rows[leaf]:
                raise ValueError(f"the rows of leaf {leaf} are not in order")
        if len(self.sources) not in (0, leaves):
            raise ValueError(f"it has sources of {len(self.sources)} observations, not {leaves}")
        for sources, stop in zip(self.sources, self.next_rows, strict=False):
            check_sources(sources, stop)
        for ranges in self.live_rows:
            edges = [edge for pair in ranges for edge in pair]
            if edges != sorted(edges):
                raise ValueError("its live rows are not in order")
        if self.segments:
            stops = [*(entry.first for entry in self.segments[1:]), self.recorded]
            if self.segments[0].first > self.oldest or [entry.stop for entry in self.segments] != stops:
                raise ValueError("its segments do not follow each other")
        elif self.oldest != self.recorded:
            raise ValueError("it names no segments")


_PLAIN = [
    *("number", "parent", "time", "oldest", "recorded"),
    *("largest_priority", "alpha", "generator", "bytes_written", "seconds"),
]


def _known(kind: Any, content: dict[str, Any]) -> Any:
    """A record from JSON; keys that this version does not know are ignored."""
    return kind(**{name: content[name] for name in kind.__dataclass_fields__})


def _weights(content: dict[str, Any] | None) -> StepsInfo | None:
    return None if content is None else _known(StepsInfo, content)


def _from_format_1(content: dict[str, Any]) -> dict[str, Any]:
    """A commit of format 1 as one of format 2: files by name become ranges of rows."""
    leaves = len(content["next_rows"])
    rows: list[list[Entry]] = [[] for _ in range(leaves)]
    for each in content["rows"]:
        rows[each["leaf"]].append(RowsFile(each["leaf"], each["first"], _known(ShardInfo, each["shard"])))
    names = {entry.name for listed in rows for entry in listed}

    def needs(named: set[str]) -> tuple[Ranges, ...]:
        if not named <= names:
            raise ValueError("a segment needs rows that are not named")
        return tuple(union(((f.first, f.stop),) for f in listed if f.name in named) for listed in rows)

    segments = [
        Segment(each["first"], _known(StepsInfo, each["steps"]), needs(set(each["needs"])))
        for each in content["segments"]
    ]
    return {
        **content,
        "steps": [to_json(segment) for segment in segments],
        "rows": [[to_json(file) for file in sorted(listed, key=lambda f: f.first)] for listed in rows],
        "live_rows": [union(((file.first, file.stop),) for file in listed) for listed in rows],
    }


def file_name(number: int) -> str:
    """A commit's file."""
    return f"{number:010d}.json"


def numbers(folder: Path) -> list[int]:
    """The commits in a folder, oldest first, intact or not: files with a commit's name, or links to files."""
    return sorted(int(entry.name[:-5]) for entry in entries(folder, COMMIT) if entry.is_file())


def newest(folder: Path) -> int | None:
    """The number of the newest commit in a folder, intact or not; None if there is none.

    The number in the file `newest` and the following ones are tried first, so that the time does not grow
    with the number of commits; if they do not exist, the folder is listed.
    """
    number = hint(folder)
    if number is None or not (folder / file_name(number)).is_file():
        return max(numbers(folder), default=None)
    while (folder / file_name(number + 1)).is_file():
        number += 1
    return number


def hint(folder: Path) -> int | None:
    """The number in the file `newest`; None if there is none."""
    try:
        return int((folder / NEWEST).read_bytes())
    except (OSError, ValueError):
        return None


def newest_first(folder: Path) -> Iterator[int]:
    """The commits in a folder, newest first, intact or not."""
    first = newest(folder)
    if first is not None:
        yield first
        yield from (number for number in reversed(numbers(folder)) if number < first)


def next_number(folder: Path, quarantine: Path) -> int:
    """A number whose file name is free in both folders, above every one that is taken there.

    If that leaves a gap, the file `newest` is removed: it finds commits without gaps only.
    """
    last = newest(folder)
    taken = [int(entry.name[:-5]) for entry in entries(quarantine, COMMIT)]
    number = max(-1 if last is None else last, *taken, -1) + 1
    while (folder / file_name(number)).exists():  # for example, a folder
        number += 1
    if last is None or number > last + 1:
        (folder / NEWEST).unlink(missing_ok=True)
    return number


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
    After any other error `is_there` determines whether it was published.
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
    try:
        temporary = folder / f".{NEWEST}"
        temporary.write_text(f"{commit.number}\n")
        temporary.rename(folder / NEWEST)
    except OSError:
        with suppress(OSError):  # without it, the folder is listed; `Retention` checks an old one
            (folder / NEWEST).unlink()


def is_there(folder: Path, commit: Commit) -> bool:
    """Whether a folder has this very commit, byte for byte; OSError if its file cannot be read."""
    try:
        return (folder / file_name(commit.number)).read_bytes() == commit.to_json()
    except FileNotFoundError:
        return False
