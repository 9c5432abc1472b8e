"""Where settings and credentials come from, and what is shown while somebody waits."""

from __future__ import annotations

import pickle
import re
import sys
import threading

import pytest
from small_runs import SPEC, run

import lakepond as lp
from lakepond.cli import main
from lakepond.cloud.credentials import client_options
from lakepond.cloud.progress import watching
from lakepond.cloud.remote import reason
from lakepond.cloud.status import UploadStatus
from lakepond.cloud.store import Store


def test_s3_takes_keys_or_a_profile_and_another_endpoint(tmp_path):
    cloud = lp.Cloud("s3://bucket/run")
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_ENDPOINT_URL": "http://x:9000"}
    found = client_options(cloud, keys)
    assert (found["access_key_id"], found["secret_access_key"]) == ("id", "key")
    assert found["endpoint"] == "http://x:9000"
    assert found["client_options"] == {"allow_http": True}
    assert found["checksum_algorithm"] == "CRC64NVME"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b%c\n[other]\naws_access_key_id = d\n"
        "aws_secret_access_key = e\naws_session_token = f\n"
    )
    assert client_options(cloud, {"HOME": str(tmp_path)})["secret_access_key"] == "b%c"
    other = client_options(cloud, {"HOME": str(tmp_path), "AWS_PROFILE": "other", "AWS_REGION": "eu-west-1"})
    assert (other["session_token"], other["region"]) == ("f", "eu-west-1")


def test_gcs_takes_a_key_file_or_an_emulator(tmp_path):
    cloud, key = lp.Cloud("gs://bucket/run"), tmp_path / "key.json"
    key.write_text("{}")
    found = client_options(cloud, {"GOOGLE_APPLICATION_CREDENTIALS": str(key)})
    assert found["application_credentials"] == str(key)
    found = client_options(cloud, {"STORAGE_EMULATOR_HOST": "127.0.0.1:4443"})
    assert found["base_url"] == "http://127.0.0.1:4443"
    with pytest.raises(lp.CloudRefused, match="cannot be used"):
        Store(lp.Cloud(cloud.url, options={"application_credentials": str(key)})).list()


def test_azure_takes_a_connection_string_or_an_account():
    cloud = lp.Cloud("az://container/run")
    text = "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=a2V5==;BlobEndpoint=http://x/me;"
    found = client_options(cloud, {"AZURE_STORAGE_CONNECTION_STRING": text})
    assert found["account_name"] == "me"
    assert found["account_key"] == "a2V5=="
    assert found["client_options"] == {"allow_http": True}
    client_options(cloud, {"AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_SAS_TOKEN": "sig"})
    with pytest.raises(lp.CloudRefused):
        client_options(cloud, {"AZURE_STORAGE_ACCOUNT_NAME": "me", "HOME": "/nonexistent"})


def test_a_server_that_ignores_conditions_is_found_out(rclone, moto, name, tmp_path):
    for server, honours in ((rclone, False), (moto, True)):
        lake = tmp_path / type(server).__name__
        with lp.Replay.open(lake, SPEC, capacity=100, cloud=server.cloud(name)) as replay:
            for _ in range(2):
                run(replay, commits=1)
                assert replay.push(wait=True).done
            assert replay.upload_status().conditions is honours


def test_settings_travel_to_other_processes_unless_they_hold_a_secret():
    cloud = lp.Cloud("gs://bucket/run", workers=2)
    assert pickle.loads(pickle.dumps(cloud)) == cloud
    with pytest.raises(TypeError, match="may hold a secret"):
        pickle.dumps(lp.Cloud("gs://bucket/run", options={"bearer_token": "t"}))


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("s3://bucket/run?secret=SEKRET", "a query"),
        ("file:///run?SEKRET", "a query"),
        ("s3://user:SEKRET@bucket/run", "a user name or a key"),
        ("s3://user:SEK/SEKRET@bucket/run", "a user name or a key"),
        ("gs://SEKRET@bucket/run", "a user name or a key"),
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url, part, tmp_path, capfd):
    with pytest.raises(lp.SpecError, match=f"contains {re.escape(part)}.*; write {url[:2]}.*") as error:
        lp.Cloud(url)
    assert "SEK" not in str(error.value)
    assert lp.Cloud("file:///home/me@work/run").parts() == ("file", "/home/me@work/run", "")
    assert main(["train", "erl", "--preset", "demo", "--out", str(tmp_path / "run"), "--cloud", url]) == 2
    assert "SEK" not in "".join(capfd.readouterr())


def test_a_status_reads_as_a_sentence():
    status = UploadStatus("waiting", 2, 3_200_000, 4, 10_000_000, 1, 60.0, 2e6, "no network")
    assert str(status) == (
        "waiting: 2 files, 3.2 MB uploaded, 4 files, 10 MB left, 2 MB/s, about 5 s left, 1 files failed "
        "(no network)"
    )
    assert status.eta_seconds == 5.0
    assert not status.done


def test_progress_is_drawn_on_a_terminal_and_nowhere_else(capfd, monkeypatch):
    sending = UploadStatus("sending", 1, 1_000_000, 1, 1_000_000, 0, 1.0, 1e6, None)
    with watching(lambda: sending):
        pass
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes anything for a terminal
    monkeypatch.setenv("TERM", "xterm")
    drawn = threading.Event()
    asked = iter(range(100))

    def status() -> UploadStatus:
        if next(asked) == 3:
            drawn.set()
        return sending

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with watching(status):
        drawn.wait(30)
    out, err = capfd.readouterr()
    assert out == ""
    assert "push" in err


def test_reasons_are_words_of_ours():
    assert reason("Server returned non-2xx status code: 403 Forbidden: <Code>AccessDenied</Code>") == (
        "403 Forbidden, AccessDenied"
    )
    assert reason("error: Connection refused (os error 111)") == "connection refused"
    assert reason("a text that holds ?sig=SECRET") == "the connection failed"
