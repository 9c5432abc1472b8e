"""However many readers a process has, it keeps few files open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_lake import agrees, record, spec_of

import lakepond as lp
from lakepond.flow import pond_to_lake
from lakepond.lake.format import shard_writer
from lakepond.lake.read import reader
from lakepond.lake.write import new_files

READERS = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
import numpy as np
import lakepond as lp
from lakepond.lake.read import reader
sys.path.insert(0, {tests!r})
from test_lake import agrees
reader.HELD_BYTES = 0
rng = np.random.default_rng(0)
before = len(os.listdir("/proc/self/fd"))
lakes = [lp.Lake.open({path!r}) for _ in range(20)]
most = 0
for lake in [*lakes, *lakes[:2]]:
    batch = lake.sample(200, rng=rng)
    for i in range(0, 200, 25):
        agrees(batch, i, {world!r})
    most = max(most, len(os.listdir("/proc/self/fd")) - before)
print(most)
for lake in lakes:
    lake.close()
print(len(os.listdir("/proc/self/fd")) - before)
"""


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_twenty_readers_of_a_lake_of_many_files_keep_few_open(tmp_path, monkeypatch, codec):
    monkeypatch.setattr(new_files, "ENOUGH_BYTES", 1)  # a file for each row
    monkeypatch.setattr(new_files, "block_rows_for", lambda row_bytes: 1)
    monkeypatch.setattr(pond_to_lake, "PIECE_BYTES", 1)
    monkeypatch.setattr(shard_writer._Blocks, "_submit", shard_writer._Blocks.write_pending)
    monkeypatch.setattr(shard_writer, "_TASK_BYTES", 1)
    world, path = "noise", tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=1000, codec=codec) as replay:
        record(replay, world, 0, 200)
    with lp.Lake.open(path) as lake:
        assert len(list(lake.reader.row_files(0))) > 200
    code = READERS.format(tests=str(Path(__file__).parent), path=str(path), world=world)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    most, after = map(int, done.stdout.split())
    assert most < 200
    assert after < 10


def test_a_file_that_was_closed_for_others_is_opened_again(tmp_path, monkeypatch, rng):
    """Many threads read through few descriptors; what was deleted meanwhile is reported."""
    from concurrent.futures import ThreadPoolExecutor

    from lakepond.lake import open_files

    monkeypatch.setattr(open_files, "MOST_OPEN", 2)
    monkeypatch.setattr(reader, "HELD_BYTES", 0)
    world, path = "noise", tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=100, merge_after=None) as replay:
        for k in range(8):
            record(replay, world, 5 * k, 5 * k + 5)
            replay.commit()
    lakes = [lp.Lake.open(path) for _ in range(4)]

    def read(k: int) -> None:
        for _ in range(20):
            batch = lakes[k].sample(40, rng=np.random.default_rng(k))
            for i in range(40):
                agrees(batch, i, world)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))
    for file in (path / "segments").glob("*.rows"):
        file.unlink()
    with pytest.raises(lp.LakeCorrupt, match="is missing"):
        lakes[0].sample(40, rng=rng)
    for lake in lakes:
        lake.close()


def test_a_lake_of_many_files_opens_each_once(tmp_path, monkeypatch, rng):
    """Batches from all over a lake do not open files again, until their indices take too much memory."""
    world, path = "noise", tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=500, merge_after=None) as replay:
        for k in range(80):
            record(replay, world, 5 * k, 5 * k + 5)
            replay.commit()
    opened = []

    class Counted(reader.Shard):
        def __init__(self, path, info, **options):
            opened.append(path)
            super().__init__(path, info, **options)

    monkeypatch.setattr(reader, "Shard", Counted)
    for bound in (reader.OPEN_BLOCKS, 3 * (reader.FILE_BLOCKS + 1)):
        monkeypatch.setattr(reader, "OPEN_BLOCKS", bound)
        opened.clear()
        with lp.Lake.open(path) as lake:
            files = len(list(lake.reader.row_files(0)))
            assert files >= 80
            for _ in range(3):
                batch = lake.sample(400, rng=rng)
                for i in range(0, 400, 25):
                    agrees(batch, i, world)
            few = len(lake.reader._shards) <= 3
            assert few == (bound < 100)
        assert (len(opened) > files) == few
