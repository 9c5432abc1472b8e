"""A lake larger than its disk: what is safe in the cloud leaves, and comes back when it is touched."""

from __future__ import annotations

import copy
import errno
import pickle
import threading

import numpy as np
import pytest
from small_runs import SPEC, agrees, record, run, whole

import lakepond as lp
from lakepond.cloud.memory import MemoryBucket
from lakepond.cloud.store import Store
from lakepond.errors import CloudUnreachable
from lakepond.lake.elsewhere import Elsewhere
from lakepond.lake.lock import FileLock
from lakepond.lake.segments import Segments

BUDGET = 90_000
"""bytes; a commit of 100 steps is about 43 kB"""


def here(lake) -> int:
    return sum(file.stat().st_size for file in (lake / "segments").iterdir())


def test_a_lake_of_four_budgets_works_end_to_end(name, tmp_path):
    lake, cloud = tmp_path / "lake", lp.Cloud(f"memory://{name}")
    with lp.Replay.open(lake, SPEC, capacity=300, cloud=cloud, local_budget=BUDGET) as replay:
        rng = np.random.default_rng(0)
        while (recorded := replay.stats().recorded) < 900:  # train
            record(replay, recorded, recorded + 100)
            replay.commit()
            agrees(replay.sample(16, rng=rng))
            assert replay.wait_for_uploads(60).state == "idle"  # pushes by itself before the disk is full
        assert replay.push(wait=True).done
        with replay.lake() as everything:
            assert everything.commit.totals.bytes > 4 * BUDGET
            assert here(lake) <= BUDGET
            agrees(everything.sample(32, rng=rng))  # sample
            big = lp.Replay(SPEC, 2000)
            big.fill_from(everything, 700, rng=rng)  # fill
            agrees(big.sample(64, rng=rng))
            whole(everything, 900)
        assert here(lake) <= BUDGET
    with lp.Replay.open(lake, capacity=300, cloud=cloud, local_budget=BUDGET) as replay:  # resume
        agrees(replay.sample(64, rng=rng))
        run(replay, commits=1)
    with lp.pull(tmp_path / "there", cloud) as there:
        whole(there, 940)


def test_7_what_is_not_verified_in_the_cloud_never_leaves_the_disk(moto, chaos, name, tmp_path):
    proxy, lake = chaos(moto), tmp_path / "lake"
    proxy.dead = True
    cloud = moto.cloud(name, proxy.port)
    with lp.Replay.open(lake, SPEC, capacity=300, cloud=cloud, local_budget=30_000) as replay:
        run(replay, commits=6)
        status = replay.wait_for_uploads(timeout=0.3)
        assert not status.done
        assert status.over_budget_bytes > 0  # training goes on, and the status says so
        with lp.Lake.open(lake) as all_here:
            whole(all_here, 240)
        proxy.dead = False
        assert replay.wait_for_uploads(60).done
        assert here(lake) <= 30_000
        with replay.lake() as there:
            whole(there, 240)


def test_7_what_arrived_is_remembered_by_the_next_process(moto, name, tmp_path):
    cloud, lake = moto.cloud(name), tmp_path / "lake"
    with lp.Replay.open(lake, SPEC, capacity=300, cloud=cloud, local_budget=30_000) as replay:
        run(replay, commits=6)
    gone = 12 - len(list((lake / "segments").iterdir()))
    assert gone > 0
    assert lp.repair(lake).quarantined == ()  # elsewhere is not lost
    before = len(moto.log())
    with lp.Replay.open(lake, capacity=100, cloud=cloud, local_budget=30_000) as replay:
        assert replay.stats().recorded == 240
        assert replay.push(wait=True).done
    assert not [each for each in moto.log()[before:] if each[0] == "PUT" and "/segments/" in each[1]]


@pytest.mark.parametrize("writer", ["", "worker"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda replay: pickle.loads(pickle.dumps(replay))])
def test_a_replay_whose_files_have_left_the_disk_is_copied(name, tmp_path, copied, writer):
    lake, url = tmp_path / "lake", f"memory://{name}"
    with lp.Replay.open(lake, SPEC, capacity=300, cloud=url, local_budget=1, writer=writer) as replay:
        record(replay, 0, 400)
        replay.commit()
        assert replay.push(wait=True).done
        record(replay, 400, 430)  # newer than all that is in the cloud
        other = copied(replay)
        assert (other.oldest, other.recorded) == (130, 430)
        agrees(other.recent(300))
        with pytest.raises(lp.LakeReadOnly):
            record(other, 430, 431)


def test_a_copy_does_not_contain_the_settings_of_its_cloud(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}", options={"secret_access_key": "not-to-be-seen"})
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=300, cloud=cloud) as replay:
        record(replay, 0, 10)
        assert b"not-to-be-seen" not in pickle.dumps(replay)


def test_a_segment_that_is_lost_in_the_cloud_is_named(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=300, cloud=cloud) as replay:
        run(replay, commits=2)
        first = replay.lake().commit.segments[0].name
    with lp.pull(tmp_path / "there", cloud, lazy=True) as lake:
        Store(cloud).replace(f"segments/{first}", b"other bytes")
        with pytest.raises(lp.CloudCorrupt, match=first):
            lake.steps(0, 10)
        Store(cloud).delete(f"segments/{first}")
        with pytest.raises(lp.CloudNotFound, match=first):
            lake.steps(0, 10)
        agrees(lake.steps(45, 80))  # the rest is as good as ever


def test_a_commit_whose_files_are_nowhere_does_not_keep_newer_ones_from_being_pushed(name, tmp_path, caplog):
    cloud = lp.Cloud(f"memory://{name}")
    store = Store(cloud)
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=80, max_steps=80, cloud=cloud) as replay:
        run(replay, commits=5)
        assert replay.push(wait=True).done
        with replay.lake(0) as first, replay.lake() as newest:
            lost = dict(first.files()).keys() - dict(newest.files()).keys()
        for segment in lost:  # swept in the cloud, and not on this disk either
            store.delete(f"segments/{segment}")
            (tmp_path / "lake/segments" / segment).unlink()
        store.delete("commits/0000000000.json")
    with lp.Replay.open(tmp_path / "lake", capacity=80, max_steps=80, cloud=cloud) as replay:
        run(replay, commits=1)
        assert replay.push(wait=True).done
        assert replay.upload_status().pushed == 5
        assert "commit 0 of" in caplog.text
        assert "is not pushed" in caplog.text
    with lp.pull(tmp_path / "there", cloud) as lake:
        lake.verify()
        assert lake.commit.recorded == 240


def fail_to_publish(monkeypatch, counts: dict[str, int]) -> None:
    """Have the server take no slot; counts the segments that it takes."""
    real_put = MemoryBucket.put

    def put(self, key, data, **how):
        if key.startswith("commits/"):
            raise CloudUnreachable("the slot is lost on its way.")
        counts["segments"] += key.startswith("segments/")
        return real_put(self, key, data, **how)

    monkeypatch.setattr(MemoryBucket, "put", put)


@pytest.mark.parametrize("version", ["this", "earlier"])
def test_7_what_no_published_commit_names_never_leaves_the_disk(name, tmp_path, monkeypatch, version):
    """A machine is killed between the last segment and the slot; `gc` deletes what no commit names."""
    lake, cloud = tmp_path / "lake", lp.Cloud(f"memory://{name}")
    with lp.Replay.open(lake, SPEC, capacity=300, cloud=cloud) as replay:
        run(replay, commits=1)
    published = {file.name for file in (lake / "segments").iterdir()}
    with lp.Replay.open(lake, capacity=300) as replay:
        run(replay, commits=3)
    every = {file.name for file in (lake / "segments").iterdir()}
    counts = {"segments": 0}
    with monkeypatch.context() as patch:
        fail_to_publish(patch, counts)
        assert not lp.push(lake, cloud, timeout=2).done
    assert counts["segments"] == len(every - published)  # all of them are in the bucket
    if version == "earlier":  # which listed a file as soon as it was uploaded
        (listed,) = (lake / "elsewhere").glob("*.txt")
        listed.write_text("\n".join([str(cloud), *sorted(every), ""]))
    Segments(lake, budget=0, safe=Elsewhere(lake, str(cloud))).make_room()
    here = {file.name for file in (lake / "segments").iterdir()}
    kept = every if version == "earlier" else every - published
    assert here == kept | {each for each in every if each.endswith(".manifest")}
    with lp.Replay.open(lake, capacity=300, cloud=cloud, local_budget=1) as replay:
        assert replay.push(wait=True, timeout=60).done
        with replay.lake() as there:
            whole(there, 160)
    assert not [file for file in (lake / "segments").iterdir() if not file.name.endswith(".manifest")]


def test_an_end_of_a_step_that_left_the_disk_is_committed_though_no_thread_can_be_started(
    name, tmp_path, monkeypatch
):
    """As at interpreter exit, from Python 3.12 on."""
    lake, cloud = tmp_path / "lake", lp.Cloud(f"memory://{name}")
    replay = lp.Replay.open(lake, SPEC, capacity=300, cloud=cloud, local_budget="1MB")
    record(replay, 0, 15)
    replay.commit()
    assert replay.push(wait=True).done
    for file in (lake / "segments").glob("*.steps"):
        file.unlink()
    replay.end(0)
    record(replay, 15, 30)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("lakepond-"):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    replay.close()
    monkeypatch.undo()
    with lp.Replay.open(tmp_path / "there", capacity=300, cloud=cloud, pull="all") as replay:
        assert np.flatnonzero(replay.steps(np.arange(30)).truncated).tolist() == [14]


# --- beside commits ------------------------------------------------------------------------------

SECONDS = 30.0
"""until a test fails that would otherwise hang"""


def test_commits_go_on_while_the_budget_is_kept(name, tmp_path, monkeypatch):
    real, began, gate, runs = Segments.make_room, threading.Event(), threading.Event(), []

    def blocked(self, size=0, *, ask=True):
        if not ask:  # after a commit, not after a push
            runs.append(threading.current_thread().name)
            began.set()
            assert gate.wait(SECONDS)
        return real(self, size, ask=ask)

    monkeypatch.setattr(Segments, "make_room", blocked)
    lake, cloud = tmp_path / "lake", f"memory://{name}"
    with lp.Replay.open(lake, SPEC, capacity=300, cloud=cloud, local_budget=1) as replay:
        try:
            for start in range(0, 60, 10):
                record(replay, start, start + 10)
                assert replay.commit(wait=False).result(SECONDS).recorded == start + 10
                assert began.wait(SECONDS)
            assert runs == ["lakepond-budget"]
        finally:
            gate.set()
    assert runs == ["lakepond-budget"] * 2  # the second one is for the five commits during the first
    assert replay.stats().background_failures == 0
    assert not list((lake / "segments").iterdir())  # pushed, and then deleted here


def test_a_commit_reads_files_while_another_process_has_the_list_of_what_may_leave(
    name, tmp_path, monkeypatch
):
    real, waits = Elsewhere.confirmed, threading.Event()

    def confirmed(self):
        waits.set()
        return real(self)

    lake, cloud = tmp_path / "lake", f"memory://{name}"
    with lp.Replay.open(lake, SPEC, capacity=300, cloud=cloud, local_budget=1) as replay:
        record(replay, 0, 10)
        replay.commit()
        assert replay.push(wait=True).done
        with FileLock(lake / "elsewhere" / "lock") as other:
            other.wait(SECONDS)
            monkeypatch.setattr(Elsewhere, "confirmed", confirmed)
            record(replay, 10, 20)
            replay.commit()
            assert waits.wait(SECONDS)
            replay.end(0)  # the next commit reads the file of step 19 and writes another one
            record(replay, 20, 30)
            assert replay.commit(wait=False).result(SECONDS).recorded == 30
    with lp.pull(tmp_path / "there", cloud) as there:
        whole(there, 30)
        assert np.flatnonzero(there.steps(0, 30).truncated).tolist() == [19]


def test_a_budget_that_cannot_be_kept_is_counted_and_reported_once(name, tmp_path, monkeypatch, caplog):
    real, runs = Segments.make_room, threading.Semaphore(0)

    def failing(self, size=0, *, ask=True):
        if not ask:
            runs.release()
            raise OSError(errno.EIO, "Input/output error")
        return real(self, size, ask=ask)

    monkeypatch.setattr(Segments, "make_room", failing)
    with lp.Replay.open(
        tmp_path / "lake", SPEC, capacity=300, cloud=f"memory://{name}", local_budget=1
    ) as replay:
        for start in range(0, 30, 10):
            record(replay, start, start + 10)
            assert replay.commit().recorded == start + 10
            assert runs.acquire(timeout=SECONDS)
    assert replay.stats().background_failures == 3
    assert caplog.text.count("could not be kept to its local budget") == 1
    assert "exception calling callback" not in caplog.text
    with lp.Lake.open(f"memory://{name}", cache=tmp_path / "cache") as there:
        whole(there, 30)
