"""Faults in merging, retention and queued commits: no row is lost, and nothing stays behind."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lakepond as lp
from lakepond.errors import CloudUnreachable
from lakepond.lake import files
from lakepond.lake.format import commits, manifests
from lakepond.lake.format.names import segment_files
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.segments import Segments
from lakepond.lake.write import maintenance, merge, packing, writer
from lakepond.lake.write.maintenance import Maintenance
from lakepond.lake.write.reasons import MOST, Reasons

SPEC = lp.Spec(obs=lp.Field((20, 20), "uint8"))


def frame(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, SPEC.obs.shape, dtype=np.uint8)


def record(replay: lp.Replay, *frames: int, terminated: bool = True, stream: int = 0) -> None:
    """One step for each number, whose observation and reward it is."""
    for number in frames:
        replay.record(
            obs=frame(number),
            action=0,
            reward=float(number),
            next_obs=frame(number),
            terminated=terminated,
            truncated=False,
            stream=stream,
        )


def background(replay: lp.Replay) -> Maintenance:
    assert replay._outflow is not None
    return replay._outflow.background.writer.maintenance


def commit_and_maintain(replay: lp.Replay, *frames: int) -> None:
    record(replay, *frames)
    replay.commit()
    replay._outflow.background.wait_for_jobs()
    background(replay)._wait()


def unnamed(path: Path) -> set[str]:
    """The files that no commit names."""
    found = set(segment_files(path / "segments"))
    for number in commits.numbers(path / "commits"):
        catalog = Catalog(commits.read(path / "commits", number), Segments(path))
        found -= {name for name, _ in catalog.files()}
    return found


@pytest.mark.filterwarnings("ignore:a commit failed and will be tried again:RuntimeWarning")
@pytest.mark.parametrize("fault", ["a slow disk", "a full disk"])
def test_a_row_that_left_the_lake_and_comes_back_is_written_again(tmp_path, monkeypatch, fault):
    """Its slot in memory is pinned by a commit that is still to be written, when it has left the lake."""
    path, size = tmp_path / "lake", 30
    gate, publish = threading.Event(), commits.write

    def slow(*args: Any, **options: Any) -> None:
        assert gate.wait(60)
        publish(*args, **options)

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with lp.Replay.open(path, SPEC, capacity=size, max_steps=size, keep_last=1) as replay:
        monkeypatch.setattr(writer.commits, "write", slow if fault == "a slow disk" else full)
        for numbers in (range(size), range(size, 2 * size), [0]):
            record(replay, *numbers)
            replay.commit(wait=False)
        gate.set()
        monkeypatch.setattr(writer.commits, "write", publish)
        replay.commit()
    with lp.Lake.open(path) as lake:
        lake.verify()
        batch = lake.steps(lake.commit.oldest, lake.commit.recorded)
        assert batch.reward[-1] == 0
        for reward, obs in zip(batch.reward, batch.obs, strict=True):
            assert (obs == frame(int(reward))).all()


def test_a_row_that_left_the_lake_while_a_reader_copies_is_written_again(tmp_path):
    path, size = tmp_path / "lake", 30
    with lp.Replay.open(path, SPEC, capacity=size, max_steps=size, keep_last=1) as replay:
        record(replay, *range(size))
        replay.commit()
        store = replay._pond.leaves[0].store
        assert store is not None
        store.grow(200, 1)
        store.readers += 1  # as a sampler that copies rows: no slot is freed, and none can be added
        record(replay, *range(size, 2 * size))
        replay.commit()
        record(replay, 0)
        replay.commit()
        store.readers -= 1
    with lp.Lake.open(path) as lake:
        lake.verify()
        assert (lake.steps([2 * size]).obs[0] == frame(0)).all()


def test_a_commit_refuses_rows_that_the_lake_has_dropped(tmp_path, monkeypatch):
    path, size = tmp_path / "lake", 30
    replay = lp.Replay.open(path, SPEC, capacity=size, max_steps=size, keep_last=1)
    for start in (0, size):
        record(replay, *range(start, start + size))
        replay.commit()
    record(replay, 100)
    store = replay._pond.leaves[0].store
    assert store is not None
    monkeypatch.setattr(store, "row_numbers", lambda slots: np.zeros(len(slots), np.int64))
    with pytest.raises(AssertionError, match="row 0 was submitted, which the lake has dropped"):
        replay.commit()
    replay.close(discard=True)


def test_a_merge_that_fails_leaves_no_file_behind(tmp_path, monkeypatch):
    path, write = tmp_path / "lake", merge._write_rows

    def full(*args: Any) -> None:
        write(*args)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(merge, "_write_rows", full)
    with lp.Replay.open(path, SPEC, capacity=500, merge_after=2, keep_last=1) as replay:
        for number in range(12):
            commit_and_maintain(replay, number)
        assert replay.stats().background_failures > 0
        assert len(unnamed(path)) <= 1  # the file of the last merge, which the next commit would name
    assert unnamed(path) == set()
    with lp.Lake.open(path) as lake:
        lake.verify()
        assert len(lake) == 12


@pytest.mark.parametrize("where", ["a later file", "the commit"])
def test_a_compaction_that_fails_leaves_no_file_behind(tmp_path, monkeypatch, where):
    path, calls = tmp_path / "lake", []
    with lp.Replay.open(path, SPEC, capacity=500, merge_after=None) as replay:
        for number in range(8):
            commit_and_maintain(replay, number)
    run, publish = maintenance.merge, commits.write

    def second_fails(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "full")
        return run(*args)

    def fails(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch, lp.Lake.open(path) as lake:
        if where == "the commit":
            patch.setattr(writer.commits, "write", fails)
        else:
            patch.setattr(maintenance, "merge", second_fails)
        with pytest.raises(lp.LakeFull):
            lake.compact()
    assert unnamed(path) == set()
    with lp.Lake.open(path) as lake:
        lake.compact()
        lake.verify()
        assert (len(lake), len(lake.commit.segments)) == (8, 1)
    assert commits.write is publish


@pytest.mark.parametrize("readable", [True, False])
def test_a_commit_that_is_visible_but_not_durable_keeps_its_merged_files(tmp_path, monkeypatch, readable):
    path, there = tmp_path / "lake", commits.is_there
    replay = lp.Replay.open(path, SPEC, capacity=500, merge_after=2, keep_last=1)
    number = 0
    while not background(replay).take():
        commit_and_maintain(replay, number)
        number += 1
    sync = files.sync_folder

    def fails(folder: Path) -> None:
        sync(folder)
        if folder.name == "commits":
            raise OSError(errno.EIO, "fsync")

    def is_there(folder: Path, commit: lp.Commit) -> bool:
        if not readable:
            raise OSError(errno.EIO, "read")
        return there(folder, commit)

    monkeypatch.setattr(commits, "is_there", is_there)
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_folder", fails)
        record(replay, number)
        with pytest.raises(OSError, match="fsync"):
            replay.commit()
    with lp.Lake.open(path) as reader:
        assert len(reader) == number + 1
        replay.close(discard=True)
        reader.verify()


def test_maintenance_continues_after_a_thread_that_could_not_be_started(tmp_path, monkeypatch):
    path = tmp_path / "lake"
    with lp.Replay.open(path, SPEC, capacity=500, keep_last=1) as replay:
        submit = background(replay)._pool.submit

        def once(*args: Any) -> Any:
            monkeypatch.setattr(background(replay)._pool, "submit", submit)
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(background(replay)._pool, "submit", once)
        for number in range(5):
            commit_and_maintain(replay, number)
        assert replay.stats().background_failures == 1
        assert commits.numbers(path / "commits") == [4]


class SlowListing:
    """`os.scandir`, which lists a folder `segments` after `go`, or raises `error` then."""

    def __init__(self, error: OSError | None) -> None:
        self.go, self._error, self._scandir = threading.Event(), error, os.scandir

    def __call__(self, folder: Any) -> Any:
        if Path(folder).name == "segments":
            assert threading.current_thread() is not threading.main_thread()
            assert self.go.wait(60)
            if self._error is not None:
                raise self._error
        return self._scandir(folder)


@pytest.mark.parametrize("writer", ["", "worker"])
def test_opening_does_not_wait_until_the_segments_are_listed_for_temporary_files(
    tmp_path, monkeypatch, writer
):
    path = tmp_path / "lake"
    home = path / "writers" / writer if writer else path
    with lp.Replay.open(path, SPEC, capacity=500, writer=writer) as replay:
        record(replay, 0)
    left = [path / "1-00000000.aside", home / "commits/1-00000000.aside", home / "segments/1-00000000.aside"]
    for file in left:
        file.write_bytes(b"of a process that was killed")
    monkeypatch.setattr(os, "scandir", slow := SlowListing(None))
    with (home / "segments" / "1-00000001.aside").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # as every file that is being written
        with lp.Replay.open(path, SPEC, capacity=500, writer=writer) as replay:
            record(replay, 1)
            assert replay.commit().recorded == 2
            assert left[-1].exists()
            slow.go.set()
        assert Path(held.name).exists()
    assert not any(file.exists() for file in left)
    assert replay.stats().background_failures == 0


def test_a_folder_whose_temporary_files_cannot_be_listed_is_reported_once(tmp_path, monkeypatch, caplog):
    path = tmp_path / "lake"
    with lp.Replay.open(path, SPEC, capacity=500) as replay:
        record(replay, 0)
    monkeypatch.setattr(os, "scandir", slow := SlowListing(PermissionError(errno.EACCES, "not permitted")))
    slow.go.set()
    (path / "commits" / "1-00000000.aside").write_bytes(b"of a process that was killed")
    with lp.Replay.open(path, capacity=500) as replay:
        for number in range(1, 4):
            commit_and_maintain(replay, number)
        assert replay.stats().background_failures == 1
    (warning,) = (each.message for each in caplog.records)
    assert warning.startswith(f"temporary files of {path} could not be deleted and are kept: PermissionError")
    assert not (path / "commits" / "1-00000000.aside").exists()


@pytest.mark.parametrize("stays", [False, True], ids=["it can be deleted", "it stays"])
def test_an_old_hint_of_the_newest_commit_never_hides_later_ones(tmp_path, monkeypatch, stays):
    path, unlink = tmp_path / "lake", Path.unlink

    def refused(self: Path, *args: Any, **options: Any) -> None:
        if self.name == commits.NEWEST:
            raise PermissionError(errno.EPERM, "not permitted")
        unlink(self, *args, **options)

    with lp.Replay.open(path, SPEC, capacity=500, keep_last=1, keep_every=4) as replay:
        for number in range(5):
            commit_and_maintain(replay, number)
        (path / "commits" / f".{commits.NEWEST}").mkdir()  # so the hint cannot be written
        if stays:
            monkeypatch.setattr(Path, "unlink", refused)
        for number in range(5, 9):
            commit_and_maintain(replay, number)
    with lp.Lake.open(path) as lake:
        assert len(lake) == 9
    monkeypatch.undo()
    with lp.Replay.open(path, capacity=500) as replay:
        assert replay.stats().recorded == 9
        record(replay, 9)
        assert replay.commit().recorded == 10


@pytest.mark.parametrize("fault", ["damaged", "cannot be read now"])
def test_an_end_in_a_file_that_cannot_be_read_does_not_stop_commits(tmp_path, monkeypatch, caplog, fault):
    path = tmp_path / "lake"
    with lp.Replay.open(path, SPEC, capacity=500, merge_after=None) as replay:
        for number in range(2):
            record(replay, number, terminated=False, stream=number)
            replay.commit()
        assert replay._outflow is not None
        first = replay._outflow.background.writer.last
        assert first is not None
        file = path / "segments" / first.segments[0].name
        content = file.read_bytes()
        read = writer.read_steps
        with monkeypatch.context() as patch:
            if fault == "damaged":
                file.write_bytes(content[: len(content) // 2])
            else:

                def unreachable(source: Path) -> Any:
                    if source == file:
                        raise CloudUnreachable("the bucket does not answer")
                    return read(source)

                patch.setattr(writer, "read_steps", unreachable)
            replay.end(0)
            record(replay, 2, stream=1)
            assert replay.commit().recorded == 3
        assert "the ends of episodes at steps 0 are" in caplog.text
        file.write_bytes(content)
        record(replay, 3, stream=1)
        replay.commit()
    with lp.Lake.open(path) as lake:
        assert lake.steps([0]).truncated.tolist() == [fault != "damaged"]
        assert len(lake) == 4


@pytest.mark.parametrize("fault", ["damaged", "cannot be read now"])
def test_an_end_below_a_manifest_that_cannot_be_read_does_not_stop_commits(
    tmp_path, monkeypatch, caplog, fault
):
    """The end of a step below another manifest is stored by the same commit."""
    monkeypatch.setattr(packing, "LOOSE", 2)
    path = tmp_path / "lake"
    with lp.Replay.open(path, SPEC, capacity=500, merge_after=None) as replay:
        for number in range(6):
            record(replay, number, terminated=False, stream=number)
            replay.commit()
        manifest, other = replay.lake().commit.segments[:2]
        assert (manifest.first, manifest.stop, other.first) == (0, 2, 2)
        data = Segments.data

        def unreadable(self: Segments, name: str, most: int) -> bytes:
            if name == manifest.name:
                if fault == "damaged":
                    return data(self, name, most)[:-1]
                raise CloudUnreachable("the bucket does not answer")
            return data(self, name, most)

        with monkeypatch.context() as patch:
            patch.setattr(manifests, "_kept", manifests._Kept())
            patch.setattr(Segments, "data", unreadable)
            for stream in (0, 3):
                replay.end(stream)
            record(replay, 6, stream=6)
            assert replay.commit().recorded == 7
        assert "the ends of episodes at steps 0 are" in caplog.text
        record(replay, 7, stream=7)
        replay.commit()
    with lp.Lake.open(path) as lake:
        lake.verify()
        assert np.flatnonzero(lake.steps(0, 8).truncated).tolist() == ([3] if fault == "damaged" else [0, 3])


def test_files_of_deleted_commits_are_deleted_after_an_error(tmp_path, monkeypatch):
    from lakepond.lake.write import retention

    path, sync = tmp_path / "lake", files.sync_folder
    failed = []

    def fails_once(folder: Path) -> None:
        if not failed:
            failed.append(folder)
            raise OSError(errno.EIO, "fsync")
        sync(folder)

    spec = lp.Spec(obs=lp.Field((20, 20), "uint8"))
    with lp.Replay.open(path, spec, capacity=5, max_steps=5, keep_last=1, merge_after=None) as replay:
        for start in range(0, 40, 5):
            if start == 20:
                monkeypatch.setattr(retention, "sync_folder", fails_once)
            commit_and_maintain(replay, *range(start, start + 5))
        assert failed
    assert unnamed(path) == set()


def test_reasons_of_failures_are_known_up_to_a_limit():
    reasons = Reasons()
    for number in range(3 * MOST):
        assert reasons.is_new(OSError(f"temporary file {number}"))
        assert not reasons.is_new(OSError(f"temporary file {number}"))
    assert len(reasons._known) <= MOST
