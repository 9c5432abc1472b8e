"""`lakepond view`: a web page that shows a lake and the training run around it."""

from __future__ import annotations

import tempfile
import webbrowser
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lakepond.cli import where, words
from lakepond.cli.options import Flag, between, optional

PORT = 8917


@dataclass(frozen=True)
class ViewLake:
    """Show a lake in the browser: learning curves, commits, episodes, frames, trades, rows, checksums.

    Example: lakepond view runs/demo

    Example: lakepond view gs://my-bucket/demo
    """

    path: Annotated[Positional[str], arg(metavar="PATH|URL")]
    """a run or a lake, here or in a bucket; it is only read, and may be in use by a training"""
    port: Annotated[int | None, optional("N", f"{PORT}, or any free one")] = None
    """port to listen on; 0 takes any free one"""
    host: Annotated[str, arg(metavar="ADDRESS")] = "127.0.0.1"
    """address to listen on; 0.0.0.0 serves other machines over plain HTTP, an SSH tunnel is safer"""
    allow_host: Annotated[tuple[str, ...], optional("NAME...", "none")] = ()
    """further names for the page, as behind a proxy; localhost and IP addresses always work"""
    open: Flag = False
    """open the page in the browser of this machine"""

    def run(self) -> None:
        from lakepond.report.view import ViewServer
        from lakepond.report.view.server import ADDRESS

        port = PORT if self.port is None else self.port
        between(0, 65535, port=port)
        folder = where.lake_at(self.path)
        serve = partial(ViewServer, folder, host=self.host, allow_hosts=self.allow_host)
        try:
            server = serve(port)
        except OSError:
            if self.port is not None:
                raise
            server = serve()
        with server, tempfile.TemporaryDirectory(prefix="lakepond-view-") as private:
            who = "from this machine" if self.host == ADDRESS else "from other machines too, unencrypted"
            words.talk(f"serving {folder} {who}, to those who have this address; Ctrl-C stops it.")
            print(server.url, flush=True)
            if self.open:
                # through a file that only this user can read: others can see the arguments of a process
                page = Path(private) / "open.html"
                page.write_text(f'<meta http-equiv="refresh" content="0; url={escape(server.url)}">')
                webbrowser.open(page.as_uri())
            server.wait()
