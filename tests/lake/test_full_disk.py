"""A full disk, real and small: nothing recorded is lost, and what is given up is released and reported."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import subprocess
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_lake import agrees, all_there, record, spec_of

import lakepond as lp
from lakepond.flow.device_to_lake import DeviceLake, Lanes
from lakepond.lake import files, repair
from lakepond.lake.write.commit_queue import Background

WORLD = "noise"  # 1 kB a step that no codec makes smaller


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A disk of 1 MB."""
    if os.getuid():
        pytest.fail("run the tests as root, or in a container: root alone can mount a small disk")
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        gc.collect()
        subprocess.run(["umount", "-l", path], check=True)


def use_up(disk: Path) -> Path:
    """Leave no space on a disk; deleting the file gives it back."""
    file = disk / "ballast"
    with file.open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            return file


def dropped(background: Background) -> None:
    """Return when the thread of an owner that nobody uses any more has ended."""
    thread = background._thread
    del background
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    gc.collect()


@pytest.mark.parametrize("what", ["commit", "flush", "save", "snapshot", "compact", "open", "device lake"])
def test_a_full_disk_is_named_with_its_path_and_a_next_step(disk, tmp_path, what):
    path = disk / "lake"
    replay = lp.Replay.open(path, spec_of(WORLD), capacity=500, merge_after=None)
    for start in (0, 10):
        record(replay, WORLD, start, start + 10)
        replay.commit()
    record(replay, WORLD, 20, 40)
    saved = lp.Replay(spec_of(WORLD), 100)
    record(saved, WORLD, 0, 40)
    if what == "compact":
        replay.close()
    ballast = use_up(disk)
    attempts = {
        "commit": replay.commit,
        "flush": lambda: (replay.commit(wait=False), replay.flush()),
        "save": lambda: saved.save(disk / "saved"),
        "snapshot": lambda: saved.snapshot(disk / "saved"),
        "compact": lambda: lp.Lake.open(path).compact(),
        "open": lambda: lp.Replay.open(disk / "new", spec_of(WORLD), capacity=500),
        "device lake": lambda: DeviceLake(disk / "new", spec_of(WORLD)),
    }
    with pytest.raises(lp.LakeFull) as raised:
        attempts[what]()
    error = raised.value
    where = path if what in ("commit", "flush", "compact") else disk / ("saved" if what[0] == "s" else "new")
    assert error.errno == errno.ENOSPC
    in_memory = "" if what == "compact" else " and newer steps are in memory"
    assert str(error) == (
        f"[Errno 28] the disk of {where} is full (No space left on device); what was committed is intact"
        f"{in_memory}: free some space and try again"
    )
    assert isinstance(error.__cause__, OSError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.errno, str(again)) == (error.errno, str(error))
    ballast.unlink()
    replay.close()
    all_there(path, 40, WORLD)


def test_an_exceeded_quota_is_named(tmp_path, monkeypatch):
    path, write = tmp_path / "lake", files.write_all

    def exceeded(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with lp.Replay.open(path, spec_of(WORLD), capacity=500) as replay:
        record(replay, WORLD, 0, 20)
        replay.commit()
        record(replay, WORLD, 20, 30)
        monkeypatch.setattr(files, "write_all", exceeded)
        with pytest.raises(lp.LakeFull, match=r"quota at .*lake is exceeded .*raise the quota") as raised:
            replay.commit()
        assert raised.value.errno == errno.EDQUOT
        monkeypatch.setattr(files, "write_all", write)
        assert replay.commit().recorded == 30
    all_there(path, 30, WORLD)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("what", ["pull", "lazy pull", "read", "repair"])
def test_the_errors_of_a_disk_are_named_by_pull_and_repair(tmp_path, monkeypatch, what, code):
    path, bucket, here = tmp_path / "lake", f"file://{tmp_path}/bucket", tmp_path / "here"
    with lp.Replay.open(path, spec_of(WORLD), capacity=500, cloud=bucket) as replay:
        for start in (0, 10):
            record(replay, WORLD, start, start + 10)
            replay.commit()
    with lp.pull(here, bucket, lazy=True) as lazily:
        newest = sorted((path / "commits").glob("*.json"))[-1]
        newest.write_bytes(newest.read_bytes()[:-1])  # to be moved
        attempts = {
            "pull": lambda: lp.pull(tmp_path / "new", bucket).close(),
            "lazy pull": lambda: lp.pull(tmp_path / "new", bucket, lazy=True).close(),
            "read": lambda: lazily.steps(0, 20),
            "repair": lambda: lp.repair(path),
        }

        def refused(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(files, "_temporary", refused)
            patch.setattr(repair, "_move", refused)
            with pytest.raises(lp.LakeReadOnly if code == errno.EROFS else lp.LakeFull) as raised:
                attempts[what]()
        assert raised.value.errno == code
        where = {"read": here, "repair": path}.get(what, tmp_path / "new")
        assert f"{where} is" in str(raised.value)
        for untrue in ("newer steps are in memory", "what was committed is intact", "the next pull"):
            assert untrue not in str(raised.value)
        attempts[what]()


@pytest.mark.parametrize("what", ["pull", "repair"])
def test_a_full_disk_is_named_if_the_lock_does_not_fit(tmp_path, monkeypatch, what):
    path, bucket, opened = tmp_path / "lake", f"file://{tmp_path}/bucket", os.open
    with lp.Replay.open(path, spec_of(WORLD), capacity=500, cloud=bucket) as replay:
        record(replay, WORLD, 0, 10)

    def full(file: str | Path, flags: int, *how: int, **more: int) -> int:
        if flags & os.O_CREAT and Path(file).name == "lock":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        return opened(file, flags, *how, **more)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(lp.LakeFull, match=r"the disk of .* is full"):
        lp.pull(tmp_path / "new", bucket) if what == "pull" else lp.repair(path)


def test_a_pull_that_may_not_read_a_file_says_nothing_about_writing(tmp_path, monkeypatch):
    path, bucket, read = tmp_path / "lake", f"file://{tmp_path}/bucket", Path.read_bytes
    with lp.Replay.open(path, spec_of(WORLD), capacity=500, cloud=bucket) as replay:
        record(replay, WORLD, 0, 10)

    def refused(self: Path) -> bytes:
        if self.parent.name == "commits" and self.is_relative_to(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(PermissionError) as raised:
        lp.pull(path, bucket)
    assert not isinstance(raised.value, lp.LakeReadOnly)


def test_other_errors_of_a_commit_pass_unchanged(tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with lp.Replay.open(tmp_path / "lake", spec_of(WORLD), capacity=500) as replay:
        record(replay, WORLD, 0, 20)
        monkeypatch.setattr(files, "write_all", broken)
        with pytest.raises(OSError, match="Input/output error") as raised:
            replay.commit()
        assert type(raised.value) is OSError
        monkeypatch.undo()


def test_a_read_only_file_system_is_named(disk, tmp_path, monkeypatch):
    """Also for a new lake and for a new writer, whose folders are made before there is a lock."""
    path = disk / "lake"
    with lp.Replay.open(path, spec_of(WORLD), capacity=500) as replay:
        record(replay, WORLD, 0, 20)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    cloud = f"file://{tmp_path / 'bucket'}"
    for attempt in (
        lambda: lp.Replay.open(disk / "new", spec_of(WORLD), capacity=500),
        lambda: lp.Replay.open(path, capacity=500, writer="other"),
        lambda: lp.Replay.open(path, capacity=500, writer="other", cloud=cloud),
        lambda: DeviceLake(disk / "new", spec_of(WORLD)),
        lambda: lp.Replay(spec_of(WORLD), 100).save(disk / "new"),
    ):
        with pytest.raises(lp.LakeReadOnly, match="is on a read-only file system") as raised:
            attempt()
        assert raised.value.errno == errno.EROFS
    with pytest.raises(lp.LakeReadOnly, match="is on a read-only file system"):
        lp.Replay.open(path, capacity=500)
    all_there(path, 20, WORLD)
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with lp.Replay.open(path, capacity=500) as replay:  # it becomes read-only while it is written
        record(replay, WORLD, 20, 30)
        monkeypatch.setattr(files, "write_all", read_only)
        with pytest.raises(lp.LakeReadOnly, match="read-only file system") as raised:
            replay.commit()
        assert raised.value.errno == errno.EROFS
        monkeypatch.undo()
    all_there(path, 30, WORLD)


def test_a_folder_without_write_permission_is_named(tmp_path, monkeypatch):
    """Of a new lake and of a new writer; patched, because root may write everywhere."""
    path, mkdir = tmp_path / "lake", Path.mkdir
    lp.Replay.open(path, spec_of(WORLD), capacity=10).close()

    def refused(self: Path, *args: object, **how: object) -> None:
        if not self.exists():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        mkdir(self, *args, **how)

    monkeypatch.setattr(Path, "mkdir", refused)
    for attempt in (
        lambda: lp.Replay.open(tmp_path / "new", spec_of(WORLD), capacity=10),
        lambda: lp.Replay.open(path, capacity=10, writer="other"),
    ):
        with pytest.raises(lp.LakeReadOnly, match="may not be written by this user"):
            attempt()


def test_a_replay_that_cannot_be_closed_stays_open_and_loses_nothing(disk, rng):
    replay = lp.Replay.open(disk / "lake", spec_of(WORLD), capacity=500)
    record(replay, WORLD, 0, 20)
    replay.commit()
    record(replay, WORLD, 20, 60)
    ballast = use_up(disk)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            replay.close()
    with pytest.warns(RuntimeWarning, match="No space"):
        record(replay, WORLD, 60, 80)  # it still records,
    batch = replay.sample(30, rng=rng)  # samples,
    for i in range(30):
        agrees(batch, i, WORLD)
    with pytest.raises(OSError, match="No space"):
        replay.commit()  # tries to commit,
    with pytest.raises(lp.LakeLocked):
        lp.Replay.open(disk / "lake")  # and is the writer of its lake
    ballast.unlink()
    replay.close()
    with pytest.raises(lp.ReplayClosed):
        record(replay, WORLD, 80, 81)
    replay.close()  # nothing is left to do
    all_there(disk / "lake", 80, WORLD)
    lp.Replay.open(disk / "lake").close()


def test_a_replay_that_is_given_up_releases_its_lake_and_says_what_is_lost(disk, caplog, rng):
    replay = lp.Replay.open(disk / "lake", spec_of(WORLD), capacity=500)
    record(replay, WORLD, 0, 20)
    replay.commit()
    record(replay, WORLD, 20, 45)
    use_up(disk)
    with pytest.raises(OSError, match="No space"):
        replay.commit()
    with pytest.warns(RuntimeWarning, match="No space"):
        record(replay, WORLD, 45, 50)
    replay.close(discard=True)
    assert "30 steps were not committed" in caplog.text
    assert len(replay.sample(8, rng=rng).reward) == 8
    with pytest.raises(lp.ReplayClosed):
        record(replay, WORLD, 50, 51)
    (disk / "ballast").unlink()
    with lp.Replay.open(disk / "lake", capacity=500) as again:
        record(again, WORLD, 20, 30)
    all_there(disk / "lake", 30, WORLD)


def test_an_error_while_closing_does_not_hide_the_one_before_it(disk, caplog):
    replay = lp.Replay.open(disk / "lake", spec_of(WORLD), capacity=500)
    record(replay, WORLD, 0, 40)
    ballast = use_up(disk)
    with pytest.raises(ZeroDivisionError) as raised, replay:
        raise ZeroDivisionError("the first error")
    assert "No space" in raised.value.__notes__[0]
    assert "No space" in caplog.text
    ballast.unlink()
    replay.close()
    all_there(disk / "lake", 40, WORLD)
    replay = lp.Replay.open(disk / "lake", capacity=500)
    record(replay, WORLD, 40, 70)
    ballast = use_up(disk)
    with pytest.raises(OSError, match="No space"), replay:
        pass
    ballast.unlink()
    replay.close()
    all_there(disk / "lake", 70, WORLD)


def test_a_device_lake_that_cannot_be_closed_stays_open_and_loses_nothing(disk, caplog):
    spec = lp.Spec(obs=lp.Field((1000,), "uint8"), action=lp.Field((), "int32"))

    def steps(first: int, count: int) -> Lanes:
        """Steps of one lane, whose rewards are their numbers."""
        rows = np.random.default_rng(first).integers(256, size=(1, count + 1, 1000), dtype=np.uint8)
        at = np.arange(count)[None]
        reward = (first + at).astype(np.float32)
        ended = np.zeros((1, count), bool)
        columns = {"action": at.astype(np.int32), "reward": reward, "terminated": ended, "truncated": ended}
        return Lanes(rows, count, np.zeros(1, np.int64), at, at + 1, columns)

    lake = DeviceLake(disk / "lake", spec)
    lake.pour([steps(0, 50)]).result()
    ballast = use_up(disk)
    lake.pour([steps(50, 30)])
    for attempt in (lake.wait, lake.close, lake.wait):
        with pytest.raises(OSError, match="No space"):
            attempt()
    assert lake.waiting == 1
    ballast.unlink()
    commit = lake.wait()  # nothing new has to be poured for it to be tried again
    assert commit is not None
    assert commit.recorded == 80
    ballast = use_up(disk)
    lake.pour([steps(80, 20)])
    with pytest.raises(ZeroDivisionError), lake:
        raise ZeroDivisionError
    ballast.unlink()
    lake.close()
    with lp.Lake.open(disk / "lake") as read:
        assert read.steps(0, 100).reward.tolist() == list(range(100))
    lake = DeviceLake(disk / "lake", spec)
    use_up(disk)
    lake.pour([steps(100, 7)])
    lake.close(discard=True)
    assert "7 steps were not committed" in caplog.text
    with DeviceLake(disk / "lake", spec):
        pass


def test_a_replay_that_could_not_be_closed_is_pushed_when_it_can_be(disk, tmp_path):
    cloud = f"file://{tmp_path / 'bucket'}"
    replay = lp.Replay.open(disk / "lake", spec_of(WORLD), capacity=500, cloud=cloud)
    record(replay, WORLD, 0, 40)
    ballast = use_up(disk)
    with pytest.raises(OSError, match="No space"):
        replay.close()
    ballast.unlink()
    replay.close()
    lp.pull(tmp_path / "pulled", cloud).close()
    all_there(tmp_path / "pulled", 40, WORLD)


def test_a_replay_that_is_dropped_after_a_failed_commit_dies(disk, caplog):
    """Four times in one process: its lake is free again, and its memory is."""
    record_one = lp.Replay.open(disk / "lake", spec_of(WORLD), capacity=500)
    record(record_one, WORLD, 0, 10)
    record_one.close()
    ballast = use_up(disk)
    for attempt in range(4):
        replay = lp.Replay.open(disk / "lake", capacity=500)
        record(replay, WORLD, 10, 60)
        with pytest.raises(OSError, match="No space"):
            replay.commit()
        if attempt % 2:  # a caller that keeps what it caught
            kept = replay.commit(wait=False).exception(60)
            assert isinstance(kept, OSError)
        slab = weakref.ref(replay._pond.leaves[0].store.slab)
        background = replay._outflow.background
        del replay
        dropped(background)
        del background
        assert slab() is None
        lost = [r.getMessage() for r in caplog.records if "50 steps were not committed" in r.getMessage()]
        assert len(lost) == attempt + 1
    ballast.unlink()
    with lp.Replay.open(disk / "lake", capacity=500) as replay:
        record(replay, WORLD, 10, 30)
    all_there(disk / "lake", 30, WORLD)


def test_a_device_lake_that_is_dropped_is_free_again(tmp_path):
    spec = lp.Spec(obs=lp.Field((8,), "uint8"), action=lp.Field((), "int32"))
    for _ in range(2):
        dropped(DeviceLake(tmp_path / "lake", spec)._background)


def test_steps_of_a_replay_that_was_never_closed_are_reported_as_lost(tmp_path, caplog):
    replay = lp.Replay.open(tmp_path / "lake", spec_of(WORLD), capacity=500)
    record(replay, WORLD, 0, 10)
    replay.commit()
    record(replay, WORLD, 10, 16)
    background = replay._outflow.background
    del replay
    dropped(background)
    assert "6 steps were not committed" in caplog.text
    caplog.clear()
    saved = lp.Replay(spec_of(WORLD), 100)  # one that keeps what is saved, and says so
    record(saved, WORLD, 0, 10)
    saved.save(tmp_path / "saved")
    record(saved, WORLD, 10, 16)
    background = saved._outflow.background
    del saved
    dropped(background)
    assert "not committed" not in caplog.text


def test_free_space_is_that_of_the_disk_of_segments_too(tmp_path, monkeypatch):
    """`segments/` may be a link to another disk."""
    with lp.Replay.open(tmp_path / "lake", spec_of(WORLD), capacity=10, min_free="1GB") as replay:
        free = {tmp_path / "lake": 10**10, tmp_path / "lake" / "segments": 10**8}
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free[path]))
        with pytest.raises(lp.LakeFull, match=r"100,000,000 bytes are free at .*segments, the limit is"):
            replay.commit()
        monkeypatch.undo()


def test_a_writer_that_cannot_be_opened_leaves_no_lock(tmp_path):
    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of(WORLD), capacity=10) as replay:
        record(replay, WORLD, 0, 5)
    for _ in range(2):
        with lp.Lake.open(path) as lake, pytest.raises(lp.SpecError, match="keep_last"):
            lake.compact(keep_last=0)
    lp.Replay.open(path, capacity=10).close()
