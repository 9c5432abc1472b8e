"""The web server of `view`: GET and HEAD only, for those who know its token, on 127.0.0.1 by default.

access       see `access.py`; every answer, the page included, needs the token
files        only those of `static/`, read once at the start: no path is ever taken from a request
CSP          the page loads nothing from elsewhere and runs no inline script
log          requests are logged at debug level without their query, which may hold the token
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import parse_qsl, urlsplit

from lakepond import errors, stopping
from lakepond._version import __version__
from lakepond.cloud.place import Cloud
from lakepond.formats import json_ready
from lakepond.report.view.access import TOKEN, Access
from lakepond.report.view.api import Api
from lakepond.report.view.query import Busy

log = logging.getLogger("lakepond")
ADDRESS = "127.0.0.1"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ROUTES = (
    *("curves", "spec", "commits", "files", "uploads", "verify", "streams", "episodes", "episode"),
    *("pictures", "observation", "prices", "step", "distribution", "sharing"),
)
"""the methods of `WriterApi` that have an address"""
LAKE_ROUTES = ("lake", "writers")
"""those of `Api`"""
MOST_FIELDS = 32
"""fields of a query"""
REFUSED = "this name of the server is not known; start it with `lakepond view --allow-host NAME`."
LOCKED = "the token is missing or wrong; open the address that `lakepond view` printed, which contains it."


class ViewServer:
    """Serves one lake; `with ViewServer(path) as server: server.wait()`."""

    def __init__(
        self, lake: str | Path | Cloud, port: int = 0, *, host: str = ADDRESS, allow_hosts: Iterable[str] = ()
    ) -> None:
        """Start to listen; `port` 0 takes any free one, `allow_hosts` are further names in `Host`.

        `lake`: a folder or a URL.
        """
        access = Access([*allow_hosts, host, socket.gethostname()])
        self.api = Api(lake)
        try:
            self._http = _Http((host, port), self.api, access)
        except OSError:
            self.api.close()
            raise
        self.port: int = self._http.server_address[1]
        named = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
        self.address = f"http://[{named}]:{self.port}/" if ":" in named else f"http://{named}:{self.port}/"
        self.token = access.token
        self.url = f"{self.address}?{TOKEN}={self.token}"
        """opens the page"""
        self._closed = threading.Event()
        listen = partial(self._http.serve_forever, poll_interval=0.1)
        self._thread = threading.Thread(target=listen, name="lakepond-view", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the server is closed or the process is interrupted."""
        while not self._closed.wait(stopping.CHECK_SECONDS):
            pass  # Python loses a signal that arrives just before a wait without a timeout

    def close(self) -> None:
        """Stop; when this returns, all threads have ended except those that still send an answer."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self.api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # an idle connection that a browser keeps open must not hold up the end
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], api: Api, access: Access) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.api, self.access, self.pages = api, access, _static()
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: _Http
    protocol_version = default_request_version = "HTTP/1.1"
    server_version, sys_version = f"lakepond/{__version__}", ""
    timeout = 60
    wbufsize = 1 << 16  # head and body in one packet: two would wait for each other's acknowledgement
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a request that may be made."""
        server = self.server
        try:
            address = urlsplit(self.path)
            query = dict(parse_qsl(address.query, max_num_fields=MOST_FIELDS))
        except ValueError:
            sentence = f"the query is not valid, or has more than {MOST_FIELDS} fields."
            return self._refuse(HTTPStatus.BAD_REQUEST, sentence)
        if not server.access.accepts(self.headers, address.path):
            return self._refuse(HTTPStatus.FORBIDDEN, REFUSED)
        if not server.access.knows(self.headers, query, server.server_port):
            return self._refuse(HTTPStatus.UNAUTHORIZED, LOCKED)
        known = query.pop(TOKEN, None) is not None
        folder, _, name = address.path.rpartition("/")
        if address.path in server.pages:
            cookie = {"Set-Cookie": server.access.cookie(server.server_port)} if known else {}
            kind, content = server.pages[address.path]
            return self._send(HTTPStatus.OK, kind, content, **cookie)
        if folder == "/api" and name in (*LAKE_ROUTES, *ROUTES):
            return self._answer(name, query)
        return self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address.")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Refuse a method that changes something; a body that may follow is not read."""
        sentence = "only GET and HEAD are answered."
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, sentence, Allow="GET, HEAD", Connection="close")

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is not HTTP, or too long, with the same headers as any other answer."""
        self._refuse(HTTPStatus(code), HTTPStatus(code).phrase, Connection="close")

    def _answer(self, name: str, query: dict[str, str]) -> None:
        try:
            api = self.server.api
            answer = getattr(api if name in LAKE_ROUTES else api.of(query), name)(query)
            if isinstance(answer, Iterator):
                self._stream(answer)
            elif isinstance(answer, bytes):
                self._send(HTTPStatus.OK, "image/png", answer)
            else:
                self._send(HTTPStatus.OK, "application/json", _json(answer))
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the page was closed
        except errors.LakepondError as error:
            self._refuse(_status(error), str(error))
        except OSError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"the lake cannot be read: {error}")
        except Exception as error:
            log.exception("the answer to %s failed", urlsplit(self.path).path)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"internal error: {error!r}")

    def _stream(self, lines: Iterator[dict[str, Any]]) -> None:
        """Lines of JSON as they come; the connection ends with the last one."""
        first = next(lines)  # raises what is wrong with the query before anything is sent
        self._head(HTTPStatus.OK, "application/x-ndjson", Connection="close")
        if self.command == "HEAD":
            cast(Generator[Any], lines).close()
            return
        for line in chain([first], lines):
            self.wfile.write(_json(line) + b"\n")
            self.wfile.flush()

    def _refuse(self, status: HTTPStatus, sentence: str, **headers: str) -> None:
        self._send(status, "application/json", _json({"error": sentence}), **headers)

    def _send(self, status: HTTPStatus, kind: str, content: bytes, **headers: str) -> None:
        self._head(status, kind, **{"Content-Length": str(len(content)), **headers})
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(self, status: HTTPStatus, kind: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **HEADERS, **headers}.items():
            self.send_header(name, value)  # `Connection: close` also ends this connection
        self.end_headers()

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Log the path without its query."""
        path = urlsplit(getattr(self, "path", "")).path  # none if the request line is not valid
        log.debug("view: %s %s %s", self.command, path, code)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing else: messages quote the request line."""


def _static() -> dict[str, tuple[str, bytes]]:
    """The static files: address to type and content."""
    report = resources.files("lakepond.report")
    found = {}
    for folder in (report / "static", report / "static" / "uplot", report / "view" / "static"):
        for file in folder.iterdir():
            suffix = Path(file.name).suffix
            if suffix in TYPES:
                found[f"/static/{file.name}"] = (TYPES[suffix], file.read_bytes())
    found["/"] = found.pop("/static/index.html")
    found["/favicon.ico"] = found["/static/icon.svg"]
    return found


def _status(error: errors.LakepondError) -> HTTPStatus:
    if isinstance(error, errors.LakeNotFound | errors.CloudNotFound):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, errors.LakeCorrupt | errors.CloudCorrupt):
        return HTTPStatus.CONFLICT
    if isinstance(error, Busy):
        return HTTPStatus.TOO_MANY_REQUESTS
    if isinstance(error, errors.CloudError):
        return HTTPStatus.BAD_GATEWAY
    return HTTPStatus.INTERNAL_SERVER_ERROR if isinstance(error, errors.LakeError) else HTTPStatus.BAD_REQUEST


def _json(answer: Any) -> bytes:
    try:
        return json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:  # a NaN in a note: JSON has none
        return json.dumps(json_ready(answer), separators=(",", ":"), allow_nan=False).encode()
