"""The web server of `view`: on 127.0.0.1, GET only, for the page it serves and nobody else.

Host         must be a name of this machine: a page elsewhere cannot reach in through a name it owns
Sec-Fetch    a request that another site's page made is refused
files        only those of `static/`, read once at the start: no path is ever taken from a request
CSP          the page loads nothing from elsewhere and runs no inline script
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import parse_qsl, urlsplit

from lakepond._version import __version__
from lakepond.errors import LakeCorrupt, LakeError, LakeNotFound, LakepondError
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


class ViewServer:
    """Serves one lake; `with ViewServer(path) as server: server.wait()`."""

    def __init__(self, lake: str | Path, port: int = 0) -> None:
        """`port`: 0 takes any that is free."""
        self._pages = _static()
        self.api = Api(Path(lake))
        try:
            self._http = _Http((ADDRESS, port), _handler(self.api, self._pages))
        except OSError:
            self.api.close()
            raise
        self.port: int = self._http.server_address[1]
        self.url = f"http://{ADDRESS}:{self.port}/"
        self._thread = threading.Thread(target=self._http.serve_forever, name="lakepond-view", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the server is closed or the process is interrupted."""
        self._thread.join()

    def close(self) -> None:
        """Answer no more; every thread has ended when it returns, but for answers that are on their way."""
        if not self._thread.is_alive():
            return
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


def _static() -> dict[str, tuple[str, bytes]]:
    """All that is served beside answers: address to type and content."""
    found = {}
    for file in resources.files("lakepond.report.view").joinpath("static").iterdir():
        suffix = Path(file.name).suffix
        if suffix in TYPES:
            found[f"/static/{file.name}"] = (TYPES[suffix], file.read_bytes())
    found["/"] = found.pop("/static/index.html")
    found["/favicon.ico"] = found["/static/icon.svg"]
    return found


def _handler(api: Api, pages: dict[str, tuple[str, bytes]]) -> type[BaseHTTPRequestHandler]:
    routes: dict[str, Callable[[dict[str, str]], Any]] = {
        "/api/lake": api.about,
        "/api/spec": api.spec,
        "/api/commits": api.commits,
        "/api/files": api.files,
        "/api/uploads": api.uploads,
        "/api/verify": api.verify,
        "/api/streams": api.streams,
        "/api/episodes": api.episodes,
        "/api/episode": api.episode,
        "/api/pictures": api.pictures,
        "/api/observation": api.observation,
        "/api/step": api.step,
        "/api/distribution": api.distribution,
        "/api/sharing": api.sharing,
    }

    class Handler(BaseHTTPRequestHandler):
        """One connection."""

        protocol_version = "HTTP/1.1"
        server_version, sys_version = f"lakepond/{__version__}", ""
        timeout = 60
        wbufsize = 1 << 16  # head and body in one packet: two would wait for each other's acknowledgement
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            """Answer, unless it is not for us."""
            if not self._allowed():
                self._tell(HTTPStatus.FORBIDDEN, {"error": "this page is for this machine only."})
                return
            address = urlsplit(self.path)
            if address.path in pages:
                kind, content = pages[address.path]
                self._send(HTTPStatus.OK, kind, content)
            elif address.path in routes:
                query = dict(parse_qsl(address.query, max_num_fields=32))
                self._answer(routes[address.path], query)
            else:
                self._tell(HTTPStatus.NOT_FOUND, {"error": "there is nothing at this address."})

        def _allowed(self) -> bool:
            mine = {f"{name}:{cast(_Http, self.server).server_port}" for name in (ADDRESS, "localhost")}
            site = self.headers.get("Sec-Fetch-Site", "none")
            return self.headers.get("Host") in mine and site in ("none", "same-origin")

        def _answer(self, route: Callable[[dict[str, str]], Any], query: dict[str, str]) -> None:
            try:
                answer = route(query)
                if isinstance(answer, Iterator):
                    self._stream(answer)
                elif isinstance(answer, bytes):
                    self._send(HTTPStatus.OK, "image/png", answer)
                else:
                    self._tell(HTTPStatus.OK, answer)
            except (ConnectionError, TimeoutError):
                self.close_connection = True  # the page was closed: nobody is there to be told
            except LakepondError as error:
                self._tell(_status(error), {"error": str(error)})
            except OSError as error:
                self._tell(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"the lake cannot be read: {error}"})
            except Exception as error:
                log.exception("an answer to %s failed", self.path)
                self._tell(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"a fault of this page: {error!r}"})

        def _stream(self, lines: Iterator[dict[str, Any]]) -> None:
            """Lines of JSON as they come; the connection ends with the last one."""
            first = next(lines)  # what is wrong with the question is told before anything is sent
            self._head(HTTPStatus.OK, "application/x-ndjson")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            self.wfile.write(_json(first) + b"\n")
            for line in lines:
                self.wfile.write(_json(line) + b"\n")
                self.wfile.flush()

        def _tell(self, status: HTTPStatus, answer: Any) -> None:
            self._send(status, "application/json", _json(answer))

        def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
            self._head(status, kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _head(self, status: HTTPStatus, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            for name, value in HEADERS.items():
                self.send_header(name, value)

        def log_message(self, format: str, *args: Any) -> None:
            """Not a line a request."""
            log.debug(format, *args)

    return Handler


def _status(error: LakepondError) -> HTTPStatus:
    if isinstance(error, LakeNotFound):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, LakeCorrupt):
        return HTTPStatus.CONFLICT
    if isinstance(error, Busy):
        return HTTPStatus.TOO_MANY_REQUESTS
    return HTTPStatus.INTERNAL_SERVER_ERROR if isinstance(error, LakeError) else HTTPStatus.BAD_REQUEST


def _json(answer: Any) -> bytes:
    try:
        return json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:  # a NaN in a note: JSON has none
        return json.dumps(_without_nan(answer), separators=(",", ":")).encode()


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(sub) for key, sub in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(sub) for sub in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
