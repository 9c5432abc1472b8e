"""Fixtures: small lakes, the server of `view`, and a browser."""

import os
import shutil
from pathlib import Path

import pytest
import view_lakes

from lakepond.report.view import ViewServer

FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def lakes(tmp_path_factory) -> Path:
    """A folder with one lake of each kind; tests only read them."""
    folder = tmp_path_factory.mktemp("lakes")
    for make in (
        view_lakes.boards,
        view_lakes.frames,
        view_lakes.market,
        view_lakes.vectors,
        view_lakes.empty,
    ):
        make(folder / make.__name__)
    return folder


@pytest.fixture(scope="module")
def shown(lakes):
    """The server of one of these lakes, started once for the tests of a file: they only ask it."""
    servers: dict[str, ViewServer] = {}

    def of(name: str) -> ViewServer:
        if name not in servers:
            servers[name] = ViewServer(lakes / name)
        return servers[name]

    yield of
    for server in servers.values():
        server.close()


@pytest.fixture
def serve():
    """Serves other lakes until the test is over."""
    servers = []

    def start(path: Path) -> ViewServer:
        servers.append(ViewServer(path))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def chromium():
    """A real browser; without one a test is skipped, unless nothing may be skipped."""
    path = shutil.which("chromium")
    if path is None:
        reason = "there is no chromium on the PATH (Debian: apt-get install chromium)"
        if os.environ.get("LAKEPOND_NO_SKIPS"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Opens pages; whatever the browser complains of fails the test when it is over."""
    complaints: list[str] = []
    contexts = []

    def note_failed(request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left or reloaded meanwhile
            complaints.append(f"failed: {request.url}: {request.failure}")

    def open_page(url: str, *, width: int = 1280, scheme: str = "light"):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("requestfailed", note_failed)
        page.complaints = complaints
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints, "\n".join(complaints)
