"""Who may ask `view` for what, and how the command begins and ends."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from lakepond.cli import main
from lakepond.report.view import ViewServer


def answer(server: ViewServer, path: str = "/", method: str = "GET", **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        told = {"Host": f"127.0.0.1:{server.port}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        connection.request(method, path, headers=told)
        got = connection.getresponse()
        return got.status, got.headers, got.read()
    finally:
        connection.close()


def test_the_page_and_its_parts_are_served(lakes, serve):
    server = serve(lakes / "boards")
    status, headers, body = answer(server)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"http://" not in body
    assert b"https://" not in body
    for name in ("app.js", "style.css", "charts.js", "icon.svg"):
        assert answer(server, f"/static/{name}")[0] == 200


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_inline(lakes, serve):
    _, headers, body = answer(serve(lakes / "boards"))
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert b"<style" not in body
    assert b" style=" not in body
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""])
def test_a_name_that_is_not_this_machines_is_refused(lakes, serve, host):
    server = serve(lakes / "boards")
    status, _, body = answer(server, "/api/lake", Host=host.format(port=server.port))
    assert status == 403
    assert b"boards" not in body


def test_localhost_is_this_machine(lakes, serve):
    server = serve(lakes / "boards")
    assert answer(server, "/api/lake", Host=f"localhost:{server.port}")[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_is_refused(lakes, serve, site):
    assert answer(serve(lakes / "boards"), "/api/verify", Sec_Fetch_Site=site)[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_there_is_nothing_but_get(lakes, serve, method):
    assert answer(serve(lakes / "boards"), "/api/lake", method)[0] == 501


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/../../etc/passwd",
        "/static/%2e%2e/server.py",
        "//etc/passwd",
        "/lake.json",
        "/api/",
    ],
)
def test_no_path_of_a_question_is_ever_opened(lakes, serve, path):
    assert answer(serve(lakes / "boards"), path)[0] == 404


def test_it_listens_on_the_loopback_alone(lakes, serve):
    server = serve(lakes / "boards")
    assert server.url == f"http://127.0.0.1:{server.port}/"
    with socket.socket() as other:
        other.settimeout(2)
        assert other.connect_ex(("127.0.0.2", server.port)) != 0


def test_looking_changes_no_byte(lakes, serve):
    path = lakes / "market"

    def tree():
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in path.rglob("*")}

    before = tree()
    server = serve(path)
    for name in (
        "lake",
        "spec",
        "commits",
        "streams",
        "episodes",
        "files",
        "sharing",
        "distribution",
        "verify",
    ):
        assert answer(server, f"/api/{name}")[0] == 200
    server.close()
    assert tree() == before


def test_one_check_at_a_time(lakes, serve):
    server = serve(lakes / "boards")
    assert server.api._checking.acquire(blocking=False)
    status, _, body = answer(server, "/api/verify")
    assert status == 429
    assert "running already" in json.loads(body)["error"]
    server.api._checking.release()
    assert answer(server, "/api/verify")[0] == 200


def test_closing_ends_its_threads(lakes):
    before = set(threading.enumerate())
    with ViewServer(lakes / "boards") as server:
        assert answer(server, "/api/streams")[0] == 200
    for _ in range(100):
        left = [t for t in set(threading.enumerate()) - before if t.is_alive()]
        if not left:
            break
        time.sleep(0.05)
    assert left == []
    with pytest.raises(ConnectionError):
        answer(server, "/api/lake")


def test_the_command_says_where_and_ends_when_told_to(lakes):
    command = [sys.executable, "-m", "lakepond", "view", str(lakes / "boards"), "--port", "0"]
    command = [
        sys.executable,
        "-c",
        "import sys; from lakepond.cli import main; sys.exit(main())",
        *command[3:],
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        port = int(url.rstrip("/").rsplit(":", 1)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/api/lake")
        assert json.loads(connection.getresponse().read())["name"] == "boards"
        connection.close()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert "this machine alone" in err


def test_no_lake_no_server(tmp_path, capsys):
    assert main(["view", str(tmp_path / "nowhere")]) == 1
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "lake.json").write_text("{}")
    assert main(["view", str(tmp_path)]) == 3
    assert "not what was written" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(lakes, serve, capsys):
    server = serve(lakes / "boards")
    assert main(["view", str(lakes / "boards"), "--port", str(server.port)]) == 1
    assert "in use" in capsys.readouterr().err
