"""The same over a bucket: one GET per chain and poll, a cache that does not grow, leases for old commits."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from collectors import (
    QUICK,
    STREAMS,
    Collector,
    agrees,
    catch_up,
    each_once_in_order,
    process,
    same_batch,
    steps_in,
    wait_until,
)

import lakepond as lp
from lakepond.cloud import leases
from lakepond.cloud.bucket import Listed
from lakepond.cloud.chains import Skip
from lakepond.cloud.layout import commit_name
from lakepond.cloud.memory import MemoryBucket
from lakepond.errors import CloudUnreachable
from lakepond.flow.following import cloud_chains
from lakepond.lake.format.names import SEGMENT, segment_files


class Counting(MemoryBucket):
    """A bucket that counts its requests, and can be away."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.requests: Counter[str] = Counter()
        self.away = False

    def _count(self, kind: str) -> None:
        self.requests[kind] += 1
        if self.away:
            raise CloudUnreachable("no answer")

    def get(self, name: str, timeout: float) -> Iterator[bytes]:
        self._count("GET segment" if "segments/" in name else "GET")
        return super().get(name, timeout)

    def head(self, name: str) -> Listed | None:
        self._count("HEAD")
        return super().head(name)

    def list(self, prefix: str) -> Iterator[Listed]:
        self._count("LIST")
        return super().list(prefix)

    def folders(self, prefix: str) -> list[str]:
        self._count("LIST")
        return list(super().folders(prefix))

    def put(self, name: str, data: bytes, *, create: bool, timeout: float) -> str | None:
        self._count("PUT")
        return super().put(name, data, create=create, timeout=timeout)


@pytest.fixture
def bucket(monkeypatch, request) -> Counting:
    found = Counting(request.node.name)
    monkeypatch.setattr("lakepond.cloud.store._bucket", lambda cloud: found)
    return found


class Machine:
    """A collector on a disk of its own, whose files are copied to the bucket by `push`."""

    def __init__(self, path: Path, who: int, bucket: MemoryBucket, **how: object) -> None:
        self.collector = Collector(path, who, **how)
        self.chain = f"collector-{who}.0123456789ab" if who else ""
        self.home = path / "writers" / f"collector-{who}" if who else path
        self._path, self._bucket = path, bucket
        self.put("run/lake.json", path / "lake.json")

    def put(self, name: str, file: Path) -> None:
        MemoryBucket.put(self._bucket, name, file.read_bytes(), create=False, timeout=1)

    def record(self, count: int, *, push: bool = True) -> None:
        self.collector.record(count)
        if push:
            self.push()

    def push(self, skip: Skip | None = None) -> None:
        """Files first, then commits in their order."""
        place = f"run/writers/{self.chain}" if self.chain else "run"
        there = set(self._bucket._held)
        for kind in ("segments", "commits"):
            for file in sorted((self.home / kind).iterdir()):
                name = f"{place}/{kind}/{file.name}"
                if file.suffix in (".rows", ".steps", ".manifest", ".json") and name not in there:
                    self.put(name, file)
        if skip is not None:
            name = f"{place}/{commit_name(skip.number)}"
            MemoryBucket.put(self._bucket, name, skip.to_json(), create=False, timeout=1)

    def close(self) -> None:
        self.collector.close()


@pytest.fixture
def machines(tmp_path, bucket) -> Iterator[list[Machine]]:
    found = [Machine(tmp_path / f"disk-{who}", who, bucket, world="frames first") for who in range(3)]
    yield found
    for each in found:
        each.close()


URL = "memory://bucket/run"


def test_steps_of_all_machines_arrive(machines, tmp_path):
    machines[0].record(40)
    cache = tmp_path / "cache"
    with lp.Replay.follow(URL, 200, cache=cache, **QUICK) as replay:
        each_once_in_order(replay, {0: (0, 40)})
        for _ in range(5):
            for each, count in zip(machines, (3, 11, 7), strict=True):
                each.record(count)
        wait_until(lambda: len(replay) == 145)
        each_once_in_order(replay, {0: (0, 55), 1: (0, 55), 2: (0, 35)})
        agrees(replay.recent(145), "frames first")
        batch = replay.sample(64, sequence_length=4, rng=np.random.default_rng(1))
        assert (np.diff(batch.reward, axis=1) == STREAMS).all()
        assert (batch.extras["who"] == batch.extras["who"][:, :1]).all()
        wait_until(lambda: all(each.commit is not None for each in replay.lag()))
        assert [each.writer for each in replay.lag()] == [each.chain for each in machines]
        assert [each.steps for each in replay.lag()] == [55, 55, 35]
        assert replay.lag()["collector-2"].writer == "collector-2.0123456789ab"
        second = lp.Replay.follow(URL, 200)  # another learner
        assert sorted(steps_in(second)) == sorted(steps_in(replay))
        temporary = second._follower.chains.path
        assert any(temporary.rglob("*.steps"))
        second.close()
        assert not temporary.exists()
        dropped = lp.Replay.follow(URL, 200, **QUICK)
        temporary = dropped._follower.chains.path
        del dropped  # its thread ends soon
        wait_until(lambda: not temporary.exists())
    assert any(cache.rglob("*.steps"))


def test_a_poll_is_one_get_per_chain(machines, bucket, paused):
    for each in machines:
        each.record(10)
    with paused(URL, 200, discover_every="1h") as replay:
        follower = replay._follower
        catch_up(replay)
        bucket.requests.clear()
        for _ in range(5):
            follower.poll()
        assert bucket.requests == {"GET": 15}
        for chain in follower.states.values():
            chain.intervals.append(60.0)  # no other commit is expected sooner
        bucket.requests.clear()
        machines[1].record(10)
        follower.poll()
        assert bucket.requests["GET"] == 3
        assert bucket.requests["LIST"] == 0
        assert 1 <= bucket.requests["GET segment"] == bucket.requests["HEAD"] <= 2  # rows and steps, once
        each_once_in_order(replay, {0: (0, 10), 1: (0, 20), 2: (0, 10)})
        bucket.requests.clear()
        follower._discovered -= 3_600
        follower.poll()
        assert bucket.requests == {"GET": 3, "LIST": 2}


def test_numbers_that_were_skipped(machines, bucket, paused):
    one = machines[1]
    one.record(10)
    with paused(URL, 200) as replay:
        one.record(5, push=False)
        one.record(5, push=False)
        (one.home / "commits" / "0000000001.json").rename(one.home / "commits" / "away")
        one.push(skip=Skip(1, 2))
        catch_up(replay)
        each_once_in_order(replay, {1: (0, 20)})
        number = one.collector.replay.lake().commit.number
        one.push(skip=Skip(number + 1, number + 4))
        for _ in range(3):
            catch_up(replay)
        bucket.requests.clear()
        replay._follower.poll()
        assert bucket.requests == {"GET": 1}  # the skip is remembered
        (one.home / "commits" / "away").rename(one.home / "commits" / "0000000001.json")


def test_a_server_that_is_away(machines, bucket):
    machines[0].record(10)
    with lp.Replay.follow(URL, 200, min_steps=15, **QUICK) as replay:
        bucket.away = True
        wait_until(lambda: all(each.error for each in replay.lag()))
        with pytest.raises(lp.SampleTimeout, match=r"10 steps .*CloudUnreachable: no answer"):
            replay.sample(4, timeout=0.05)
        machines[0].record(10)
        bucket.away = False
        assert len(replay.sample(4, timeout=30).reward) == 4
        wait_until(lambda: not any(each.error for each in replay.lag()))
        each_once_in_order(replay, {0: (0, 20)})


@pytest.mark.parametrize(("wanted", "hangs"), [(".steps", True), (".steps", False), (".json", True)])
def test_close_does_not_wait_for_a_stalled_server(machines, bucket, monkeypatch, wanted, hangs):
    """For a download, for the retries of one, or for the next commit."""
    machines[0].record(20)
    real_get, asked, answers = Counting.get, threading.Event(), threading.Event()

    def get(self, name, timeout):
        if name.endswith(wanted):
            asked.set()
            if hangs:
                assert answers.wait(60)
            raise CloudUnreachable("no answer")
        return real_get(self, name, timeout)

    replay = lp.Replay.follow(lp.Cloud(URL, patience=60.0), 1_000, **QUICK)
    each_once_in_order(replay, {0: (0, 20)})
    try:
        monkeypatch.setattr(Counting, "get", get)
        machines[0].record(5)
        assert asked.wait(60)
        started = time.monotonic()
        replay.close()
        assert time.monotonic() - started < 5.0
        each_once_in_order(replay, {0: (0, 20)})
    finally:
        answers.set()


@pytest.mark.parametrize("method", ["head", "get"])
def test_a_late_answer_after_close_leaves_no_cache_behind(machines, bucket, monkeypatch, method):
    machines[0].record(20)
    real, stalled, answers = getattr(Counting, method), [], threading.Event()
    asked = threading.Event()

    def stall(self, name, *timeout):
        if name.endswith(".steps"):
            stalled.append(threading.current_thread())
            asked.set()
            assert answers.wait(60)
        return real(self, name, *timeout)

    replay = lp.Replay.follow(URL, 1_000, **QUICK)
    cache = replay._follower.chains.path
    monkeypatch.setattr(Counting, method, stall)
    machines[0].record(5)
    assert asked.wait(60)
    assert cache.exists()
    replay.close()
    assert not cache.exists()
    answers.set()
    for thread in stalled:
        thread.join()
    assert not cache.exists()


def test_a_process_ends_while_files_are_fetched_from_a_stalled_server():
    """Its follower, and a pull that is interrupted: not even at the end are their threads waited for."""
    done = subprocess.run([sys.executable, "-c", STALLED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "pull interrupted\nfollower closed\n"), done.stderr


STALLED = """
import _thread, tempfile, threading, time
import numpy as np
import lakepond as lp
from lakepond.cloud.memory import MemoryBucket
from lakepond.flow.following import follower
spec = lp.Spec(obs=lp.Field((2,), "float32"), action=lp.Field((), "int64"))
folder = tempfile.mkdtemp()
def obs(n):
    return np.array([n, -n], "float32")
with lp.Replay.open(f"{folder}/a", spec, capacity=100, cloud="memory://x", merge_after=None) as replay:
    for n in range(20):
        replay.record(obs=obs(n), action=n, reward=n, next_obs=obs(n + 1), terminated=False, truncated=False)
        replay.commit()
real, hang = MemoryBucket.get, threading.Event()
def get(self, name, timeout):
    if "segments/" in name and not name.endswith(".manifest") and hang.is_set():
        time.sleep(1000)
    return real(self, name, timeout)
MemoryBucket.get = get
hang.set()
threading.Timer(1.0, _thread.interrupt_main).start()
try:
    lp.pull(f"{folder}/b", "memory://x")
except KeyboardInterrupt:
    print("pull interrupted")
follower.LOAD_SECONDS = 0.0
hang.clear()
replay = lp.Replay.follow("memory://x", capacity=100)
with lp.Replay.open(f"{folder}/a", capacity=100, cloud="memory://x", merge_after=None) as writer:
    hang.set()
    for n in range(20, 24):
        writer.record(obs=obs(n), action=n, reward=n, next_obs=obs(n + 1), terminated=False, truncated=False)
        writer.commit()
    assert writer.push(wait=True).done
time.sleep(2.0)
print("follower closed")
"""


def test_the_cache_stays_small(machines, monkeypatch, paused, tmp_path):
    monkeypatch.setattr(cloud_chains, "CACHE_BYTES", 10_000)
    monkeypatch.setattr(cloud_chains, "TRIM_BYTES", 1_000)
    with paused(URL, 500, cache=tmp_path / "cache") as replay:
        sizes = []
        for _ in range(12):
            machines[1].record(30)
            replay._follower._discovered = 0.0
            catch_up(replay)
            folder = tmp_path / "cache" / "writers" / machines[1].chain
            sizes.append(sum(each.st_size for each in segment_files(folder / "segments").values()))
            assert len(list((folder / "commits").iterdir())) == 1
        each_once_in_order(replay, {1: (0, 360)})
        assert max(sizes) < 25_000
        assert not any(fetcher._busy for fetcher in replay._follower.chains._fetchers.values())
        assert sum(each.st_size for each in segment_files(machines[1].home / "segments").values()) > 50_000


def damage(cache: Path, how: str) -> int:
    """Damage all files of a cache, without a change to those that are open; returns how many."""
    found = [file for file in cache.rglob("*") if SEGMENT.fullmatch(file.name)]
    for file in found:
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(b"" if how == "cut" else bytes(len(data)))
    return len(found)


@pytest.mark.parametrize("how", ["cut", "zeros"])
def test_damaged_files_of_a_cache_are_fetched_again(machines, bucket, paused, tmp_path, how, caplog):
    machines[1].record(20)
    machines[1].record(20)
    for _ in range(2):
        with lp.Lake.open(URL, cache=tmp_path / "cache") as lake:
            assert len(lake[np.arange(40)].reward) == 40
            lake.verify()
        files = damage(tmp_path / "cache", how)
        assert files > 1
    with paused(URL, 500, cache=tmp_path / "cache") as replay:
        catch_up(replay)
        each_once_in_order(replay, {1: (0, 40)})
    assert caplog.text.count("is damaged; it is fetched again") >= files
    requests = bucket.requests["GET segment"]
    with lp.Lake.open(URL, cache=tmp_path / "cache") as lake:
        assert len(lake[np.arange(40)].reward) == 40
    assert bucket.requests["GET segment"] == requests


def test_files_that_are_in_a_cache_already_are_not_counted_as_downloads(machines, tmp_path):
    machines[0].record(20)
    counted = []
    for _ in range(2):
        chains = cloud_chains.CloudChains(URL, tmp_path / "cache")
        with chains.lake({"": chains.next("", None)}) as lake:
            lake.verify()
        counted.append(chains._fetched)
        chains.close()
    sizes = [each.st_size for each in segment_files(machines[0].home / "segments").values()]
    assert counted == [sum(sizes), 0]


def test_opening_a_lake_trims_its_cache_under_a_reader(machines, bucket, monkeypatch, tmp_path):
    for _ in range(4):
        machines[1].record(20)
    folder = tmp_path / "cache" / "writers" / machines[1].chain / "segments"
    with lp.Lake.open(URL, cache=tmp_path / "cache") as reader:
        reader.verify()
        sizes = [status.st_size for status in segment_files(folder).values()]
        assert len(sizes) >= 4
        monkeypatch.setattr(cloud_chains, "CACHE_BYTES", max(sizes))
        with lp.Lake.open(URL, cache=tmp_path / "cache"):
            kept = segment_files(folder)
            assert 0 < sum(status.st_size for status in kept.values()) <= max(sizes)
        assert len(reader[np.arange(80)].reward) == 80
        reader.verify()
    with lp.Lake.open(URL, cache=machines[1]._path):  # the folder of a lake is not a cache
        assert len(segment_files(machines[1].home / "segments")) == len(sizes)


def test_snapshots_in_a_bucket(machines, bucket, paused):
    with paused(URL, 100, alpha=0.7, seed=3) as replay:
        for _ in range(6):
            for each, count in zip(machines, (9, 4, 13), strict=True):
                each.record(count)
            replay._follower._discovered = 0.0
            catch_up(replay)
            batch = replay.sample(16)
            replay.update_priorities(batch.step_id, np.abs(np.sin(batch.reward)))
        snapshot = replay.snapshot()
        assert snapshot.number == 0
        assert {"run/snapshots/0000000000.json", "run/snapshots/0000000000.priorities"} <= set(bucket._held)
        with paused(URL, 100, snapshot=0) as again:
            assert steps_in(again) == steps_in(replay)
            for each in machines:
                each.record(5)
            for follower in (replay, again):
                catch_up(follower)
            for _ in range(3):
                assert same_batch(
                    replay.sample(16, n_step=3, gamma=0.9), again.sample(16, n_step=3, gamma=0.9)
                )
            assert again.snapshot().number == replay.snapshot().number - 1 == 1
    with pytest.raises(lp.LakeNotFound, match=r"has no snapshot 7; it has 0–2"):
        lp.Replay.follow(URL, 100, snapshot=7)


def test_old_commits_are_leased_while_they_are_read(machines, bucket, paused, monkeypatch):
    machines[1].record(10)
    held: list[str] = []
    put = Counting.put

    def note(self: Counting, name: str, data: bytes, *, create: bool, timeout: float) -> str | None:
        held.append(name)
        return put(self, name, data, create=create, timeout=timeout)

    monkeypatch.setattr(Counting, "put", note)
    with paused(URL, 100):
        pass
    assert held == []  # nothing that young can be deleted
    monkeypatch.setattr(cloud_chains, "UNLEASED_SECONDS", -1.0)
    with paused(URL, 100):
        pass
    assert len(held) == 1
    assert held[0].startswith(f"run/writers/{machines[1].chain}/leases/")
    wait_until(lambda: held[0] not in bucket._held)


def test_a_chain_that_was_not_watched_for_long_is_listed_first(machines, bucket, paused):
    one = machines[1]
    one.record(10)
    with paused(URL, 100) as replay:
        for _ in range(3):
            one.record(5)
        for number in (0, 1, 2):  # by a gc, after more than a day
            bucket.delete(f"run/writers/{one.chain}/{commit_name(number)}")
        catch_up(replay)
        assert len(replay) == 10
        replay._follower.states[one.chain].polled -= 13 * 3600
        catch_up(replay)
        each_once_in_order(replay, {1: (0, 25)})
        batch = replay.steps([7, 8, 9], n_step=2, gamma=1.0)
        assert (batch.num_steps == 2).all()


def test_no_lake_there(bucket):
    with pytest.raises(lp.LakeNotFound, match="no lake exists at memory://bucket/nothing"):
        lp.Replay.follow("memory://bucket/nothing", 100)
    with pytest.raises(lp.SpecError, match="not a valid cloud URL"):
        lp.Replay.follow("http://bucket/run", 100)


def test_machines_that_are_killed_or_lose_their_disk(tmp_path):
    """Every step that a machine has pushed arrives once and in order; a new disk is a new chain."""
    url, steps, chance = f"file://{tmp_path / 'bucket'}", 200, random.Random(3)

    def start(who: int, disk: str) -> subprocess.Popen[str]:
        return process(tmp_path / disk, who, steps, 10, url)

    running = {1: start(1, "disk-1"), 2: start(2, "disk-2")}
    wait_until(lambda: (tmp_path / "bucket" / "lake.json").exists())
    with lp.Replay.follow(url, 10_000, **QUICK) as replay:
        wait_until(lambda: any(who == 2 for who, _ in steps_in(replay)))
        running[2].kill()
        running[2].communicate()
        running[2] = start(2, "new-disk-2")
        kills = 2
        while running:
            for who, writer in list(running.items()):
                line = writer.stdout.readline()
                if line and kills and chance.random() < 0.1:
                    kills -= 1
                    writer.kill()
                    writer.communicate()
                    running[who] = start(who, "disk-1" if who == 1 else "new-disk-2")
                elif not line:
                    assert writer.wait() == 0
                    writer.stdout.close()
                    del running[who]
        wait_until(lambda: sum(each.steps == steps for each in replay.lag()) == 2)
        found = steps_in(replay)
        assert [n for who, n in found if who == 1] == list(range(steps))
        second = [n for who, n in found if who == 2]
        start_of_new = second.index(0, 1)
        assert second[:start_of_new] == list(range(start_of_new))
        assert second[start_of_new:] == list(range(steps))
        assert len(replay.lag()) == 3
        assert replay.lag().missed == 0


def test_old_commits_are_kept_until_the_snapshot_that_names_them_is_stored(
    machines, bucket, paused, monkeypatch
):
    """A `gc` that LISTs the snapshots before this one is put sees the lease, or the follower waits for it."""
    monkeypatch.setattr(cloud_chains, "UNLEASED_SECONDS", -1.0)
    machines[1].record(10)
    place = f"run/writers/{machines[1].chain}"
    leased: list[frozenset[int]] = []
    put = bucket.put

    def look(name: str, data: bytes, **how: Any) -> str | None:
        if "snapshots/" in name:
            there = [key for key in bucket._held if key.startswith(f"{place}/leases/")]
            leased.extend(leases.parse(bucket._held[key].data).commits for key in there)
        return put(name, data, **how)

    with paused(URL, 100) as replay:
        monkeypatch.setattr(bucket, "put", look)
        announced = f"{place}/leases/{'0' * 16}.gc"
        put(announced, b"{}", create=True, timeout=1)
        with pytest.raises(CloudUnreachable, match="`gc` deletes files"):
            replay.snapshot()
        bucket.delete(announced)
        assert replay.snapshot().number == 0
        assert frozenset({0}) in leased


@pytest.mark.parametrize("days", [-3, 3])
def test_which_commits_are_old_is_determined_by_the_clock_of_the_server(
    machines, bucket, paused, monkeypatch, days
):
    machines[1].record(10)
    leased: list[set[int]] = []
    protecting = leases.protecting

    def look(store, names=(), numbers=()):
        leased.append(set(numbers))
        return protecting(store, names, numbers)

    with paused(URL, 100) as replay:
        monkeypatch.setattr(leases, "protecting", look)
        clock = SimpleNamespace(time=lambda: time.time() + days * 86400)
        monkeypatch.setattr(cloud_chains, "time", clock)
        replay.snapshot()
        assert leased == []  # the commit is seconds old
        key = f"run/writers/{machines[1].chain}/{commit_name(0)}"
        bucket._held[key] = bucket._held[key]._replace(modified=time.time() - 2 * 86400)
        replay.snapshot()
        assert leased == [{0}]


def test_a_snapshot_is_withdrawn_if_its_commits_were_deleted_while_the_machine_was_suspended(
    machines, bucket, paused, monkeypatch
):
    machines[1].record(10)
    put = bucket.put

    def suspended(name: str, data: bytes, **how: Any) -> str | None:
        found = put(name, data, **how)
        if "snapshots/" in name:
            monkeypatch.setattr(cloud_chains, "UNLEASED_SECONDS", -1.0)
            bucket.delete(f"run/writers/{machines[1].chain}/{commit_name(0)}")
        return found

    with paused(URL, 100) as replay:
        monkeypatch.setattr(bucket, "put", suspended)
        with pytest.raises(lp.LakeNotFound, match="no longer in the lake"):
            replay.snapshot()
    assert not [name for name in bucket._held if "snapshots/" in name]
