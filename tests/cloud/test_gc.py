"""Garbage collection: rule 11. Dry by default, in two runs, nothing young, nothing after a failed LIST."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from small_runs import SPEC, run

import lakepond as lp
from lakepond.cloud.chains import Skip, chain_store, read_boundary
from lakepond.cloud.garbage import Swept
from lakepond.cloud.layout import commit_name
from lakepond.cloud.memory import MemoryBucket
from lakepond.cloud.store import Store
from lakepond.lake.format import manifests
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.sealed import seal

DAY = 24 * 3600.0
CHAIN = "worker.6553f100abcd"


@pytest.fixture
def later(monkeypatch) -> Callable[[float], None]:
    """Let time pass on the server, and here."""
    passed = [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + passed[0])
    monkeypatch.setattr("lakepond.cloud.memory.time", clock)
    monkeypatch.setattr("lakepond.cloud.garbage.time", clock)

    def wait(seconds: float) -> None:
        passed[0] += seconds

    return wait


@pytest.fixture
def cloud(name, tmp_path, later) -> lp.Cloud:
    """A run of 8 commits, of which later ones have dropped the first steps."""
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=80, max_steps=80, cloud=cloud) as replay:
        run(replay, commits=8)
    return cloud


@pytest.fixture
def collect(cloud, later) -> Callable[..., Swept]:
    """Two runs, a day after another; what the second deletes."""

    def twice(**rules: int) -> Swept:
        first = lp.gc(cloud, dry_run=False, **rules)
        assert (first.commits, first.segments, first.bytes) == ((), (), 0)
        later(DAY)
        return lp.gc(cloud, dry_run=False, **rules)

    later(2 * DAY)
    return twice


def names(cloud: lp.Cloud) -> set[str]:
    return {name for name in Store(cloud).list() if name not in ("boundary.json", "garbage.json")}


def copy_chain(cloud: lp.Cloud, chain: str) -> Store:
    """Another writer with the same history."""
    store = Store(cloud)
    for name in store.list():
        if name.startswith(("commits/", "segments/")):
            chain_store(store, chain).replace(name, store.read(name))
    return chain_store(store, chain)


def test_11_a_dry_run_changes_nothing_and_says_what_would_go(cloud, later):
    later(2 * DAY)
    before = Store(cloud).list()
    for _ in range(2):
        swept = lp.gc(cloud, keep_last=2)
        assert swept.dry_run
        assert swept.commits == tuple(range(6))
        assert len(swept.segments) >= 8  # neighbours share a file of rows
        assert "would be deleted" in str(swept)
        later(DAY)
    assert Store(cloud).list() == before
    marked = lp.gc(cloud, keep_last=2, dry_run=False)
    assert (marked.commits, marked.segments, marked.marked_bytes) == ((), (), swept.bytes)
    assert "are marked for a later run" in str(marked)
    later(DAY)
    assert lp.gc(cloud, keep_last=2) == swept


def test_11_what_no_kept_commit_names_goes_and_the_rest_stays_whole(cloud, collect, tmp_path):
    swept = collect(keep_last=2, keep_every=4)
    assert swept.commits == (1, 2, 3, 5)
    assert {name for name in names(cloud) if "commits" in name} == {commit_name(n) for n in (0, 4, 6, 7)}
    for number in (0, 4, 6, 7):
        with lp.pull(tmp_path / f"at-{number}", cloud, commit=number) as lake:
            lake.verify()
    left = lp.gc(cloud, keep_last=2, keep_every=4)
    assert (left.segments, left.marked, left.young) == ((), (), 0)


def test_11_the_second_run_may_not_come_too_soon(cloud, later):
    later(2 * DAY)
    before = names(cloud)
    lp.gc(cloud, keep_last=1, dry_run=False)
    later(DAY - 60)
    assert lp.gc(cloud, keep_last=1, dry_run=False).commits == ()
    assert names(cloud) == before
    later(60)
    assert len(lp.gc(cloud, keep_last=1, dry_run=False).commits) == 7


def test_11_what_is_named_again_after_it_was_marked_stays(cloud, later):
    later(2 * DAY)
    lp.gc(cloud, keep_last=1, dry_run=False)
    later(DAY)
    assert lp.gc(cloud, keep_last=5, dry_run=False).commits == (0, 1, 2)
    assert lp.gc(cloud, keep_last=1, dry_run=False).commits == ()  # marked again, a day from now


def test_11_what_was_put_again_after_it_was_marked_stays(cloud, later):
    later(2 * DAY)
    lp.gc(cloud, keep_last=1, dry_run=False)
    later(DAY)
    store = Store(cloud)
    segment = next(iter(Commit.from_json(store.read(commit_name(0)), "0000000000.json").named()))
    store.replace(f"segments/{segment}", store.read(f"segments/{segment}"))
    assert segment not in lp.gc(cloud, keep_last=1, dry_run=False).segments


def test_11_nothing_younger_than_a_day_goes(cloud, later):
    later(DAY / 2)
    before = names(cloud)
    for _ in range(2):
        swept = lp.gc(cloud, keep_last=1, dry_run=False)
        assert (swept.commits, swept.segments, swept.marked) == ((), (), ())
    assert names(cloud) == before


def test_11_segments_of_a_push_that_is_under_way_are_safe(cloud, collect):
    loose, new = f"segments/{'0' * 40}.rows", f"segments/{'1' * 40}.rows"
    Store(cloud).replace(new, b"whose commit is to come")
    assert collect().young == 0
    assert new in names(cloud)  # a day old, and marked
    Store(cloud).replace(loose, b"whose commit is to come")
    assert lp.gc(cloud, dry_run=False).young == 1
    assert loose in names(cloud)


def test_11_nothing_goes_after_a_list_that_failed_or_a_commit_that_cannot_be_read(cloud, later, monkeypatch):
    later(2 * DAY)
    lp.gc(cloud, keep_last=1, dry_run=False)
    later(DAY)
    before = names(cloud)
    real = MemoryBucket.list

    def half(self, prefix):
        yield from list(real(self, prefix))[:5]
        raise lp.CloudUnreachable("the connection broke.")

    monkeypatch.setattr(MemoryBucket, "list", half)
    with pytest.raises(lp.CloudUnreachable):
        lp.gc(cloud, keep_last=1, dry_run=False)
    monkeypatch.setattr(MemoryBucket, "list", lambda self, prefix: iter(()))
    with pytest.raises(lp.CloudNotFound, match="nothing is deleted"):
        lp.gc(cloud, keep_last=1, dry_run=False)
    monkeypatch.setattr(MemoryBucket, "list", real)
    Store(cloud).replace("commits/0000000007.json", b"{}")
    with pytest.raises(lp.CloudCorrupt, match="nothing is deleted"):
        lp.gc(cloud, keep_last=1, dry_run=False)
    assert before == names(cloud)


def test_11_a_commit_that_comes_meanwhile_keeps_what_it_names(cloud, later, monkeypatch):
    later(2 * DAY)
    lp.gc(cloud, keep_last=1, dry_run=False)
    later(DAY)
    store = Store(cloud)
    first = store.read("commits/0000000000.json")
    real = MemoryBucket.delete

    def delete(self, name):
        real(self, name)
        if name == "commits/0000000000.json":  # another machine continues from it at this moment
            content = json.loads(first)
            del content["checksum"]
            store.replace("commits/0000000009.json", seal({**content, "number": 9}))

    monkeypatch.setattr(MemoryBucket, "delete", delete)
    swept = lp.gc(cloud, keep_last=1, dry_run=False)
    named = Commit.from_json(first, "0000000000.json").named().keys()
    assert named
    assert not named & set(swept.segments)


def test_11_what_a_lake_on_this_disk_names_stays(cloud, collect, tmp_path):
    swept = collect(keep_last=1, lake=tmp_path / "lake")
    assert len(swept.commits) == 7
    assert swept.segments == ()
    with lp.pull(tmp_path / "newest", cloud) as lake:
        assert lake.commit.number == 7
        lake.verify()


def test_11_the_age_is_by_the_servers_clock(cloud, monkeypatch):
    monkeypatch.setattr("lakepond.cloud.garbage.time", SimpleNamespace(time=lambda: 1e12))  # far ahead
    before = names(cloud)
    assert lp.gc(cloud, keep_last=1, dry_run=False).marked == ()
    assert names(cloud) == before


def test_a_place_that_is_pushed_to_after_gc_is_whole(cloud, collect, tmp_path):
    collect(keep_last=1)
    with lp.Replay.open(tmp_path / "b", capacity=80, cloud=cloud, pull="all") as replay:
        run(replay, commits=1)
    with lp.pull(tmp_path / "c", cloud) as lake:
        lake.verify()
        assert len(lake) == 360 - lake.commit.oldest
    with pytest.raises(lp.SpecError):
        lp.gc(cloud, keep_last=0)
    with pytest.raises(lp.SpecError):
        lp.gc(cloud, keep_snapshots=-1)


# --- many writers, the boundary, snapshots -------------------------------------------------------


def test_each_writer_is_collected_alone_and_reported_apart_and_together(cloud, later):
    copy_chain(cloud, CHAIN)
    later(2 * DAY)
    lp.gc(cloud, keep_last=3, dry_run=False)
    later(DAY)
    swept = lp.gc(cloud, keep_last=3, dry_run=False)
    assert swept.writers.keys() == {"", CHAIN}
    assert swept.writers[CHAIN] == swept.writers[""]
    assert swept.writers[CHAIN].commits == (0, 1, 2, 3, 4)
    assert swept.commits == 2 * (0, 1, 2, 3, 4)
    assert swept.bytes == 2 * swept.writers[""].bytes
    assert {n for n in names(cloud) if "commits/" in n} == {
        f"{under}{commit_name(n)}" for under in ("", f"writers/{CHAIN}/") for n in (5, 6, 7)
    }


def test_a_writer_that_cannot_be_read_does_not_keep_the_others_from_being_collected(cloud, later):
    damaged = copy_chain(cloud, CHAIN)
    damaged.replace(commit_name(7), b"x" * 300)
    later(2 * DAY)
    for _ in range(2):
        with pytest.raises(lp.CloudCorrupt, match=rf"commit 7 of .*{CHAIN} cannot be read"):
            lp.gc(cloud, keep_last=1, dry_run=False)
        later(DAY)
    found = names(cloud)
    assert commit_name(0) not in found
    assert {f"writers/{CHAIN}/{commit_name(n)}" for n in range(8)} <= found


def test_segments_of_a_writer_that_never_made_a_commit_go(cloud, collect):
    store = chain_store(Store(cloud), CHAIN)
    store.replace(f"segments/{'0' * 40}.rows", b"of a machine that died")
    collect()  # it is a day old then, and marked
    assert collect().writers[CHAIN].segments == (f"{'0' * 40}.rows",)
    assert not [name for name in names(cloud) if CHAIN in name and "garbage" not in name]


def test_the_boundary_is_raised_a_run_before_commits_are_deleted(cloud, later):
    store = Store(cloud)
    later(2 * DAY)
    assert lp.gc(cloud, keep_last=3, keep_every=2, dry_run=False).commits == ()
    assert read_boundary(store) == 4
    later(DAY)
    store.replace("boundary.json", b'{"first": 2}')  # of another gc that knew of less
    assert lp.gc(cloud, keep_last=3, keep_every=2, dry_run=False).commits == (1,)
    assert read_boundary(store) == 4
    assert lp.gc(cloud, keep_last=3, keep_every=2, dry_run=False).commits == (3,)
    store.replace("boundary.json", b"damaged")
    lp.gc(cloud, keep_last=3, keep_every=2, dry_run=False)
    assert read_boundary(store) == 8  # the next number after the newest commit


def test_a_skip_stays_while_readers_need_it_to_find_a_commit_that_is_kept(cloud, later):
    store = Store(cloud)
    for number, to in ((3, 4), (6, 7)):
        store.replace(commit_name(number), Skip(number, to).to_json())
    later(2 * DAY)
    lp.gc(cloud, keep_last=2, dry_run=False)
    later(DAY)
    assert lp.gc(cloud, keep_last=2, dry_run=False).commits == (0, 1, 2, 3, 4)
    assert sorted(store.list("commits")) == [commit_name(n) for n in (5, 6, 7)]


def test_every_commit_is_larger_than_a_skip(tmp_path):
    from lakepond.cloud.collecting import SKIP_BYTES

    tiny = lp.Spec(obs=lp.Field((), "uint8"), action=lp.Field((), "uint8"))
    with lp.Replay.open(tmp_path / "lake", tiny, capacity=1) as replay:
        replay.commit()
    (commit,) = (tmp_path / "lake/commits").glob("*.json")
    assert commit.stat().st_size > SKIP_BYTES
    assert len(Skip(10**10, 10**10 + 1).to_json()) <= SKIP_BYTES


def put_snapshot(cloud: lp.Cloud, number: int, **heads: list[int]) -> None:
    content = {
        (chain if chain != "root" else ""): {
            "commit": numbers[0],
            "digest": "",
            "older": [{"commit": n, "digest": ""} for n in numbers[1:]],
        }
        for chain, numbers in heads.items()
    }
    store = Store(cloud)
    store.replace(f"snapshots/{number:010d}.priorities", b"12345678")
    store.replace(f"snapshots/{number:010d}.json", seal({"format": 2, "heads": content}))


def test_commits_that_a_snapshot_names_stay_until_it_is_deleted(cloud, later, tmp_path):
    copy_chain(cloud, CHAIN)
    put_snapshot(cloud, 0, root=[2, 1])
    put_snapshot(cloud, 1, **{CHAIN: [3]})
    later(2 * DAY)
    lp.gc(cloud, keep_last=1, dry_run=False)
    later(DAY)
    swept = lp.gc(cloud, keep_last=1, dry_run=False)
    assert swept.writers[""].commits == (0, 3, 4, 5, 6)
    assert swept.writers[CHAIN].commits == (0, 1, 2, 4, 5, 6)
    with lp.Lake.open(cloud.url, 2, writer="", cache=tmp_path / "cache") as lake:
        lake.verify()
    assert lp.gc(cloud, keep_last=1, keep_snapshots=1).snapshots == (0,)
    assert lp.gc(cloud, keep_last=1, keep_snapshots=1, dry_run=False).snapshots == (0,)
    assert sorted(Store(cloud).list("snapshots")) == [
        f"snapshots/0000000001.{e}" for e in ("json", "priorities")
    ]
    later(DAY)
    assert lp.gc(cloud, keep_last=1, dry_run=False).writers[""].commits == (1, 2)


def test_a_snapshot_that_comes_meanwhile_keeps_what_it_names(cloud, later, monkeypatch):
    later(2 * DAY)
    lp.gc(cloud, keep_last=1, dry_run=False)
    later(DAY)
    real = MemoryBucket.put

    def put(self, name, data, *, create, timeout):
        if name.endswith(".gc"):
            monkeypatch.setattr(MemoryBucket, "put", real)
            put_snapshot(cloud, 0, root=[2])
        return real(self, name, data, create=create, timeout=timeout)

    monkeypatch.setattr(MemoryBucket, "put", put)
    assert 2 not in lp.gc(cloud, keep_last=1, dry_run=False).commits


def test_a_snapshot_that_cannot_be_read_stops_gc(cloud, later):
    Store(cloud).replace("snapshots/0000000000.json", b"{}")
    later(2 * DAY)
    with pytest.raises(
        lp.CloudCorrupt, match=r"snapshots/0000000000.json cannot be read, .* nothing is deleted"
    ):
        lp.gc(cloud, keep_last=1, dry_run=False)
    lp.gc(cloud, keep_last=1, keep_snapshots=0, dry_run=False)
    assert Store(cloud).list("snapshots") == {}


def test_the_manifests_of_a_named_writer_in_a_lazy_copy_are_found(name, tmp_path, monkeypatch):
    """They are in the folder of its chain, and name the files that the copy needs."""
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "a", SPEC, 300, cloud=cloud, writer="a", merge_after=None) as replay:
        run(replay, 40, steps=2)
        assert replay.push(wait=True).done
    lp.pull(tmp_path / "lazy", cloud, lazy=True, commit=2).close()  # and the newest one, 39
    monkeypatch.setattr(manifests, "_kept", manifests._Kept())  # those of this process
    assert not list((tmp_path / "lazy").rglob("*.manifest"))
    assert lp.gc(cloud, lake=tmp_path / "lazy").segments == ()
