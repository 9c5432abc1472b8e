"""Lake: all experience on disk, read at one commit while its writer goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from lakepond.errors import LakeCorrupt, LakeNotFound, SampleError, TooFewSteps, UnknownStream
from lakepond.lake import commits, description
from lakepond.lake.assemble import PART_STEPS, batch_of, observations
from lakepond.lake.checksum import Digest
from lakepond.lake.commits import Commit
from lakepond.lake.elsewhere import Segments, known
from lakepond.lake.exports import Exports
from lakepond.lake.reader import LakeReader, LeafPart, Part
from lakepond.lake.shard import Shard
from lakepond.lake.steps import read_steps
from lakepond.types import Array, Batch, Field, Spec, leaves

log = logging.getLogger("lakepond")
PART_BYTES = 32 << 20
"""steps are read fewer at a time if their rows take more than that"""


@dataclass(frozen=True)
class LakeStats:
    """What a lake holds and what it takes."""

    commit: int
    steps: int
    recorded: int
    rows: int
    """distinct rows"""
    files: int
    bytes_on_disk: int
    bytes_plain: int
    """what the live steps would take plainly"""

    @property
    def ratio(self) -> float:
        """How many times smaller it is than in plain form."""
        return self.bytes_plain / self.bytes_on_disk if self.bytes_on_disk else 1.0


class Fillable(Protocol):
    """What a lake can fill."""

    def fill_from(self, lake: Lake, count: int, *, rng: np.random.Generator) -> None:
        """Append exactly `count` of a lake's live steps, every choice as likely as any other."""


class Lake(Exports):
    """One commit of a lake, read-only."""

    def __init__(self, path: Path, spec: Spec, commit: Commit, segments: Segments | None = None) -> None:
        self.path, self.spec, self.commit = path, spec, commit
        self._fields: list[tuple[str, Field]] = list(leaves(spec.obs, "obs"))
        self.reader = LakeReader(path, commit, spec, segments)

    @classmethod
    def open(cls, path: str | Path, commit: int | None = None, *, segments: Segments | None = None) -> Self:
        """The newest commit that is whole, or the one with that number.

        `segments` knows the way to files that are elsewhere; `pull` and `Replay.lake` hand it over.
        """
        path = Path(path)
        spec = description.read(path)
        folder = path / "commits"
        if commit is not None:
            if commit not in commits.numbers(folder):
                kept = commits.numbers(folder)
                raise LakeNotFound(f"{path} has no commit {commit}; it has {kept[-8:] or 'none'}.")
            found = commits.read(folder, commit)
            check_files(path, found)
            return cls(path, spec, found, segments)
        newest = newest_whole(path)
        if newest is None:
            raise LakeNotFound(f"{path} has no commit yet; `replay.commit()` makes one.")
        return cls(path, spec, newest, segments)

    # --- steps -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.commit.recorded - self.commit.oldest

    def ids(self) -> Array:
        """The ids of all live steps."""
        return np.arange(self.commit.oldest, self.commit.recorded)

    def steps(self, start: int, stop: int) -> Batch:
        """Steps [start, stop) by id."""
        if not self.commit.oldest <= start < stop <= self.commit.recorded:
            raise TooFewSteps(
                f"steps [{start}, {stop}) were asked for, commit {self.commit.number} of {self.path} holds "
                f"[{self.commit.oldest}, {self.commit.recorded})."
            )
        return batch_of(self.reader, self.spec, np.arange(start, stop))

    def sample(self, batch_size: int, *, rng: np.random.Generator) -> Batch:
        """Live steps at random, uniformly, with replacement."""
        if batch_size < 1 or not isinstance(rng, np.random.Generator):
            raise SampleError(
                f"sample takes a size of at least 1 and a Generator, not {batch_size!r}, {rng!r}."
            )
        if not len(self):
            raise TooFewSteps(f"{self.path} holds no step yet.")
        return batch_of(self.reader, self.spec, self.commit.oldest + rng.integers(len(self), size=batch_size))

    def query(self, *, stream: int | None = None, since_commit: int | None = None) -> Array:
        """The ids of live steps: of one stream, and recorded after a commit."""
        start = self.commit.oldest
        if since_commit is not None:
            start = max(start, commits.read(self.path / "commits", since_commit).recorded)
        ids = np.arange(start, self.commit.recorded)
        if stream is None or not len(ids):
            return ids
        streams = []
        for s in self.commit.segments:
            if s.stop > start:
                with self.reader.segments.using(s.name) as file:
                    streams.append(read_steps(file, ["stream"], max(0, start - s.first))["stream"])
        found: Array = ids[np.concatenate(streams) == stream]
        if not len(found) and since_commit is None:
            raise UnknownStream(f"no live step of {self.path} belongs to stream {stream!r}.")
        return found

    def parts(self, ids: Array) -> Iterator[Part]:
        """Steps by sorted ids, a bounded number at a time, in the order of the disk."""
        waiting = self.reader.parts(ids, PART_STEPS)[::-1]
        while waiting:
            segment, some = waiting.pop()
            part = self.reader.read(segment, some)
            if len(some) > 1 and self.reader.row_bytes(part) > PART_BYTES:
                half = len(some) // 2
                waiting += [(segment, some[half:]), (segment, some[:half])]
            else:
                yield part

    def observations(self, i: int, leaf: LeafPart | Array, which: int) -> Array:
        """The obs (0) or next_obs (1) of a part's steps, of one leaf, as arrays."""
        return observations(self.reader, i, self._fields[i][1], leaf, which)

    # --- the lake itself -------------------------------------------------------------------------

    def commits(self) -> list[int]:
        """The numbers of all commits that are kept, oldest first."""
        return commits.numbers(self.path / "commits")

    def verify(self) -> None:
        """Read and check every byte that this commit names; `LakeCorrupt` names the first that is wrong.

        Files that are elsewhere are brought and checked, if the way there is known, and else left alone.
        """
        segments = self.reader.segments
        with ThreadPoolExecutor(2) as pool:
            for file in filter(lambda file: segments.reachable(file.name), self.commit.rows):
                with segments.using(file.name) as there, Shard(there, file.shard) as shard:
                    shard.verify(pool)
        for segment in filter(lambda segment: segments.reachable(segment.name), self.commit.segments):
            with segments.using(segment.name) as there:
                check_digest(there, segment.steps.digest)
            for first in range(segment.first, segment.stop, PART_STEPS):
                part = self.reader.read(segment, np.arange(first, min(first + PART_STEPS, segment.stop)))
                for i, leaf in enumerate(part.leaves):
                    if isinstance(leaf, LeafPart) and first == segment.first:
                        self.reader.check_rows(i, leaf.track, leaf.layout.row_bytes)
        if self.commit.priorities is not None:
            digest = self.commit.priorities.digest
            if segments.reachable(f"{digest}.steps"):
                with segments.using(f"{digest}.steps") as there:
                    check_digest(there, digest)

    def fill(self, into: Fillable, count: int, *, rng: np.random.Generator) -> None:
        """Append exactly `count` of the live steps to a replay, every choice as likely as any other."""
        into.fill_from(self, count, rng=rng)

    def compact(self, *, keep_last: int | None = None, keep_every: int | None = None) -> None:
        """Merge small files to larger ones, under a new commit of the same steps, and go on at that one.

        Then what `keep_last` and `keep_every` do not keep leaves, and so do files that no commit names.
        `LakeLocked` while the lake is being written: a writer merges by itself.
        """
        from lakepond.lake.writer import LakeWriter

        writer = LakeWriter(self.path, len(self._fields), keep_last=keep_last, keep_every=keep_every)
        try:
            newest = newest_whole(self.path)
            if newest is None:
                raise LakeNotFound(f"{self.path} has no commit that is whole; see `repair`.")
            writer.go_on_from(newest)
            commit = writer.compact() or newest
        finally:
            writer.close()
        self.reader.close()
        self.commit, self.reader = commit, LakeReader(self.path, commit, self.spec, self.reader.segments)

    def stats(self) -> LakeStats:
        """What it holds and what it takes."""
        files = self.commit.files()
        return LakeStats(
            commit=self.commit.number,
            steps=len(self),
            recorded=self.commit.recorded,
            rows=sum(file.shard.rows for file in self.commit.rows),
            files=len(files),
            bytes_on_disk=sum(files.values()),
            bytes_plain=len(self) * self.spec.step_nbytes,
        )

    def close(self) -> None:
        """Close all files."""
        self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def check_files(path: Path, commit: Commit) -> None:
    """Raise `LakeCorrupt` unless every file that a commit names has its size, here, or is elsewhere."""
    elsewhere = known(path)
    for name, size in commit.files().items():
        file = path / "segments" / name
        try:
            there = file.stat().st_size
        except FileNotFoundError:
            if name in elsewhere:
                continue
            raise LakeCorrupt(
                f"{file}, which commit {commit.number} needs, is missing; see `repair`."
            ) from None
        if there != size:
            raise LakeCorrupt(f"{file} has {there} bytes and should have {size}; see `repair`.")


def check_digest(file: Path, digest: str) -> None:
    """Raise `LakeCorrupt` unless a file's bytes are those it is named after."""
    found = Digest()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            found.update(piece)
    if found.hexdigest() != digest:
        raise LakeCorrupt(f"{file} is not what was written: its content has another name; see `repair`.")


def newest_whole(path: Path) -> Commit | None:
    """The newest commit that verifies; steps back, and says so, over those that do not."""
    for number in reversed(commits.numbers(path / "commits")):
        try:
            commit = commits.read(path / "commits", number)
            check_files(path, commit)
        except LakeCorrupt as error:
            log.warning("stepping back over commit %d of %s: %s", number, path, error)
            continue
        return commit
    return None
