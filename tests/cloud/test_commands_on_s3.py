"""The command line against a real S3 server, with credentials from the environment as a user has them."""

import json

import pytest
import servers
import small_runs

import lakepond as lp
from lakepond.cli import main
from lakepond.cloud.store import Store
from lakepond.doctor import cloud


@pytest.fixture
def s3(moto, monkeypatch, name) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{moto.port}")
    return f"s3://{moto.bucket}/{name}"


def json_of(capfd, *words: object, code: int = 0) -> dict:
    assert main([*map(str, words), "--json"]) == code
    return json.loads(capfd.readouterr().out)


def test_the_doctor_finds_a_bucket_that_can_be_written(s3):
    check = cloud.bucket(s3)
    assert (check.verdict, check.next_step) == ("pass", None)
    assert "wrote, read and deleted" in check.result
    assert Store(lp.Cloud(s3)).list() == {}  # nothing of it stays


def test_the_doctor_tells_of_a_bucket_that_is_not_there(s3):
    check = cloud.bucket("s3://no-such-bucket/x")
    assert check.verdict == "fail"
    assert servers.SECRET not in str(check)


def test_a_lake_goes_up_is_looked_at_and_comes_back(s3, tmp_path, capfd):
    for writer in ("", "second"):
        with lp.Replay.open(tmp_path / "lake", small_runs.SPEC, capacity=200, writer=writer) as replay:
            small_runs.run(replay, 2)
    assert json_of(capfd, "push", tmp_path / "lake", s3)["done"]
    assert json_of(capfd, "status", s3)["lake"]["steps"] == 160
    assert json_of(capfd, "ls", s3)["commits_kept"] == 4
    assert json_of(capfd, "show", s3, "--writer", "second")["steps"] == 80
    assert [each["intact"] for each in json_of(capfd, "verify", s3, "--all")["commits"]] == [True] * 4
    pulled = json_of(capfd, "pull", s3, tmp_path / "back")["lake"]
    assert pulled["steps"] == 160
    assert list(pulled["writers"].values()) == [{"commit": 1, "steps": 80}] * 2
    assert json_of(capfd, "verify", tmp_path / "back")["intact"]
    assert json_of(capfd, "gc", s3)["segments"] == []


@pytest.mark.parametrize("command", ["status", "watch", "ls", "show", "verify", "view", "gc"])
def test_a_server_that_is_away_is_one_sentence(command, s3, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{servers.free_ports(1)[0]}")
    assert main([command, s3]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("lakepond: ")
    assert err.count("\n") == 1


def test_push_to_a_bucket_that_does_not_exist_fails_at_once(s3, tmp_path, capfd):
    lp.Replay.open(tmp_path / "lake", small_runs.SPEC, capacity=200).close()
    assert main(["push", str(tmp_path / "lake"), "s3://no-such-bucket/x"]) == 1
    assert capfd.readouterr().err == (
        "lakepond: the bucket s3://no-such-bucket does not exist; create it, or give another URL.\n"
    )
