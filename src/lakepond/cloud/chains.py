"""The chains of a lake in a bucket, and what is at a number of one: a commit, a skip, or nothing yet.

After the commit N the next object of a chain is at N + 1: the commit N + 1, or a skip to a later number, if
the numbers between were never published. So a reader that knows commit N needs one GET to learn what follows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lakepond.cloud.bucket import Unlistable
from lakepond.cloud.layout import BOUNDARY, chain_folder, commit_name, is_chain, segment_name
from lakepond.cloud.store import Store
from lakepond.errors import CloudCorrupt, CloudNotFound, LakeCorrupt
from lakepond.lake import writers
from lakepond.lake.elsewhere import Elsewhere
from lakepond.lake.format import commits
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.names import is_shared
from lakepond.lake.format.sealed import parse, seal, unseal
from lakepond.lake.format.version import check_version, version
from lakepond.lake.writers import FOLDER

SKIP_BYTES = 256
"""a skip is not larger, and every commit is"""


@dataclass(frozen=True)
class Skip:
    """No commit with a number in [number, to) was or will be published; the next one is at `to`."""

    number: int
    to: int

    def to_json(self) -> bytes:
        """The object: JSON, sealed by a checksum."""
        return seal({**version(), "skip_to": self.to})


def chain_names(store: Store) -> list[str]:
    """The chains of the lake at a place: "" for the writer without a name, if it has one, then the others.

    Two LISTs with a delimiter, of the place and of `writers/`: their answers do not grow with the chains.
    """
    named = [name for name in store.folders(FOLDER) if is_chain(name)]
    try:
        unnamed = "commits" in store.folders()
    except Unlistable:  # because of a key beside the lake
        unnamed = bool(store.list("commits"))
    return [*([""] if unnamed else []), *named]


def chain_store(store: Store, chain: str) -> Store:
    """The place of one chain below that of its lake."""
    return store.under(chain_folder(chain)) if chain else store


class ChainCopy:
    """One chain of a lake in a bucket, and the folder on this disk that it is copied to or from."""

    def __init__(self, path: Path, lake: Store, chain: str) -> None:
        """`path`: folder of the lake. `lake`: its place."""
        self.path, self.lake, self.chain = path, lake, chain
        self.writer = writers.folder_of(path, chain)
        """the name of its folder on this disk"""
        self.home = writers.home(path, self.writer)
        self.store = chain_store(lake, chain)
        self.elsewhere = Elsewhere(path, str(self.store.cloud))

    def place(self, name: str) -> Store:
        """Where a segment is: with the chain, or with the lake if all writers share it."""
        return self.lake if is_shared(name) else self.store

    def file(self, name: str) -> Path:
        """Where a segment is on this disk, or would be."""
        return (self.path if is_shared(name) else self.home) / segment_name(name)

    def was_there(self, number: int, data: bytes) -> bool:
        """Whether a commit with this content was published from this disk, or pulled to it."""
        noted = self.elsewhere.knows_slot(number, data)
        if noted is not None:
            return noted
        listed = Elsewhere(
            self.path, self.elsewhere.url
        )  # of earlier versions: the files are all that is noted
        try:
            return all(file in listed for file in Commit.from_json(data, commits.file_name(number)).named())
        except LakeCorrupt:
            return False


def read_slot(chain: Store, number: int) -> Commit | Skip | None:
    """What a chain has at a number; None if nothing was published there.

    Raises `LakeCorrupt` if the object is damaged, `LakeTooNew` if a later version wrote it.
    """
    try:
        return parse_slot(chain.read(commit_name(number)), number)
    except CloudNotFound:
        return None


def parse_slot(data: bytes, number: int) -> Commit | Skip:
    """The commit or the skip in the bytes of a slot; `LakeCorrupt` if it is damaged."""
    name = commits.file_name(number)
    content = parse(data)
    if not isinstance(content, dict) or "skip_to" not in content:
        commit = Commit.from_json(data, name)
        if commit.number != number:
            raise LakeCorrupt(f"commit {name} says that it is number {commit.number}.")
        return commit
    check_version(content, f"skip {name}")  # first: a later one may be sealed differently
    try:
        to = unseal(data)["skip_to"]
        if type(to) is not int or to <= number:
            raise ValueError(f"it skips from {number} to {to!r}")
    except (ValueError, KeyError) as error:
        raise LakeCorrupt(f"skip {name} is damaged: {error}.") from error
    return Skip(number, to)


def read_boundary(chain: Store) -> int:
    """The number below which no slot may be created any more, because `gc` may have deleted some; 0: none."""
    try:
        data = chain.read(BOUNDARY)
    except CloudNotFound:
        return 0
    try:
        first = json.loads(data)["first"]
        if type(first) is not int or first < 0:
            raise ValueError(f"it is {first!r}")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CloudCorrupt(
            f"{BOUNDARY} in {chain.cloud} is damaged ({error}); run `lakepond gc` to write it again."
        ) from error
    return first
