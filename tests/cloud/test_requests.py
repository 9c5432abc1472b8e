"""What a push asks of the server, and in which order its objects appear."""

from __future__ import annotations

import shutil
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmarks import large_lakes
from small_runs import SPEC, record, run, whole

import lakepond as lp
from lakepond.cloud.chains import Skip, read_slot
from lakepond.cloud.layout import commit_name, commit_numbers
from lakepond.cloud.memory import MemoryBucket
from lakepond.cloud.pusher import Pusher
from lakepond.cloud.store import Store
from lakepond.lake.format import commits
from lakepond.lake.format.checksum import Digest


class Counting(MemoryBucket):
    """Counts its requests, and notes the keys that were put in order."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked: Counter[str] = Counter()
        self.order: list[str] = []
        self.listed: list[str] = []

    def put(self, name, data, *, create, timeout):
        self.asked["PUT"] += 1
        etag = super().put(name, data, create=create, timeout=timeout)
        self.order.append(name)
        return etag

    def get(self, name, timeout):
        self.asked["GET"] += 1
        return super().get(name, timeout)

    def head(self, name):
        self.asked["HEAD"] += 1
        return super().head(name)

    def list(self, prefix):
        self.asked["LIST"] += 1
        self.listed.append(prefix)
        return super().list(prefix)

    def folders(self, prefix):
        self.asked["LIST"] += 1
        return super().folders(prefix)


def pusher_of(lake: Path, name: str, bucket: MemoryBucket, writer: str = "") -> Pusher:
    cloud = lp.Cloud(f"memory://{name}/run", retry_cap=0.02)
    return Pusher(lake, cloud, store=Store(cloud, bucket), writer=writer)


def pushed(pusher: Pusher, timeout: float = 30.0) -> lp.UploadStatus:
    pusher.push()
    return pusher.wait(timeout)


def commit_of_steps(replay: lp.Replay, steps: int = 5) -> None:
    run(replay, commits=1, steps=steps)


@pytest.mark.parametrize("writer", ["", "collector-3"])
def test_a_push_in_the_steady_state_asks_for_what_is_new(name, tmp_path, writer):
    bucket, lake = Counting(name), tmp_path / "lake"
    with lp.Replay.open(lake, SPEC, capacity=100, writer=writer, merge_after=None) as replay:
        pusher = pusher_of(lake, name, bucket, writer)
        commit_of_steps(replay)
        assert pushed(pusher).done
        for _ in range(30):
            commit_of_steps(replay)
            bucket.asked.clear()
            assert pushed(pusher).done
            # rows, steps and the commit; the two files and the newest commit; the boundary
            assert bucket.asked == {"PUT": 3, "HEAD": 3, "GET": 1}
        bucket.asked.clear()
        assert pushed(pusher).done
        assert bucket.asked == {"HEAD": 1}
        pusher.close()
    with lp.pull(tmp_path / "there", f"memory://{name}/run") as there:
        whole(there, 155)


def test_a_first_push_lists_only_the_folders_of_its_chain(name, tmp_path):
    bucket, lake = Counting(name), tmp_path / "lake"
    with lp.Replay.open(lake, SPEC, capacity=100, writer="w") as replay:
        commit_of_steps(replay)
    pusher = pusher_of(lake, name, bucket, "w")
    assert pushed(pusher).done
    chain = pusher.copy.chain
    assert bucket.listed == [f"run/writers/{chain}/commits/", f"run/writers/{chain}/segments/"]
    pusher.close()


def test_a_server_that_lost_the_newest_commit_is_listed_and_gets_it_again(name, tmp_path):
    bucket, lake = Counting(name), tmp_path / "lake"
    with lp.Replay.open(lake, SPEC, capacity=100) as replay:
        pusher = pusher_of(lake, name, bucket)
        for _ in range(3):
            commit_of_steps(replay)
        assert pushed(pusher).done
        for key in list(bucket._held):  # a server that was restored from a backup, or keeps all in memory
            if "00002.json" in key or key.endswith(".rows"):
                bucket.delete(key)
        commit_of_steps(replay)
        assert pushed(pusher).done
        pusher.close()
    with lp.pull(tmp_path / "there", f"memory://{name}/run") as there:
        whole(there, 20)


def test_of_a_backlog_each_commit_is_published_as_soon_as_its_files_are_there(name, tmp_path):
    class Failing(Counting):
        bad = ""

        def put(self, name, data, *, create, timeout):
            if self.bad and self.bad in name:
                raise lp.CloudUnreachable("this one never arrives.")
            return super().put(name, data, create=create, timeout=timeout)

    bucket, lake = Failing(name), tmp_path / "lake"
    with lp.Replay.open(lake, SPEC, capacity=200, merge_after=None) as replay:
        for _ in range(20):
            commit_of_steps(replay)
        with replay.lake(15) as sixteenth, replay.lake(14) as before:
            bucket.bad = next(
                name for name, _ in sixteenth.files() if name not in dict(before.files()) and "steps" in name
            )
    pusher = pusher_of(lake, name, bucket)
    assert pushed(pusher, timeout=1.0).state == "waiting"
    assert pusher.status().pushed == 14
    with lp.pull(tmp_path / "there", f"memory://{name}/run") as there:
        whole(there, 75)  # 15 commits
    bucket.bad = ""
    assert pusher.wait(30).done
    pusher.close()
    published = [key for key in bucket.order if "/commits/" in key]
    assert published == [f"run/{commit_name(number)}" for number in range(20)]
    for number in range(20):  # each after its own files
        with lp.pull(tmp_path / f"at-{number}", f"memory://{name}/run", commit=number, lazy=True) as there:
            last = max(bucket.order.index(f"run/segments/{name}") for name, _ in there.files())
        assert bucket.order.index(f"run/{commit_name(number)}") > last


def test_numbers_that_were_never_published_are_skipped(name, tmp_path):
    bucket, lake = Counting(name), tmp_path / "lake"
    store = Store(lp.Cloud(f"memory://{name}/run"), bucket)
    with lp.Replay.open(lake, SPEC, capacity=100, keep_last=1, merge_after=None) as replay:
        pusher = pusher_of(lake, name, bucket)
        for newest in (2, 5):
            for _ in range(3):
                commit_of_steps(replay)
            end = time.monotonic() + 20
            while commits.numbers(lake / "commits") != [newest]:  # old ones are deleted on a thread
                assert time.monotonic() < end
                time.sleep(0.01)
            assert pushed(pusher).done
        pusher.close()
    there = commit_numbers(name.removeprefix("run/") for name in bucket._held)
    number, seen = 0, []
    while number <= there[-1]:  # a reader that polls finds its way with one GET after the other
        slot = read_slot(store, number)
        assert slot is not None
        number = slot.to if isinstance(slot, Skip) else number + 1
        seen += [] if isinstance(slot, Skip) else [slot.number]
    assert seen == [2, 5]
    assert there == [0, 2, 3, 5]
    with lp.pull(tmp_path / "there", f"memory://{name}/run") as pulled:
        whole(pulled, 30)
    with lp.Replay.open(lake, capacity=100, cloud=f"memory://{name}/run", keep_last=1) as replay:
        commit_of_steps(replay)  # a new process knows the newest one
        assert replay.push(wait=True).done


def test_a_commit_that_is_damaged_on_this_disk_alone_is_not_a_conflict(name, tmp_path, caplog):
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=2)
    file = tmp_path / "a" / commit_name(0)
    file.write_bytes(file.read_bytes()[:-1])
    with lp.Replay.open(tmp_path / "a", capacity=100, cloud=cloud) as replay:
        run(replay, commits=1)
        assert replay.push(wait=True).done
    assert "commit 0 of" in caplog.text
    for number, steps in ((0, 40), (2, 120)):
        with lp.pull(tmp_path / f"at-{number}", cloud, commit=number) as lake:
            whole(lake, steps)


def test_a_skip_whose_commit_is_to_come_is_passed_over(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=2)
    store = Store(cloud)
    store.replace(commit_name(2), Skip(2, 4).to_json())  # then the machine was killed
    with lp.pull(tmp_path / "there", cloud) as lake:
        assert lake.commit.number == 1
        whole(lake, 80)
    with lp.Replay.open(tmp_path / "a", capacity=100, cloud=cloud) as replay:
        for _ in range(3):
            run(replay, commits=1)
        assert replay.push(wait=True).done
    assert commit_numbers(store.list("commits")) == [0, 1, 2, 4]
    assert read_slot(store, 2) == Skip(2, 4)
    with lp.pull(tmp_path / "again", cloud) as lake:
        whole(lake, 200)


def test_a_machine_that_was_stalled_through_a_gc_takes_its_commit_back(name, tmp_path):
    bucket, lake = Counting(name), tmp_path / "lake"
    store = Store(lp.Cloud(f"memory://{name}/run"), bucket)
    with lp.Replay.open(lake, SPEC, capacity=100) as replay:
        pusher = pusher_of(lake, name, bucket)
        commit_of_steps(replay)
        assert pushed(pusher).done
        commit_of_steps(replay)
        store.replace("boundary.json", b'{"first": 5}')  # others have published 1 to 7, and gc deleted some
        status = pushed(pusher)
        assert status.state == "failed"
        assert "older than all that" in status.last_error
        assert store.head(commit_name(1)) is None
        pusher.close()


def test_a_commit_below_the_boundary_whose_answer_was_lost_is_not_taken_for_published(
    name, tmp_path, monkeypatch
):
    bucket, lake = Counting(name), tmp_path / "lake"
    store = Store(lp.Cloud(f"memory://{name}/run", retry_cap=0.05), bucket)
    with lp.Replay.open(lake, SPEC, capacity=100) as replay:
        pusher = pusher_of(lake, name, bucket)
        commit_of_steps(replay)
        assert pushed(pusher).done
        shutil.copytree(lake, tmp_path / "other")
        commit_of_steps(replay)
    with lp.Replay.open(tmp_path / "other", capacity=100) as other:
        for start in (100, 200):
            record(other, start, start + 4)
            other.commit()
    put = bucket.put

    def lost(key: str, data: bytes, **how: Any) -> str | None:
        if key.endswith(commit_name(1)):  # after the other machine has published 1 and 2, and `gc` deleted 1
            store.replace("boundary.json", b'{"first": 2}')
            theirs = (tmp_path / "other" / commit_name(2)).read_bytes()
            put(f"run/{commit_name(2)}", theirs, create=False, timeout=1)
            put(key, data, **how)
            monkeypatch.setattr(bucket, "put", put)
            raise lp.CloudUnreachable("the answer was lost")
        return put(key, data, **how)

    monkeypatch.setattr(bucket, "put", lost)
    status = pushed(pusher)
    assert status.state == "failed"
    assert status.pushed == 0
    assert "another machine has published commit 2" in status.last_error
    pusher.close()


def test_a_commit_without_steps_of_another_machine_is_not_taken_for_ones_own(name, tmp_path):
    """It names only files that both machines know: a published commit is recognised by its content."""
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=64, cloud=cloud, keep_last=1) as replay:
        record(replay, 0, 4)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with lp.Replay.open(tmp_path / "b", capacity=64, cloud=cloud) as replay:
        replay.commit({"lesson": 2})
        assert replay.push(wait=True).done
    with lp.Replay.open(tmp_path / "a", capacity=64, keep_last=1) as replay:
        for n in range(3):
            record(replay, 1000 + n, 1001 + n)
            replay.commit()
    status = lp.push(tmp_path / "a", cloud)
    assert status.state == "failed"
    assert "another machine has published commit 1" in status.last_error


def test_the_memory_of_a_push_does_not_follow_the_size_of_the_lake(name, tmp_path):
    peaks = []
    for entries in (1_000, 20_000):
        lake = tmp_path / str(entries)
        large_lakes.make(lake, entries=entries, num_commits=2, steps=8, row_bytes=100)
        pusher = pusher_of(lake, f"{name}-{entries}", MemoryBucket(f"{name}-{entries}"))
        with large_lakes.continued(lake, capacity=100) as replay:
            large_lakes.record(replay, 3)
            replay.commit()
            assert pushed(pusher).done  # the first push of a process looks at everything
            large_lakes.record(replay, 3)
            replay.commit()
            tracemalloc.start()
            try:
                assert pushed(pusher).done
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
        pusher.close()
    assert peaks[1] < 2 * peaks[0] + (1 << 20)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_url_with_a_slash_at_its_end_is_the_same_place(name, tmp_path, monkeypatch, earlier):
    """The commit that was pushed to the one is known at the other, though the disk has deleted it."""
    lake, url = tmp_path / "lake", f"memory://{name}/run"
    how = {"capacity": 50, "keep_last": 1, "max_steps": 50, "merge_after": None}
    pushed = f"{url}/" if earlier else url
    with lp.Replay.open(lake, SPEC, **how) as replay:
        run(replay, 1)
    assert lp.push(lake, pushed).state == "idle"
    if earlier:  # which named its files after the URL as it was given
        digest = Digest(pushed.encode()).hexdigest()[:12]
        for file in [each for each in (lake / "elsewhere").iterdir() if each.suffix]:
            file.rename(file.with_name(f"{digest}{file.suffix}"))
    for other in (f"{url}/", url):
        with lp.Replay.open(lake, **how) as replay:
            run(replay, 1)
        assert lp.push(lake, other).state == "idle"
    with lp.pull(tmp_path / "there", url) as there:
        assert there.commit.recorded == 120
