"""Garbage collection: rule 11. Dry by default, nothing young, nothing after a failed LIST."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from small_runs import SPEC, run

import lakepond as lp
from lakepond.cloud.memory import _BUCKETS, MemoryBucket
from lakepond.cloud.store import Store
from lakepond.lake.format.commits import Commit

DAY = 24 * 3600.0


@pytest.fixture
def cloud(name, tmp_path) -> lp.Cloud:
    """A run of 8 commits, of which later ones have let go of the first steps."""
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=80, max_steps=80, cloud=cloud) as replay:
        run(replay, commits=8)
    return cloud


def age(cloud: lp.Cloud, seconds: float, only: str = "") -> None:
    """Let the server's clock be so much later than these objects."""
    held = _BUCKETS[cloud.parts()[1]]
    for name, each in held.items():
        if only in name:
            held[name] = each._replace(modified=each.modified - seconds)


def names(cloud: lp.Cloud) -> set[str]:
    return set(Store(cloud).list())


def test_11_a_dry_run_deletes_nothing_and_says_what_would_go(cloud):
    age(cloud, 2 * DAY)
    before = names(cloud)
    swept = lp.gc(cloud, keep_last=2)
    assert swept.dry_run
    assert swept.commits == tuple(range(6))
    assert len(swept.segments) >= 8  # neighbours share a file of rows
    assert "would be deleted" in str(swept)
    assert names(cloud) == before


def test_11_what_no_kept_commit_names_goes_and_the_rest_stays_whole(cloud, tmp_path):
    age(cloud, 2 * DAY)
    swept = lp.gc(cloud, keep_last=2, keep_every=4, dry_run=False)
    assert swept.commits == (1, 2, 3, 5)
    assert {name for name in names(cloud) if "commits" in name} == {
        f"commits/000000000{n}.json" for n in (0, 4, 6, 7)
    }
    for number in (0, 4, 6, 7):
        with lp.pull(tmp_path / f"at-{number}", cloud, commit=number) as lake:
            lake.verify()
    assert lp.gc(cloud, keep_last=2, keep_every=4).segments == ()


def test_11_nothing_younger_than_a_day_goes(cloud):
    age(cloud, DAY / 2)
    before = names(cloud)
    swept = lp.gc(cloud, keep_last=1, dry_run=False)
    assert (swept.commits, swept.segments, swept.bytes) == ((), (), 0)
    age(cloud, DAY, only="commits/")  # the commits are old, their segments are not
    swept = lp.gc(cloud, keep_last=1, dry_run=False)
    assert len(swept.commits) == 7
    assert swept.segments == ()
    assert swept.young > 0
    assert {name for name in before if "segments" in name} <= names(cloud)


def test_11_segments_of_a_push_that_is_under_way_are_safe(cloud):
    Store(cloud).replace(f"segments/{'0' * 40}.rows", b"whose commit is to come")
    lp.gc(cloud, dry_run=False)
    assert f"segments/{'0' * 40}.rows" in names(cloud)


def test_11_nothing_goes_after_a_list_that_failed_or_a_commit_that_cannot_be_read(cloud, monkeypatch):
    age(cloud, 2 * DAY)
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
    monkeypatch.undo()
    Store(cloud).replace("commits/0000000007.json", b"{}")
    with pytest.raises(lp.CloudCorrupt, match="nothing is deleted"):
        lp.gc(cloud, keep_last=1, dry_run=False)
    assert before == names(cloud)


def test_11_a_commit_that_comes_meanwhile_keeps_what_it_names(cloud, monkeypatch):
    age(cloud, 2 * DAY)
    store = Store(cloud)
    first = store.read("commits/0000000000.json")
    real = MemoryBucket.delete

    def delete(self, name):
        real(self, name)
        if name == "commits/0000000000.json":  # somebody goes on from it at this very moment
            store.replace("commits/0000000009.json", first)

    monkeypatch.setattr(MemoryBucket, "delete", delete)
    swept = lp.gc(cloud, keep_last=1, dry_run=False)
    named = Commit.from_json(first, "0000000000.json").named().keys()
    assert named
    assert not named & set(swept.segments)


def test_11_what_a_lake_on_this_disk_names_stays(cloud, tmp_path):
    age(cloud, 2 * DAY)
    swept = lp.gc(cloud, keep_last=1, dry_run=False, lake=tmp_path / "lake")
    assert swept.segments == ()
    with lp.pull(tmp_path / "newest", cloud) as lake:
        assert lake.commit.number == 7
        lake.verify()


def test_11_the_age_is_by_the_servers_clock(cloud, monkeypatch):
    monkeypatch.setattr("lakepond.cloud.garbage.time", SimpleNamespace(time=lambda: 1e12))  # far ahead
    before = names(cloud)
    assert lp.gc(cloud, keep_last=1, dry_run=False).commits == ()
    assert names(cloud) == before


def test_a_place_that_is_pushed_to_after_gc_is_whole(cloud, tmp_path):
    age(cloud, 2 * DAY)
    lp.gc(cloud, keep_last=1, dry_run=False)
    with lp.Replay.open(tmp_path / "b", capacity=80, cloud=cloud, pull="all") as replay:
        run(replay, commits=1)
    with lp.pull(tmp_path / "c", cloud) as lake:
        lake.verify()
        assert len(lake) == 360 - lake.commit.oldest
    with pytest.raises(lp.SpecError):
        lp.gc(cloud, keep_last=0)
