"""Any number of machines write one lake in one bucket, each a chain of its own.

Each collector records its own range of rewards: collector k from 1000 * k on.
"""

from __future__ import annotations

import gc
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from small_runs import SPEC, environment, record, run

import lakepond as lp
from lakepond.cloud.chains import chain_names, chain_store
from lakepond.cloud.layout import commit_numbers
from lakepond.cloud.memory import MemoryBucket
from lakepond.cloud.store import Store
from lakepond.formats import parse_seconds


def collect(folder: Path, cloud: lp.Cloud | str, writer: str, start: int, commits: int = 2) -> None:
    with lp.Replay.open(folder, SPEC, capacity=64, cloud=cloud, writer=writer) as replay:
        for k in range(commits):
            first = start + 5 * k
            record(replay, first, first + 5)
            replay.commit()
        assert replay.push(wait=True).done


def rewards(lake: lp.Lake, ids) -> list[float]:
    return lake[ids].reward.tolist()


def all_rewards(lake: lp.Lake) -> list[float]:
    lake.verify()
    return rewards(lake, lake.query())


@pytest.mark.parametrize("kind", ["file", "memory", "moto"])
def test_machines_with_names_write_one_lake_and_it_is_read_together(
    request, kind, name, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if kind == "moto":
        cloud = request.getfixturevalue(kind).cloud(name)
    else:
        cloud = lp.Cloud(f"file://{tmp_path}/cloud" if kind == "file" else f"memory://{name}")
    for k in (1, 2):
        collect(tmp_path / f"machine-{k}", cloud, f"collector-{k}", 1000 * k)
    chains = chain_names(Store(cloud))
    assert [re.sub(r"\.[0-9a-f]{12}$", "", chain) for chain in chains] == ["collector-1", "collector-2"]
    with lp.pull(tmp_path / "there", cloud) as lake:
        expected = [*range(1000, 1010), *range(2000, 2010)]
        assert all_rewards(lake) == expected
        assert list(lake.heads) == chains
    with lp.Lake.open(tmp_path / "there") as lake:
        assert all_rewards(lake) == expected
    if kind != "moto":  # whose endpoint is not in its URL
        with lp.Lake.open(cloud.url) as lake:
            folder = tmp_path / "cache" / "lakepond"
            assert lake.path.parent == folder
            assert not list(folder.rglob("*.steps"))  # each file comes when it is read
            assert rewards(lake, lake.query(writer="collector-2")) == [*range(2000, 2010)]
            assert rewards(lake, lake.query(writer=chains[1], since_commit=0)) == [*range(2005, 2010)]
            assert all_rewards(pickle.loads(pickle.dumps(lake))) == expected
        with lp.Lake.open(cloud.url, 0, writer="collector-1", cache=tmp_path / "own") as lake:
            assert all_rewards(lake) == [*range(1000, 1005)]
            assert lake.path == tmp_path / "own"


@pytest.mark.parametrize("kind", ["gcs", "azurite", "seaweed"])
def test_writers_a_follower_a_snapshot_and_gc_on_every_kind_of_server(request, kind, name, tmp_path):
    cloud = request.getfixturevalue(kind).cloud(name)
    for k in (1, 2):
        collect(tmp_path / f"machine-{k}", cloud, f"collector-{k}", 1000 * k)
    expected = [*range(1000, 1010), *range(2000, 2010)]
    with lp.Replay.follow(cloud, 64, poll_every="0.1s", min_steps=20) as replay:
        assert replay.sample(8).reward.shape == (8,)
        number = replay.snapshot().number
        collect(tmp_path / "machine-1", cloud, "collector-1", 1010)
        while replay.recorded < 30:
            time.sleep(0.05)
        found = replay.steps(np.arange(30)).reward
        assert sorted(found[:20].tolist()) == expected
        assert found[20:].tolist() == [*range(1010, 1020)]
    time.sleep(1.1)  # a server's times are whole seconds, and what is of this second is not old
    deleted = [lp.gc(cloud, keep_last=1, older_than=0, dry_run=False).commits for _ in range(2)]
    assert sum(map(len, deleted)) == 3  # of six: two are the newest, and the snapshot names a third one
    with lp.Replay.follow(cloud, 64, snapshot=number) as replay:
        assert sorted(replay.steps(np.arange(20)).reward.tolist()) == expected
    with lp.pull(tmp_path / "there", cloud) as lake:
        assert all_rewards(lake) == [*range(1000, 1020), *range(2000, 2010)]


def test_a_machine_continues_its_chain_and_one_with_a_new_disk_starts_another(name, tmp_path):
    cloud = f"memory://{name}"
    collect(tmp_path / "a", cloud, "collector-3", 0)
    collect(tmp_path / "a", cloud, "collector-3", 10)  # the same disk
    (first,) = chain_names(Store(lp.Cloud(cloud)))
    assert (tmp_path / "a/writers/collector-3/incarnation").read_text() == first.rpartition(".")[2]
    shutil.rmtree(tmp_path / "a")
    time.sleep(1.1)  # names of incarnations sort by their start, in seconds
    collect(tmp_path / "a", cloud, "collector-3", 1000)
    before, after = chain_names(Store(lp.Cloud(cloud)))
    assert before == first
    with lp.Lake.open(cloud, cache=tmp_path / "cache") as lake:
        assert all_rewards(lake) == [*range(20), *range(1000, 1010)]
        assert rewards(lake, lake.query(writer=after)) == [*range(1000, 1010)]
        with pytest.raises(
            lp.SpecError, match=f"2 incarnations of the writer 'collector-3'.*{first}, {after}"
        ):
            lake.query(writer="collector-3")
        with pytest.raises(lp.SpecError, match="name one of the writers"):
            lake.query(writer="collector-4")
        with pytest.raises(lp.LakeNotFound, match="no commit 40"):
            lake.query(writer=after, since_commit=40)


def test_a_clone_of_a_named_writers_disk_is_refused(name, tmp_path):
    cloud = f"memory://{name}"
    collect(tmp_path / "a", cloud, "w", 0)
    shutil.copytree(tmp_path / "a", tmp_path / "clone")
    collect(tmp_path / "a", cloud, "w", 10)
    with lp.Replay.open(tmp_path / "clone", capacity=64, cloud=cloud, writer="w") as replay:
        record(replay, 5000, 5001)
        replay.commit()
        status = replay.push(wait=True)
    assert status.state == "failed"
    assert "this disk is a copy of another machine's" in status.last_error
    with lp.pull(tmp_path / "there", cloud) as lake:
        assert all_rewards(lake) == [*range(20)]


def test_the_incarnation_is_on_disk_before_anything_is_sent(name, tmp_path, monkeypatch):
    monkeypatch.setattr(MemoryBucket, "put", lambda *_, **__: pytest.fail("something was sent"))
    replay = lp.Replay.open(tmp_path / "a", SPEC, capacity=64, cloud=f"memory://{name}", writer="w")
    assert re.fullmatch(r"[0-9a-f]{12}", (tmp_path / "a/writers/w/incarnation").read_text())
    replay.close()


def test_the_writer_without_a_name_and_named_ones_share_a_bucket(name, tmp_path):
    cloud = f"memory://{name}"
    collect(tmp_path / "named", cloud, "collector", 1000)
    with lp.Replay.open(tmp_path / "learner", SPEC, capacity=64, cloud=cloud) as replay:  # it has no commits
        record(replay, 0, 5)
    with pytest.raises(lp.CloudConflict, match="holds a lake of 1 commits already"):
        lp.Replay.open(tmp_path / "other", SPEC, capacity=64, cloud=cloud)
    with lp.Replay.open(tmp_path / "moved", capacity=64, cloud=cloud, pull="lazy") as replay:
        assert replay.recorded == 5
        record(replay, 5, 10)
    with lp.pull(tmp_path / "all", cloud) as lake:
        assert all_rewards(lake) == [*range(10), *range(1000, 1010)]
    with pytest.raises(lp.SpecError, match=r"has 2 writers.*Lake\.open\(url, commit, writer="):
        lp.pull(tmp_path / "one", cloud, commit=0)


def test_a_lake_of_several_writers_on_one_disk_is_pushed_and_pulled(name, tmp_path):
    cloud = f"memory://{name}"
    for k, writer in enumerate(["", "a", "b"]):
        with lp.Replay.open(tmp_path / "lake", SPEC, capacity=64, writer=writer) as replay:
            record(replay, 1000 * k, 1000 * k + 5)
    status = lp.push(tmp_path / "lake", cloud)
    assert status.done
    assert status.uploaded == 9  # rows, steps and a commit of each
    assert lp.push(tmp_path / "lake", cloud).uploaded == 0
    with lp.pull(tmp_path / "there", cloud) as lake:
        assert all_rewards(lake) == [*range(5), *range(1000, 1005), *range(2000, 2005)]
    with lp.pull(tmp_path / "lake", cloud) as lake:  # its own chains are not copied beside themselves
        assert list(lake.heads) == ["", "a", "b"]
        assert all_rewards(lake) == [*range(5), *range(1000, 1005), *range(2000, 2005)]
    with lp.Replay.open(tmp_path / "lake", capacity=64, writer="a", cloud=cloud) as replay:
        record(replay, 1005, 1010)
    assert lp.push(tmp_path / "there", f"memory://{name}-copy").done  # chains that were pulled
    assert chain_names(Store(lp.Cloud(f"memory://{name}-copy"))) == chain_names(Store(lp.Cloud(cloud)))
    with lp.pull(tmp_path / "there", cloud) as lake:
        assert rewards(lake, lake.query(writer="a")) == [*range(1000, 1010)]


def test_a_copy_of_another_machines_chain_is_not_written(name, tmp_path):
    cloud = f"memory://{name}"
    collect(tmp_path / "a", cloud, "collector", 0)
    with lp.pull(tmp_path / "there", cloud) as lake:
        (chain,) = lake.heads
    for how in ({}, {"cloud": cloud}):
        with pytest.raises(lp.SpecError, match="the name of a chain in a bucket"):
            lp.Replay.open(tmp_path / "there", capacity=64, writer=chain, **how)


def test_compact_leaves_copies_of_other_machines_as_they_are(name, tmp_path):
    cloud = f"memory://{name}"
    collect(tmp_path / "a", cloud, "collector", 0)
    with lp.pull(tmp_path / "there", cloud) as lake:
        (chain,) = lake.heads
        with pytest.raises(lp.SpecError, match="compact the lake on the machine that writes it"):
            lake.compact(keep_last=1)
        assert len(lake) == len(all_rewards(lake))  # it is still open
    with lp.Replay.open(tmp_path / "there", capacity=64, writer="zeta", merge_after=None) as replay:
        for start in (100, 105, 110):
            record(replay, start, start + 5)
            replay.commit()
    with lp.Lake.open(tmp_path / "there") as lake:
        rewards, copied = all_rewards(lake), lake.heads[chain]
        lake.compact(keep_last=1)
        assert lake.heads[chain] == copied
        assert len(lake.heads["zeta"].segments) < 3
        assert all_rewards(lake) == rewards


def test_bad_input_of_named_writers_is_refused_in_one_sentence(name, tmp_path):
    cloud, other = f"memory://{name}", lp.Spec(obs=lp.Field((3,), "float32"))
    collect(tmp_path / "a", cloud, "a", 0)
    with pytest.raises(lp.SpecError, match=r"pull='lazy' and writer='b' cannot be combined"):
        lp.Replay.open(tmp_path / "b", SPEC, capacity=64, cloud=cloud, writer="b", pull="lazy")
    with pytest.raises(lp.SpecError, match="cannot name a writer"):
        lp.Replay.open(tmp_path / "b", SPEC, capacity=64, cloud=cloud, writer="../b")
    assert not (tmp_path / "b").exists()
    with pytest.raises(lp.SpecError, match="was created with a different spec"):
        lp.Replay.open(tmp_path / "c", other, capacity=64, cloud=cloud, writer="c")
    with lp.Replay.open(
        tmp_path / "d", other, capacity=64, writer="d"
    ) as replay:  # created without the cloud
        replay.commit()
    status = lp.push(tmp_path / "d", cloud)
    assert status.state == "failed"
    assert "contains a different lake" in str(status.last_error)
    with lp.Replay.open(tmp_path / "e", capacity=64, cloud=cloud, writer="e") as replay:  # the spec is there
        assert replay.spec == SPEC
    with pytest.raises(lp.CloudNotFound, match="no writer 'x'"):
        lp.Lake.open(cloud, writer="x", cache=tmp_path / "cache")
    with pytest.raises(lp.SpecError, match="cache is for a lake in a bucket"):
        lp.Lake.open(tmp_path / "a", cache=tmp_path / "cache")
    (tmp_path / "a/writers/a/incarnation").write_text("torn")
    with pytest.raises(lp.LakeCorrupt, match="incarnation is damaged"):
        lp.Replay.open(tmp_path / "a", capacity=64, cloud=cloud, writer="a")


# --- push_every ----------------------------------------------------------------------------------


def until(what, timeout: float = 20.0) -> None:
    end = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("writer", ["", "collector-3"])
def test_new_steps_are_committed_and_pushed_in_the_background(name, tmp_path, writer):
    cloud = lp.Cloud(f"memory://{name}")
    how = {"cloud": cloud, "writer": writer, "push_every": "50ms"}
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=64, **how) as replay:
        for n in range(3):
            record(replay, n, n + 1)
            until(lambda n=n: replay.upload_status().pushed == n)
        (chain,) = chain_names(Store(cloud))
        time.sleep(0.2)  # without new steps there is no new commit
        assert commit_numbers(chain_store(Store(cloud), chain).list("commits")) == [0, 1, 2]
        replay.commit({"by": "the user"})  # without a push
        until(lambda: replay.upload_status().pushed == 3)
    with lp.pull(tmp_path / "there", cloud) as lake:
        assert all_rewards(lake) == [0, 1, 2]


def test_pushing_in_the_background_survives_errors_and_reports_each_once(name, tmp_path, monkeypatch, caplog):
    cloud = lp.Cloud(f"memory://{name}", retry_cap=0.05)
    put, down = MemoryBucket.put, [True]

    def failing(self, key, data, *, create, timeout):
        if down[0]:
            raise lp.CloudUnreachable("the network is gone.")
        return put(self, key, data, create=create, timeout=timeout)

    monkeypatch.setattr(MemoryBucket, "put", failing)
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=64, cloud=cloud, push_every=0.02) as replay:
        record(replay, 0, 3)
        until(lambda: replay.upload_status().state == "waiting")
        for n in range(3, 8):
            record(replay, n, n + 1)
            time.sleep(0.03)
        down[0] = False
        until(lambda: replay.upload_status().done)
        failed, before = [0], replay.stats().background_failures
        hand_over = replay._outflow.commit

        def full(note):
            failed[0] += 1
            raise lp.LakeFull(28, "the disk is full")

        monkeypatch.setattr(replay._outflow, "commit", full)
        record(replay, 8, 9)
        until(lambda: failed[0] >= 4)
        assert replay.stats().background_failures - before >= 3
        monkeypatch.setattr(replay._outflow, "commit", hand_over)
        until(lambda: replay.upload_status().done and replay._outflow.background.taken == 9)
    assert caplog.text.count("new steps were not committed or pushed: LakeFull") == 1
    with lp.pull(tmp_path / "there", cloud) as lake:
        assert all_rewards(lake) == [*range(9)]


def test_a_refused_push_in_the_background_is_loud_and_not_repeated_at_once(name, tmp_path, caplog):
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=64, cloud=cloud) as replay:
        record(replay, 0, 4)
    shutil.copytree(tmp_path / "a", tmp_path / "clone")
    with lp.Replay.open(tmp_path / "clone", capacity=64, cloud=cloud) as replay:
        record(replay, 2000, 2004)
    with lp.Replay.open(tmp_path / "a", capacity=64, cloud=cloud, push_every=0.02) as replay:
        record(replay, 1000, 1001)
        until = time.monotonic() + 30
        while replay.upload_status().state != "failed" and time.monotonic() < until:
            time.sleep(0.01)
        for n in range(1, 10):
            record(replay, 1000 + n, 1001 + n)
            time.sleep(0.04)
        assert replay.upload_status().state == "failed"
        assert caplog.text.count("the push stopped") == 1
        assert replay.stats().background_failures == 1  # it was not tried again every 20 ms


def test_pushing_in_the_background_ends_with_the_replay(name, tmp_path):
    def threads() -> int:
        return sum(thread.name == "lakepond-push-every" for thread in threading.enumerate())

    how = {"cloud": f"memory://{name}", "push_every": 0.02}
    replay = lp.Replay.open(tmp_path / "a", SPEC, capacity=64, **how)
    assert threads() == 1
    record(replay, 0, 5)
    until(lambda: replay.upload_status().pushed is not None)
    replay.close()
    until(lambda: threads() == 0)
    dropped = lp.Replay.open(tmp_path / "a", capacity=64, **how)
    del dropped
    gc.collect()
    until(lambda: threads() == 0)
    with lp.pull(tmp_path / "there", f"memory://{name}") as lake:
        assert all_rewards(lake) == [*range(5)]


def test_a_forked_child_does_not_push_and_leaves_the_parents_replay_alone(tmp_path):
    code = f"""
        import os, threading, time
        import lakepond as lp
        from small_runs import SPEC, record
        cloud = "file://{tmp_path}/cloud"
        replay = lp.Replay.open({str(tmp_path / "lake")!r}, SPEC, capacity=64, cloud=cloud, push_every=0.01)
        for n in range(5):
            record(replay, n, n + 1)
            child = os.fork()
            if not child:
                replay.close()
                os._exit(len([t for t in threading.enumerate() if "push" in t.name]))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        while replay.upload_status().pushed is None:
            time.sleep(0.01)
        replay.close()
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with lp.pull(tmp_path / "there", f"file://{tmp_path}/cloud") as lake:
        assert all_rewards(lake) == [*range(5)]


@pytest.mark.parametrize("wrong", ["", "5 parsecs", "-1s", 0, -2.0, float("nan"), True, "1e9s", None])
def test_a_length_of_time_that_is_none_is_refused(tmp_path, wrong):
    how = {"cloud": "memory://none", "push_every": wrong}
    if wrong is None:
        with pytest.raises(lp.SpecError, match="push_every needs a cloud"):
            lp.Replay.open(tmp_path / "a", SPEC, capacity=64, push_every="5s")
        return
    with pytest.raises(lp.SpecError, match=r"not a valid length of time; .* '5s' or '2min'"):
        lp.Replay.open(tmp_path / "a", SPEC, capacity=64, **how)
    assert not (tmp_path / "a").exists()


def test_lengths_of_time_are_read():
    found = [parse_seconds(text) for text in (5, 0.25, "5s", "2min", "1.5 h", "250ms", "7", "1d")]
    assert found == [5.0, 0.25, 5.0, 120.0, 5400.0, 0.25, 7.0, 86400.0]


def test_runs_of_several_commits_come_back_from_each_chain(name, tmp_path):
    cloud = f"memory://{name}"
    for k in range(3):
        with lp.Replay.open(tmp_path / str(k), SPEC, capacity=100, cloud=cloud, writer=f"w{k}") as replay:
            run(replay, commits=3, steps=10)
    with lp.Lake.open(cloud, cache=tmp_path / "cache") as lake:
        assert len(lake) == 90
        assert all_rewards(lake) == [*range(30)] * 3


def test_several_readers_open_one_url_at_the_same_time(name, tmp_path):
    cloud = f"memory://{name}"
    for k in range(2):
        collect(tmp_path / str(k), cloud, f"w{k}", 1000 * k)

    def read(_: int) -> list[float]:
        with lp.Lake.open(cloud, cache=tmp_path / "cache") as lake:
            return all_rewards(lake)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(read, range(6))) == [[*range(10), *range(1000, 1010)]] * 6


def test_the_cache_of_a_url_that_is_used_again_for_another_lake_does_no_harm(name, tmp_path):
    cache = tmp_path / "cache"
    collect(tmp_path / "a", f"memory://{name}", "w", 0)
    with lp.Lake.open(f"memory://{name}", cache=cache) as lake:
        assert all_rewards(lake) == [*range(10)]
        assert lake.commits() == [0, 1]
        with pytest.raises(lp.LakeReadOnly, match="pull the lake to a folder"):
            lake.compact()
    MemoryBucket(name)._held.clear()
    other = lp.Spec(obs=lp.Field((3,), "float32"))
    with lp.Replay.open(tmp_path / "b", other, capacity=64, cloud=f"memory://{name}") as replay:
        for n in range(4):
            obs = np.full(3, n, np.float32)
            replay.record(obs=obs, action=0, reward=n, next_obs=obs, terminated=False, truncated=False)
    with lp.Lake.open(f"memory://{name}", cache=cache) as lake:
        assert lake.spec.obs.shape == (3,)
        assert all_rewards(lake) == [0, 1, 2, 3]
