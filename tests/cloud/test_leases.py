"""`gc` keeps what a reader on another machine fetches lazily, and a machine can push again after a gc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from small_runs import SPEC, agrees, environment, run

import lakepond as lp
from lakepond.cloud import garbage, leases
from lakepond.cloud.layout import commit_name
from lakepond.cloud.memory import MemoryBucket
from lakepond.cloud.store import Store
from lakepond.lake.read.catalog import Catalog

DAY = 24 * 3600.0
ANY_AGE = -60.0
"""a margin that makes every file old enough, whatever the resolution of the server's clock"""
BOTH = pytest.mark.parametrize("kind", ["file", "moto"])


@pytest.fixture
def cloud(request, kind, name, tmp_path) -> lp.Cloud:
    """Eight commits of 40 steps, of which each keeps the last 80."""
    cloud = (
        lp.Cloud(f"file://{tmp_path}/cloud") if kind == "file" else request.getfixturevalue(kind).cloud(name)
    )
    with lp.Replay.open(tmp_path / "writer", SPEC, capacity=80, max_steps=80, cloud=cloud) as replay:
        run(replay, commits=8)
    return cloud


def leases_in(cloud: lp.Cloud) -> list[str]:
    return sorted(Store(cloud).list("leases"))


def collect(cloud: lp.Cloud) -> garbage.Swept:
    """Two runs of `gc`; what the second one deletes."""
    lp.gc(cloud, keep_last=1, older_than=ANY_AGE, dry_run=False)
    return lp.gc(cloud, keep_last=1, older_than=ANY_AGE, dry_run=False)


def until(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@BOTH
def test_gc_keeps_the_commit_of_a_lazy_reader_until_it_is_closed(cloud, tmp_path):
    with lp.pull(tmp_path / "reader", cloud, commit=2, lazy=True) as lake:
        until(lambda: leases_in(cloud))
        swept = collect(cloud)
        assert swept.leased == (2,)
        assert swept.commits == (0, 1, 3, 4, 5, 6)
        assert "kept for readers" in str(swept)
        lake.verify()
        agrees(lake.steps(40, 120))
    assert leases_in(cloud) == []
    swept = collect(cloud)
    assert (swept.commits, swept.leased) == ((2,), ())


@BOTH
def test_gc_keeps_the_live_steps_of_a_lazily_resumed_replay(cloud, tmp_path):
    settings = {"capacity": 40, "cloud": cloud, "max_steps": 80}
    with lp.Replay.open(tmp_path / "b", pull="lazy", commit=3, **settings) as replay:
        until(lambda: leases_in(cloud))
        run(replay, commits=2)  # they name segments of commit 3, which are in the cloud alone
        swept = collect(cloud)
        assert swept.leased == (3,)
        with replay.lake(3) as lake:
            agrees(lake.steps(80, 160))
        assert replay.push(wait=True).pushed == 9
        assert collect(cloud).commits == (7, 8)
        with replay.lake() as lake:
            agrees(lake.steps(160, 240))
    assert leases_in(cloud) == []
    with lp.pull(tmp_path / "last", cloud) as lake:
        lake.verify()
        agrees(lake.steps(160, 240))


def counted_lookups(monkeypatch) -> list[str]:
    """The names that readers and writers look for on the disk from now on."""
    real, names = Catalog.files, []

    def files(self):
        for name, size in real(self):
            names.append(name)
            yield name, size

    monkeypatch.setattr(Catalog, "files", files)
    return names


def test_a_replay_with_all_files_here_looks_for_each_once(name, tmp_path, monkeypatch):
    cloud, lake = lp.Cloud(f"memory://{name}"), tmp_path / "lake"
    with lp.Replay.open(lake, SPEC, capacity=300, cloud=cloud) as replay:
        run(replay, commits=4)
    with lp.Lake.open(lake) as all_here:
        every = sorted(file for file, _ in all_here.files())
    names = counted_lookups(monkeypatch)
    with lp.Replay.open(lake, capacity=300, cloud=cloud) as replay:
        assert sorted(names) == every
        names.clear()
        for commits in range(3):
            run(replay, commits=commits)
            with replay.lake() as newest:
                agrees(newest.steps(0, 40))
            assert names == []
        with replay.lake(2) as older:  # its files may have been deleted here
            assert len(names) == len(every) - 2
            agrees(older.steps(0, 40))
        assert leases_in(cloud) == []


@pytest.mark.parametrize("why", ["a file of the newest commit is not here", "a budget"])
def test_a_reader_whose_files_are_not_here_to_stay_has_a_lease(name, tmp_path, why):
    cloud, lake = lp.Cloud(f"memory://{name}"), tmp_path / "lake"
    with lp.Replay.open(lake, SPEC, capacity=300, cloud=cloud) as replay:
        run(replay, commits=3)
        with replay.lake(1) as older, replay.lake() as newest:
            new = dict(newest.files()).keys() - dict(older.files()).keys()
    budget = None
    if why == "a budget":
        budget = "1GB"
    else:
        for file in new:
            (lake / "segments" / file).unlink()
    settings = {"capacity": 300, "cloud": cloud, "local_budget": budget}
    with lp.Replay.open(lake, commit=1, **settings) as replay:  # all files of that one are here
        assert len(leases_in(cloud)) == (budget is not None)
        with replay.lake(2) as newest:
            until(lambda: leases_in(cloud))
            assert leases.parse(Store(cloud).read(leases_in(cloud)[0])).segments >= new
            agrees(newest.steps(80, 120))


@pytest.mark.parametrize("kind", ["file"])
def test_the_lease_of_a_reader_that_was_killed_expires_and_is_deleted(cloud, tmp_path, monkeypatch):
    program = f"""
        import lakepond as lp, os, time
        lake = lp.pull({str(tmp_path / "reader")!r}, {cloud.url!r}, commit=2, lazy=True)
        assert lake.reader.heads[0].segments._pin.__self__.wait(30)
        os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment(), timeout=60)
    (left,) = leases_in(cloud)
    assert collect(cloud).leased == (2,)
    assert leases_in(cloud) == [left]
    real = leases.server_time
    monkeypatch.setattr(leases, "server_time", lambda store: real(store) + 1.01 * DAY)
    swept = collect(cloud)
    assert (swept.commits, swept.leased) == ((2,), ())
    assert leases_in(cloud) == []


@pytest.mark.parametrize("kind", ["file"])
def test_a_lease_is_renewed_while_its_reader_lives(cloud, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.02)
    with lp.pull(tmp_path / "reader", cloud, commit=2, lazy=True):
        until(lambda: leases_in(cloud))
        (lease,) = (tmp_path / "cloud/leases").iterdir()
        os.utime(lease, (0, 0))  # the server's clock is half a century later
        until(lambda: lease.stat().st_mtime > 0)
        assert collect(cloud).leased == (2,)


@pytest.mark.parametrize("kind", ["file"])
def test_a_replay_that_has_all_its_files_here_needs_no_lease(cloud, tmp_path):
    with lp.Replay.open(tmp_path / "b", capacity=40, cloud=cloud, pull="all") as replay:
        run(replay, commits=1)
        with replay.lake():
            assert replay._cloud.lease.wait(30)
            assert leases_in(cloud) == []


@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, if another test loaded it
@pytest.mark.parametrize("kind", ["file"])
def test_a_forked_child_leaves_the_lease_of_its_parent_alone(cloud, tmp_path):
    with lp.pull(tmp_path / "reader", cloud, commit=2, lazy=True) as lake:
        until(lambda: leases_in(cloud))
        child = os.fork()
        if not child:
            try:  # an exception must not reach the test runner, which the child has a copy of
                for unpin in lake.reader._unpins:
                    unpin(2.0)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(leases_in(cloud)) == 1
    assert leases_in(cloud) == []


def test_a_reader_that_may_not_write_is_warned_once_and_reads(seaweed, name, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(leases, "RETRY_SECONDS", 0.02)
    with lp.Replay.open(tmp_path / "writer", SPEC, capacity=80, cloud=seaweed.cloud(name)) as replay:
        run(replay, commits=2)
    with lp.pull(tmp_path / "reader", seaweed.read_only(name), lazy=True) as lake:
        until(lambda: "is not permitted" in caplog.text)
        agrees(lake.steps(0, 80))
        time.sleep(0.3)  # some more tries
    assert caplog.text.count("warning once") == 1
    assert leases_in(seaweed.cloud(name)) == []


def test_a_reader_whose_lease_cannot_be_renewed_for_a_while_reads_on(name, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.02)
    monkeypatch.setattr(leases, "RETRY_SECONDS", 0.02)
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "writer", SPEC, capacity=80, cloud=cloud) as replay:
        run(replay, commits=2)
    with lp.pull(tmp_path / "reader", cloud, lazy=True) as lake:
        until(lambda: leases_in(cloud))
        real, tries = MemoryBucket.put, []

        def away(self, name, data, *, create, timeout):
            tries.append(name)
            raise lp.CloudUnreachable("no network.")

        monkeypatch.setattr(MemoryBucket, "put", away)
        until(lambda: len(tries) > 3)
        agrees(lake.steps(0, 80))
        assert caplog.text.count("warning once") == 1
        Store(cloud).delete(leases_in(cloud)[0])
        monkeypatch.setattr(MemoryBucket, "put", real)
        until(lambda: leases_in(cloud))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"seconds": NaN, "commits": [], "segments": []}', b"{" * 5000]
)
def test_a_lease_that_cannot_be_read_stops_gc_until_it_has_expired(content, name, tmp_path, monkeypatch):
    cloud, lease = lp.Cloud(f"memory://{name}"), f"leases/{'0' * 16}.json"
    with lp.Replay.open(tmp_path / "writer", SPEC, capacity=80, max_steps=80, cloud=cloud) as replay:
        run(replay, commits=3)
    Store(cloud).replace(lease, content)
    before = Store(cloud).list()
    with pytest.raises(lp.CloudCorrupt, match="nothing is deleted"):
        collect(cloud)
    assert Store(cloud).list().keys() == before.keys()
    monkeypatch.setattr(leases, "server_time", lambda store: time.time() + 1.01 * DAY)
    assert collect(cloud).commits == (0, 1)
    assert leases_in(cloud) == []


def test_a_lease_of_the_writer_names_what_it_has_not_published_yet(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=80, cloud=cloud) as replay:
        run(replay, commits=2)
    with lp.Replay.open(tmp_path / "b", capacity=80, cloud=cloud, pull="lazy", local_budget="1MB") as replay:
        run(replay, commits=2)
        with replay.lake() as lake:
            assert replay._cloud.lease.wait(30)
            lease = leases.parse(Store(cloud).read(leases_in(cloud)[0]))
            assert lease.segments >= {name for name, _ in lake.files()}
            assert lease.commits == {1, 3}


# --- the other half: a machine that pulled before a gc pushes after it ---------------------------


@BOTH
@pytest.mark.parametrize("lazy", [True, False])
def test_a_machine_that_pulled_an_old_commit_can_pull_and_push_again_after_a_gc(
    cloud, lazy, tmp_path, caplog
):
    lp.pull(tmp_path / "b", cloud, commit=2, lazy=lazy).close()
    with lp.Replay.open(tmp_path / "writer", capacity=80, max_steps=80, cloud=cloud) as replay:
        run(replay, commits=3)
    assert collect(cloud).commits == tuple(range(10))
    with lp.Replay.open(tmp_path / "b", capacity=80, max_steps=80, cloud=cloud, pull="lazy") as replay:
        assert replay.stats().recorded == 440
        run(replay, commits=1)
        status = replay.push(wait=True)
        assert (status.done, status.pushed) == (True, 11)
    assert "commit 2, 7 of" in caplog.text  # they are older than what the cloud keeps, and reported once
    assert caplog.text.count("is not pushed") == 1
    with lp.pull(tmp_path / "there", cloud) as lake:
        lake.verify()
        agrees(lake.steps(400, 480))


@pytest.mark.parametrize("kind", ["file"])
def test_a_push_of_nothing_after_a_gc_does_not_keep_a_machine_from_pulling(cloud, tmp_path):
    lp.pull(tmp_path / "b", cloud, commit=2).close()
    with lp.Replay.open(tmp_path / "writer", capacity=80, max_steps=80, cloud=cloud) as replay:
        run(replay, commits=1)
    collect(cloud)
    for _ in range(2):  # two processes, which find out that the files of both their commits are gone there
        assert lp.push(tmp_path / "b", cloud).done
    with lp.pull(tmp_path / "b", cloud) as lake:
        assert lake.commit.number == 8
        lake.verify()


@pytest.mark.parametrize("kind", ["file"])
def test_a_file_that_a_gc_deleted_in_the_cloud_does_not_leave_the_disk(cloud, tmp_path):
    lake = tmp_path / "b"
    lp.pull(lake, cloud, commit=2).close()
    collect(cloud)
    with lp.Replay.open(lake, capacity=40, max_steps=80, cloud=cloud, local_budget=1000) as replay:
        assert replay.push(wait=True).done  # finds out that they are gone there
        run(replay, commits=2)
        assert replay.push(wait=True).done
        with replay.lake(2) as old:
            old.verify()
            agrees(old.steps(40, 120))


@BOTH
def test_segments_that_a_gc_deleted_and_this_disk_still_has_are_sent_again(cloud, tmp_path):
    """A machine continued from an old commit, all of it on its disk, and publishes after the gc."""
    with lp.Replay.open(
        tmp_path / "b", capacity=40, max_steps=80, cloud=cloud, pull="all", commit=3
    ) as replay:
        run(replay, commits=1)
        assert collect(cloud).commits == tuple(range(7))
        assert replay.push(wait=True).pushed == 8
    with lp.pull(tmp_path / "there", cloud) as lake:
        lake.verify()
        assert lake.commit.parent == 3
        agrees(lake.steps(120, 200))


def test_the_form_of_a_lease():
    lease = {"seconds": 1e12, "commits": [3], "segments": ["x.rows"]}
    assert leases.parse(json.dumps(lease).encode()) == (7 * DAY, {3}, {"x.rows"})
    assert Path("leases") == Path(leases.LEASES)


# --- a `gc` at the same moment ---------------------------------------------------------------------


@pytest.fixture
def pushed(name, tmp_path) -> lp.Cloud:
    cloud = lp.Cloud(f"memory://{name}", retry_cap=0.01)
    with lp.Replay.open(tmp_path / "writer", SPEC, capacity=80, max_steps=80, cloud=cloud) as replay:
        run(replay, commits=4)
    return cloud


def test_a_reader_waits_while_a_gc_deletes(pushed, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "GC_LOOK_SECONDS", 0.01)
    deleting = f"leases/{'0' * 16}.gc"
    Store(pushed).replace(deleting, b"{}")
    timer = threading.Timer(0.3, lambda: Store(pushed).delete(deleting))
    started = time.monotonic()
    timer.start()
    with lp.pull(tmp_path / "reader", pushed, commit=2, lazy=True) as lake:
        assert time.monotonic() - started >= 0.3
        agrees(lake.steps(40, 120))
    Store(pushed).replace(deleting, b"{}")
    impatient = lp.Cloud(pushed.url, patience=0.2)
    with pytest.raises(lp.CloudUnreachable, match="a `gc` has been deleting files"):
        lp.pull(tmp_path / "other", impatient, commit=2, lazy=True)
    timer.join()


def test_the_lease_of_a_reader_that_waited_in_vain_ends(pushed, tmp_path):
    deleting = f"leases/{'0' * 16}.gc"
    Store(pushed).replace(deleting, b"{}")  # of a `gc` that was killed
    with pytest.raises(lp.CloudUnreachable, match="a `gc` has been deleting files"):
        lp.pull(tmp_path / "reader", lp.Cloud(pushed.url, patience=0.2), commit=2, lazy=True)
    until(lambda: leases_in(pushed) == [deleting])
    until(lambda: all(each.name != "lakepond-lease" for each in threading.enumerate()))


def test_a_waiting_lease_is_put_less_and_less_often(pushed, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "GC_LOOK_SECONDS", 0.02)
    deleting, put, times = f"leases/{'0' * 16}.gc", MemoryBucket.put, []
    Store(pushed).replace(deleting, b"{}")

    def counted(self, name, data, *, create, timeout):
        times.append(time.monotonic())
        return put(self, name, data, create=create, timeout=timeout)

    monkeypatch.setattr(MemoryBucket, "put", counted)
    with pytest.raises(lp.CloudUnreachable, match="a `gc` has been deleting files"):
        lp.pull(tmp_path / "reader", lp.Cloud(pushed.url, patience=0.6), commit=2, lazy=True)
    assert 3 <= len(times) <= 6  # after 0, 0.02, 0.06, 0.14, 0.3 and 0.62 s


def test_a_reader_whose_commit_a_gc_deleted_before_the_lease_is_refused(pushed, tmp_path, monkeypatch):
    store = Store(pushed)
    real_put, real_list, failures = MemoryBucket.put, MemoryBucket.list, [lp.CloudUnreachable("away.")]

    def put(self, name, data, *, create, timeout):
        if name.startswith("leases/"):
            for gone in ("commits/0000000002.json", *store.list("segments")):
                self.delete(gone)
        return real_put(self, name, data, create=create, timeout=timeout)

    def listed(self, prefix):
        if prefix.startswith("segments") and not self.head("commits/0000000002.json") and failures:
            raise failures.pop()  # the check is made again
        return real_list(self, prefix)

    monkeypatch.setattr(MemoryBucket, "put", put)
    monkeypatch.setattr(MemoryBucket, "list", listed)
    with pytest.raises(lp.CloudNotFound, match="has deleted commit 2 in"):
        lp.pull(tmp_path / "reader", pushed, commit=2, lazy=True)
    assert not failures
    until(lambda: not leases_in(pushed))


def test_a_file_that_was_deleted_is_not_put_again_and_named_while_a_gc_deletes(name, tmp_path):
    """One gc has deleted a file; another one, which has listed it before, would delete the new one."""
    cloud = lp.Cloud(f"memory://{name}", retry_cap=0.1)
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=64, cloud=cloud) as replay:
        run(replay, commits=2, steps=4)
    store, announced = Store(cloud), f"leases/{'0' * 16}.gc"
    with lp.Lake.open(tmp_path / "lake", 1) as lake, lp.Lake.open(tmp_path / "lake", 0) as before:
        new = {f"segments/{n}" for n, _ in lake.files()} - {f"segments/{n}" for n, _ in before.files()}
    for gone in (commit_name(1), *new):
        store.delete(gone)
    store.replace(announced, b"{}")
    assert not lp.push(tmp_path / "lake", cloud, timeout=1.0).done
    assert store.head(commit_name(1)) is None
    store.delete(new.pop())  # by the other one
    store.delete(announced)
    assert lp.push(tmp_path / "lake", cloud, timeout=30.0).done
    assert store.head(commit_name(1)) is not None
    with lp.pull(tmp_path / "there", cloud) as lake:
        lake.verify()
        assert len(lake) == 8


def test_a_writer_protects_files_that_it_uses_again_and_waits_for_a_gc(pushed):
    store, deleting = Store(pushed), f"leases/{'0' * 16}.gc"
    with leases.protecting(store, ["x.rows"]):
        (lease,) = leases_in(pushed)
        assert leases.parse(store.read(lease)).segments == {"x.rows"}
    assert leases_in(pushed) == []
    store.replace(deleting, b"{}")
    with pytest.raises(lp.CloudUnreachable, match="retried"), leases.protecting(store, ["x.rows"]):
        pytest.fail("it was not protected")
    assert leases_in(pushed) == [deleting]
