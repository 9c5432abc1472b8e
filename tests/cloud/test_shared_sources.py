"""A row source is one set of objects in the bucket, however many machines record windows of it.

Step n of collector k is the window of the day 10 + 100 * k + n; each row of the history starts with its day.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import lakepond as lp
from lakepond.cloud import leases
from lakepond.cloud.garbage import DAY
from lakepond.cloud.memory import MemoryBucket
from lakepond.cloud.store import Store
from lakepond.flow.following import cloud_chains
from lakepond.lake.write import sources

SPEC = lp.Spec(obs=lp.Field((8, 256), "float32", rows=0), action=lp.Field((), "int64"))
ROWS = np.random.default_rng(0).normal(size=(1_200, 256)).astype(np.float32)
ROWS[:, 0] = np.arange(1_200)


@pytest.fixture(autouse=True)
def small_files(monkeypatch) -> None:
    """The source is three files."""
    monkeypatch.setattr(sources, "FILE_BYTES", 400 << 10)


def record(replay: lp.Replay, source: lp.RowSource, k: int, count: int) -> None:
    ids = replay.stats().recorded + np.arange(count)
    stops = 10 + 100 * k + ids
    replay.record(
        obs=lp.WindowRef(source, stops),
        next_obs=lp.WindowRef(source, stops + 1),
        action=ids,
        reward=np.full(count, k, np.float32),
        terminated=np.zeros(count, bool),
        truncated=np.zeros(count, bool),
        stream=0,
    )


def collect(folder: Path, cloud: lp.Cloud | str | None, k: int, commits: int = 3) -> None:
    """A machine of its own: a folder, a source, a process that ends."""
    source = lp.RowSource(ROWS)
    with lp.Replay.open(folder, SPEC, capacity=50, cloud=cloud, writer=f"collector-{k}") as replay:
        for _ in range(commits):
            record(replay, source, k, 20)
            replay.commit()
            assert cloud is None or replay.push(wait=True, timeout=60).done


def check(lake: lp.Lake, steps: dict[int, int]) -> None:
    """All steps of each collector, to the last bit."""
    lake.verify()
    check_batch(lake.steps(lake.query()), steps)


def check_batch(batch: lp.Batch, steps: dict[int, int]) -> None:
    for k, count in steps.items():
        own = batch.reward == k
        assert batch.action[own].tolist() == list(range(count))
    for k, n, obs, next_obs in zip(batch.reward, batch.action, batch.obs, batch.next_obs, strict=True):
        stop = 10 + 100 * int(k) + int(n)
        assert obs.tobytes() == ROWS[stop - 8 : stop].tobytes()
        assert next_obs.tobytes() == ROWS[stop - 7 : stop + 1].tobytes()


def place(request, kind: str, name: str, tmp_path: Path) -> lp.Cloud:
    if kind == "moto":
        cloud: lp.Cloud = request.getfixturevalue(kind).cloud(name)
        return cloud
    return lp.Cloud(f"file://{tmp_path}/cloud" if kind == "file" else f"memory://{name}")


@pytest.mark.parametrize("kind", ["file", "memory", "moto"])
def test_three_machines_over_one_source_keep_it_once_in_the_bucket(
    request, kind, name, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cloud = place(request, kind, name, tmp_path)
    collect(tmp_path / "machine-0", cloud, 0)
    alone = Store(cloud).list()
    for k in (1, 2):
        collect(tmp_path / f"machine-{k}", cloud, k)
    objects = Store(cloud).list()
    shared = {key: each.size for key, each in objects.items() if key.startswith("sources/")}
    assert shared == {key: each.size for key, each in alone.items() if key.startswith("sources/")}
    assert len(shared) == 3
    assert 0.8 * ROWS.nbytes < sum(shared.values()) < ROWS.nbytes
    others = {key: each.size for key, each in objects.items() if key not in shared}
    assert not [key for key in others if key.endswith(".rows")]
    assert len(others) == 1 + 3 * (3 + 3)  # lake.json; three commits and three files of steps of each
    assert sum(others.values()) < 100_000
    steps = dict.fromkeys(range(3), 60)
    with lp.pull(tmp_path / "there", cloud) as lake:
        check(lake, steps)
        assert lake.stats().bytes_shared == sum(shared.values())
    with lp.Lake.open(tmp_path / "there") as lake:
        check(lake, steps)
    files = [file.name for file in (tmp_path / "there").rglob("*.source")]
    assert sorted(files) == sorted(key.partition("/")[2] for key in shared)
    with lp.pull(tmp_path / "lazy", cloud, lazy=True) as lake:
        assert not list((tmp_path / "lazy").rglob("*.source"))
        check(lake, steps)
    if kind != "moto":  # whose endpoint is not in its URL
        with lp.Lake.open(cloud.url) as lake:
            check(lake, steps)


def test_a_source_is_sent_once_and_then_asked_for(name, tmp_path, monkeypatch):
    """The second machine sends steps and commits alone, and so does a process that continues."""
    cloud = f"memory://{name}"
    sent: list[str] = []
    put = MemoryBucket.put

    def counted(self: MemoryBucket, key: str, *args: object, **how: object) -> object:
        sent.append(key)
        return put(self, key, *args, **how)

    monkeypatch.setattr(MemoryBucket, "put", counted)
    collect(tmp_path / "machine-0", cloud, 0)
    assert sum("sources/" in key for key in sent) == 3
    for folder, k in (("machine-1", 1), ("machine-0", 0)):
        sent.clear()
        collect(tmp_path / folder, cloud, k)
        assert not [key for key in sent if "sources/" in key]
    with lp.pull(tmp_path / "there", cloud) as lake:
        check(lake, {0: 120, 1: 60})


def test_the_writer_without_a_name_moves_to_another_machine_with_its_source(name, tmp_path):
    cloud = f"memory://{name}"
    source = lp.RowSource(ROWS)
    for folder, count in (("a", 30), ("b", 30), ("c", 30)):
        how = {} if folder == "a" else {"pull": "lazy"}
        with lp.Replay.open(tmp_path / folder, SPEC, capacity=20, cloud=cloud, **how) as replay:
            for _ in range(count // 10):
                record(replay, source, 0, 10)
                commit = replay.commit()
            assert replay.push(wait=True).done
        shutil.rmtree(tmp_path / folder)
    assert [(each.first, each.rows) for each in commit.sources[0]] == [(0, len(ROWS))]
    with lp.pull(tmp_path / "there", cloud) as lake:
        check(lake, {0: 90})
    assert len([key for key in Store(lp.Cloud(cloud)).list() if key.startswith("sources/")]) == 3


def test_a_source_that_the_bucket_lost_is_sent_again(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    collect(tmp_path / "machine", cloud, 0)
    store = Store(cloud)
    lost = next(key for key in store.list() if key.startswith("sources/"))
    store.delete(lost)
    collect(tmp_path / "machine", cloud, 0)
    with lp.pull(tmp_path / "there", cloud) as lake:
        check(lake, {0: 120})


def test_a_pull_without_a_source_skips_the_commits_that_need_it(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    collect(tmp_path / "machine", cloud, 0)
    store = Store(cloud)
    store.delete(next(key for key in store.list() if key.startswith("sources/")))
    with pytest.raises(lp.CloudNotFound, match="no complete commit"):
        lp.pull(tmp_path / "there", cloud)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_a_learner_follows_collectors_over_one_source(kind, name, tmp_path):
    """On one disk, and through a bucket; it stores each row once, whichever collector recorded it."""
    cloud = None if kind == "disk" else f"memory://{name}"
    folders = [tmp_path / "lake" if cloud is None else tmp_path / f"machine-{k}" for k in range(3)]
    for k in range(3):
        collect(folders[k], cloud, k)
    place = tmp_path / "lake" if cloud is None else cloud
    with lp.Replay.follow(place, capacity=1_000, poll_every="0.01s", discover_every="0.05s") as learner:
        for total in (180, 360):
            until = time.monotonic() + 30
            while len(learner) < total and time.monotonic() < until:
                time.sleep(0.01)
            batch = learner.recent(total)
            check_batch(batch, dict.fromkeys(range(3), total // 3))
            assert learner.stats().rows < 400  # days 2 to 330
            if total == 180:
                for k in range(3):
                    collect(folders[k], cloud, k)
    if cloud is None:
        assert not list(tmp_path.rglob("*.rows"))
        assert len(list(tmp_path.rglob("*.source"))) == 3


def test_gc_leaves_sources_alone(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    source = lp.RowSource(ROWS)
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=50, cloud=cloud) as replay:
        for _ in range(3):
            record(replay, source, 0, 20)
            replay.commit()
        assert replay.push(wait=True).done
    for _ in range(2):
        lp.gc(cloud, keep_last=1, older_than=-1.0, dry_run=False)
    with lp.pull(tmp_path / "there", cloud) as lake:
        check(lake, {0: 60})


# --- garbage --------------------------------------------------------------------------------------------


def sources_in(cloud: lp.Cloud) -> set[str]:
    return {name for name in Store(cloud).list("sources") if name.endswith(".source")}


def without_names(cloud: lp.Cloud, tmp_path: Path) -> set[str]:
    """A lake whose sources no commit names: the chain of the machine that put them is gone."""
    collect(tmp_path / "gone", cloud, 0)
    with lp.Replay.open(tmp_path / "other", SPEC, capacity=50, cloud=cloud, writer="collector-9") as replay:
        obs = np.zeros((8, 256), np.float32)
        replay.record(obs=obs, next_obs=obs, action=0, reward=9.0, terminated=False, truncated=False)
    store = Store(cloud)
    for name in store.list("writers"):
        if "collector-0" in name:
            store.delete(name)
    assert len(sources_in(cloud)) == 3
    return sources_in(cloud)


def test_sources_that_no_commit_names_are_gone_after_two_runs_of_gc(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    collect(tmp_path / "a", cloud, 1)
    named, left = sources_in(cloud), f"sources/{'7' * 40}.source"
    Store(cloud).replace(left, b"rows of a push that was given up")
    assert lp.gc(cloud, older_than=0.0).sources.segments == (f"{'7' * 40}.source",)
    assert not lp.gc(cloud, older_than=DAY, dry_run=False).sources.marked  # it is young
    swept = lp.gc(cloud, older_than=0.0, dry_run=False)
    assert (swept.sources.marked, swept.marked, swept.sources.bytes) == ((left,), (left,), 0)
    swept = lp.gc(cloud, older_than=0.0, dry_run=False)
    assert (swept.sources.segments, swept.bytes) == ((f"{'7' * 40}.source",), 32)
    assert sources_in(cloud) == named
    with lp.pull(tmp_path / "there", cloud) as lake:
        check(lake, {1: 60})


def test_a_source_that_is_named_or_leased_after_it_was_marked_stays(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    unnamed = without_names(cloud, tmp_path)
    assert set(lp.gc(cloud, older_than=0.0, dry_run=False).sources.marked) == unnamed
    store, short = Store(cloud), [name.rpartition("/")[2] for name in unnamed]
    with leases.protecting(store, short[:1]):
        (kept,) = {f"sources/{each}" for each in short[:1]}
        assert set(lp.gc(cloud, older_than=0.0, dry_run=False).sources.segments) == set(short[1:])
        assert sources_in(cloud) == {kept}
    collect(tmp_path / "b", cloud, 2)
    for _ in range(2):
        assert not lp.gc(cloud, older_than=0.0, dry_run=False).sources.segments
    with lp.Lake.open(cloud.url, writer="collector-2", cache=tmp_path / "cache") as lake:
        check(lake, {2: 60})


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_push_waits_while_gc_deletes_the_source_that_it_needs(when, name, tmp_path, monkeypatch):
    """The source is found there, deleted by a gc that knows nothing of the new machine, and sent again.

    After it was deleted another gc may be about to delete it.
    """
    cloud = lp.Cloud(f"memory://{name}", retry_cap=0.1)
    without_names(cloud, tmp_path)
    lp.gc(cloud, older_than=0.0, dry_run=False)
    delete, source = MemoryBucket.delete, lp.RowSource(ROWS)
    seen: list[bool] = []
    with lp.Replay.open(tmp_path / "b", SPEC, capacity=50, cloud=cloud, writer="collector-2") as replay:
        record(replay, source, 2, 20)
        replay.commit()

        def meanwhile(self, key: str) -> None:
            now = "sources/" in key if when == "before" else key.endswith(".gc") and not sources_in(cloud)
            if now and not seen:
                seen.append(replay.push(wait=True, timeout=1.0).done)
                assert not [
                    name
                    for name in Store(cloud).list("writers")
                    if "collector-2" in name and "commits" in name
                ]
            delete(self, key)

        monkeypatch.setattr(MemoryBucket, "delete", meanwhile)
        assert len(lp.gc(cloud, older_than=0.0, dry_run=False).sources.segments) == 3
        assert seen == [False]
        assert replay.push(wait=True, timeout=60).done
    assert len(sources_in(cloud)) == 3
    with lp.Lake.open(cloud.url, writer="collector-2", cache=tmp_path / "cache") as lake:
        check(lake, {2: 20})


def test_the_sources_in_a_followers_cache_count(name, tmp_path, monkeypatch):
    monkeypatch.setattr(cloud_chains, "CACHE_BYTES", 1)
    monkeypatch.setattr(cloud_chains, "TRIM_BYTES", 1)
    url = f"memory://{name}"
    collect(tmp_path / "a", url, 1)
    with lp.Replay.follow(url, 100, cache=tmp_path / "cache") as replay:
        check_batch(replay.recent(60), {1: 60})
    assert not list((tmp_path / "cache").rglob("*.source"))
