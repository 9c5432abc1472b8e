"""Snapshots of a follower: one consistent view of all chains of a lake, by number.

    snapshots/<10 digits>.json          sealed JSON: the steps in the order of their arrival, the commits they
                                        are read from, and the state of the follower
    snapshots/<10 digits>.priorities    the weights of these steps, float64, if the follower has priorities;
                                        written first, named by its digest in the JSON

A chain is the history of one writer; "" is that of the writer without a name, any other is the name of a
folder in `writers/`. Retention and `gc` keep every commit that a snapshot names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from lakepond.lake.format.checksum import digest_of
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.entries import check_counts
from lakepond.lake.format.names import WRITER, entries
from lakepond.lake.format.sealed import parse, reader, seal, unseal
from lakepond.lake.format.version import check_version, version
from lakepond.sampling.generators import generator_in

FOLDER = "snapshots"
SNAPSHOT = re.compile(r"([0-9]{10})\.json")
TAKEN = re.compile(r"([0-9]{10})\.(?:json|priorities)")


class Named(NamedTuple):
    """A commit that a snapshot needs."""

    commit: int
    digest: str
    """see `identity`"""


class StepRun(NamedTuple):
    """Consecutive steps [first, stop) of one chain, in the order of their arrival."""

    chain: str
    first: int
    stop: int
    commit: int
    """the commit to read them from; one of those named for the chain"""


@dataclass(frozen=True)
class Snapshot:
    """One consistent view of all chains of a lake; `Replay.follow(..., snapshot=number)` opens it."""

    number: int
    time: str
    """when, by the clock of the machine that wrote it"""
    capacity: int
    recorded: int
    """steps that the follower had appended by then, which is the id of the next one"""
    heads: dict[str, tuple[Named, ...]]
    """for each chain the commits that contain its steps, newest first"""
    after: dict[str, int | None]
    """for each chain the commit that was read last; None: one was being read"""
    seen: dict[str, int]
    """for each chain the id of its next step"""
    runs: tuple[StepRun, ...] = field(repr=False)
    streams: dict[str, dict[int, int]] = field(repr=False)
    """for each chain, the follower's stream for each stream of the chain"""
    sampled: int = 0
    inserted: int = 0
    """steps sampled and appended so far, for the limit of samples per insert"""
    alpha: float | None = None
    largest_priority: float = 1.0
    priorities: str | None = None
    """the digest of the file of priorities, if there is one"""
    generator: dict[str, str] | None = field(default=None, repr=False)
    """the state of the generator that samples are drawn with"""

    @property
    def steps(self) -> int:
        """The number of steps."""
        return sum(run.stop - run.first for run in self.runs)

    def to_json(self) -> bytes:
        """The file: JSON, sealed by a checksum."""
        content = {**version(), **vars(self)}
        chains = list(self.heads)
        content["heads"] = {
            chain: {**named[0]._asdict(), "older": [each._asdict() for each in named[1:]]}
            for chain, named in self.heads.items()
        }
        content["chains"] = chains
        at = {chain: i for i, chain in enumerate(chains)}
        content["runs"] = [[at[run.chain], *run[1:]] for run in self.runs]
        content["streams"] = {chain: list(pairs.items()) for chain, pairs in self.streams.items()}
        return seal(content)

    @classmethod
    @reader("snapshot {name} is damaged: {error}; open another one.")
    def from_json(cls, data: bytes, name: str) -> Self:
        """A snapshot read back; `LakeCorrupt` if it is damaged, `LakeTooNew` if a later version wrote it."""
        check_version(parse(data), f"snapshot {name}")  # first: a later one may be sealed differently
        content = unseal(data)
        heads = _heads(content)
        chains = list(content["chains"])
        check_counts([number for run in content["runs"] for number in run])
        runs = tuple(StepRun(chains[at], first, stop, commit) for at, first, stop, commit in content["runs"])
        kept = {key: content[key] for key in _PLAIN}
        streams = {
            chain: {int(own): int(stream) for own, stream in pairs}
            for chain, pairs in content["streams"].items()
        }
        found = cls(heads=heads, runs=runs, streams=streams, **kept)
        found._check()
        return found

    def _check(self) -> None:
        check_counts([self.number, self.capacity, self.recorded, self.sampled, self.inserted])
        check_counts([*self.seen.values(), *(n for n in self.after.values() if n is not None)])
        datetime.fromisoformat(self.time)
        named = {chain: {each.commit for each in heads} for chain, heads in self.heads.items()}
        if not self.seen.keys() == self.after.keys() == self.streams.keys() == named.keys():
            raise ValueError("its chains do not agree")
        if any(run.first >= run.stop or run.commit not in named[run.chain] for run in self.runs):
            raise ValueError("it has steps without a commit")
        if self.capacity < 1 or self.steps > min(self.capacity, self.recorded):
            raise ValueError(f"it has {self.steps} steps of {self.recorded}, capacity {self.capacity}")
        if self.generator is not None:
            generator_in(self.generator)


_PLAIN = (
    *("number", "time", "capacity", "recorded", "after", "seen", "sampled", "inserted"),
    *("alpha", "largest_priority", "priorities", "generator"),
)


def _heads(content: dict[str, Any]) -> dict[str, tuple[Named, ...]]:
    found: dict[str, tuple[Named, ...]] = {}
    for chain, head in content["heads"].items():
        if chain and not WRITER.fullmatch(chain):
            raise ValueError(f"{chain!r} is not the name of a chain")
        listed = tuple(Named(each["commit"], str(each["digest"])) for each in (head, *head.get("older", ())))
        check_counts([each.commit for each in listed])
        found[chain] = listed
    return found


@reader(
    "snapshot {name} cannot be read, so the commits that it needs are not known; nothing is deleted. Delete "
    "that snapshot by hand if it is not needed ({error})."
)
def commits_named(data: bytes, name: str) -> dict[str, set[int]]:
    """The commits that a snapshot names, by chain; `LakeCorrupt` if it cannot be read.

    Also of snapshots of later versions, as long as these keys mean the same: what it needs must stay.
    """
    return {chain: {each.commit for each in named} for chain, named in _heads(unseal(data)).items()}


def file_name(number: int) -> str:
    """The file of a snapshot."""
    return f"{number:010d}.json"


def priorities_name(number: int) -> str:
    """The file of the priorities of a snapshot."""
    return f"{number:010d}.priorities"


def numbers(names: Iterable[str]) -> list[int]:
    """The snapshots among some names, oldest first."""
    return sorted(int(match[1]) for name in names if (match := SNAPSHOT.fullmatch(name)))


def next_number(names: Iterable[str]) -> int:
    """A number that no file among some names has."""
    return max((int(match[1]) for name in names if (match := TAKEN.fullmatch(name))), default=-1) + 1


def on_disk(lake: Path) -> list[str]:
    """The files of the snapshots of a lake on disk."""
    return sorted(entry.name for entry in entries(lake / FOLDER, TAKEN))


def identity(commit: Commit) -> str:
    """A digest that distinguishes two commits with the same number: of its time, steps and files."""
    text = f"{commit.number} {commit.time} {commit.oldest} {commit.recorded} {sorted(commit.named().items())}"
    return digest_of(text.encode())
