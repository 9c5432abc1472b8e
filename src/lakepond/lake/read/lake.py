"""Lake: read access to all steps on disk at one commit, while its writer continues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from lakepond.errors import LakeCorrupt, LakeNotFound, LakeReadOnly, SpecError, UnknownStream
from lakepond.formats import ranges
from lakepond.lake import urls, writers
from lakepond.lake.elsewhere import known
from lakepond.lake.format import commits, description
from lakepond.lake.format.commits import Commit, Start
from lakepond.lake.format.entries import Source
from lakepond.lake.lock import CommitLock
from lakepond.lake.read.assemble import PART_STEPS, observations
from lakepond.lake.read.exports import Exports
from lakepond.lake.read.index import Index
from lakepond.lake.read.reader import LakeReader, LeafPart, Part
from lakepond.lake.read.sampled import Sampled
from lakepond.lake.read.verify import verify
from lakepond.lake.segments import Segments
from lakepond.paths import on_disk
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
    bytes_shared: int = 0
    """of `bytes_on_disk`: row sources, which are stored once for all writers"""
    bytes_by_writer: dict[str, int] = field(default_factory=dict)
    """the rest of `bytes_on_disk`, by the name of the writer"""

    @property
    def ratio(self) -> float:
        """Compression ratio: `bytes_plain` divided by `bytes_on_disk`."""
        return self.bytes_plain / self.bytes_on_disk if self.bytes_on_disk else 1.0


class Lake(Sampled, Exports):
    """A lake at one commit, read-only; if the lake has several writers, at one commit of each.

    Reading never blocks the writer, and later commits do not change what this object returns: retention keeps
    a commit while it is open. Thread-safe. It can be pickled as path and commit numbers, and used in other
    processes. Close it, or use it in a `with` block.
    """

    def __init__(
        self,
        path: Path,
        spec: Spec,
        commit: Commit | dict[str, Commit],
        segments: Segments | Mapping[str, Segments] | None = None,
    ) -> None:
        """Use `Lake.open`. `commit`: one commit, or the commit of each writer by its name.

        `segments`: of the only writer, or of each writer by its name, if files may be elsewhere.
        """
        self.path, self.spec = path, spec
        self.url: str | None = None
        """of a lake that was opened in a bucket"""
        self._fields: list[tuple[str, Field]] = list(leaves(spec.obs, "obs"))
        self._rng = np.random.default_rng()
        heads = {"": commit} if isinstance(commit, Commit) else commit
        self._read(heads, dict.fromkeys(heads, segments) if isinstance(segments, Segments) else segments)

    def _read(self, heads: dict[str, Commit], segments: Mapping[str, Segments] | None) -> None:
        self.heads = heads
        """the commit of each writer"""
        self.commit = next(iter(heads.values())) if len(heads) == 1 else _together(heads)
        self._locks: list[CommitLock] = []
        try:
            for name, head in heads.items():
                file = writers.home(self.path, name) / "commits" / commits.file_name(head.number)
                self._locks.append(CommitLock(file))
            self.reader = LakeReader(self.path, heads, self.spec, segments)
        except BaseException:
            self._unlock()
            raise
        self._index = Index(self.reader)

    @classmethod
    def open(
        cls,
        path: str | Path,
        commit: int | None = None,
        *,
        writer: str | None = None,
        segments: Segments | None = None,
        cache: str | Path | None = None,
    ) -> Lake:
        """Open a lake at its newest intact commit, or at the commit with that number.

        path: folder of the lake, or the URL of one in a bucket ("gs://bucket/demo"), whose files are
        downloaded when they are read.
        If the lake has several writers, the newest commits of all are read together, and step ids count the
        live steps of the first writer from 0, then those of the next.
        commit: number of a commit of `writer`, or of the writer without a name.
        writer: read the steps of this writer only, with its own step ids.
        segments: locates files that are not on this disk; passed by `pull` and `Replay.lake`.
        cache: folder for the files of a lake in a bucket; default: one per URL in `$XDG_CACHE_HOME/lakepond`
        (`~/.cache/lakepond`).

        Raises `LakeNotFound` if the lake or the commit does not exist, `LakeCorrupt` if the requested commit
        is damaged. Without `commit`, damaged commits are skipped with a warning.
        """
        if "://" in str(path):
            opened = urls.open_lake(str(path), commit, writer, None if cache is None else on_disk(cache))
            assert isinstance(opened, Lake)
            return opened
        if cache is not None:
            raise SpecError("cache is for a lake in a bucket; give its URL in place of a path.")
        path = on_disk(path)
        spec = description.read(path)
        if writer is not None:
            writer = one_writer(path, writer, writers.names(path))
        if commit is not None:
            writer = writer or ""
            folder = writers.home(path, writer) / "commits"
            try:
                found = commits.read(folder, commit)
                check_files(path, found, writer)
                return cls(path, spec, {writer: found}, segments)
            except (FileNotFoundError, LakeCorrupt) as error:
                if isinstance(error, LakeCorrupt) and (folder / commits.file_name(commit)).is_file():
                    raise
                kept = [number for number in commits.numbers(folder) if number != commit]
                raise LakeNotFound(
                    f"{folder.parent} has no commit {commit}; it has {ranges(kept)}."
                ) from None
        while True:
            newest = {
                name: intact
                for name in (writers.names(path) if writer is None else [writer])
                if (intact := newest_intact(path, name)) is not None
            }
            if not newest:
                where = path if writer is None else writers.home(path, writer)
                raise LakeNotFound(f"{where} has no commit yet; `replay.commit()` creates one.")
            with suppress(FileNotFoundError):  # deleted before it could be locked: there are newer ones
                return cls(path, spec, newest, segments)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also in another process, opens the same commits of the lake at the same path."""
        numbers = {name: head.number for name, head in self.heads.items()}
        if self.url is not None:
            return urls.open_again, (self.url, self.path.absolute(), numbers)
        return open_commits, (self.path.absolute(), numbers)

    def __repr__(self) -> str:
        read = f"commit {self.commit.number}" if len(self.heads) == 1 else f"{len(self.heads)} writers"
        return f"Lake({self.url or self.path}, {read}: {len(self):,} steps)"

    # --- steps -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.reader.recorded - self.reader.oldest

    def query(
        self, *, stream: int | None = None, writer: str | None = None, since_commit: int | None = None
    ) -> Array:
        """Return the ids of live steps, optionally of one stream or writer, or recorded after a commit.

        stream: number of a stream; each writer numbers its own streams, so the same number of two writers is
        two streams. writer: name of a writer, with or without its incarnation. since_commit: number of a
        commit of that writer.
        Raises `UnknownStream` if the stream has no live step, unless `since_commit` is given.
        """
        start, stop = self.reader.oldest, self.reader.recorded
        if writer is not None or since_commit is not None:
            name, head = self._head(writer)
            if len(self.heads) > 1:
                stops = np.cumsum([c.recorded - c.oldest for c in self.heads.values()])
                stop = int(stops[list(self.heads).index(name)])
                start = stop - (head.recorded - head.oldest)
            if since_commit is not None:
                before = next(h for h in self.reader.heads if h.writer == name).segments.commit(since_commit)
                start += max(0, before.recorded - head.oldest)
        if stream is None or start >= stop:
            return np.arange(start, stop)
        parts = self.reader.scan(["stream"], start, stop)
        found = np.concatenate([ids[columns["stream"] == stream] for _, ids, columns in parts])
        if not len(found) and since_commit is None:
            raise UnknownStream(f"no live step of {self.path} belongs to stream {stream!r}.")
        return found

    def parts(self, ids: Array, most: int = PART_BYTES) -> Iterator[Part]:
        """Iterate over the steps with these sorted ids in parts whose rows take at most `most` bytes."""
        waiting = self.reader.parts(ids, PART_STEPS)[::-1]
        expected = ""
        while waiting:
            segment, some = waiting.pop()
            if segment.name != expected:
                self.reader.expect([segment])
                expected = segment.name
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
        name, _ = self._head(writer)
        return next(head for head in self.reader.heads if head.writer == name).segments.commits()

    def _head(self, writer: str | None) -> tuple[str, Commit]:
        """The only writer, or the one named, and its commit."""
        if writer is None and len(self.heads) == 1:
            return next(iter(self.heads.items()))
        name = None if writer is None else one_writer(self.path, writer, self.heads)
        if name not in self.heads:
            raise SpecError(
                f"name one of the writers of {self.path}, which are {list(self.heads)}: writer=..."
            )
        return name, self.heads[name]

    def files(self) -> Iterator[tuple[str, int]]:
        """Iterate over the names and sizes of all files of this commit, manifests included."""
        return (file for head in self.reader.heads for file in head.catalog.files())

    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Read and check every byte of this commit; raise `LakeCorrupt` with the first damaged file.

        Files that are only in the cloud are downloaded and checked if the lake was opened with access to the
        cloud, and skipped otherwise. progress: called as `progress(done, total)` after each file, in bytes.
        """
        verify(self, progress=progress)

    def compact(self, *, keep_last: int | None = None, keep_every: int | None = None) -> None:
        """Merge small files into larger ones, publish a new commit with the same steps, and switch to it.

        Then delete the commits that are not kept by `keep_last`, `keep_every` or a checkpoint of the run, and
        the files that no commit refers to. Writers of other machines that were pulled are left as they are;
        `SpecError` if there are no others. Raises `LakeLocked` while a process writes the lake; a writer
        merges files by itself.
        """
        from lakepond.lake.write.writer import LakeWriter

        if self.url is not None:
            raise LakeReadOnly(f"{self.url} is only read; pull the lake to a folder to compact that copy.")
        own = [name for name in self.heads if not writers.is_copy(name)]
        if not own:
            raise SpecError(
                f"{self.path} has copies of writers of other machines only ({', '.join(self.heads)}), which "
                "are not changed here; compact the lake on the machine that writes it."
            )
        heads = dict(self.heads)
        segments = {head.writer: head.segments for head in self.reader.heads}
        self.close()  # retention keeps commits that are read
        try:
            for name in own:
                writer = LakeWriter(
                    self.path, len(self._fields), keep_last=keep_last, keep_every=keep_every, writer=name
                )
                try:
                    newest = newest_intact(self.path, name)
                    if newest is None:
                        raise LakeNotFound(f"{self.path} has no intact commit; run `lakepond repair`.")
                    writer.continue_from(newest)
                    heads[name] = writer.compact() or newest
                finally:
                    writer.close()
        except BaseException:
            with suppress(OSError):  # deleted in the meantime
                self._read(heads, segments)
            raise
        self._read(heads, segments)

    def stats(self) -> LakeStats:
        """Return counts of steps, rows and files, and bytes on disk."""
        rows = sum(self.reader.rows_count(leaf) for leaf in range(len(self._fields)))
        files, own = 0, {}
        shared: dict[tuple[str, int], Source] = {}  # two writers may have compressed one source differently
        for head in self.reader.heads:
            totals = head.catalog.totals()
            sources = [source for listed in head.commit.sources for source in listed]
            files += totals.files - sum(source.files for source in sources)
            own[head.writer] = totals.bytes - sum(source.bytes for source in sources)
            rows -= sum(source.rows for source in sources)
            shared |= {(source.digest, source.bytes): source for source in sources}
        bytes_shared = sum(source.bytes for source in shared.values())
        return LakeStats(
            commit=self.commit.number,
            steps=len(self),
            recorded=self.commit.recorded,
            rows=rows + sum(source.rows for source in shared.values()),
            files=files + sum(source.files for source in shared.values()),
            bytes_on_disk=sum(own.values()) + bytes_shared,
            bytes_plain=len(self) * self.spec.step_nbytes,
            bytes_shared=bytes_shared,
            bytes_by_writer=own,
        )

    def close(self) -> None:
        """Close all files. Retention may then delete the commit."""
        self.reader.close()
        self._unlock()

    def _unlock(self) -> None:
        for lock in self._locks:
            lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def one_writer(path: Path | str, writer: str, among: Iterable[str]) -> str:
    """The writer that a name stands for, with or without incarnation; itself if there is none of that name.

    `SpecError` if several incarnations have the name.
    """
    found = writers.find(writer, among)
    if len(found) > 1:
        raise SpecError(
            f"{path} has {len(found)} incarnations of the writer {writer!r}; name one: {', '.join(found)}."
        )
    return found[0] if found else writer


def open_commits(path: Path, numbers: dict[str, int]) -> Lake:
    """Open a lake at one commit of each writer; used for unpickling."""
    heads = {
        name: commits.read(writers.home(path, name) / "commits", number) for name, number in numbers.items()
    }
    for name, head in heads.items():
        check_files(path, head, name)
    return Lake(path, description.read(path), heads)


def check_files(path: Path, commit: Commit, writer: str = "") -> None:
    """Raise `LakeCorrupt` unless the files that a commit itself names have their sizes, or are elsewhere.

    These are the newest files, and manifests. Older files are checked when they are read, and by `verify`.
    """
    segments = Segments(path, writer)
    elsewhere: dict[str, str] | None = None
    for name, size in commit.named().items():
        file = segments.local(name)
        if file is None:
            elsewhere = known(path) if elsewhere is None else elsewhere
            if name not in elsewhere:
                raise LakeCorrupt(
                    f"{segments.place(name)}, which commit {commit.number} needs, is missing; run "
                    "`lakepond repair`."
                )
        elif (there := file.stat().st_size) != size:
            raise LakeCorrupt(f"{file} has {there} bytes and should have {size}; run `lakepond repair`.")


def commit_to_follow(path: Path, commit: int | Start | None, writer: str = "") -> Commit | None:
    """The commit that a writer resumes from: one by number, its newest (None), or none (`Start.EMPTY`)."""
    if commit is Start.EMPTY:
        return None
    if commit is None:
        return newest_intact(path, writer)
    with Lake.open(path, commit, writer=writer) as lake:
        return lake.commit


def newest_intact(path: Path, writer: str = "") -> Commit | None:
    """Return a writer's newest intact commit; skip damaged ones with a warning.

    `LakeTooNew` if a later version wrote the newest one: what it holds must not be passed over.
    """
    home = writers.home(path, writer)
    newest = commits.newest(home / "commits")
    for number in commits.newest_first(home / "commits"):
        try:
            commit = commits.read(home / "commits", number)
            check_files(path, commit, writer)
        except (LakeCorrupt, FileNotFoundError) as error:
            if commits.newest(home / "commits") != newest:  # deleted while it was read: start again
                return newest_intact(path, writer)
            log.warning("skipping unreadable commit %d of %s: %s", number, home, error)
            continue
        return commit
    return None


def _together(heads: Mapping[str, Commit]) -> Commit:
    """What is common to the commits of several writers, as one that lists no files."""
    steps = sum(commit.recorded - commit.oldest for commit in heads.values())
    first = next(iter(heads.values()))
    return replace(
        first,
        number=max(commit.number for commit in heads.values()),
        parent=None,
        time=max(commit.time for commit in heads.values()),
        note={writer: commit.note for writer, commit in heads.items()},
        oldest=0,
        recorded=steps,
        segments=(),
        rows=((),) * len(first.rows),
        sources=(),
        priorities=None,
        priority_changes=(),
        generator=None,
    )
