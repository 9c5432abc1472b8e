"""A push of a lake that is not complete, and threads, readers and lists that get in each other's way."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from small_runs import SPEC, run, whole

import lakepond as lp
from lakepond.cloud.bucket import Exists
from lakepond.cloud.local import LocalBucket
from lakepond.cloud.memory import MemoryBucket
from lakepond.cloud.place import Cloud
from lakepond.cloud.pusher import Pusher
from lakepond.errors import CloudRefused, CloudUnreachable
from lakepond.flow.following import cloud_chains
from lakepond.lake import files
from lakepond.lake.format import commits, manifests
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.segments import Segments
from lakepond.lake.write import packing

COMMITS, STEPS = 12, 3


@pytest.fixture
def lake(tmp_path, monkeypatch) -> Path:
    """A lake with small manifests, which this process has forgotten."""
    for name in ("LOOSE", "FAN", "FLAT_LEVEL"):
        monkeypatch.setattr(packing, name, 2)
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=1000) as replay:
        run(replay, COMMITS, STEPS)
    monkeypatch.setattr(manifests, "_kept", manifests._Kept())
    return tmp_path / "lake"


def manifests_of(lake: Path) -> dict[int, set[str]]:
    found = {}
    for number in commits.numbers(lake / "commits"):
        catalog = Catalog(commits.read(lake / "commits", number), Segments(lake))
        found[number] = {name for name, _ in catalog.files() if name.endswith(".manifest")}
    return found


def test_old_commits_with_a_lost_manifest_are_left_out_and_the_others_pushed(
    lake, name, tmp_path, monkeypatch, caplog
):
    named = manifests_of(lake)
    newest = max(named)
    lost = set().union(*named.values()) - named[newest]
    assert lost
    for each in lost:
        (lake / "segments" / each).unlink()
    monkeypatch.setattr(manifests, "_kept", manifests._Kept())
    pusher = Pusher(lake, Cloud(f"memory://{name}"))
    pusher.push()
    status = pusher.wait(60)
    pusher.close()
    assert (status.state, status.pushed) == ("idle", newest)
    assert "is not pushed" in caplog.text
    with lp.pull(tmp_path / "back", f"memory://{name}") as back:
        whole(back, COMMITS * STEPS)


@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_a_push_that_cannot_send_the_newest_commit_fails_and_sends_the_others(lake, name, monkeypatch, how):
    named = manifests_of(lake)
    newest = max(named)
    (only, *_) = sorted(named[newest] - named[newest // 2])
    file = lake / "segments" / only
    file.unlink() if how == "lost" else file.write_bytes(b"{}")
    monkeypatch.setattr(manifests, "_kept", manifests._Kept())
    pusher = Pusher(lake, Cloud(f"memory://{name}"))
    pusher.push()
    status = pusher.wait(60)
    assert (status.state, status.done) == ("failed", False)
    assert f"commit {newest} cannot be read" in status.last_error
    assert only in status.last_error
    assert "run `lakepond repair`" in status.last_error
    assert status.pushed is not None
    assert newest // 2 <= status.pushed < newest
    pusher.close()


def test_a_file_that_arrives_during_a_list_may_leave_the_disk(name, tmp_path, monkeypatch):
    listed, go_on, real = threading.Event(), threading.Event(), MemoryBucket.list

    def slow_for_the_reader(self, prefix):
        found = list(real(self, prefix))
        if threading.current_thread().name == "reader" and "segments" in prefix:
            listed.set()
            assert go_on.wait(60)
        yield from found

    monkeypatch.setattr(MemoryBucket, "list", slow_for_the_reader)
    how = {"cloud": f"memory://{name}", "local_budget": 1 << 30}
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=1000, **how) as replay:
        run(replay, 1)
        assert replay.push(wait=True, timeout=60).done
        pusher = replay._cloud.pusher
        pusher._copier._listed_at = -1e9  # long ago
        reader = threading.Thread(target=pusher.confirm, args=(True,), name="reader")
        reader.start()
        assert listed.wait(60)
        run(replay, 1)
        assert replay.push(wait=True, timeout=60).done
        go_on.set()
        reader.join()
        assert replay._cloud.segments.unsafe_bytes() == 0


@pytest.mark.parametrize("which", ["lakepond-push", "lakepond-upload"])
def test_a_thread_that_could_not_be_started_is_started_by_the_next_push(
    lake, name, tmp_path, monkeypatch, which
):
    real, failed = threading.Thread.start, []

    def fails_once(self):
        if self.name.startswith(which) and not failed:
            failed.append(self.name)
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", fails_once)
    pusher = Pusher(lake, Cloud(f"memory://{name}", workers=1))
    if which == "lakepond-push":
        with pytest.raises(RuntimeError, match="can't start new thread"):
            pusher.push()
        assert pusher.status().state == "idle"
    else:
        pusher.push()
        assert "can't start new thread" in pusher.wait(60).last_error
    pusher.push()
    assert pusher.wait(60).done
    assert failed
    pusher.close()


def test_a_commit_that_another_reader_of_the_cache_deletes_is_cached_again(lake, name, tmp_path, monkeypatch):
    pusher = Pusher(lake, Cloud(f"memory://{name}"))
    pusher.push()
    assert pusher.wait(60).done
    pusher.close()
    real, deleted = cloud_chains._cache, []

    def cache_then_delete(folder, commit):
        real(folder, commit)
        if not deleted:
            deleted.append(folder / commits.file_name(commit.number))
            deleted[0].unlink()

    monkeypatch.setattr(cloud_chains, "_cache", cache_then_delete)
    with lp.Lake.open(f"memory://{name}", cache=tmp_path / "cache") as opened:
        assert len(opened) == COMMITS * STEPS
    assert deleted


def test_a_listing_says_why_a_file_cannot_be_used(tmp_path, monkeypatch):
    bucket, real = LocalBucket(str(tmp_path)), Path.stat
    bucket.put("demo/a", b"x", create=True, timeout=10)

    def refused(self, **how):
        if self.name == "a":
            raise PermissionError(13, "Permission denied")
        return real(self, **how)

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(CloudRefused, match=r"demo/a cannot be used: Permission denied\."):
        list(bucket.list("demo"))


def test_an_upload_that_was_killed_leaves_a_file_that_the_next_process_deletes(tmp_path):
    bucket = LocalBucket(str(tmp_path))
    bucket.put("segments/a", b"a", create=True, timeout=10)
    killed, written = tmp_path / "segments/1-00000000.aside", tmp_path / "segments/1-00000001.aside"
    killed.write_bytes(b"half")
    with written.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as an upload of another process does
        LocalBucket(str(tmp_path)).put("segments/b", b"b", create=True, timeout=10)
        assert (killed.exists(), written.exists()) == (False, True)
    assert sorted(each.name for each in bucket.list("segments")) == ["segments/a", "segments/b"]
    (tmp_path / "big").write_bytes(b"c")
    LocalBucket(str(tmp_path)).put_file("segments/c", tmp_path / "big", timeout=10)
    assert sorted(os.listdir(tmp_path / "segments")) == ["a", "b", "c"]


def test_a_folder_without_hard_links_is_a_bucket(tmp_path, monkeypatch):
    def refused(source, target):
        raise PermissionError(errno.EPERM, "Operation not permitted", str(source), None, str(target))

    monkeypatch.setattr(os, "link", refused)
    bucket = LocalBucket(str(tmp_path))
    bucket.put("a", b"first", create=True, timeout=10)
    with pytest.raises(Exists):
        bucket.put("a", b"second", create=True, timeout=10)
    assert os.listdir(tmp_path) == ["a"]
    assert b"".join(bucket.get("a", 10)) == b"first"


def test_an_upload_whose_temporary_file_another_machine_deleted_is_tried_again(tmp_path, monkeypatch):
    def written(file, data):
        for each in tmp_path.glob("*.aside"):  # on a mount whose locks hold on one machine only
            each.unlink()

    monkeypatch.setattr(files, "write_all_synced", written)
    for create in (True, False):
        with pytest.raises(CloudUnreachable, match="was deleted while it was written"):
            LocalBucket(str(tmp_path)).put("a", b"a", create=create, timeout=10)
    assert os.listdir(tmp_path) == []


def test_commits_return_though_an_upload_never_ends(name, tmp_path, monkeypatch):
    started, released = threading.Event(), threading.Event()
    send = MemoryBucket.put

    def stalled(bucket: MemoryBucket, name: str, data: bytes, **options: Any) -> str | None:
        if name.startswith("segments/"):
            started.set()
            assert released.wait(120)
        return send(bucket, name, data, **options)

    monkeypatch.setattr(MemoryBucket, "put", stalled)
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=20, cloud=cloud, keep_last=2) as replay:
        run(replay, 1, STEPS)
        replay.push()
        assert started.wait(60)
        commits_made = threading.Thread(target=run, args=(replay, COMMITS, STEPS), daemon=True)
        commits_made.start()
        commits_made.join(60)
        finished = not commits_made.is_alive()
        assert not replay.upload_status().done
        released.set()
        assert finished, "a commit waited for an upload"
        replay.push()
        assert replay.wait_for_uploads(60).done
    with lp.pull(tmp_path / "back", cloud) as back:
        whole(back, (COMMITS + 1) * STEPS)
