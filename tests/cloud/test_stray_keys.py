"""Keys in a bucket that lakepond did not write: ignored by push, pull, gc and status, and never deleted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from small_runs import SPEC, run, whole

import lakepond as lp
from lakepond.adapters.cloud_sync import CloudSync
from lakepond.cloud.bucket import Unlistable, valid_name
from lakepond.cloud.layout import commit_numbers
from lakepond.cloud.memory import _BUCKETS
from lakepond.cloud.store import Store
from lakepond.runs import status as run_status
from lakepond.runs.copies import pull_run, push_run
from lakepond.runs.run import Run

EVERY = ["file", "memory", "moto", "gcs", "azurite"]
NOT_OURS = [
    "commits/7.json",
    "commits/0000000007.json.bak",
    f"commits/{99:035d}.json",
    "commits/\N{SUPERSCRIPT TWO}.json",
    "segments/thesis.tex",
    f"segments/{'x' * 40}.rows",
    "a" * 300,
    "leases/readme.txt",
]
"""valid for the client"""
NOT_FILES = ["/x", "./y", "../z", "folder/", "commits//x", "commits/../x", "segments//", "leases/./x"]
"""not valid as the name of a file; the client fails on most of them"""


@dataclass(frozen=True)
class Config:
    seed: int = 1


class Place:
    """A place on one kind of server, and a way to put keys there that lakepond would not."""

    def __init__(self, request, kind: str, name: str, folder: Path) -> None:
        self.kind, self.name, self.folder = kind, name, folder / "cloud"
        if kind in ("file", "memory"):
            self.cloud = lp.Cloud(f"file://{self.folder}" if kind == "file" else f"memory://{name}")
        else:
            self.server = request.getfixturevalue(kind)
            self.cloud = self.server.cloud(name)

    def put(self, key: str) -> None:
        if self.kind == "memory":
            Store(self.cloud).bucket.put(key, b"stray", create=False, timeout=1)
        elif self.kind == "file":  # a folder has no such keys; but it may have other files
            if valid_name(key):
                (self.folder / key).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / key).write_bytes(b"stray")
        else:
            self.server.put_raw(f"{self.name}/{key}", b"stray")

    def count(self) -> int:
        if self.kind == "memory":
            return sum(held.data == b"stray" for held in _BUCKETS[self.name].values())
        if self.kind == "file":
            files = (file for file in self.folder.rglob("*") if file.is_file())
            return sum(file.read_bytes() == b"stray" for file in files)
        return self.server.stored(self.name, b"stray")


@pytest.mark.parametrize("kind", EVERY)
def test_stray_keys_are_ignored_and_never_deleted(request, kind, name, tmp_path, caplog):
    place = Place(request, kind, name, tmp_path)
    with lp.Replay.open(tmp_path / "here", SPEC, capacity=80, max_steps=80, cloud=place.cloud) as replay:
        run(replay, commits=3)
        assert replay.push(wait=True).done
        for key in [*NOT_OURS, *NOT_FILES]:
            place.put(key)
        strays = place.count()
        run(replay, commits=2)
        assert replay.push(wait=True).done  # the same process
    assert lp.push(tmp_path / "here", place.cloud).pushed == 4  # and another one
    assert commit_numbers(Store(place.cloud).list("commits")) == [0, 1, 2, 3, 4]
    status = run_status.watch(place.cloud.url)() if kind in ("file", "memory") else None
    assert status is None or status.lake.commits_kept == 5
    lp.gc(place.cloud, keep_last=2, older_than=-60, dry_run=False)
    swept = lp.gc(place.cloud, keep_last=2, older_than=-60, dry_run=False)
    assert swept.commits == (0, 1, 2)
    assert swept.segments
    with lp.pull(tmp_path / "there", place.cloud) as lake:
        lake.verify()
        assert (lake.commit.oldest, lake.commit.recorded) == (120, 200)
    assert place.count() == strays
    assert "Traceback" not in caplog.text
    if kind != "file":
        assert "are ignored" in caplog.text


def test_a_key_that_the_client_cannot_name_at_all_hides_only_itself(moto, name, tmp_path):
    for key in (
        "b\x01c",
        "/x",
        "commits//y",
    ):  # sorts among the names of a lake, before them, and in a folder
        moto.put_raw(f"{name}/{key}", b"stray")
    with lp.Replay.open(tmp_path / "here", SPEC, capacity=200, cloud=moto.cloud(name)) as replay:
        run(replay, commits=2)
    with lp.pull(tmp_path / "there", moto.cloud(name)) as lake:
        whole(lake, 80)
    with pytest.raises(
        Unlistable, match="delete it, or move"
    ):  # a caller that needs every name learns the key
        Store(moto.cloud(name)).list()


@pytest.mark.parametrize("kind", ["memory", "moto"])
def test_a_run_is_pulled_without_the_strays_around_it(request, kind, name, tmp_path):
    place = Place(request, kind, name, tmp_path)
    with Run.create(tmp_path / "run", "demo", Config()) as made:
        made.log(1, {"reward": 1.0})
        made.save(1, arrays={}, state={"generation": 1})
    (tmp_path / "run/notes").mkdir()
    (tmp_path / "run/notes/plan.txt").write_text("a file of the user's own")
    push_run(tmp_path / "run", place.cloud)
    for key in [*NOT_OURS, *NOT_FILES[:4], "checkpoints", "../../outside", "a\\b"]:
        place.put(key)
    pulled = pull_run(tmp_path / "there/run", place.cloud)
    assert pulled.state()["generation"] == 1
    assert (tmp_path / "there/run/notes/plan.txt").read_text() == "a file of the user's own"
    files = {file for file in tmp_path.rglob("*") if file.is_file()}
    assert not [
        file for file in files if file.name in ("outside", "x", "y", "z", "a\\b") or len(file.name) > 255
    ]
    if kind == "memory":
        assert run_status.watch(place.cloud.url)().checkpoint == 1


def test_a_download_stays_inside_its_folder(name, tmp_path):
    cloud = lp.Cloud(f"memory://{name}")
    for key in ("p/good.txt", "p/../../outside", "p//absolute", "p/a\x00b", "p/a\\..\\b", "p/folder/"):
        Store(cloud).bucket.put(key, b"stray", create=False, timeout=1)
    assert CloudSync(cloud=cloud).download_directory("p", tmp_path / "into")
    assert [file.name for file in (tmp_path / "into").rglob("*")] == ["good.txt"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["into"]
