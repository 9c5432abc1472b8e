"""Access to the server of `view`, and how the command starts and ends."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from lakepond.cli import main
from lakepond.report.view import ViewServer


def answer(server: ViewServer, path: str = "/", method: str = "GET", **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        sent = {"Host": f"127.0.0.1:{server.port}", "Authorization": f"Bearer {server.token}"}
        sent |= {k.replace("_", "-"): v for k, v in headers.items()}
        connection.request(method, path, headers=sent)
        got = connection.getresponse()
        return got.status, got.headers, got.read()
    finally:
        connection.close()


def test_the_page_is_served_and_loads_nothing_from_elsewhere_and_nothing_inline(shown):
    server = shown("boards")
    status, headers, body = answer(server)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"http://" not in body
    assert b"https://" not in body
    assert b"<style" not in body
    assert b" style=" not in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    for name in ("app.js", "base.css", "style.css", "charts.js", "uPlot.iife.min.js", "icon.svg"):
        assert answer(server, f"/static/{name}")[0] == 200


def test_only_names_of_this_server_are_accepted_on_any_port_as_through_a_tunnel(shown):
    server = shown("boards")
    for host in ("evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "", "[::"):
        status, _, body = answer(server, "/api/lake", Host=host.format(port=server.port))
        assert (host, status) == (host, 403)
        assert b"boards" not in body
    for host in ("localhost:{port}", "localhost:9000", "127.0.0.1:9000", "[::1]:80", "10.0.0.7"):
        assert answer(server, "/api/lake", Host=host.format(port=server.port))[0] == 200, host


def test_further_names_are_allowed_by_name(lakes):
    with ViewServer(lakes / "boards", allow_hosts=["gpu7.example"]) as server:
        assert answer(server, "/api/lake", Host="GPU7.example:443")[0] == 200
        assert answer(server, "/api/lake", Host="gpu8.example:443")[0] == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_is_refused(shown, site):
    server = shown("boards")
    assert answer(server, "/api/verify", Sec_Fetch_Site=site)[0] == 403
    assert answer(server, "/", Sec_Fetch_Site=site)[0] == 403  # as a frame or an image, say
    opened = {"Sec_Fetch_Site": site, "Sec_Fetch_Dest": "document"}
    assert answer(server, "/", **opened)[0] == 200  # a link that is followed
    assert answer(server, "/api/lake", **opened)[0] == 403


def test_nothing_is_answered_without_the_token(shown):
    server = shown("boards")
    wrong = ("", "Bearer", "Bearer ", f"Bearer {server.token}x", f"Basic {server.token}")
    cookie = f"lakepond-{server.port}={server.token[:-1]}"
    for path in ("/", "/api/lake", "/api/verify", "/static/app.js", "/favicon.ico", "/nowhere"):
        for authorization in wrong:
            status, headers, body = answer(server, path, Authorization=authorization)
            assert (path, status) == (path, 401)
            assert "Set-Cookie" not in headers
            assert b"boards" not in body
            assert server.token.encode() not in body
        assert answer(server, f"{path}?token=", Authorization="", Cookie=cookie)[0] == 401
        assert answer(server, path, Authorization="", Cookie='x="\\"; =;;')[0] == 401


def test_the_printed_address_sets_a_cookie_that_stands_for_the_token(shown):
    server = shown("boards")
    assert server.url == f"{server.address}?token={server.token}"
    status, headers, _ = answer(server, f"/?token={server.token}", Authorization="")
    assert status == 200
    cookie, *flags = headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} == set(flags)
    for path in ("/", "/api/lake", "/static/app.js"):
        status, headers, _ = answer(server, path, Authorization="", Cookie=f"a=b; {cookie}")
        assert status == 200
        assert "Set-Cookie" not in headers
    assert answer(server, f"/api/lake?token={server.token}", Authorization="")[0] == 200  # a script


def test_every_server_has_a_token_of_its_own(lakes, serve):
    one, two = serve(lakes / "boards"), serve(lakes / "boards")
    assert one.token != two.token
    assert len(one.token) >= 40
    assert answer(two, "/api/lake", Authorization=f"Bearer {one.token}")[0] == 401


def test_the_token_is_in_no_log(shown, caplog, monkeypatch):
    caplog.set_level("DEBUG")
    server = shown("boards")
    answer(server, f"/?token={server.token}")
    answer(server, f"/api/lake?token={server.token}")
    answer(server, f"/api/lake?token={server.token}", "POST")
    monkeypatch.setattr(server.api.of({}).lake, "newest", lambda: 1 / 0)
    assert answer(server, f"/api/lake?token={server.token}")[0] == 500
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(f"GET /?token={server.token} nonsense\r\n\r\n".encode())
        assert b"400" in raw.recv(4096)
    assert "GET /api/lake 200" in caplog.text
    assert "division by zero" in caplog.text
    assert server.token not in caplog.text


def test_other_methods_are_refused_with_the_same_headers(shown):
    server = shown("boards")
    _, get, _ = answer(server, "/api/lake")
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        status, headers, body = answer(server, "/api/lake", method)
        assert (method, status, headers["Allow"]) == (method, 405, "GET, HEAD")
        assert json.loads(body) == {"error": "only GET and HEAD are answered."}
        for name in ("Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy", "Cache-Control"):
            assert headers[name] == get[name]


def test_what_is_not_http_gets_the_same_headers(shown):
    server = shown("boards")
    for start in (b"BREW / HTTP/1.1", b"GET /" + b"x" * 70_000 + b" HTTP/1.1", b"nonsense"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
            raw.sendall(start + b"\r\n\r\n")
            got = b""
            while piece := raw.recv(4096):
                got += piece
        assert b"Content-Security-Policy: default-src 'none'" in got
        assert b'{"error":' in got


def test_head_has_the_headers_of_get_and_no_body(shown):
    server = shown("boards")
    for path in ("/", "/api/lake", "/api/verify", "/static/app.js"):
        status, get, _ = answer(server, path)
        assert (path, status) == (path, 200)
        status, head, body = answer(server, path, "HEAD")
        assert (status, body) == (200, b"")
        del head["Date"], get["Date"]
        assert head.items() == get.items()
    assert answer(server, "/api/verify")[0] == 200  # a HEAD of it leaves no check running


def test_too_many_words_are_refused_and_the_connection_stays(shown):
    server = shown("boards")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    headers = {"Authorization": f"Bearer {server.token}"}
    for many, wanted in ((33, 400), (3, 200)):
        connection.request("GET", "/api/lake?" + "&".join(f"a{k}=1" for k in range(many)), headers=headers)
        got = connection.getresponse()
        body = got.read()
        assert got.status == wanted
    assert b"boards" in body
    connection.close()


def test_no_path_of_a_request_is_ever_opened(shown):
    paths = ("/static/../server.py", "/../../etc/passwd", "/static/%2e%2e/server.py", "//etc/passwd")
    for path in (*paths, "/lake.json", "/api/", "/spec", "/api/about"):
        assert answer(shown("boards"), path)[0] == 404, path


def test_it_listens_on_the_loopback_alone(shown):
    server = shown("boards")
    assert server.address == f"http://127.0.0.1:{server.port}/"
    with socket.socket() as other:
        other.settimeout(2)
        assert other.connect_ex(("127.0.0.2", server.port)) != 0


def test_looking_changes_no_byte(lakes, serve):
    path = lakes / "market"

    def tree():
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in path.rglob("*")}

    before = tree()
    server = serve(path)
    names = ("lake", "spec", "commits", "streams", "episodes", "files", "sharing", "distribution", "verify")
    for name in names:
        assert answer(server, f"/api/{name}")[0] == 200
    server.close()
    assert tree() == before


def test_one_check_at_a_time(shown):
    server = shown("boards")
    assert server.api.of({})._checking.acquire(blocking=False)
    status, _, body = answer(server, "/api/verify")
    assert status == 429
    assert "running already" in json.loads(body)["error"]
    server.api.of({})._checking.release()
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
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url.replace("?", "api/lake?"), timeout=10) as got:
            assert json.loads(got.read())["name"] == "boards"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert "from this machine" in err
    assert "token" not in err


def test_an_interrupt_while_it_waits_closes_the_lake_and_ends_its_threads(lakes):
    before = set(threading.enumerate())
    server = ViewServer(lakes / "boards")

    def interrupt():
        """Signal this thread: the main thread is not woken, as if it came just before its wait."""
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    too_late = threading.Timer(10, server.close)
    too_late.start()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt), server:
        server.wait()
    too_late.cancel()
    new = set(threading.enumerate()) - before
    assert not [each for each in new if each.name.startswith("lakepond-")]
    server.close()


def test_no_lake_no_server(tmp_path, capsys):
    assert main(["view", str(tmp_path / "nowhere")]) == 1
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "lake.json").write_text("{}")
    assert main(["view", str(tmp_path)]) == 3
    assert "is damaged" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(lakes, serve, capsys):
    server = serve(lakes / "boards")
    assert main(["view", str(lakes / "boards"), "--port", str(server.port)]) == 1
    assert "in use" in capsys.readouterr().err


def test_open_hands_the_browser_a_private_file_and_not_the_token(lakes, monkeypatch, capsys):
    seen = []

    def look(uri: str) -> None:
        page = Path(urllib.request.url2pathname(uri.removeprefix("file://")))
        seen.append((uri, page.read_text(), page.parent.stat().st_mode & 0o777))
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", look)
    assert main(["view", str(lakes / "boards"), "--port", "0", "--open"]) == 130
    url = capsys.readouterr().out.strip()
    ((uri, page, mode),) = seen
    assert "token" not in uri
    assert url in page
    assert mode == 0o700
