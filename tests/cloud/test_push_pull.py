"""Push and pull, on every kind of server: what was committed comes back from the cloud bit for bit."""

from __future__ import annotations

import _thread
import os
import queue
import shutil
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import servers
from small_runs import SPEC, agrees, bytes_of, record, run, whole

import lakepond as lp
from lakepond.cloud.fetching import Fetcher
from lakepond.cloud.layout import commit_name
from lakepond.cloud.memory import MemoryBucket
from lakepond.cloud.uploader import Upload, Uploader
from lakepond.flow.following.cloud_chains import CloudChains
from lakepond.lake.elsewhere import Elsewhere

EVERY = ["moto", "gcs", "seaweed", "azurite", "rclone"]


def place(request, kind: str, name: str, tmp_path) -> lp.Cloud:
    if kind in ("file", "memory"):
        return lp.Cloud(f"file://{tmp_path}/cloud" if kind == "file" else f"memory://{name}")
    return request.getfixturevalue(kind).cloud(name)


@pytest.mark.parametrize("kind", ["file", "memory", *EVERY])
def test_a_run_comes_back_on_another_machine(request, kind, name, tmp_path):
    cloud = place(request, kind, name, tmp_path)
    with lp.Replay.open(tmp_path / "here", SPEC, capacity=100, alpha=0.6, cloud=cloud) as replay:
        run(replay, commits=3)
        assert replay.push(wait=True, timeout=60).done
        run(replay, commits=2)
        replay.update_priorities(np.arange(150, 200), np.arange(50) + 1.0)
        replay.commit(wait=False)
        status = replay.push(wait=True, timeout=60)  # waits for the commit that was handed over before it
        assert status.done
        assert status.pushed == 5
        expected = replay.sample(64, rng=np.random.default_rng(0))
    with lp.pull(tmp_path / "there", cloud) as lake:
        whole(lake, 200)
    with lp.Replay.open(
        tmp_path / "lazy", capacity=100, alpha=0.6, cloud=cloud, pull="lazy"
    ) as replay:  # a new machine
        got = replay.sample(64, rng=np.random.default_rng(0))
        assert (got.step_id == expected.step_id).all()
        agrees(got)
        run(replay, commits=1)
    with lp.pull(tmp_path / "last", cloud) as lake:
        whole(lake, 240)


def test_a_push_with_nothing_new_asks_once_and_sends_nothing(moto, name, tmp_path):
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=100, cloud=moto.cloud(name)) as replay:
        run(replay, commits=2)
        assert replay.push(wait=True).done
        before = len(moto.log())
        assert replay.push(wait=True).done
        asked = [each for each in moto.log()[before:] if "_lakepond" not in each[1]]
        assert [(method, path.rpartition("/")[2]) for method, path, *_ in asked] == [
            ("HEAD", "0000000001.json")  # whether the server still has the newest commit
        ]


def test_25_generations_send_every_byte_once(moto, name, tmp_path):
    cloud = moto.cloud(name)
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=2000, cloud=cloud) as replay:
        for generation in range(1, 26):
            run(replay, commits=1)
            if generation % 5 == 0:
                assert replay.push(wait=True).done
        sent = replay.upload_status().uploaded_bytes
        with lp.Lake.open(tmp_path / "lake") as lake:
            segments = dict(lake.files())
    mine = [each for each in moto.log() if each[0] == "PUT" and f"/{name}/" in each[1]]
    puts = [(path.rpartition("/")[2], status) for _, path, _, status, _ in mine if "/segments/" in path]
    assert sorted(puts) == [(segment, 200) for segment in sorted(segments)]  # each exactly once
    total = sum(size for _, _, _, _, size in mine)
    assert total <= 1.01 * bytes_of(tmp_path / "lake")
    assert sent <= total


def test_a_second_machine_sends_only_what_is_new(moto, name, tmp_path):
    cloud = moto.cloud(name)
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=4)
    before = len(moto.log())
    with lp.Replay.open(tmp_path / "b", capacity=100, cloud=cloud, pull="all") as replay:
        run(replay, commits=1)
        assert replay.push(wait=True).done
    puts = [path for method, path, _, _, _ in moto.log()[before:] if method == "PUT" and "/segments/" in path]
    assert len(puts) == 2  # the rows and the steps of one commit


@pytest.mark.parametrize("pull", ["lazy", "all"])
def test_one_line_begins_a_run_and_goes_on_with_it(name, tmp_path, pull):
    for start, folder in enumerate(["first", "first", "second"]):  # a new run, a restart, a new machine
        with lp.Replay.open(
            tmp_path / folder, SPEC, capacity=100, cloud=f"memory://{name}", pull=pull
        ) as replay:
            assert replay.stats().recorded == 40 * start
            run(replay, commits=1)
    with lp.pull(tmp_path / "third", f"memory://{name}") as lake:
        whole(lake, 120)


def test_any_commit_can_be_pulled_and_gone_on_from(name, tmp_path):
    cloud = f"memory://{name}"
    with lp.Replay.open(tmp_path / "here", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=4)
    with lp.pull(tmp_path / "third", cloud, commit=2) as lake:
        whole(lake, 120)
    with lp.Replay.open(tmp_path / "fork", capacity=100, cloud=cloud, pull="lazy", commit=1) as replay:
        assert replay.stats().recorded == 80
        run(replay, commits=1)
        assert replay.push(wait=True).pushed == 4  # under a number that no commit there has
    with lp.pull(tmp_path / "newest", cloud) as lake:
        assert (lake.commit.number, lake.commit.parent) == (4, 1)
        whole(lake, 120)
    with pytest.raises(lp.CloudNotFound, match="no commit 9"):
        lp.pull(tmp_path / "none", cloud, commit=9)


def test_lazy_segments_that_are_touched_together_come_together(name, tmp_path, monkeypatch):
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=400, cloud=f"memory://{name}") as replay:
        run(replay, commits=6)
        assert replay.push(wait=True).done
    fetch, under_way, seen = Fetcher._fetch, set(), []

    def slow(self, name, size):
        under_way.add(name)
        seen.append(len(under_way))
        time.sleep(0.1)
        fetch(self, name, size)
        under_way.remove(name)

    monkeypatch.setattr(Fetcher, "_fetch", slow)
    replay = lp.Replay.open(tmp_path / "there", capacity=400, cloud=f"memory://{name}", pull="lazy")
    assert replay.stats().recorded == replay.stats().steps
    replay.close()
    assert len(list((tmp_path / "there/segments").iterdir())) == len(seen) == 12
    assert 2 <= max(seen) <= 4


def test_lazy_segments_come_when_they_are_touched(name, tmp_path):
    with lp.Replay.open(tmp_path / "here", SPEC, capacity=100, cloud=f"memory://{name}") as replay:
        run(replay, commits=5)
    folder = tmp_path / "there" / "segments"
    with lp.pull(tmp_path / "there", f"memory://{name}", lazy=True) as lake:
        assert not list(folder.iterdir())
        agrees(lake.steps(45, 50))
        assert 2 <= len(list(folder.iterdir())) <= 4  # rows may lie in the segment before
        whole(lake, 200)
    assert len(list(folder.iterdir())) == 10


def test_a_lake_without_its_cloud_says_where_the_rest_is(name, tmp_path):
    with lp.Replay.open(tmp_path / "here", SPEC, capacity=100, cloud=f"memory://{name}") as replay:
        run(replay, commits=2)
    lp.pull(tmp_path / "there", f"memory://{name}", lazy=True).close()
    with lp.Lake.open(tmp_path / "there") as lake:  # what is elsewhere is not lost
        assert lake.stats().steps == 80
        with pytest.raises(lp.LakeCorrupt, match=f"not on this disk but at memory://{name}"):
            lake.steps(0, 10)
    assert lp.repair(tmp_path / "there").quarantined == ()
    lp.pull(tmp_path / "there", f"memory://{name}").close()
    with lp.Lake.open(tmp_path / "there") as lake:
        whole(lake, 80)


def test_a_pull_that_was_cut_off_goes_on(moto, chaos, name, tmp_path):
    with lp.Replay.open(tmp_path / "here", SPEC, capacity=100, cloud=moto.cloud(name)) as replay:
        run(replay, commits=4)
    proxy = chaos(moto)
    cloud = moto.cloud(name, proxy.port, patience=0.0, workers=1)
    lp.pull(tmp_path / "there", cloud, lazy=True).close()
    with lp.pull(tmp_path / "there", cloud, lazy=True) as lake:
        lake.steps(0, 40)
        proxy.dead = True
        with pytest.raises(lp.CloudUnreachable):
            whole(lake, 160)
    fetched = {file.name for file in (tmp_path / "there" / "segments").iterdir()}
    assert fetched
    proxy.dead = False
    before = len(moto.log())
    with lp.pull(tmp_path / "there", cloud) as lake:
        whole(lake, 160)
    again = [
        path for method, path, _, _, _ in moto.log()[before:] if method == "GET" and "/segments/" in path
    ]
    assert not [path for path in again if path.rpartition("/")[2] in fetched]


def test_two_runs_at_one_place_are_told_and_nothing_is_overwritten(name, tmp_path):
    cloud = f"memory://{name}"
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=2)
    with pytest.raises(lp.CloudConflict, match="pull='lazy'"):
        lp.Replay.open(tmp_path / "b", SPEC, capacity=100, cloud=cloud)
    with lp.Replay.open(tmp_path / "c", SPEC, capacity=100) as replay:  # started without the cloud
        record(replay, 0, 30)
    assert lp.push(tmp_path / "c", cloud).state == "failed"
    other = lp.Spec(obs=lp.Field((3,), "float32"))
    with pytest.raises(lp.SpecError):
        lp.Replay.open(tmp_path / "d", other, capacity=100, cloud=cloud, pull="lazy")
    with lp.pull(tmp_path / "again", cloud) as lake:
        whole(lake, 80)


def test_two_machines_that_went_on_from_one_commit_are_told(name, tmp_path):
    cloud = f"memory://{name}"
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=2)
    for folder in "bc":
        lp.pull(tmp_path / folder, cloud).close()
    with lp.Replay.open(tmp_path / "b", capacity=100, cloud=cloud) as replay:
        run(replay, commits=2)
    with lp.Replay.open(tmp_path / "c", capacity=100, cloud=cloud) as replay:
        run(replay, commits=1)
        status = replay.push(wait=True)
        assert status.state == "failed"
        assert "another" in status.last_error
    with lp.pull(tmp_path / "again", cloud) as lake:
        whole(lake, 160)


def test_a_bounded_lake_pushes_what_it_keeps(name, tmp_path):
    with lp.Replay.open(
        tmp_path / "here", SPEC, capacity=100, max_steps=120, keep_last=2, cloud=f"memory://{name}"
    ) as replay:
        for _ in range(8):
            run(replay, commits=1)
            replay.push()
        assert replay.wait_for_uploads(60).done
    with lp.pull(tmp_path / "there", f"memory://{name}") as lake:
        assert (lake.commit.oldest, lake.commit.recorded) == (200, 320)
        lake.verify()
        agrees(lake.steps(200, 320))


def test_settings_that_cannot_be_are_refused(tmp_path):
    for wrong in ["bucket", "ftp://bucket", "gs://", "s3://user:SECRET@bucket/x"]:
        with pytest.raises(lp.SpecError) as caught:
            lp.Cloud(wrong)
        assert "SECRET" not in str(caught.value)
    with pytest.raises(lp.SpecError, match="need a cloud"):
        lp.Replay.open(tmp_path / "lake", SPEC, capacity=10, pull="lazy")
    replay = lp.Replay.open(tmp_path / "lake", SPEC, 10)
    with pytest.raises(lp.LakeError, match="opened without a cloud"):
        replay.push()
    replay.close()
    with pytest.raises(lp.CloudNotFound, match="has no lake"):
        lp.pull(tmp_path / "none", "memory://nothing-here")
    assert servers.SECRET not in repr(lp.Cloud("s3://b/x", options={"secret_access_key": servers.SECRET}))


def test_a_pull_does_not_replace_a_commit_that_appears_meanwhile(name, tmp_path, monkeypatch):
    cloud, other = lp.Cloud(f"memory://{name}"), b"of another process"
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=1)
    file = tmp_path / "b" / commit_name(0)
    note = Elsewhere.note_slot

    def note_slot(self: Elsewhere, number: int, data: bytes) -> None:
        note(self, number, data)
        file.write_bytes(other)

    monkeypatch.setattr(Elsewhere, "note_slot", note_slot)
    with pytest.raises(lp.CloudConflict, match="have different commits 0"):
        lp.pull(tmp_path / "b", cloud)
    assert file.read_bytes() == other
    other = (tmp_path / "a" / commit_name(0)).read_bytes()
    file.unlink()
    with lp.pull(tmp_path / "b", cloud) as lake:
        whole(lake, 40)


def test_a_cached_commit_is_replaced_atomically(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=1)
    chains = CloudChains(cloud, cache=tmp_path / "cache")
    heads = {"": chains.commit("", 0)}
    file = tmp_path / "cache" / commit_name(0)
    with chains.lake(heads), file.open("rb") as opened:
        with chains.lake(heads) as lake:
            whole(lake, 40)
        assert os.fstat(opened.fileno()).st_nlink == 0  # a reader has either file, never a part of one
    chains.close()


@pytest.mark.parametrize("wanted", ["lake.json", "commits/", ".steps"])
def test_a_pull_that_was_interrupted_is_repeated_in_the_same_process(name, tmp_path, monkeypatch, wanted):
    """While the server does not answer the first one, whose threads write nothing afterwards."""
    cloud, path = lp.Cloud(f"memory://{name}"), tmp_path / "b"
    with lp.Replay.open(tmp_path / "a", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=1)
    get, answers, stalled = MemoryBucket.get, threading.Event(), []

    def stall(self: MemoryBucket, key: str, timeout: float) -> Iterator[bytes]:
        if wanted in key and not stalled:
            stalled.append(threading.current_thread())
            _thread.interrupt_main()
            assert answers.wait(60)
        return get(self, key, timeout)

    monkeypatch.setattr(MemoryBucket, "get", stall)
    with pytest.raises(KeyboardInterrupt):
        lp.pull(path, cloud)
    with lp.pull(path, cloud) as lake:
        whole(lake, 40)
    shutil.rmtree(path)
    answers.set()
    stalled[0].join()
    assert not path.exists()


def test_a_file_is_counted_before_its_arrival_is_reported():
    uploader, counted = Uploader(lp.Cloud("memory://counted")), queue.Queue()
    uploader.submit(Upload("a", 7, lambda: 7, lambda: counted.put(uploader.status())))
    status = counted.get(timeout=30)
    assert (status.uploaded, status.uploaded_bytes) == (1, 7)
    uploader.close()
