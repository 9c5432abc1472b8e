"""Credentials from a cloud's own configuration: AWS profiles with SSO or a process, their region."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import servers
from botocore.credentials import SSOProvider
from small_runs import SPEC, run, whole

import lakepond as lp
from lakepond.cloud import credentials
from lakepond.cloud.credentials import client_options
from lakepond.cloud.store import Store
from lakepond.doctor import cloud as doctor


@pytest.fixture
def home(tmp_path, monkeypatch) -> Callable[..., Path]:
    """Writes `~/.aws/config` and other files of an account without anything else that could be found."""
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(credentials, "_made_by", lambda vendor: False)

    def write(name: str, text: str) -> Path:
        file = tmp_path / "home" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


def script(home: Callable[..., Path], program: str) -> str:
    """The command of a `credential_process` in Python."""
    return f"{sys.executable} {home('process.py', program)}"


def prints(**keys: str) -> str:
    return f"print({json.dumps({'Version': 1, **keys})!r})"


def test_a_credential_process_and_the_region_of_its_profile_serve_a_push_and_a_pull(
    seaweed, name, home, tmp_path, monkeypatch
):
    process = script(home, prints(AccessKeyId=servers.KEY, SecretAccessKey=servers.SECRET))
    home(".aws/config", f"[profile work]\nregion = eu-south-1\ncredential_process = {process}\n")
    monkeypatch.setenv("AWS_PROFILE", "work")
    cloud = lp.Cloud(seaweed.url(name), options={"endpoint": seaweed.options()["endpoint"]})
    assert client_options(cloud)["region"] == "eu-south-1"
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=1)
        assert replay.push(wait=True).done
    with lp.pull(tmp_path / "there", cloud) as lake:
        whole(lake, 40)


def test_credentials_that_expire_are_asked_for_again_before_they_do(home, monkeypatch):
    expires = datetime.now(UTC) + timedelta(minutes=12)
    keys = {"AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c"}
    process = script(home, prints(**keys, Expiration=expires.isoformat()))
    home(".aws/config", f"[default]\ncredential_process = {process}\n")
    found = client_options(lp.Cloud("s3://bucket/run"))["credential_provider"]()
    assert (found["access_key_id"], found["token"]) == ("a", "c")
    assert found["expires_at"] <= expires


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (f"import sys; sys.exit({servers.SECRET!r})", "CredentialRetrievalError"),
        (f"print({servers.SECRET!r})", "JSONDecodeError"),
        (prints(AccessKeyId="a"), "CredentialRetrievalError"),
    ],
    ids=["exit", "no JSON", "no secret"],
)
def test_a_credential_process_that_fails_is_one_sentence_without_what_it_printed(
    home, tmp_path, program, says
):
    config = home(".aws/config", f"[default]\ncredential_process = {script(home, program)}\n")
    with pytest.raises(lp.CloudRefused) as refused:
        lp.pull(tmp_path / "lake", "s3://bucket/run")
    assert str(refused.value) == (
        f"the AWS profile default, which uses credential_process, gives no credentials ({says}): check "
        f"credential_process in {config}."
    )


def sso(home: Callable[..., Path], monkeypatch, token: dict[str, str] | None) -> None:
    start = "https://example.awsapps.com/start"
    home(
        ".aws/config",
        "[profile work]\nregion = eu-west-3\nsso_account_id = 123456789012\nsso_role_name = trainer\n"
        f"sso_start_url = {start}\nsso_region = eu-west-1\n",
    )
    cache = home(".aws/sso/cache/other.json", "{}").parent
    monkeypatch.setattr(SSOProvider, "_SSO_TOKEN_CACHE_DIR", str(cache))  # botocore reads HOME at its import
    monkeypatch.setenv("AWS_PROFILE", "work")
    if token is not None:
        cached = hashlib.sha1(start.encode()).hexdigest()
        home(f".aws/sso/cache/{cached}.json", json.dumps({"startUrl": start, "region": "eu-west-1", **token}))


TOKEN = {"accessToken": servers.SECRET, "expiresAt": "2099-01-01T00:00:00Z"}


class Portal(BaseHTTPRequestHandler):
    """The one answer of AWS SSO that is needed: the keys of a role, for the right token."""

    def do_GET(self) -> None:
        assert self.headers["x-amz-sso_bearer_token"] == servers.SECRET
        assert self.path == "/federation/credentials?role_name=trainer&account_id=123456789012"
        keys = {"accessKeyId": servers.KEY, "secretAccessKey": servers.SECRET, "sessionToken": ""}
        body = json.dumps({"roleCredentials": {**keys, "expiration": 1000 * int(time.time() + 3600)}})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *words: object) -> None: ...


def test_an_sso_profile_with_a_cached_token_serves_a_pull(seaweed, name, home, tmp_path, monkeypatch):
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=100, cloud=seaweed.cloud(name)) as replay:
        run(replay, commits=1)
    sso(home, monkeypatch, TOKEN)
    portal = HTTPServer(("127.0.0.1", 0), Portal)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", f"http://127.0.0.1:{portal.server_port}")
    serving = threading.Thread(target=portal.serve_forever)
    serving.start()
    try:
        cloud = lp.Cloud(seaweed.url(name), options={"endpoint": seaweed.options()["endpoint"]})
        assert client_options(cloud)["region"] == "eu-west-3"
        with lp.pull(tmp_path / "there", cloud) as lake:
            whole(lake, 40)
    finally:
        portal.shutdown()
        serving.join()
        portal.server_close()


@pytest.mark.parametrize("token", [None, TOKEN], ids=["not signed in", "no network"])
def test_an_sso_profile_that_gives_nothing_says_at_once_how_to_sign_in(home, tmp_path, monkeypatch, token):
    sso(home, monkeypatch, token)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", f"http://127.0.0.1:{servers.free_ports(1)[0]}")
    started = time.monotonic()
    with pytest.raises(lp.CloudRefused, match="run `aws sso login --profile work`"):
        lp.pull(tmp_path / "lake", "s3://bucket/run")
    assert time.monotonic() - started < 30  # an unreachable server is asked for 120 s


def test_profiles_that_need_a_package_name_it(home, monkeypatch):
    monkeypatch.setattr(credentials, "find_spec", lambda name: None)
    home(".aws/config", "[default]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = other\n")
    with pytest.raises(lp.CloudRefused, match=r"uses role_arn needs the package boto3: pip install boto3"):
        client_options(lp.Cloud("s3://bucket/run"))
    home(".config/gcloud/application_default_credentials.json", '{"type": "external_account"}')
    with pytest.raises(lp.CloudRefused, match=r"external_account in .* needs the package google-auth"):
        client_options(lp.Cloud("gs://bucket/run"))


def test_the_region_and_the_endpoint_come_from_the_environment_then_the_profile(home, monkeypatch):
    home(".aws/config", "[default]\nregion = eu-west-2\nendpoint_url = http://x:1\ns3 =\n  max_queue = 5\n")
    home(".aws/credentials", "[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    cloud = lp.Cloud("s3://bucket/run")
    found = client_options(cloud)
    assert (found["region"], found["endpoint"], found["access_key_id"]) == ("eu-west-2", "http://x:1", "a")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert client_options(cloud)["region"] == "eu-north-1"
    assert client_options(lp.Cloud(cloud.url, options={"region": "us-west-2"}))["region"] == "us-west-2"


def test_a_profile_that_is_missing_or_damaged_is_named_without_its_text(home, monkeypatch):
    home(".aws/config", "[default]\nregion = eu-west-2\n")
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(lp.CloudRefused, match=r"write the profile other to .*credentials or .*config"):
        client_options(lp.Cloud("s3://bucket/run"))
    home(".aws/config", f"aws_secret_access_key = {servers.SECRET}\n")
    with pytest.raises(lp.CloudRefused, match=r"config is not a valid configuration file") as refused:
        client_options(lp.Cloud("s3://bucket/run"))
    assert servers.SECRET not in str(refused.value)


def test_a_provider_is_neither_shown_nor_pickled(home):
    process = script(home, prints(AccessKeyId="a", SecretAccessKey=servers.SECRET))
    home(".aws/config", f"[default]\ncredential_process = {process}\n")
    provider = client_options(lp.Cloud("s3://bucket/run"))["credential_provider"]
    assert provider()["secret_access_key"] == servers.SECRET
    assert servers.SECRET not in repr(provider)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(provider)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(Store(lp.Cloud("s3://bucket/run")))


@pytest.mark.parametrize("length", [10, 5000])  # a name of a file has at most 255 bytes
def test_12_a_key_in_the_place_of_its_path_is_in_no_message(tmp_path, monkeypatch, length):
    monkeypatch.setattr(credentials, "_made_by", lambda vendor: False)
    secret = json.dumps({"type": "service_account", "private_key": "PRIVATE" * length})
    for url, variable in (
        ("gs://bucket/run", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("s3://bucket/run", "AWS_SHARED_CREDENTIALS_FILE"),
        ("s3://bucket/run", "AWS_CONFIG_FILE"),
    ):
        with pytest.raises(lp.CloudRefused, match=variable) as refused:
            client_options(lp.Cloud(url), {variable: secret, "HOME": str(tmp_path)})
        assert "PRIVATE" not in str(refused.value)
    assert "PRIVATE" not in str(doctor.credentials({"GOOGLE_APPLICATION_CREDENTIALS": secret}))
