"""Commands that show a lake with several writers, on disk and in a bucket."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import lakepond as lp
from lakepond.cli import main

SPEC = lp.Spec(obs=lp.Field((300,), "uint8"))
STEPS = {"c0": 4, "c1": 6, "c2": 8}


def open_replay(path, writer, **how):
    return lp.Replay.open(path, SPEC, 100, writer=writer, **how)


def write(path, writer, **how):
    """Two commits, each of half of the steps."""
    with open_replay(path, writer, **how) as replay:
        for t in range(STEPS[writer]):
            obs = np.full(300, t, np.uint8)
            flags = {"terminated": False, "truncated": False}
            replay.record(obs=obs, action=t, reward=0.0, next_obs=obs, **flags)
            if 2 * t + 2 == STEPS[writer]:
                replay.commit()


@pytest.fixture
def lake(tmp_path):
    for writer in STEPS:
        write(tmp_path / "lake", writer)
    return tmp_path / "lake"


@pytest.fixture
def bucket(tmp_path):
    url = f"file://{tmp_path}/bucket"
    for writer in STEPS:
        write(tmp_path / writer / "lake", writer, cloud=url)
    return url


def told(capsys, *line):
    assert main([*map(str, line), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_status_of_several_writers_together_and_each(lake, bucket, capsys):
    for place in (lake, bucket):
        status = told(capsys, "status", place)["lake"]
        assert (status["steps"], status["recorded"], status["commits_kept"]) == (18, 18, 6)
        assert [each["name"].partition(".")[0] for each in status["writers"]] == list(STEPS)
        assert [each["steps"] for each in status["writers"]] == list(STEPS.values())
    main(["status", str(lake)])
    assert "c1: 6 steps, commit 1" in capsys.readouterr().out


def test_status_finds_the_process_of_a_named_writer(lake, capsys):
    assert told(capsys, "status", lake)["pid"] is None
    with open_replay(lake, "c1"):
        assert told(capsys, "status", lake)["pid"] == os.getpid()


def test_status_of_a_lake_without_named_writers_lists_none(tmp_path, capsys):
    with lp.Replay.open(tmp_path / "lake", SPEC, 100) as replay:
        replay.commit()
    assert told(capsys, "status", tmp_path / "lake")["lake"]["writers"] == []


def test_ls_lists_the_commits_of_every_writer(lake, capsys):
    found = told(capsys, "ls", lake)
    assert found["commits_kept"] == 6
    assert [(each["writer"], each["number"]) for each in found["commits"]] == [
        (w, n) for w in STEPS for n in (0, 1)
    ]
    assert [each["recorded"] for each in found["commits"]] == [2, 4, 3, 6, 4, 8]
    main(["ls", str(lake), "--limit", "1"])
    shown = capsys.readouterr()
    assert all(writer in shown.out for writer in STEPS)
    assert "3 older commits are not shown" in shown.out + shown.err


def test_pull_and_verify_of_all_writers(bucket, tmp_path, capsys):
    assert main(["pull", bucket, str(tmp_path / "pulled")]) == 0
    capsys.readouterr()
    found = told(capsys, "verify", tmp_path / "pulled", "--all")
    assert found["intact"]
    assert {each["writer"].partition(".")[0] for each in found["commits"]} == set(STEPS)
    assert told(capsys, "status", tmp_path / "pulled")["upload"]["url"] == bucket
