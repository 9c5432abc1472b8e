"""The view of a lake whose commit lists its files in manifests."""

import time

import numpy as np
import pytest
import view_lakes

import lakepond as lp
from lakepond.flow.following.chains import chains_at
from lakepond.lake.format import commits, manifests
from lakepond.lake.format.entries import Manifest
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.segments import Segments
from lakepond.report.view.episodes import EpisodeIndex
from lakepond.report.view.files import check, describe_files
from lakepond.report.view.opened import OpenedLake

SPEC = lp.Spec(obs=lp.Field((256,), "float32"))


def write(path, count, *, commit=None, first=0):
    """A lake with `count` commits of four steps, one episode each."""
    with lp.Replay.open(
        path, None if first else SPEC, capacity=400, commit=commit, merge_after=None
    ) as replay:
        for number in range(first, first + count):
            for t in range(4):
                obs = np.full(256, 10 * number + t, np.float32)
                replay.record(
                    obs=obs,
                    action=0,
                    reward=float(number),
                    next_obs=obs + 1,
                    terminated=t == 3,
                    truncated=False,
                )
            replay.commit()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    write(folder / "lake", 60)
    return folder / "lake"


@pytest.fixture
def lake(made, tmp_path):
    return view_lakes.copy(made, tmp_path / "lake")


@pytest.mark.parametrize("kind", ["steps", "rows"])
def test_pages_of_files_are_those_of_the_commit_and_read_few_manifests(made, kind, monkeypatch):
    with lp.Lake.open(made) as opened:
        listed = opened.commit.segments if kind == "steps" else opened.commit.rows[0]
        files = opened.reader.row_files(0)
        names = [s.name for s in opened.reader.stored()] if kind == "steps" else [f.name for _, f in files]
        commit = opened.commit
    assert sum(isinstance(entry, Manifest) for entry in listed) >= 2
    catalog = Catalog(commit, Segments(made))
    for offset in (0, 1, 15, 16, 30, 59, 60, 99):
        answer, of = describe_files(catalog, kind, offset, 7)
        assert [file["file"] for file in answer] == names[::-1][offset : offset + 7]
        assert of == len(names)
    read = []
    monkeypatch.setattr(Catalog, "read", lambda self, manifest, leaf: read.append(manifest))
    assert len(describe_files(catalog, "rows", 0, 7)[0]) == 7
    assert not read


def test_a_broken_manifest_is_named_and_what_it_lists_is_not_called_intact(lake, monkeypatch):
    with lp.Lake.open(lake) as opened:
        manifest = opened.commit.segments[1]
        assert isinstance(manifest, Manifest)
        assert {line["state"] for line in check(opened)} == {"intact"}
        lines = sum(1 for _ in check(opened))
        assert lines == opened.stats().files
    (lake / "segments" / manifest.name).write_bytes(bytes(manifest.size))
    monkeypatch.setattr(manifests, "kept", lambda manifest: None)
    with lp.Lake.open(lake) as opened:
        answer = list(check(opened))
    (damaged,) = [line for line in answer if line["state"] != "intact"]
    assert damaged["file"] == manifest.name
    assert manifest.name in damaged["error"]
    assert len(answer) < lines


def finished(index, commit):
    index.go_to(commit)
    until = time.monotonic() + 60  # a busy machine takes its time
    while not index.progress()["done"]:
        assert time.monotonic() < until, index.progress()
        time.sleep(0.005)
    return [float(total) for total in index.page(None, "oldest", 0, 500)[0]["total"]]


def test_episodes_are_read_once_although_files_are_merged_and_again_after_a_fork(lake, monkeypatch):
    started = []
    monkeypatch.setattr(
        EpisodeIndex,
        "_begin",
        lambda self, commit, begin=EpisodeIndex._begin: (started.append(commit.number), begin(self, commit)),
    )
    folder = lake / "commits"
    index = EpisodeIndex(OpenedLake(chains_at(lake)))
    try:
        assert finished(index, commits.read(folder, 39)) == [4.0 * n for n in range(40)]
        assert finished(index, commits.read(folder, 59)) == [4.0 * n for n in range(60)]
        with lp.Lake.open(lake) as opened:
            opened.compact()
            assert opened.stats().files < 60
            merged = opened.commit
        assert finished(index, merged) == [4.0 * n for n in range(60)]
        assert started == [39]
        write(lake, 40, commit=29, first=100)  # more steps than were read, and others
        newest = commits.read(folder, commits.newest(folder))
        expected = [4.0 * n for n in (*range(30), *range(100, 140))]
        assert finished(index, newest) == expected
        assert started == [39, newest.number]
    finally:
        index.close()
