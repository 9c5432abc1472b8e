"""A run or a lake that came from elsewhere may hold links to private files: none is followed, up or down."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_runs import SPEC, record, run, whole

import lakepond as lp
from lakepond.adapters.cloud_sync import CloudSync
from lakepond.cloud.store import Store
from lakepond.errors import RunError
from lakepond.runs.copies import pull_run, push_run
from lakepond.runs.run import Run

PRIVATE = b"ssh-private-key "


@dataclass(frozen=True)
class Config:
    seed: int = 1


@pytest.fixture
def private(tmp_path) -> Path:
    """A folder outside of the run."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home/id_rsa").write_bytes(PRIVATE)
    return tmp_path / "home"


@pytest.fixture
def received(tmp_path) -> Path:
    """The folder of a run that somebody sent."""
    with Run.create(tmp_path / "run", "demo", Config()) as made:
        made.log(1, {"reward": 1.0})
        made.save(1, arrays={}, state={"generation": 1})
    with lp.Replay.open(tmp_path / "run/lake", SPEC, capacity=100) as replay:
        run(replay, commits=2)
    return tmp_path / "run"


def everything(cloud: lp.Cloud) -> bytes:
    store = Store(cloud)
    return b"".join(store.read(name) for name in store.list())


def test_push_sends_no_file_through_a_link_and_says_which(received, private, name, caplog):
    cloud = lp.Cloud(f"memory://{name}")
    (received / "checkpoints/00000001/weights.bin").symlink_to(private / "id_rsa")
    (received / "notes").symlink_to(private)
    (received / "metrics.jsonl").unlink()
    (received / "metrics.jsonl").symlink_to(private / "id_rsa")
    os.mkfifo(received / "pipe")  # reading it would wait for ever
    (received / "wandb").mkdir()
    (received / "wandb/latest").symlink_to(private)  # left out anyway, so not a warning
    assert push_run(received, cloud).done
    assert PRIVATE not in everything(cloud)
    (warning,) = [each.message for each in caplog.records if "are not sent" in each.message]
    assert "4 symbolic links" in warning
    for link in ("weights.bin", "notes", "metrics.jsonl", "pipe"):
        assert link in warning
        assert not [key for key in Store(cloud).list() if link in key]


@pytest.mark.parametrize("linked", ["segment", "segments", "commit", "commits", "lake.json", "lake"])
def test_push_of_a_lake_follows_no_link(linked, received, private, name, tmp_path):
    lake, cloud = received / "lake", lp.Cloud(f"memory://{name}")
    if linked in ("segment", "commit", "lake.json"):
        folder = {"segment": lake / "segments", "commit": lake / "commits", "lake.json": lake}[linked]
        file = sorted(folder.glob("*" if linked == "segment" else "*.json"))[-1]
        secret = PRIVATE * (file.stat().st_size // len(PRIVATE) + 1)
        if linked != "segment":  # one that reads like a commit, but is somebody else's
            secret = file.read_bytes()
        (private / "secret").write_bytes(secret[: file.stat().st_size])
        file.unlink()
        file.symlink_to(private / "secret")
    else:
        there = lake if linked == "lake" else lake / linked
        there.rename(private / linked)
        there.symlink_to(private / linked)
    if linked == "lake":
        with pytest.raises(lp.LakeCorrupt, match="symbolic link"):
            push_run(received, cloud)
    else:
        status = push_run(received, cloud)
        assert status.pushed == 0 if linked == "commit" else "symbolic link" in status.last_error
    assert PRIVATE not in everything(cloud)
    sent = Store(cloud).list()
    assert not [key for key in sent if key.endswith("0000000001.json")]
    if linked in ("segments", "commits", "lake.json", "lake"):
        assert not [key for key in sent if key.startswith("lake/")]


def test_a_pull_writes_through_no_link(received, private, name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    assert push_run(received, cloud).done
    before = {file: file.read_bytes() for file in private.iterdir()}
    for link in ("checkpoints", "lake"):
        target = tmp_path / f"into-{link}"
        target.mkdir()
        (target / link).symlink_to(private)
        with pytest.raises(lp.LakeCorrupt, match="symbolic link"):
            pull_run(target, cloud)
    for link in ("segments", "commits", "elsewhere", "quarantine"):
        target = tmp_path / f"lake-{link}"
        target.mkdir()
        (target / link).symlink_to(private)
        with pytest.raises(lp.LakeCorrupt, match="symbolic link"):
            lp.pull(target, f"memory://{name}/lake")
    assert {file: file.read_bytes() for file in private.iterdir()} == before
    (tmp_path / "link").symlink_to(tmp_path / "real")  # the folder that the user names may be a link
    (tmp_path / "real").mkdir()
    pull_run(tmp_path / "link", cloud)
    with lp.Lake.open(tmp_path / "real/lake") as lake:
        whole(lake, 80)


def test_a_download_replaces_a_link_and_leaves_what_it_names_alone(private, name, tmp_path):
    sync = CloudSync(cloud=lp.Cloud(f"memory://{name}"))
    Store(sync.cloud).replace("p/agent.bin", b"weights")
    (tmp_path / "into").mkdir()
    (tmp_path / "into/agent.bin").symlink_to(private / "id_rsa")
    assert sync.download_directory("p", tmp_path / "into")
    assert (tmp_path / "into/agent.bin").read_bytes() == b"weights"
    assert not (tmp_path / "into/agent.bin").is_symlink()
    assert (private / "id_rsa").read_bytes() == PRIVATE
    (tmp_path / "into/inner").symlink_to(private)
    Store(sync.cloud).replace("p/inner/id_rsa", b"weights")
    with pytest.raises(lp.LakeCorrupt, match="symbolic link"):
        sync.download_directory("p", tmp_path / "into")
    assert (private / "id_rsa").read_bytes() == PRIVATE


def test_a_folder_is_uploaded_without_the_links_in_it(private, name, tmp_path):
    sync = CloudSync(cloud=lp.Cloud(f"memory://{name}"), project_name="demo")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/agent.bin").write_bytes(b"weights")
    (tmp_path / "checkpoints/key").symlink_to(private / "id_rsa")
    (tmp_path / "checkpoints/home").symlink_to(private)
    sync.upload_directory(tmp_path / "checkpoints", "c")
    assert sorted(Store(sync.cloud).list()) == ["c/agent.bin"]


def test_metrics_are_not_appended_through_a_link(private, received):
    (received / "metrics.jsonl").unlink()
    (received / "metrics.jsonl").symlink_to(private / "id_rsa")
    with pytest.raises(RunError, match="symbolic link"):
        Run.create(received, "demo", Config())
    assert (private / "id_rsa").read_bytes() == PRIVATE
    (received / "metrics.jsonl").unlink()
    with Run.create(received, "demo", Config()) as again:  # the lock was released
        again.log(2, {"reward": 2.0})


def test_a_lazy_replay_fetches_through_no_link(private, name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    with lp.Replay.open(tmp_path / "here", SPEC, capacity=100, cloud=cloud) as replay:
        record(replay, 0, 40)
    with lp.pull(tmp_path / "there", cloud, lazy=True) as lake:
        (tmp_path / "there/segments").rmdir()
        (tmp_path / "there/segments").symlink_to(private)
        with pytest.raises(lp.LakeCorrupt, match="symbolic link"):
            lake.steps(0, 10)
    assert [file.name for file in private.iterdir()] == ["id_rsa"]
