"""Checking every byte of a lake: files on two threads, each file read once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from lakepond.errors import LakeCorrupt
from lakepond.lake.elsewhere import known
from lakepond.lake.format import manifests
from lakepond.lake.format.checksum import Digest
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.entries import Entries, Entry, File, Manifest, RowsFile
from lakepond.lake.format.names import is_shared
from lakepond.lake.format.shard import Shard
from lakepond.lake.format.steps import StepsInfo, read_layout, read_steps
from lakepond.lake.read.reader import Head, Stored
from lakepond.lake.read.step_files import StepsFiles
from lakepond.lake.read.weights import never_recorded, read_file
from lakepond.types import Array, Spec, leaves

if TYPE_CHECKING:
    from lakepond.lake.read.lake import Lake

THREADS = 2
QUEUED = 8
"""files that wait to be checked"""
HELD_BYTES = 128 << 20
"""files of steps up to this size are read into memory, hashed and decoded there; lakepond writes files of
about 64 MB. Larger ones are hashed, then read again batch by batch"""


class Check(NamedTuple):
    """One file to check: `run` raises `LakeCorrupt` if it is damaged."""

    name: str
    bytes: int
    run: Callable[[], None]


class Runnable(Protocol):
    """A `Check`, or what else is to run in order with checks."""

    @property
    def run(self) -> Callable[[], None]:
        """Raises `LakeCorrupt` or OSError if a file is damaged."""


T = TypeVar("T", bound=Runnable)


def run_all(checks: Iterable[T], done: Callable[[T, LakeCorrupt | OSError | None], None]) -> None:
    """Run checks on two threads; call `done` with each and its error, in their order, on this thread.

    `checks` is read at most `QUEUED` checks ahead of `done`.
    """
    waiting: deque[tuple[T, Future[None]]] = deque()

    def finish() -> None:
        check, future = waiting.popleft()
        error = future.exception()
        if error is not None and not isinstance(error, LakeCorrupt | OSError):
            raise error
        done(check, error)

    with ThreadPoolExecutor(THREADS, "lakepond-verify") as pool:
        try:
            for check in checks:
                waiting.append((check, pool.submit(check.run)))
                if len(waiting) >= QUEUED:
                    finish()
            while waiting:
                finish()
        finally:
            pool.shutdown(cancel_futures=True)


def verify(lake: Lake, *, progress: Callable[[int, int], None] | None = None) -> None:
    """Read and check every byte of an open lake; raise `LakeCorrupt` with the first damaged file.

    Memory: a file per thread, whatever the lake holds.
    """
    done, total = 0, sum(head.catalog.totals().bytes for head in lake.reader.heads)

    def finish(check: Check, error: LakeCorrupt | OSError | None) -> None:
        nonlocal done
        if error is not None:
            raise error
        done = min(total, done + check.bytes)
        if progress is not None:
            progress(done, total)

    run_all(checks(lake), finish)


def checks(lake: Lake) -> Iterator[Check]:
    """One check for every file of a lake that can be read: of rows, of steps, of priorities.

    The check of a damaged manifest fails; the files below it are not known and left out.
    """
    shared: set[str] = set()
    elsewhere, files = known(lake.path), FileChecks(lake.path, lake.spec)

    def below(
        head: Head, leaf: int | None, entries: Sequence[Entry], rows_known: bool
    ) -> Generator[Check, None, bool]:
        """The checks of these files; returns whether all manifests of them could be read."""
        complete = True
        for entry in entries:
            if not head.catalog.is_live(leaf, entry) or entry.name in shared:
                continue
            if not head.segments.reachable(entry.name, elsewhere):
                complete = complete and not isinstance(entry, Manifest)
                continue
            if is_shared(entry.name):
                shared.add(entry.name)
            if not isinstance(entry, Manifest):
                yield Check(entry.name, entry.bytes, partial(files.check, head, entry, rows_known))
                continue
            try:
                listed = manifests.read(head.segments, entry, leaf, len(head.commit.rows))
            except (LakeCorrupt, OSError) as error:
                complete = False
                yield Check(entry.name, 0, partial(_fail, error))
            else:
                yield Check(entry.name, 0, _pass)
                below_is_complete = yield from below(head, leaf, listed, rows_known)
                complete = complete and below_is_complete
        return complete

    for head in lake.reader.heads:
        rows_known = True
        for leaf, listed in rows_first(head.commit):
            complete = yield from below(head, leaf, listed, rows_known)
            rows_known = rows_known and complete
        for info in head.commit.weights:
            name = f"{info.digest}.steps"
            if head.segments.reachable(name, elsewhere):
                yield Check(name, info.bytes, partial(_check_weights, files, head, info))


def rows_first(commit: Commit) -> list[tuple[int | None, Entries]]:
    """The lists of a commit; when steps look for their rows, manifests of rows are in memory."""
    steps, *rows = commit.lists()
    return [*rows, steps]


def _pass() -> None:
    """Do nothing: the file was checked."""


def _fail(error: LakeCorrupt | OSError) -> None:
    raise error


def _check_weights(files: FileChecks, head: Head, info: StepsInfo) -> None:
    if files.check_weights(head, info) > head.commit.recorded:
        raise never_recorded(head.segments.place(f"{info.digest}.steps"))


class FileChecks:
    """Checks of single files, each of which reads its file once. Thread-safe."""

    def __init__(self, path: Path, spec: Spec) -> None:
        self._path, self._steps = path, StepsFiles(spec)
        self._row_bytes = [field.nbytes for _, field in leaves(spec.obs)]

    def check(self, head: Head, file: File, rows_known: bool) -> None:
        """Check a file of rows or steps; of steps also that the commit has their rows.

        `rows_known`: whether all manifests of rows of that commit can be read; without them, nobody knows
        which rows it has, and that is not a fault of the file of steps.
        """
        if isinstance(file, RowsFile):
            self._check_rows(head, file)
        else:
            self._check_steps(Stored(head, file), rows_known)

    def check_weights(self, head: Head, info: StepsInfo) -> int:
        """Check a file of priorities; returns how many recorded steps a commit that names it has at least."""
        with head.segments.using(f"{info.digest}.steps") as file:
            data = _read_checked(file, info.digest)
            return read_file(file, info, changes=info is not head.commit.priorities, data=data).recorded

    def _check_rows(self, head: Head, file: RowsFile) -> None:
        if file.shard.row_bytes > self._row_bytes[file.leaf]:
            raise LakeCorrupt(
                f"{file.name} of {self._path} has rows of {file.shard.row_bytes:,} bytes for observation "
                f"{file.leaf}, which has {self._row_bytes[file.leaf]:,}; run `lakepond repair`."
            )
        with head.segments.using(file.name) as there, Shard(there, file.shard) as shard:
            shard.verify()

    def _check_steps(self, stored: Stored, rows_known: bool) -> None:
        with stored.head.segments.using(stored.name) as file:
            data = _read_checked(file, stored.segment.steps.digest)
            source, name = file if data is None else data, str(file)
            known = self._steps.check(read_layout(source, name=name), stored, file)
            layout = known.file
            for start in range(0, layout.steps, layout.batch):
                stop = min(start + layout.batch, layout.steps)
                known.check_windows(file, read_steps(source, None, start, stop, layout=layout, name=name))
        for leaf, track in enumerate(known.tracks):
            if track is not None and rows_known:
                self._check_has_rows(stored.head, leaf, track.runs - [stored.head.shift[leaf], 0])

    def _check_has_rows(self, head: Head, leaf: int, runs: Array) -> None:
        """Raise `LakeCorrupt` unless a commit has all rows of some runs, (n, 2): first row and count."""
        for start, count in runs[runs[:, 1] > 0].tolist():
            if not head.catalog.covers(leaf, start, start + count):
                raise LakeCorrupt(f"a window of {self._path} names a row that is in no file of its commit.")


def _read_checked(file: Path, digest: str) -> bytes | None:
    """The bytes of a file, None if there are too many; `LakeCorrupt` unless it is named after its bytes."""
    found, data = Digest(), None
    with file.open("rb", buffering=0) as opened:
        if os.fstat(opened.fileno()).st_size <= HELD_BYTES:
            data = opened.readall()
            found.update(data)
        else:
            while piece := opened.read(1 << 20):
                found.update(piece)
    if found.hexdigest() != digest:
        raise LakeCorrupt(
            f"{file} is damaged: its content does not match the digest in its name; run `lakepond repair`."
        )
    return data
