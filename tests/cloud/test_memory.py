"""Memory of a push, with a lake of fabricated entries whose files all have distinct names.

`PYTHONPATH=. python tests/cloud/test_memory.py 78000` measures it for 156,000 files, in two minutes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from benchmarks import large_lakes
from inline import Inline

import lakepond as lp
from lakepond.cloud import local
from lakepond.cloud.chains import ChainCopy
from lakepond.cloud.copying import Copier
from lakepond.cloud.layout import commit_numbers
from lakepond.cloud.store import Store
from lakepond.lake.format import commits
from lakepond.lake.format.entries import Entry, RowsFile, Segment
from lakepond.lake.read.lake import newest_intact
from lakepond.lake.write.writer import LakeWriter


def large_lake(path: Path, entries: int) -> None:
    """A lake of one commit with `entries` files of steps and as many of rows: names of two real files."""
    with lp.Replay.open(path, large_lakes.spec_of(100), capacity=8, merge_after=None) as replay:
        large_lakes.record(replay, 8)
    first = newest_intact(path)
    assert first is not None
    (segment,), ((file,),) = first.segments, first.rows
    assert isinstance(segment, Segment)
    assert isinstance(file, RowsFile)
    steps, rows = segment.steps.steps, file.shard.rows
    segments: list[Entry] = []
    files: list[Entry] = []
    content = {each.name: path / "segments" / each.name for each in (segment, file)}
    for i in range(entries):
        digest = hashlib.sha256(b"%d" % i).hexdigest()[:40]
        segments.append(replace(segment, first=i * steps, steps=replace(segment.steps, digest=digest)))
        files.append(replace(file, first=i * rows, shard=replace(file.shard, digest=digest)))
        for original, new in ((segment, segments[-1]), (file, files[-1])):
            target = path / "segments" / new.name
            if i % large_lakes.MOST_LINKS:
                os.link(content[original.name], target)
            else:
                content[original.name] = Path(shutil.copy(content[original.name], target))
    whole = replace(
        first,
        number=1,
        recorded=entries * steps,
        segments=tuple(segments),
        rows=(tuple(files),),
        live_rows=(((0, entries * rows),),),
        next_rows=(entries * rows,),
    )
    writer = LakeWriter(path, 1)
    try:
        commits.write(path / "commits", writer.packed(whole), segments=path / "segments")
    finally:
        writer.close()
    (path / "commits" / commits.file_name(0)).unlink()


def peak(push: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        push()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def push(lake: Path, store: Store) -> None:
    Copier(ChainCopy(lake, store, ""), Inline(1)).round()  # type: ignore[arg-type]


@pytest.mark.parametrize("there", [False, True], ids=["nothing is there", "all is there"])
def test_the_first_push_of_a_process_takes_at_most_400_bytes_per_file(tmp_path, monkeypatch, there):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(sys, "intern", lambda text: text)  # its table grows at times of its own
    monkeypatch.setattr(local, "PIECE", 1 << 16)
    peaks = []
    for entries in (1_000, 4_000):
        lake, store = tmp_path / f"{entries}", Store(lp.Cloud(f"file://{tmp_path}/bucket-{entries}"))
        large_lake(lake, entries)
        if there:
            push(lake, store)
        peaks.append(peak(partial(push, lake, store)))
        assert commit_numbers(store.list("commits"))[-1] == 1
        assert len(store.list("segments")) > 2 * entries
    assert peaks[1] - peaks[0] < 6_000 * 400


if __name__ == "__main__":
    os.fsync = lambda descriptor: None
    local.PIECE = 1 << 16
    with tempfile.TemporaryDirectory() as folder:
        lake, store = Path(folder) / "lake", Store(lp.Cloud(f"file://{folder}/bucket"))
        large_lake(lake, int(sys.argv[1]))
        for what in ("nothing is there", "all is there"):
            sys.stdout.write(f"{what}: {peak(partial(push, lake, store)) / 1e6:.1f} MB\n")
