"""One of each server for the whole session; a test takes a place of its own on it."""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import servers
from chaos import ChaosProxy

_numbers = itertools.count()


def _serve(kind: type[servers.Server], factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    server = kind(factory.mktemp(kind.__name__.lower()))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def moto(tmp_path_factory) -> Iterator[servers.Server]:
    yield from _serve(servers.Moto, tmp_path_factory)


@pytest.fixture(scope="session")
def gcs(tmp_path_factory) -> Iterator[servers.Server]:
    yield from _serve(servers.Gcs, tmp_path_factory)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory) -> Iterator[servers.Server]:
    yield from _serve(servers.Seaweed, tmp_path_factory)


@pytest.fixture(scope="session")
def rclone(tmp_path_factory) -> Iterator[servers.Server]:
    yield from _serve(servers.Rclone, tmp_path_factory)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory) -> Iterator[servers.Server]:
    servers.Azurite.install()
    yield from _serve(servers.Azurite, tmp_path_factory)


@pytest.fixture
def server(request) -> servers.Server:
    """The server that a test is parametrized with, by name."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory, if the machine has one, for models that make many small files.

    On a disk each new name waits for the syncs of other processes, such as tests that run at the same time.
    """
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("model")
        return
    with tempfile.TemporaryDirectory(prefix="lakepond-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def name() -> str:
    """A place that no other test has."""
    return f"run-{next(_numbers)}"


@pytest.fixture
def chaos() -> Iterator[Callable[[servers.Server], ChaosProxy]]:
    """A bad network before a server."""
    proxies: list[ChaosProxy] = []

    def before(server: servers.Server) -> ChaosProxy:
        proxies.append(ChaosProxy(server.port))
        return proxies[-1]

    yield before
    for proxy in proxies:
        proxy.close()


@pytest.fixture(autouse=True)
def no_secrets(caplog, capfd) -> Iterator[None]:
    """Whatever a test does, no log line and no output may show a planted secret."""
    caplog.set_level(logging.DEBUG, "lakepond")
    yield
    out, err = capfd.readouterr()
    for text in (caplog.text, out, err):
        assert servers.SECRET not in text
        assert servers.Azurite.key not in text
