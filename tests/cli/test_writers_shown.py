"""Commands that show a lake with several writers, on disk and in a bucket."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager

import numpy as np
import pytest

import lakepond as lp
from lakepond.cli import main
from lakepond.cloud.local import LocalBucket
from lakepond.runs import status as run_status

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


def test_status_of_several_writers_together_and_each(lake, bucket, json_of, capsys):
    for place in (lake, bucket):
        status = json_of("status", place)["lake"]
        assert (status["steps"], status["recorded"], status["commits_kept"]) == (18, 18, 6)
        assert [each["name"].partition(".")[0] for each in status["writers"]] == list(STEPS)
        assert [each["steps"] for each in status["writers"]] == list(STEPS.values())
    main(["status", str(lake)])
    assert "c1: 6 steps, commit 1" in capsys.readouterr().out


def test_status_finds_the_process_of_a_named_writer(lake, json_of):
    assert json_of("status", lake)["pid"] is None
    with open_replay(lake, "c1"):
        assert json_of("status", lake)["pid"] == os.getpid()


def test_status_of_a_lake_without_named_writers_lists_none(tmp_path, json_of):
    with lp.Replay.open(tmp_path / "lake", SPEC, 100) as replay:
        replay.commit()
    assert json_of("status", tmp_path / "lake")["lake"]["writers"] == []


def test_status_skips_a_damaged_newest_commit(tmp_path, json_of, caplog):
    """Also when it becomes the newest while it is watched."""
    url = f"file://{tmp_path}/bucket"
    for _ in range(3):
        write(tmp_path / "lake", "c0", cloud=url)
    places = (str(tmp_path / "lake"), url)
    looks = [run_status.watch(place) for place in places]
    assert [look().lake.recorded for look in looks] == [12, 12]
    for file in tmp_path.glob("*/writers/*/commits/0000000005.json"):
        file.write_bytes(b"{")
    for place in places:
        status = json_of("status", place)
        assert (status["lake"]["commit"], status["lake"]["recorded"], status["problems"]) == (4, 10, [])
    (newer,) = tmp_path.glob("bucket/writers/*/commits/0000000005.json")
    newer.with_name("0000000006.json").write_bytes(b"{")
    caplog.clear()
    status = looks[1]()
    assert (status.lake.commit, status.problems) == (5, ())
    assert "skipping" in caplog.text


def names(found):
    return [each["writer"].partition(".")[0] for each in found]


def test_ls_lists_the_commits_of_every_writer(lake, bucket, json_of, capsys):
    for place in (lake, bucket):
        found = json_of("ls", place)
        assert (found["lake"], found["commits_kept"]) == (str(place), 6)
        assert names(found["commits"]) == [w for w in STEPS for _ in (0, 1)]
        assert [each["number"] for each in found["commits"]] == [0, 1] * 3
        assert [each["recorded"] for each in found["commits"]] == [2, 4, 3, 6, 4, 8]
        main(["ls", str(place), "--limit", "1"])
        shown = capsys.readouterr()
        assert all(writer in shown.out for writer in STEPS)
        assert "3 older commits are not shown" in shown.out + shown.err


def test_show_of_several_writers_together_and_each(lake, bucket, json_of, capsys):
    for place in (lake, bucket):
        shown = json_of("show", place)
        assert (shown["lake"], shown["steps"], shown["commits_kept"]) == (str(place), 18, 6)
        assert [name.partition(".")[0] for name in shown["bytes_by_writer"]] == list(STEPS)
        shown = json_of("show", place, "--writer", "c1", "--commit", "0")
        assert (shown["commit"], shown["steps"], shown["recorded"]) == (0, 3, 3)
        assert main(["show", str(place)]) == 0
        assert "writer c2" in capsys.readouterr().out


def test_verify_of_several_writers_reads_every_object(lake, bucket, tmp_path, json_of, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for place in (lake, bucket):
        found = json_of("verify", place, "--all")
        assert found["intact"]
        assert names(found["commits"]) == [w for w in STEPS for _ in (0, 1)]
        assert all(each["bytes"] > 0 for each in found["commits"])
        (one,) = json_of("verify", place, "--writer", "c2", "--commit", "0")["commits"]
        assert (one["number"], one["intact"]) == (0, True)
    assert not (tmp_path / "cache").exists()
    (damaged,) = (tmp_path / "bucket").glob("writers/c1.*/commits/0000000001.json")
    kept = {file for file in damaged.parent.parent.glob("segments/*") if file.stat().st_mtime > 0}
    newest = max(kept, key=lambda file: file.stat().st_mtime)
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    assert main(["verify", bucket, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    wrong = [each for each in found["commits"] if not each["intact"]]
    assert names(wrong) == ["c1"]
    assert newest.name in wrong[0]["why"]
    newest.unlink()
    assert main(["verify", bucket, "--writer", "c1"]) == 3
    assert newest.name in capsys.readouterr().out
    assert main(["verify", bucket, "--writer", "c0"]) == 0


def test_verify_of_a_url_reports_progress_and_reads_each_object_once(bucket, capsys, monkeypatch):
    read, shown = [], []
    stream = LocalBucket.get

    def get(self, name, timeout):
        read.append(name)
        return stream(self, name, timeout)

    @contextmanager
    def progress(what):
        yield lambda done, total: shown.append((done, total))

    monkeypatch.setattr(LocalBucket, "get", get)
    monkeypatch.setattr("lakepond.cli.words.progress", progress)
    assert main(["verify", bucket, "--all"]) == 0
    segments = [name for name in read if "/segments/" in name]
    assert len(segments) == len(set(segments)) > 0
    assert shown[-1][0] == shown[-1][1] > 0


def test_a_number_of_a_commit_needs_its_writer(lake, bucket, capsys):
    for place in (lake, bucket):
        for command in ("show", "verify"):
            assert main([command, str(place), "--commit", "0"]) == 2
            sentence = capsys.readouterr().err
            assert "has 3 writers, and each numbers its own commits; name one with --writer: c0" in sentence
            assert main([command, str(place), "--writer", "c7"]) == 2
            assert "has no commit of a writer 'c7'; it has those of c0" in capsys.readouterr().err


def test_watch_of_a_bucket_shows_its_writers_until_they_are_silent(bucket, capsys, monkeypatch):
    looks = []

    def sleep(seconds):
        looks.append(capsys.readouterr().out)
        if len(looks) == 2:
            monkeypatch.setattr("lakepond.flow.following.lag.SILENT_SECONDS", -1.0)
            monkeypatch.setattr("lakepond.flow.following.lag.SILENT_INTERVALS", -1.0)

    monkeypatch.setattr("lakepond.cli.status.time.sleep", sleep)
    assert main(["watch", bucket]) == 0
    last = capsys.readouterr().out
    assert len(looks) == 2
    for shown, state in ((looks[0], "alive"), (looks[1], "alive"), (last, "silent")):
        lines = [line for line in shown.splitlines() if "writer" in line]
        assert len(lines) == 3
        assert all(line.rstrip().endswith(state) and "commit 1, " in line for line in lines)
    assert "c2" in last
    assert "8 steps" in last


def test_a_look_at_a_bucket_asks_each_writer_for_its_next_commit_only(bucket, tmp_path, monkeypatch):
    asked = []
    for name in ("get", "list", "folders"):
        ask = getattr(LocalBucket, name)
        monkeypatch.setattr(
            LocalBucket, name, lambda self, *a, ask=ask, name=name: (asked.append(name), ask(self, *a))[1]
        )
    look = run_status.watch(bucket)
    assert look().lake.steps == 18
    asked.clear()
    assert look().lake.steps == 18
    assert asked == ["get"] * 3
    write(tmp_path / "c0" / "lake", "c0", cloud=bucket)
    assert look().lake.steps == 22


@pytest.mark.parametrize("command", ["ls", "show", "verify", "status", "watch", "view", "gc", "pull"])
@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("file://{tmp}/nothing", "lake"),
        ("ftp://bucket/run", "'ftp://bucket/run' is not a valid cloud URL; write it like gs://bucket/demo"),
        ("s3://bucket/run", "no credentials"),
        ("gs://bucket/run", "no credentials"),
        ("az://bucket/run", "no credentials"),
    ],
)
def test_a_url_that_cannot_be_read_is_one_sentence(command, url, sentence, tmp_path, capsys, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    place = [str(tmp_path / "here")] if command == "pull" else []
    assert main([command, url.format(tmp=tmp_path), *place]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "here").exists()


def test_one_commit_of_the_only_writer_is_pulled(tmp_path, json_of):
    url = f"file://{tmp_path}/bucket"
    write(tmp_path / "lake", "c1", cloud=url)
    found = json_of("pull", url, tmp_path / "pulled", "--commit", "0")["lake"]
    assert (found["commit"], found["steps"], len(found["writers"])) == (0, 3, 1)


def test_pull_and_verify_of_all_writers(bucket, tmp_path, json_of, capsys):
    assert main(["pull", bucket, str(tmp_path / "pulled")]) == 0
    capsys.readouterr()
    found = json_of("verify", tmp_path / "pulled", "--all")
    assert found["intact"]
    assert {each["writer"].partition(".")[0] for each in found["commits"]} == set(STEPS)
    assert json_of("status", tmp_path / "pulled")["upload"]["url"] == bucket
