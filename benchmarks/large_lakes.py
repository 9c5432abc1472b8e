"""Lakes of any size from two real files: every entry of their lists names the same file of steps, or of rows.

All entries can be read. Ten terabytes take 130 MB of disk and some seconds to write.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from lakepond.flow.pond_and_lake import Outflow
from lakepond.lake.format import commits, description
from lakepond.lake.format.entries import Entry, RowsFile, Segment
from lakepond.lake.read.lake import newest_intact
from lakepond.lake.write.writer import LakeWriter
from lakepond.replay import Replay
from lakepond.types import Field, Spec

MOST_LINKS = 30_000
"""names of one file; ext4 allows 65,000"""


def spec_of(row_bytes: int) -> Spec:
    """Observations of one row."""
    return Spec(obs=Field((row_bytes,), "uint8", rows=None), action=Field((), "int64"))


def record(replay: Replay, count: int) -> None:
    """Record steps with random observations, each reward its own step id."""
    rng = np.random.default_rng(replay.recorded)
    assert isinstance(replay.spec.obs, Field)
    obs = rng.integers(0, 256, (count + 1, *replay.spec.obs.shape), np.uint8)
    replay.record(
        obs=obs[:-1],
        next_obs=obs[1:],
        action=np.zeros(count, np.int64),
        reward=np.arange(replay.recorded, replay.recorded + count, dtype=np.float32),
        terminated=np.zeros(count, bool),
        truncated=np.zeros(count, bool),
        stream=0,
    )


def make(path: Path, *, entries: int, num_commits: int, steps: int, row_bytes: int) -> None:
    """Create a lake with `entries` files of steps, and as many of rows, and `num_commits` commits.

    steps: of each file. Only the newest commit is complete; the other commit files exist and are not valid.
    """
    one_file = patch("lakepond.lake.write.new_files.ENOUGH_BYTES", 1 << 30)
    with one_file, Replay.open(path, spec_of(row_bytes), capacity=steps, merge_after=None) as replay:
        record(replay, steps)
    first = newest_intact(path)
    assert first is not None
    (segment,), ((file,),) = first.segments, first.rows
    assert isinstance(segment, Segment)
    assert isinstance(file, RowsFile)
    count, rows = segment.steps.steps, file.shard.rows
    segments: list[Entry] = [replace(segment, first=i * count) for i in range(entries)]
    files: list[Entry] = [replace(file, first=i * rows) for i in range(entries)]
    writer = LakeWriter(path, 1)
    try:
        whole = replace(
            first,
            number=num_commits - 1,
            parent=0,
            recorded=entries * count,
            segments=tuple(segments),
            rows=(tuple(files),),
            next_rows=(entries * rows,),
        )
        commits.write(path / "commits", writer.packed(whole), segments=path / "segments")
    finally:
        writer.close()
    _link(b"{}", (path / "commits" / commits.file_name(number) for number in range(1, num_commits - 1)))


def add_names(path: Path, entries: int) -> None:
    """Add empty files, one of steps and one of rows per entry, so that listing the folder takes as long.

    No commit names them.
    """
    folder = path / "segments"
    _link(b"", (folder / f"{i:040x}.{kind}" for i in range(entries) for kind in ("steps", "rows")))


def _link(content: bytes, files: Iterable[Path]) -> None:
    """Files of the same content, most of them links to another one."""
    for i, file in enumerate(files):
        if i % MOST_LINKS == 0:
            original = file
            original.write_bytes(content)
        else:
            os.link(original, file)


@contextmanager
def continued(path: Path, capacity: int) -> Iterator[Replay]:
    """A replay that appends to such a lake without loading its newest steps."""
    last = newest_intact(path)
    assert last is not None
    writer = LakeWriter(path, 1, merge_after=32)
    writer.continue_from(last)
    replay = Replay(description.read(path), capacity)
    replay._pond.start_at(last.recorded)
    replay._outflow = Outflow(replay._pond, writer, replay._rng)
    with replay:
        yield replay
