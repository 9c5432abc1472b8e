"""Lake: all experience on disk, read at one commit while its writer goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from lakepond.errors import LakeCorrupt, LakeNotFound, SampleError, SpecError, TooFewSteps, UnknownStream
from lakepond.lake import commits, description, writers
from lakepond.lake.assemble import PART_STEPS, batch_of, observations
from lakepond.lake.checksum import Digest
from lakepond.lake.commits import Commit, RowsFile, Start
from lakepond.lake.elsewhere import Segments, known
from lakepond.lake.exports import Exports
from lakepond.lake.reader import LakeReader, LeafPart, Part
from lakepond.lake.shard import Shard
from lakepond.lake.steps import read_steps
from lakepond.lake.weights import read_weights
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
    """One commit of a lake, read-only; of several writers, one commit of each."""

    def __init__(
        self,
        path: Path,
        spec: Spec,
        commit: Commit | dict[str, Commit],
        segments: Segments | None = None,
    ) -> None:
        """`commit`: that of each writer, by its name, where it is not the one without a name."""
        self.path, self.spec = path, spec
        self._fields: list[tuple[str, Field]] = list(leaves(spec.obs, "obs"))
        self._read({"": commit} if isinstance(commit, Commit) else commit, segments)

    def _read(self, heads: dict[str, Commit], segments: Segments | None) -> None:
        self.heads = heads
        """the commit of each writer"""
        self.commit = next(iter(heads.values())) if len(heads) == 1 else writers.together(heads)
        self.reader = LakeReader(self.path, self.commit, self.spec, segments)

    @classmethod
    def open(
        cls,
        path: str | Path,
        commit: int | None = None,
        *,
        writer: str | None = None,
        segments: Segments | None = None,
    ) -> Self:
        """The newest commit that is whole, or the one with that number.

        Of several writers, the newest of each, read together: ids then count the live steps of the first
        writer, from 0 on, then those of the next. `writer` names one, to read alone, with its own ids; a
        number without it is a commit of the writer that has no name. `segments` knows the way to files that
        are elsewhere; `pull` and `Replay.lake` hand it over.
        """
        path = Path(path)
        spec = description.read(path)
        if commit is not None:
            writer = writer or ""
            folder = writers.home(path, writer) / "commits"
            if commit not in commits.numbers(folder):
                kept = commits.numbers(folder)
                raise LakeNotFound(f"{folder.parent} has no commit {commit}; it has {kept[-8:] or 'none'}.")
            found = commits.read(folder, commit)
            check_files(path, found)
            return cls(path, spec, {writer: found}, segments)
        newest = {
            name: whole
            for name in (writers.names(path) if writer is None else [writer])
            if (whole := newest_whole(path, name)) is not None
        }
        if not newest:
            where = path if writer is None else writers.home(path, writer)
            raise LakeNotFound(f"{where} has no commit yet; `replay.commit()` makes one.")
        return cls(path, spec, newest, segments)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also in another process, opens the same commits of the lake at the same path."""
        return _open_commits, (self.path.absolute(), {name: head.number for name, head in self.heads.items()})

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

    def query(
        self, *, stream: int | None = None, writer: str | None = None, since_commit: int | None = None
    ) -> Array:
        """The ids of live steps: of one stream, of one writer, and recorded after a commit of that writer.

        Each writer numbers its streams itself: the same number with two writers is two streams.
        """
        start, stop = self.commit.oldest, self.commit.recorded
        if writer is not None or since_commit is not None:
            name, head = self._head(writer)
            if len(self.heads) > 1:
                stops = np.cumsum([c.recorded - c.oldest for c in self.heads.values()])
                stop = int(stops[list(self.heads).index(name)])
                start = stop - (head.recorded - head.oldest)
            if since_commit is not None:
                before = commits.read(writers.home(self.path, name) / "commits", since_commit)
                start += max(0, before.recorded - head.oldest)
        ids = np.arange(start, stop)
        if stream is None or not len(ids):
            return ids
        streams = []
        for s in self.commit.segments:
            first, last = max(start, s.first), min(stop, s.stop)
            if first < last:
                with self.reader.segments.using(s.name) as file:
                    at = s.skip - s.first
                    streams.append(read_steps(file, ["stream"], first + at, last + at)["stream"])
        found: Array = ids[np.concatenate(streams) == stream]
        if not len(found) and since_commit is None:
            raise UnknownStream(f"no live step of {self.path} belongs to stream {stream!r}.")
        return found

    def parts(self, ids: Array, most: int = PART_BYTES) -> Iterator[Part]:
        """Steps by sorted ids, in the order of the disk, a part at a time whose rows take `most` bytes."""
        waiting = self.reader.parts(ids, PART_STEPS)[::-1]
        segments = dict.fromkeys(segment for segment, _ in waiting)
        self.reader.segments.expect(name for segment in segments for name in (segment.name, *segment.needs))
        while waiting:
            segment, some = waiting.pop()
            part = self.reader.read(segment, some)
            if len(some) > 1 and self.reader.row_bytes(part) > most:
                half = len(some) // 2
                waiting += [(segment, some[half:]), (segment, some[:half])]
            else:
                yield part

    def observations(self, i: int, leaf: LeafPart | Array, which: int) -> Array:
        """The obs (0) or next_obs (1) of a part's steps, of one leaf, as arrays."""
        return observations(self.reader, i, self._fields[i][1], leaf, which)

    # --- the lake itself -------------------------------------------------------------------------

    def commits(self, writer: str | None = None) -> list[int]:
        """The numbers of all commits that are kept, oldest first, of the only writer or of the one named."""
        return commits.numbers(writers.home(self.path, self._head(writer)[0]) / "commits")

    def _head(self, writer: str | None) -> tuple[str, Commit]:
        """The only writer, or the one named, and its commit."""
        if writer is None and len(self.heads) == 1:
            return next(iter(self.heads.items()))
        if writer not in self.heads:
            raise SpecError(
                f"name one of the writers of {self.path}, which are {list(self.heads)}: writer=..."
            )
        return writer, self.heads[writer]

    def verify(self) -> None:
        """Read and check every byte that this commit names; `LakeCorrupt` names the first that is wrong.

        Files that are elsewhere are brought and checked, if the way there is known, and else left alone.
        """
        segments = self.reader.segments
        if len(self.heads) > 1:
            for head in self.heads.items():
                with Lake(self.path, self.spec, dict([head]), segments) as alone:
                    alone.verify()
            return
        with ThreadPoolExecutor(2) as pool:
            for file in filter(lambda file: segments.reachable(file.name), self.commit.rows):
                self._check_leaf(file)
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
        for info in self.commit.weights:
            if segments.reachable(f"{info.digest}.steps"):
                with segments.using(f"{info.digest}.steps") as there:
                    check_digest(there, info.digest)
        read_weights(self.commit, segments, reachable=True)

    def _check_leaf(self, file: RowsFile) -> None:
        """Raise `LakeCorrupt` if a file's rows are longer than the observation they belong to."""
        size = self._fields[file.leaf][1].nbytes if file.leaf < len(self._fields) else 0
        if file.shard.row_bytes > size:
            raise LakeCorrupt(
                f"{file.name} of {self.path} has rows of {file.shard.row_bytes:,} bytes for observation "
                f"{file.leaf}, which has {size:,}; see `repair`."
            )

    def fill(self, into: Fillable, count: int, *, rng: np.random.Generator) -> None:
        """Append exactly `count` of the live steps to a replay, every choice as likely as any other."""
        into.fill_from(self, count, rng=rng)

    def compact(self, *, keep_last: int | None = None, keep_every: int | None = None) -> None:
        """Merge small files into larger ones, under a new commit of the same steps, and read that one then.

        Then commits are deleted that neither `keep_last` and `keep_every` nor a checkpoint of the run keeps,
        and files that no commit names. `LakeLocked` while the lake is being written: a writer merges by
        itself.
        """
        from lakepond.lake.writer import LakeWriter

        heads: dict[str, Commit] = {}
        for name in self.heads:
            writer = LakeWriter(
                self.path, len(self._fields), keep_last=keep_last, keep_every=keep_every, writer=name
            )
            try:
                newest = newest_whole(self.path, name)
                if newest is None:
                    raise LakeNotFound(f"{self.path} has no commit that is whole; see `repair`.")
                writer.go_on_from(newest)
                heads[name] = writer.compact() or newest
            finally:
                writer.close()
        self.reader.close()
        self._read(heads, self.reader.segments)

    def stats(self) -> LakeStats:
        """What it holds and what it takes."""
        files = {name: size for commit in self.heads.values() for name, size in commit.files().items()}
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


def _open_commits(path: Path, numbers: dict[str, int]) -> Lake:
    """A lake at one commit of each writer."""
    heads = {
        name: commits.read(writers.home(path, name) / "commits", number) for name, number in numbers.items()
    }
    for head in heads.values():
        check_files(path, head)
    return Lake(path, description.read(path), heads)


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


def commit_to_follow(path: Path, commit: int | Start | None, writer: str = "") -> Commit | None:
    """The commit that a writer resumes from: one by number, its newest (None), or none (`Start.EMPTY`)."""
    if commit is Start.EMPTY:
        return None
    return newest_whole(path, writer) if commit is None else Lake.open(path, commit, writer=writer).commit


def newest_whole(path: Path, writer: str = "") -> Commit | None:
    """A writer's newest commit that verifies; steps back, and says so, over those that do not."""
    home = writers.home(path, writer)
    numbers = commits.numbers(home / "commits")
    for number in reversed(numbers):
        try:
            commit = commits.read(home / "commits", number)
            check_files(path, commit)
        except (LakeCorrupt, FileNotFoundError) as error:
            if commits.numbers(home / "commits")[-1:] != numbers[-1:]:  # it went while we looked: begin again
                return newest_whole(path, writer)
            log.warning("stepping back over commit %d of %s: %s", number, home, error)
            continue
        return commit
    return None
