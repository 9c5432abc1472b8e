"""A row source is stored once per lake and shared by all its writers, whatever happens to one of them.

Row r of the source starts with the number r, and the windows of a step are in its action and its reward, so a
step with a wrong row, or of another writer, is found at once.
"""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from test_lake import settle

import lakepond as lp
from lakepond.flow import known_sources
from lakepond.lake.format import commits, version
from lakepond.lake.format.entries import RowsFile
from lakepond.lake.lock import FileLock
from lakepond.lake.write import packing, sources
from lakepond.lake.write.commit_queue import Background

DAYS, WIDTH, LENGTH = 1_500, 256, 8
SPEC = lp.Spec(
    obs={"window": lp.Field((LENGTH, WIDTH), "float32", rows=0), "position": lp.Field((2,), "float32")},
    action=lp.Field((2,), "int64"),
)


def history(seed: int = 0) -> np.ndarray:
    """1.5 MB: row r starts with the number r."""
    rows = np.random.default_rng(seed).normal(size=(DAYS, WIDTH)).astype(np.float32)
    rows[:, 0] = np.arange(DAYS)
    return rows


@pytest.fixture(scope="module")
def source() -> lp.RowSource:
    return lp.RowSource(history())


def stops_of(writer: int, start: int, count: int) -> np.ndarray:
    """The days of steps [start, start + count): episodes of 20 days, each anywhere in the history."""
    ids = np.arange(start, start + count)
    first = LENGTH + (ids // 20 * 7_919 + 1_013 * writer) % (DAYS - LENGTH - 21)
    return first + ids % 20


def record(replay: lp.Replay, source: lp.RowSource, writer: int, count: int) -> None:
    """The next steps of a writer, at most 50 at a time."""
    if count > 50:
        record(replay, source, writer, 50)
        return record(replay, source, writer, count - 50)
    start = replay.stats().recorded
    ids = np.arange(start, start + count)
    stops = stops_of(writer, start, count)
    position = np.stack([ids, ids], axis=1).astype(np.float32)
    replay.record(
        obs={"window": lp.WindowRef(source, stops), "position": position},
        next_obs={"window": lp.WindowRef(source, stops + 1), "position": position + 1},
        action=np.stack([np.full(count, writer), ids], axis=1),
        reward=stops.astype(np.float32),
        terminated=ids % 20 == 19,
        truncated=np.zeros(count, bool),
        stream=0,
    )


def check(batch: lp.Batch, rows: np.ndarray) -> None:
    """Every step is what its writer recorded."""
    for (writer, n), reward, obs, next_obs in zip(
        batch.action.tolist(), batch.reward, batch.obs["window"], batch.next_obs["window"], strict=True
    ):
        (stop,) = stops_of(writer, n, 1).tolist()
        assert reward == stop
        assert obs.tobytes() == rows[stop - LENGTH : stop].tobytes()
        assert next_obs.tobytes() == rows[stop - LENGTH + 1 : stop + 1].tobytes()


def check_lake(path: Path, steps: dict[str, int], rows: np.ndarray) -> None:
    """A lake has that many steps of each writer, and each byte of it is intact."""
    with lp.Lake.open(path) as lake:
        lake.verify()
        assert {name: head.recorded for name, head in lake.heads.items()} == steps
        check(lake.steps(lake.reader.oldest, lake.reader.recorded), rows)


def files(path: Path, ending: str) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in path.rglob(f"*.{ending}")}


WRITE = """
import sys
sys.path.insert(0, {tests!r})
import lakepond as lp
from test_sources import SPEC, history, record

source = lp.RowSource(history())
with lp.Replay.open({path!r}, SPEC, capacity=100, writer=f"worker-{writer}") as replay:
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(10):
        record(replay, source, {writer}, 60)
        replay.commit()
"""


def start(path: Path, writer: int, code: str = WRITE) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parent)
    code = code.format(tests=tests, path=str(path), writer=writer)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)


def test_three_processes_over_one_source_store_it_once(tmp_path, source):
    """They start to write it at the same moment. Steps leave the ponds, and their rows come back."""
    path, alone = tmp_path / "lake", tmp_path / "alone"
    processes = [start(path, writer) for writer in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.communicate("go\n", timeout=60)
        assert process.returncode == 0
    with lp.Replay.open(alone, SPEC, capacity=100) as replay:
        record(replay, source, 0, 60)
    assert files(path, "source") == files(alone, "source")
    assert not files(path, "rows")
    assert not files(path, "aside")
    check_lake(path, {f"worker-{k}": 600 for k in range(3)}, source.rows)
    with lp.Lake.open(path) as lake, lp.Lake.open(alone) as one:
        stats, single = lake.stats(), one.stats()
        assert stats.bytes_shared == single.bytes_shared == sum(files(path, "source").values())
        assert stats.rows == single.rows == DAYS
        assert set(stats.bytes_by_writer) == {f"worker-{k}" for k in range(3)}
        assert stats.bytes_on_disk == stats.bytes_shared + sum(stats.bytes_by_writer.values())
        assert max(stats.bytes_by_writer.values()) < 100 * 600  # less than 100 bytes for a step of 16 KB


def test_the_steps_are_read_resumed_filled_and_continued(tmp_path, source):
    path = tmp_path / "lake"
    for writer in range(3):
        with lp.Replay.open(path, SPEC, capacity=100, writer=f"w{writer}") as replay:
            record(replay, source, writer, 150)
    stored = files(path, "source")
    other = lp.RowSource(history())  # as in another process
    for writer in range(3):
        with lp.Replay.open(path, capacity=100, writer=f"w{writer}") as replay:
            before = replay.lake().commit
            check(replay.recent(100), source.rows)
            record(replay, other, writer, 150)
            new = replay.commit()
            assert new.sources == before.sources  # the rows keep their numbers
            assert new.next_rows == before.next_rows
            check(replay.sample(64), source.rows)
    assert files(path, "source") == stored
    assert not files(path, "rows")
    check_lake(path, {f"w{writer}": 300 for writer in range(3)}, source.rows)
    with lp.Lake.open(path) as lake:
        check(lake.sample(200, rng=np.random.default_rng(0)), source.rows)
        assert len(lake.rows(0)) == 3 * DAYS
        filled = lp.Replay(SPEC, 500)
        filled.fill_from(lake, 400, rng=np.random.default_rng(0))
        check(filled.recent(400), source.rows)
        assert len({tuple(step) for step in filled.recent(400).action.tolist()}) == 400
        assert filled.stats().rows <= DAYS  # each once, whichever writer recorded it
        assert sum(1 for _ in lake.episodes()) == 45
    with lp.Lake.open(path, 0, writer="w1") as lake:
        check(lake.steps(50, 100), source.rows)


KILL = WRITE.replace(
    "source = lp",
    """
import os, signal
from lakepond.lake.write import sources
real, sources.FILE_BYTES = sources.Sources._write_file, 1 << 19  # three files

def write(self, rows):
    found = real(self, rows)
    self.count = getattr(self, "count", 0) + 1
    if self.count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

sources.Sources._write_file = write
source = lp""",
)


def test_a_writer_that_is_killed_while_it_writes_a_source_leaves_a_lake_that_the_next_one_completes(
    tmp_path, source, monkeypatch
):
    path = tmp_path / "lake"
    process = start(path, 0, KILL)
    process.communicate("go\n", timeout=60)
    assert process.returncode == -signal.SIGKILL
    left = path / "sources" / f"{os.getpid()}-00000000.aside"  # as if it had been killed in a file
    left.write_bytes(b"some rows")
    assert len(files(path, "source")) == 2
    with pytest.raises(lp.LakeNotFound):
        lp.Lake.open(path)
    monkeypatch.setattr(sources, "FILE_BYTES", 1 << 19)
    with lp.Replay.open(path, SPEC, capacity=100, writer="worker-1") as replay:
        record(replay, source, 1, 200)
    assert len(files(path, "source")) == 3
    assert not files(path, "aside")
    check_lake(path, {"worker-1": 200}, source.rows)


@pytest.fixture
def path(tmp_path, source) -> Path:
    """A lake of two writers over one source."""
    for writer, name in enumerate("ab"):
        with lp.Replay.open(tmp_path / "lake", SPEC, capacity=100, writer=name) as replay:
            for _ in range(3):
                record(replay, source, writer, 50)
                replay.commit()
    return tmp_path / "lake"


def test_a_process_that_is_stopped_while_it_writes_a_source_is_named_and_the_steps_are_committed_later(
    tmp_path, source, monkeypatch
):
    monkeypatch.setattr(sources, "WAIT_SECONDS", 0.05)
    with lp.Replay.open(tmp_path, SPEC, capacity=100, writer="a") as replay:
        (tmp_path / sources.SOURCES).mkdir(exist_ok=True)
        with FileLock(tmp_path / sources.SOURCES / "lock", create=True) as stopped:
            stopped.wait(0.0)
            record(replay, source, 0, 20)
            with pytest.raises(
                lp.LakeLocked, match=r"locked for 0.05 s; if it is stopped, continue or end it"
            ):
                replay.commit()
    check_lake(tmp_path, {"a": 20}, history())


def test_retention_of_one_writer_never_deletes_a_source(path, source):
    """Also not if none of its live steps refers to it any more; later steps do again."""
    stored = files(path, "source")
    options = {"max_steps": 50, "keep_last": 1, "merge_after": 2}
    with lp.Replay.open(path, capacity=50, writer="a", **options) as replay:
        for _ in range(4):  # recorded as arrays that are in no source
            arrays = np.random.default_rng(replay.recorded).normal(size=(51, LENGTH, WIDTH))
            window, position = arrays.astype(np.float32), np.zeros((50, 2), np.float32)
            replay.record(
                obs={"window": window[:-1], "position": position},
                next_obs={"window": window[1:], "position": position},
                action=np.zeros((50, 2), np.int64),
                reward=np.zeros(50, np.float32),
                terminated=np.ones(50, bool),
                truncated=np.zeros(50, bool),
                stream=1,
            )
            replay.commit()
            settle(replay)
        other = lp.RowSource(history())
        record(replay, other, 0, 50)
        newest = replay.commit()
        assert [each.first for each in newest.sources[0]] == [0]
        check(replay.recent(50), source.rows)
    with lp.Lake.open(path, writer="a") as lake:
        lake.compact(keep_last=1)
        lake.verify()
        check(lake.steps(lake.commit.recorded - 50, lake.commit.recorded), source.rows)
    assert files(path, "source") == stored
    with lp.Lake.open(path, writer="b") as lake:
        lake.verify()
        check(lake.steps(0, 150), source.rows)


def test_a_source_is_not_merged_and_moves_to_manifests(tmp_path, source, monkeypatch):
    monkeypatch.setattr(packing, "LOOSE", 2)
    monkeypatch.setattr(packing, "FAN", 2)
    monkeypatch.setattr(sources, "FILE_BYTES", 1 << 18)
    path = tmp_path / "lake"
    with lp.Replay.open(path, SPEC, capacity=100, merge_after=2) as replay:
        for _ in range(8):
            record(replay, source, 0, 25)
            commit = replay.commit()
            settle(replay)
    assert any(not isinstance(entry, RowsFile) for entry in commit.rows[0])
    with lp.Lake.open(path) as lake:
        lake.compact()
        assert all(file.source for _, file in lake.reader.row_files(0))
        assert len(list(lake.reader.row_files(0))) == len(files(path, "source")) == 6
    check_lake(path, {"": 200}, source.rows)


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_writers_with_different_codecs_have_files_of_their_own(tmp_path, source, codec):
    path = tmp_path / "lake"
    for writer, each in enumerate(("zstd", codec)):
        with lp.Replay.open(path, SPEC, capacity=100, writer=f"w{writer}", codec=each) as replay:
            record(replay, source, writer, 40)
    assert len(files(path, "source")) == (1 if codec == "zstd" else 2)
    check_lake(path, {"w0": 40, "w1": 40}, source.rows)
    with lp.Lake.open(path) as lake:
        assert lake.stats().bytes_shared == sum(files(path, "source").values())


def test_a_damaged_source_is_found_moved_by_repair_and_written_again(path, source):
    (name,) = files(path, "source")
    file = path / "sources" / name
    with lp.Replay.open(path, SPEC, capacity=10, writer="c") as replay:  # does not use the source
        replay.record(
            obs={"window": source.rows[:LENGTH] + 1, "position": np.zeros(2, np.float32)},
            next_obs={"window": source.rows[:LENGTH] + 2, "position": np.zeros(2, np.float32)},
            action=np.zeros(2, np.int64),
            reward=0.0,
            terminated=True,
            truncated=False,
            stream=0,
        )
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(bytes(data))
    with lp.Lake.open(path) as lake, pytest.raises(lp.LakeCorrupt, match="damaged"):
        lake.verify()
    found = lp.repair(path)
    assert found.newest == 0
    assert name in found.quarantined
    assert not file.exists()
    with lp.Lake.open(path) as lake:
        assert list(lake.heads) == ["c"]
        lake.verify()
    with lp.Replay.open(path, SPEC, capacity=100, writer="d") as replay:
        record(replay, source, 3, 40)
    with lp.Lake.open(path, writer="d") as lake:
        lake.verify()
        check(lake.steps(0, 40), source.rows)


def test_repair_leaves_a_source_that_an_intact_commit_of_another_writer_needs(path, source):
    newest = path / "writers" / "a" / "commits" / commits.file_name(2)
    with lp.Lake.open(path, writer="a") as lake:
        steps = path / "writers" / "a" / "segments" / lake.commit.segments[0].name
    steps.write_bytes(steps.read_bytes()[:-1])
    lp.repair(path)
    assert not newest.exists()
    check_lake(path, {"b": 150}, source.rows)


def test_a_missing_source_is_said_so(path):
    (name,) = files(path, "source")
    (path / "sources" / name).unlink()
    with pytest.raises(lp.LakeCorrupt, match=f"sources/{name}"):
        lp.Lake.open(path, 0, writer="a")


def test_a_list_of_files_that_is_damaged_is_written_again(path, source):
    (listed,) = (path / "sources").glob("*.json")
    before = files(path, "source")
    for wrong in (
        b"",
        b"{}",
        listed.read_bytes()[:-1],
        listed.read_bytes().replace(b'"rows": 1', b'"rows": 2'),
    ):
        listed.write_bytes(wrong)
        with lp.Replay.open(path, SPEC, capacity=100, writer="c") as replay:
            record(replay, source, 2, 20)
        shutil.rmtree(path / "writers" / "c")
        assert files(path, "source") == before
        assert (path / "sources" / listed.name).read_bytes() != wrong


def test_a_reader_that_does_not_know_sources_refuses_such_commits(path, monkeypatch):
    monkeypatch.setattr(version, "FEATURES", frozenset())
    with pytest.raises(lp.LakeTooNew, match="requires sources"):
        lp.Lake.open(path)
    with pytest.raises(lp.LakeTooNew, match="requires sources"):
        lp.Replay.open(path, capacity=100, writer="a")


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [[], [], []],
        [[{"digest": "x", "first": 0, "rows": 1, "files": 1, "bytes": 1}], []],
        [[{"digest": "a" * 40, "first": 0, "rows": DAYS + 1, "files": 1, "bytes": 1}], []],
        [[{"digest": "a" * 40, "first": 0, "rows": 0, "files": 1, "bytes": 1}], []],
        [[{"digest": "a" * 40, "first": -1, "rows": 1, "files": 1, "bytes": 1}], []],
        [[{"digest": "a" * 40, "first": 0, "rows": 1, "files": 1}], []],
    ],
)
def test_impossible_sources_are_damage(path, wrong):
    from lakepond.lake.format.sealed import seal, unseal

    file = path / "writers" / "a" / "commits" / commits.file_name(2)
    content = unseal(file.read_bytes())
    file.write_bytes(seal({**content, "sources": wrong}))
    if not wrong:  # as a commit without any
        assert not commits.read(file.parent, 2).sources
        return
    with pytest.raises(lp.LakeCorrupt, match="damaged"):
        commits.read(file.parent, 2)


# --- which sources are shared ----------------------------------------------------------------------


def test_rows_that_are_recorded_as_arrays_are_found_in_the_source(tmp_path, source):
    path = tmp_path / "lake"
    with lp.Replay.open(path, SPEC, capacity=100) as replay:
        record(replay, source, 0, 40)
        window, position = source.rows[700 : 700 + LENGTH], np.zeros(2, np.float32)
        replay.record(
            obs={"window": window, "position": position},
            next_obs={"window": source.rows[701 : 701 + LENGTH], "position": position},
            action=np.zeros(2, np.int64),
            reward=0.0,
            terminated=True,
            truncated=False,
            stream=1,
        )
    assert not files(path, "rows")
    with lp.Lake.open(path) as lake:
        assert lake.steps(40, 41).obs["window"].tobytes() == window.tobytes()


def test_copies_of_a_source_are_one(tmp_path, source):
    path = tmp_path / "lake"
    with lp.Replay.open(path, SPEC, capacity=1000) as replay:
        for each in (source, lp.RowSource(source.rows), pickle.loads(pickle.dumps(source))):
            record(replay, each, 0, 100)
            commit = replay.commit()
    assert len(commit.sources[0]) == len(files(path, "source")) == 1
    check_lake(path, {"": 300}, source.rows)


def test_small_sources_and_those_beyond_the_most_are_stored_with_the_steps(tmp_path, source, monkeypatch):
    monkeypatch.setattr(known_sources, "MOST_SOURCES", 2)
    path = tmp_path / "lake"
    several = [source, *(lp.RowSource(history(seed)) for seed in (1, 2))]
    small = lp.RowSource(history()[:100] + 0.5)
    with lp.Replay.open(path, SPEC, capacity=1000) as replay:
        for each in several:
            record(replay, each, 0, 40)
            commit = replay.commit()
        stop, position = np.array([50]), np.zeros((1, 2), np.float32)
        replay.record(
            obs={"window": lp.WindowRef(small, stop), "position": position},
            next_obs={"window": lp.WindowRef(small, stop + 1), "position": position},
            action=np.zeros((1, 2), np.int64),
            reward=np.zeros(1, np.float32),
            terminated=[True],
            truncated=[False],
            stream=1,
        )
        commit = replay.commit()
    assert [each.first for each in commit.sources[0]] == [0, DAYS]
    assert len(files(path, "source")) == 2
    assert len(files(path, "rows")) == 2
    with lp.Lake.open(path) as lake:
        lake.verify()
        for k, each in enumerate(several):
            check_one = lake.steps(40 * k, 40 * k + 40)
            stops = check_one.reward.astype(int)
            for stop, obs in zip(stops.tolist(), check_one.obs["window"], strict=True):
                assert obs.tobytes() == each.rows[stop - LENGTH : stop].tobytes()


def test_a_history_that_grows_is_not_stored_again(tmp_path, source):
    """New rows are stored with the steps, and as a source of their own when they have 1 MB."""
    rows = np.concatenate([source.rows, history(1)[:1_200], history(2)])
    path, steps = tmp_path / "lake", 0
    for length in (1_500, 1_501, 1_700, 2_700, 2_702, 4_200):
        with lp.Replay.open(path, SPEC, capacity=50) as replay:
            grown = lp.RowSource(rows[:length])
            stops = length - 1 - np.arange(40)
            position = np.zeros((40, 2), np.float32)
            replay.record(
                obs={"window": lp.WindowRef(grown, stops), "position": position},
                next_obs={"window": lp.WindowRef(grown, stops + 1), "position": position},
                action=np.zeros((40, 2), np.int64),
                reward=stops.astype(np.float32),
                terminated=np.ones(40, bool),
                truncated=np.zeros(40, bool),
                stream=0,
            )
            commit, steps = replay.commit(), steps + 40
    assert [each.rows for each in commit.sources[0]] == [1_500, 1_200, 1_500]
    assert sum(files(path, "rows").values()) < 100 * WIDTH * 4
    with lp.Lake.open(path) as lake:
        lake.verify()
        batch = lake.steps(0, steps)
        for stop, obs in zip(batch.reward.astype(int).tolist(), batch.obs["window"], strict=True):
            assert obs.tobytes() == rows[stop - LENGTH : stop].tobytes()


def test_an_array_that_changes_before_its_source_is_stored_is_refused(tmp_path):
    rows = history()
    changing = lp.RowSource(rows)
    replay = lp.Replay.open(tmp_path / "lake", SPEC, capacity=100)
    record(replay, changing, 0, 40)
    real = sources.Sources._read

    def change(self: sources.Sources, source: object) -> object:
        rows[700] += 1
        return real(self, source)

    with mock.patch.object(sources.Sources, "_read", change), pytest.raises(lp.RecordError, match="changed"):
        replay.commit()
    replay.close(discard=True)
    with pytest.raises(lp.LakeNotFound):
        lp.Lake.open(tmp_path / "lake")


def test_a_source_that_is_gone_when_its_steps_are_committed_is_not_stored(tmp_path, source):
    path = tmp_path / "lake"
    with lp.Replay.open(path, SPEC, capacity=100) as replay:
        passing = lp.RowSource(history())
        record(replay, passing, 0, 40)
        del passing
        gc.collect()
        replay.commit()
    assert not files(path, "source")
    check_lake(path, {"": 40}, source.rows)


def test_a_hand_over_that_fails_numbers_nothing(tmp_path, source, monkeypatch):
    path = tmp_path / "lake"
    with lp.Replay.open(path, SPEC, capacity=100) as replay:
        record(replay, source, 0, 40)
        with monkeypatch.context() as patch:
            patch.setattr(Background, "submit", _fail)
            with pytest.raises(MemoryError):
                replay.commit()
        other = lp.RowSource(history(1))
        record(replay, other, 0, 1)
        commit = replay.commit()
        assert sorted((each.first, each.rows) for each in commit.sources[0]) == [(0, DAYS), (DAYS, DAYS)]
    with lp.Lake.open(path) as lake:
        lake.verify()
        check(lake.steps(0, 40), source.rows)


def _fail(*_: object) -> None:
    raise MemoryError


def test_a_full_disk_while_a_source_is_written_fails_the_commit_and_the_next_one_makes_it(
    tmp_path, source, monkeypatch
):
    path = tmp_path / "lake"
    with lp.Replay.open(path, SPEC, capacity=100) as replay:
        record(replay, source, 0, 40)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(sources.Sources, "_write_file", full)
            with pytest.raises(OSError, match="No space"):
                replay.commit()
        with pytest.warns(RuntimeWarning, match="tried again"):
            record(replay, source, 0, 40)
        replay.commit()
    check_lake(path, {"": 80}, source.rows)
    assert not files(path, "rows")


def test_save_and_snapshot_work_with_sources(tmp_path, source):
    replay = lp.Replay(SPEC, 100)
    record(replay, source, 0, 80)
    replay.save(tmp_path / "saved")
    record(replay, source, 0, 60)
    replay.save(tmp_path / "saved")
    replay.close()
    assert not files(tmp_path / "saved", "rows")
    with lp.Replay.open_saved(tmp_path / "saved", 100) as again:
        assert len(again) == 100
        check(again.recent(100), source.rows)
