"""Lake: read access to all steps on disk at one commit, while its writer continues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from lakepond.errors import LakeCorrupt, LakeNotFound, SpecError, UnknownStream
from lakepond.formats import ranges
from lakepond.lake import writers
from lakepond.lake.elsewhere import Segments, known
from lakepond.lake.format import commits, description
from lakepond.lake.format.checksum import Digest
from lakepond.lake.format.commits import Commit, RowsFile, Start
from lakepond.lake.format.shard import Shard
from lakepond.lake.read.assemble import PART_STEPS, observations
from lakepond.lake.read.exports import Exports
from lakepond.lake.read.index import Index
from lakepond.lake.read.reader import LakeReader, LeafPart, Part
from lakepond.lake.read.sampled import Sampled
from lakepond.lake.read.weights import read_weights
from lakepond.types import Array, Field, Spec, leaves

log = logging.getLogger("lakepond")
PART_BYTES = 32 << 20
"""maximum bytes of rows per part; larger parts are split"""


@dataclass(frozen=True)
class LakeStats:
    """Counts and disk use of a lake, as returned by `Lake.stats`."""

    commit: int
    """number of the commit"""
    steps: int
    """live steps"""
    recorded: int
    """steps ever recorded"""
    rows: int
    """distinct rows"""
    files: int
    bytes_on_disk: int
    bytes_plain: int
    """bytes of the live steps without deduplication and compression"""

    @property
    def ratio(self) -> float:
        """Compression ratio: `bytes_plain` divided by `bytes_on_disk`."""
        return self.bytes_plain / self.bytes_on_disk if self.bytes_on_disk else 1.0


class Fillable(Protocol):
    """A replay that a lake can fill."""

    def fill_from(self, lake: Lake, count: int, *, rng: np.random.Generator) -> None:
        """Append exactly `count` live steps of a lake, drawn uniformly without replacement."""


class Lake(Sampled, Exports):
    """A lake at one commit, read-only; if the lake has several writers, at one commit of each.

    Reading never blocks the writer, and later commits do not change what this object returns. It can be
    pickled as path and commit numbers, and used in other processes. Close it, or use it in a `with` block.
    """

    def __init__(
        self,
        path: Path,
        spec: Spec,
        commit: Commit | dict[str, Commit],
        segments: Segments | None = None,
    ) -> None:
        """Use `Lake.open`. `commit`: one commit, or the commit of each writer by its name."""
        self.path, self.spec = path, spec
        self._fields: list[tuple[str, Field]] = list(leaves(spec.obs, "obs"))
        self._rng = np.random.default_rng()
        self._read({"": commit} if isinstance(commit, Commit) else commit, segments)

    def _read(self, heads: dict[str, Commit], segments: Segments | None) -> None:
        self.heads = heads
        """the commit of each writer"""
        self.commit = next(iter(heads.values())) if len(heads) == 1 else writers.together(heads)
        self.reader = LakeReader(self.path, self.commit, self.spec, segments)
        self._index = Index(self.reader)

    @classmethod
    def open(
        cls,
        path: str | Path,
        commit: int | None = None,
        *,
        writer: str | None = None,
        segments: Segments | None = None,
    ) -> Self:
        """Open a lake at its newest intact commit, or at the commit with that number.

        If the lake has several writers, the newest commits of all are read together, and step ids count the
        live steps of the first writer from 0, then those of the next.
        commit: number of a commit of `writer`, or of the writer without a name.
        writer: read the steps of this writer only, with its own step ids.
        segments: locates files that are not on this disk; passed by `pull` and `Replay.lake`.

        Raises `LakeNotFound` if the lake or the commit does not exist, `LakeCorrupt` if the requested commit
        is damaged. Without `commit`, damaged commits are skipped with a warning.
        """
        path = Path(path)
        spec = description.read(path)
        if commit is not None:
            writer = writer or ""
            folder = writers.home(path, writer) / "commits"
            if commit not in commits.numbers(folder):
                kept = commits.numbers(folder)
                raise LakeNotFound(f"{folder.parent} has no commit {commit}; it has {ranges(kept)}.")
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
            raise LakeNotFound(f"{where} has no commit yet; `replay.commit()` creates one.")
        return cls(path, spec, newest, segments)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also in another process, opens the same commits of the lake at the same path."""
        return open_commits, (self.path.absolute(), {name: head.number for name, head in self.heads.items()})

    # --- steps -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.commit.recorded - self.commit.oldest

    def query(
        self, *, stream: int | None = None, writer: str | None = None, since_commit: int | None = None
    ) -> Array:
        """Return the ids of live steps, optionally of one stream or writer, or recorded after a commit.

        stream: number of a stream; each writer numbers its own streams, so the same number of two writers is
        two streams. writer: name of a writer. since_commit: number of a commit of that writer.
        Raises `UnknownStream` if the stream has no live step, unless `since_commit` is given.
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
        streams = [columns["stream"] for _, _, columns in self.reader.scan(["stream"], start, stop)]
        found: Array = ids[np.concatenate(streams) == stream]
        if not len(found) and since_commit is None:
            raise UnknownStream(f"no live step of {self.path} belongs to stream {stream!r}.")
        return found

    def parts(self, ids: Array, most: int = PART_BYTES) -> Iterator[Part]:
        """Iterate over the steps with these sorted ids in parts whose rows take at most `most` bytes."""
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
        """Return the obs (`which` 0) or next_obs (1) of a part's steps, for one leaf."""
        return observations(self.reader, i, self._fields[i][1], leaf, which)

    # --- the lake itself -------------------------------------------------------------------------

    def commits(self, writer: str | None = None) -> list[int]:
        """Return the numbers of all commits, oldest first; `writer` is required if there are several."""
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

    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Read and check every byte of this commit; raise `LakeCorrupt` with the first damaged file.

        Files that are only in the cloud are downloaded and checked if the lake was opened with access to the
        cloud, and skipped otherwise. progress: called as `progress(done, total)` after each file, in bytes.
        """
        segments = self.reader.segments
        if len(self.heads) > 1:
            for head in self.heads.items():
                with Lake(self.path, self.spec, dict([head]), segments) as alone:
                    alone.verify(progress=progress)
            return
        sizes = self.commit.files()
        done, total = 0, sum(sizes.values())

        def checked(name: str) -> None:
            nonlocal done
            done += sizes[name]
            if progress is not None:
                progress(done, total)

        with ThreadPoolExecutor(2) as pool:
            for file in filter(lambda file: segments.reachable(file.name), self.commit.rows):
                self._check_leaf(file)
                with segments.using(file.name) as there, Shard(there, file.shard) as shard:
                    shard.verify(pool)
                checked(file.name)
        for segment in filter(lambda segment: segments.reachable(segment.name), self.commit.segments):
            with segments.using(segment.name) as there:
                check_digest(there, segment.steps.digest)
            for first in range(segment.first, segment.stop, PART_STEPS):
                part = self.reader.read(segment, np.arange(first, min(first + PART_STEPS, segment.stop)))
                for i, leaf in enumerate(part.leaves):
                    if isinstance(leaf, LeafPart) and first == segment.first:
                        self.reader.check_rows(i, leaf.track, leaf.layout.row_bytes)
            checked(segment.name)
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
                f"{file.leaf}, which has {size:,}; run `lakepond repair`."
            )

    def fill(self, into: Fillable, count: int, *, rng: np.random.Generator) -> None:
        """Append exactly `count` live steps to a replay; the same as `Replay.fill_from`."""
        into.fill_from(self, count, rng=rng)

    def compact(self, *, keep_last: int | None = None, keep_every: int | None = None) -> None:
        """Merge small files into larger ones, publish a new commit with the same steps, and switch to it.

        Then delete the commits that are not kept by `keep_last`, `keep_every` or a checkpoint of the run, and
        the files that no commit refers to. Raises `LakeLocked` while a process writes the lake; a writer
        merges files by itself.
        """
        from lakepond.lake.write.writer import LakeWriter

        heads: dict[str, Commit] = {}
        for name in self.heads:
            writer = LakeWriter(
                self.path, len(self._fields), keep_last=keep_last, keep_every=keep_every, writer=name
            )
            try:
                newest = newest_whole(self.path, name)
                if newest is None:
                    raise LakeNotFound(f"{self.path} has no intact commit; run `lakepond repair`.")
                writer.go_on_from(newest)
                heads[name] = writer.compact() or newest
            finally:
                writer.close()
        self.reader.close()
        self._read(heads, self.reader.segments)

    def stats(self) -> LakeStats:
        """Return counts of steps, rows and files, and bytes on disk."""
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


def open_commits(path: Path, numbers: dict[str, int]) -> Lake:
    """Open a lake at one commit of each writer; used for unpickling."""
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
                f"{file}, which commit {commit.number} needs, is missing; run `lakepond repair`."
            ) from None
        if there != size:
            raise LakeCorrupt(f"{file} has {there} bytes and should have {size}; run `lakepond repair`.")


def check_digest(file: Path, digest: str) -> None:
    """Raise `LakeCorrupt` unless a file's bytes are those it is named after."""
    found = Digest()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            found.update(piece)
    if found.hexdigest() != digest:
        raise LakeCorrupt(
            f"{file} is damaged: its content does not match the digest in its name; run `lakepond repair`."
        )


def commit_to_follow(path: Path, commit: int | Start | None, writer: str = "") -> Commit | None:
    """The commit that a writer resumes from: one by number, its newest (None), or none (`Start.EMPTY`)."""
    if commit is Start.EMPTY:
        return None
    return newest_whole(path, writer) if commit is None else Lake.open(path, commit, writer=writer).commit


def newest_whole(path: Path, writer: str = "") -> Commit | None:
    """Return a writer's newest intact commit; skip damaged ones with a warning."""
    home = writers.home(path, writer)
    numbers = commits.numbers(home / "commits")
    for number in reversed(numbers):
        try:
            commit = commits.read(home / "commits", number)
            check_files(path, commit)
        except (LakeCorrupt, FileNotFoundError) as error:
            if (
                commits.numbers(home / "commits")[-1:] != numbers[-1:]
            ):  # deleted while we read it: start again
                return newest_whole(path, writer)
            log.warning("skipping unreadable commit %d of %s: %s", number, home, error)
            continue
        return commit
    return None
