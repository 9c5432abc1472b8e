"""A published commit is done: nothing that fails after it, or beside it, fails this commit or a later one."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from test_lake import all_there, record, settle, spec_of

import lakepond as lp
from lakepond.lake.files import write_bytes
from lakepond.lake.format import commits
from lakepond.lake.lock import CommitLock, WriterLock, unread
from lakepond.lake.write import maintenance, packing
from lakepond.lake.write.commit_queue import Background
from lakepond.lake.write.disk_guard import DiskGuard
from lakepond.lake.write.handover import HandOver
from lakepond.lake.write.maintenance import Maintenance
from lakepond.lake.write.retention import Retention

WORLD = "frames first"


def broken(*_: object, **__: object) -> None:
    raise RuntimeError("a defect")


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (DiskGuard, "written"),
        (Retention, "apply"),
        (Maintenance, "start"),
        (HandOver, "release"),
    ],
)
def test_an_error_after_publishing_fails_no_commit(tmp_path, monkeypatch, caplog, where, name):
    path = tmp_path / "lake"
    replay = lp.Replay.open(path, spec_of(WORLD), capacity=50, keep_last=2, merge_after=4)
    if where is HandOver:
        submit = Background.submit
        monkeypatch.setattr(
            Background, "submit", lambda self, new, note: submit(self, replace(new, release=broken), note)
        )
    else:
        monkeypatch.setattr(where, name, broken)
    for k in range(6):
        record(replay, WORLD, 5 * k, 5 * k + 5)
        commit = replay.commit()
        assert (commit.number, commit.recorded) == (k, 5 * k + 5)
    replay.close()
    logged = [r.getMessage() for r in caplog.records if "a defect" in r.getMessage()]
    assert len(logged) == 1
    monkeypatch.undo()
    lp.Replay.open(path, capacity=50).close()  # the lock was released
    all_there(path, 30, WORLD)


@pytest.mark.parametrize("error", [RuntimeError("a defect"), OSError(28, "No space left"), KeyError("x")])
def test_a_merge_that_fails_is_dropped_and_reported_once(tmp_path, monkeypatch, caplog, error):
    def fails(*_: object) -> None:
        raise error

    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of(WORLD), capacity=200, keep_last=2, merge_after=4) as replay:
        monkeypatch.setattr(maintenance, "merge", fails)
        for k in range(16):
            record(replay, WORLD, 5 * k, 5 * k + 5)
            replay.commit()
            settle(replay)
        monkeypatch.undo()
        logged = [r.getMessage() for r in caplog.records if "could not be merged" in r.getMessage()]
        assert len(logged) == 1
        for k in range(16, 22):
            record(replay, WORLD, 5 * k, 5 * k + 5)
            commit = replay.commit()
            settle(replay)
        assert len(commit.segments) < 10  # merging works again
    all_there(path, 110, WORLD)


def test_files_that_cannot_replace_the_small_ones_fail_no_commit(tmp_path, monkeypatch, caplog):
    """The merge succeeds, and taking up its result does not."""
    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of(WORLD), capacity=200, keep_last=2, merge_after=4) as replay:
        monkeypatch.setattr(packing, "spliced", broken)
        for k in range(10):
            record(replay, WORLD, 5 * k, 5 * k + 5)
            assert replay.commit().recorded == 5 * k + 5
            settle(replay)
        assert replay._outflow.background.writer.maintenance.failures > 1
    assert caplog.text.count("could not be replaced") == 1
    all_there(path, 50, WORLD)
    with lp.Lake.open(path) as lake:
        kept = {name for n in lake.commits() for name, _ in lp.Lake.open(path, n).files()}
        assert {file.name for file in (path / "segments").iterdir()} == kept


def test_a_commit_that_is_visible_but_not_durable_uses_up_its_number(tmp_path, monkeypatch):
    from lakepond.lake import files

    path, sync = tmp_path / "lake", files.sync_folder
    replay = lp.Replay.open(path, spec_of(WORLD), capacity=50)
    record(replay, WORLD, 0, 5)
    replay.commit()

    def fails(folder: os.PathLike[str]) -> None:
        sync(folder)
        if folder == path / "commits":
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "sync_folder", fails)
    record(replay, WORLD, 5, 10)
    with pytest.raises(OSError, match="Input/output"):
        replay.commit()
    monkeypatch.undo()
    with pytest.warns(RuntimeWarning, match="Input/output"):
        record(replay, WORLD, 10, 15)
    replay.close()
    all_there(path, 15, WORLD)
    with lp.Lake.open(path) as lake:
        assert lake.commits() == [0, 1, 2, 3]  # 1 was never acknowledged, and is complete


@pytest.mark.parametrize("link", ["succeeds", "is repeated"])
@pytest.mark.parametrize("whose", ["own", "another"])
def test_a_commit_that_cannot_be_read_after_an_error_is_neither_overwritten_nor_lost(
    tmp_path, monkeypatch, link, whose
):
    """An error of the disk when it is published, and of the read that asks whether it was."""
    path, read, publish = tmp_path / "lake", Path.read_bytes, os.link
    file = path / "commits" / commits.file_name(1)
    replay = lp.Replay.open(path, spec_of(WORLD), capacity=50)
    record(replay, WORLD, 0, 5)
    replay.commit()

    def linked(source: Path, target: Path) -> None:
        if whose == "own":
            publish(source, target)
        else:
            target.write_bytes(b"of another writer")
        if link == "is repeated":
            raise FileExistsError(errno.EEXIST, "File exists")
        raise OSError(errno.EIO, "Input/output error")

    def unreadable(self: Path) -> bytes:
        if self == file:
            raise OSError(errno.EIO, "Input/output error")
        return read(self)

    record(replay, WORLD, 5, 10)
    monkeypatch.setattr(Path, "read_bytes", unreadable)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", linked)
        patch.setattr(os, "open", broken_creation(os.open, file))  # what is tried without links
        with pytest.raises(OSError, match="Input/output error"):
            replay.commit()
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error") as raised:
            replay.commit()
        assert not isinstance(raised.value, lp.LakeConflict)
    monkeypatch.setattr(Path, "read_bytes", read)
    before = file.read_bytes()
    if whose == "another":
        with pytest.raises(lp.LakeConflict, match="commit 1"):
            replay.commit()
        replay.close(discard=True)
    else:
        with pytest.warns(RuntimeWarning, match="Input/output"):
            record(replay, WORLD, 10, 15)
        assert replay.commit().number == 5  # the failed ones follow as commits 2 to 4
        replay.close()
        all_there(path, 15, WORLD)
    assert file.read_bytes() == before


def broken_creation(real, file: Path):
    """`os.open` that does not create this file."""

    def opened(name, flags, *how, **more):
        if name == file and flags & os.O_CREAT:
            raise OSError(errno.EIO, "Input/output error")
        return real(name, flags, *how, **more)

    return opened


@pytest.mark.parametrize("links", [True, False])
def test_a_second_writer_never_overwrites_a_commit(tmp_path, monkeypatch, links):
    """Two writers whose lock was lost: the later one is refused, and every acknowledged step is there."""

    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "lake"
    first = lp.Replay.open(path, spec_of(WORLD), capacity=50)
    record(first, WORLD, 0, 5)
    first.commit()
    lock = first._outflow.background.writer._lock
    assert isinstance(lock, WriterLock)
    fcntl.flock(lock.descriptor, fcntl.LOCK_UN)
    second = lp.Replay.open(path, capacity=50)
    record(second, WORLD, 5, 12)
    assert second.commit().number == 1
    acknowledged = (path / "commits" / commits.file_name(1)).read_bytes()
    record(first, WORLD, 5, 8)
    for _ in range(2):
        with pytest.raises(lp.LakeConflict, match="commit 1"):
            first.commit()
    assert isinstance(lp.LakeConflict(), FileExistsError)
    with pytest.raises(lp.LakeConflict):
        first.close()
    first.close(discard=True)
    assert (path / "commits" / commits.file_name(1)).read_bytes() == acknowledged
    record(second, WORLD, 12, 20)
    second.close()
    all_there(path, 20, WORLD)
    assert not list((path / "commits").glob("*.aside"))


def test_a_commit_can_be_locked_by_a_reader_as_soon_as_it_has_its_name(tmp_path, monkeypatch):
    rename, link = Path.rename, os.link

    def at_once(publish):
        def published(source, target):
            publish(source, target)
            CommitLock(Path(target)).close()

        return published

    monkeypatch.setattr(Path, "rename", at_once(rename))
    monkeypatch.setattr(os, "link", at_once(link))
    for existing in ("replace", "refuse"):
        write_bytes(tmp_path, f"{existing}.json", b"{}", existing=existing)


def test_a_commit_that_is_replaced_while_a_reader_opens_it_is_opened_again(tmp_path, monkeypatch):
    """Readers of one URL share a cache, and each writes the commit there."""
    path, opened, replaced = tmp_path / "1.json", os.open, []
    path.write_bytes(b"first")

    def open_then_replace(name, *how, **more):
        descriptor = opened(name, *how, **more)
        if name == path and not replaced:
            replaced.append(descriptor)
            write_bytes(tmp_path, path.name, b"second")
        return descriptor

    monkeypatch.setattr(os, "open", open_then_replace)
    lock = CommitLock(path)
    monkeypatch.undo()
    assert replaced
    with unread(path) as free:
        assert not free
    lock.close()
    with unread(path) as free:
        assert free
        path.unlink()
    with pytest.raises(FileNotFoundError):
        CommitLock(path)


def test_a_reader_waits_until_retention_has_decided_to_keep_a_commit(tmp_path):
    path = tmp_path / "1.json"
    path.write_bytes(b"{}")
    decided = threading.Event()

    def decide():
        with unread(path) as free:
            assert free
            deciding.set()
            decided.wait(0.1)

    deciding = threading.Event()
    retention = threading.Thread(target=decide)
    retention.start()
    deciding.wait()
    CommitLock(path).close()
    retention.join()
