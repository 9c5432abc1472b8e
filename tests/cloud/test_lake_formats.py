"""Manifests and versions of the format on their way to the cloud and back."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
from small_runs import SPEC, record, run, whole

import lakepond as lp
from lakepond.cloud.fetching import Fetcher
from lakepond.cloud.memory import _BUCKETS
from lakepond.cloud.store import Store
from lakepond.lake.format import commits, manifests, names
from lakepond.lake.format.entries import Manifest
from lakepond.lake.write import packing

GOLDEN = Path(__file__).parents[1] / "lake" / "golden" / "v1"


@pytest.fixture
def small(monkeypatch):
    """Manifests of all levels after a few commits."""
    monkeypatch.setattr(packing, "LOOSE", 2)
    monkeypatch.setattr(packing, "FAN", 2)
    monkeypatch.setattr(packing, "FLAT_LEVEL", 2)


def forget_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(manifests, "_kept", manifests._Kept())


def segments(cloud: str) -> set[str]:
    return {name.removeprefix("segments/") for name in Store(lp.Cloud(cloud)).list("segments")}


@pytest.mark.parametrize("lazy", [True, False])
def test_a_lake_with_manifests_of_all_levels_comes_back(name, tmp_path, small, monkeypatch, lazy):
    cloud = f"memory://{name}"
    with lp.Replay.open(tmp_path / "here", SPEC, capacity=100, cloud=cloud, merge_after=None) as replay:
        run(replay, commits=16, steps=5)
        assert replay.push(wait=True).done
    with lp.Lake.open(tmp_path / "here") as lake:
        assert max(e.level for e in lake.commit.segments if isinstance(e, Manifest)) > 2
    assert segments(cloud) == names.segment_files(tmp_path / "here" / "segments").keys()
    forget_manifests(monkeypatch)
    with lp.pull(tmp_path / "there", cloud, lazy=lazy) as lake:
        whole(lake, 80)
        expected = dict(lake.files()).keys()
    assert names.segment_files(tmp_path / "there" / "segments").keys() == expected
    forget_manifests(monkeypatch)
    with lp.Replay.open(tmp_path / "there", capacity=100, cloud=cloud) as replay:
        run(replay, commits=4, steps=5)
        assert replay.push(wait=True).done
    forget_manifests(monkeypatch)
    with lp.pull(tmp_path / "again", cloud, commit=11) as lake:
        whole(lake, 60)
    with lp.pull(tmp_path / "newest", cloud) as lake:
        whole(lake, 100)


def test_gc_keeps_every_file_that_manifests_of_kept_commits_list(name, tmp_path, small, monkeypatch):
    cloud = f"memory://{name}"
    how = {"max_steps": 60, "cloud": cloud, "merge_after": None}
    with lp.Replay.open(tmp_path / "here", SPEC, capacity=60, **how) as replay:
        run(replay, commits=40, steps=3)
        assert replay.push(wait=True).done
    forget_manifests(monkeypatch)
    lp.gc(cloud, keep_last=2, keep_every=10, older_than=-1.0, dry_run=False)
    forget_manifests(monkeypatch)
    swept = lp.gc(cloud, keep_last=2, keep_every=10, older_than=-1.0, dry_run=False)
    assert len(swept.commits) == 40 - 6
    kept: set[str] = set()
    for number in (0, 10, 20, 30, 38, 39):
        forget_manifests(monkeypatch)
        with lp.pull(tmp_path / f"at-{number}", cloud, commit=number) as lake:
            lake.verify()
            ids = range(lake.commit.oldest, lake.commit.recorded)
            assert lake.steps(ids[0], ids[-1] + 1).reward.tolist() == list(ids)
            kept |= dict(lake.files()).keys()
    assert segments(cloud) == kept


def test_a_budget_keeps_to_its_size_with_manifests_in_the_cloud_alone(name, tmp_path, small, monkeypatch):
    cloud, path = f"memory://{name}", tmp_path / "here"
    with lp.Replay.open(
        path, SPEC, capacity=20, cloud=cloud, local_budget=20_000, merge_after=None
    ) as replay:
        for _ in range(30):
            run(replay, commits=1, steps=4)
            assert replay.push(wait=True).done
            forget_manifests(monkeypatch)
    assert sum(each.st_size for each in names.segment_files(path / "segments").values()) <= 20_000
    how = {"cloud": cloud, "local_budget": 20_000}
    with lp.Replay.open(path, capacity=20, **how) as replay, replay.lake() as lake:
        whole(lake, 120)
    with lp.pull(tmp_path / "there", cloud) as lake:
        whole(lake, 120)


def test_commits_do_not_wait_for_manifests_that_are_only_in_the_cloud(name, tmp_path, small, monkeypatch):
    cloud, path = f"memory://{name}", tmp_path / "here"
    with lp.Replay.open(path, SPEC, capacity=20, cloud=cloud, merge_after=None) as replay:
        run(replay, commits=15, steps=4)
        assert replay.push(wait=True).done
        for file in (path / "segments").glob("*.manifest"):
            file.unlink()
        forget_manifests(monkeypatch)

        def unreachable(self: Fetcher, name: str) -> None:
            raise AssertionError("a commit asks the cloud")

        monkeypatch.setattr(Fetcher, "__call__", unreachable)
        run(replay, commits=15, steps=4)
        monkeypatch.undo()
        assert replay.push(wait=True).done
    with lp.pull(tmp_path / "there", cloud) as lake:
        whole(lake, 120)


# --- versions ----------------------------------------------------------------------------------------


def test_a_lake_of_format_1_is_continued_where_it_was_pushed(name, tmp_path):
    cloud, path, copy = f"memory://{name}", tmp_path / "here", tmp_path / "copy"
    shutil.copytree(GOLDEN, path)
    assert lp.push(path, cloud).done
    shutil.copytree(path, copy)
    with lp.Replay.open(path, capacity=60, alpha=0.6, cloud=cloud) as replay:
        spec, before = replay.spec, replay.recent(1)
        replay.record(**{f: v[0] for f, v in _fields(before).items()})
        replay.commit()
        status = replay.push(wait=True)
        assert (status.done, status.last_error) == (True, None)
    described = [
        json.loads(Store(lp.Cloud(cloud)).read("lake.json")),
        json.loads((path / "lake.json").read_text()),
    ]
    assert described[0] == described[1]
    assert described[0]["format"] == 2
    with lp.pull(tmp_path / "fresh", cloud) as lake:
        lake.verify()
        assert (len(lake), lake.spec) == (121, spec)
    with lp.pull(copy, cloud) as lake:  # its own lake.json is of format 1
        lake.verify()
        assert len(lake) == 121
    assert json.loads((copy / "lake.json").read_text())["format"] == 2
    assert lp.push(copy, cloud).last_error is None


def _fields(batch: lp.Batch) -> dict:
    names = ("obs", "next_obs", "action", "reward", "terminated", "truncated")
    found = {name: getattr(batch, name) for name in names}
    for name in ("obs", "next_obs"):
        found[name] = [_first(found[name])]
    return {**found, **batch.extras}


def _first(tree):
    if isinstance(tree, dict):
        return {key: _first(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_first(value) for value in tree)
    return tree[0]


def test_a_lake_with_another_spec_is_still_another_lake(name, tmp_path):
    cloud = f"memory://{name}"
    with lp.Replay.open(tmp_path / "one", SPEC, capacity=50, cloud=cloud) as replay:
        run(replay, commits=1)
    with lp.Replay.open(tmp_path / "two", lp.Spec(obs=lp.Field((3,), "float32")), capacity=50):
        pass
    with pytest.raises(lp.CloudConflict, match="different lakes"):
        lp.pull(tmp_path / "two", cloud)
    shutil.copytree(GOLDEN, tmp_path / "three")
    assert "contains a different lake" in str(lp.push(tmp_path / "three", cloud).last_error)


def test_a_later_version_in_the_cloud_is_refused_by_name(name, tmp_path):
    cloud = f"memory://{name}"
    with lp.Replay.open(tmp_path / "one", SPEC, capacity=50, cloud=cloud) as replay:
        run(replay, commits=2)
    held = _BUCKETS[name]
    key = next(each for each in held if each.endswith("0000000001.json"))
    held[key] = held[key]._replace(data=held[key].data.replace(b'"format": 2', b'"format": 5'))
    with pytest.raises(lp.LakeTooNew, match="format 5"):
        lp.pull(tmp_path / "two", cloud)
    assert not (tmp_path / "two" / "quarantine").exists()


# --- a pull beside a writer --------------------------------------------------------------------------


def test_a_commit_that_is_pulled_over_a_gap_is_the_newest(name, tmp_path):
    """The file `commits/newest` of this disk still names an older one."""
    cloud = f"memory://{name}"
    with lp.Replay.open(tmp_path / "one", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=2)
    with lp.Replay.open(tmp_path / "two", capacity=100, cloud=cloud, pull="all") as replay:
        run(replay, commits=1)
        assert replay.push(wait=True).done
    shutil.copytree(tmp_path / "two", tmp_path / "three")
    with lp.Replay.open(tmp_path / "three", capacity=100, cloud=cloud) as replay:
        run(replay, commits=4)
        assert replay.push(wait=True).done
    lp.pull(tmp_path / "two", cloud).close()
    assert commits.numbers(tmp_path / "two" / "commits") == [1, 2, 6]
    with lp.Lake.open(tmp_path / "two") as lake:
        assert lake.commit.number == 6
        whole(lake, 280)


def test_opening_a_writer_leaves_the_file_of_a_running_download(name, tmp_path, monkeypatch):
    cloud, path = f"memory://{name}", tmp_path / "there"
    with lp.Replay.open(tmp_path / "here", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=2)
    began, go_on = threading.Event(), threading.Event()
    stream = Store.stream

    def slow(self: Store, name: str, most: int):
        for k, piece in enumerate(stream(self, name, most)):
            yield piece
            if not k:
                began.set()
                assert go_on.wait(60)

    lake = lp.pull(path, cloud, lazy=True)
    monkeypatch.setattr(Store, "stream", slow)
    failed: list[BaseException] = []

    def read() -> None:
        try:
            whole(lake, 80)
        except BaseException as error:
            failed.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        assert began.wait(60)
        before = sorted(file.name for file in (path / "segments").glob("*.aside"))
        assert before
        with pytest.raises(lp.LakeCorrupt, match="not on this disk"):
            lp.Replay.open(path, capacity=100)  # without the cloud: its steps cannot be loaded
        after = {file.name for file in (path / "segments").glob("*.aside")}
        assert after >= set(before)  # another download may have started
    finally:
        go_on.set()
        reading.join()
    assert failed == []
    lake.close()
    assert not list((path / "segments").glob("*.aside"))
    with lp.Replay.open(path, capacity=100) as replay:
        record(replay, 80, 90)
    with lp.Lake.open(path) as lake:
        whole(lake, 90)
