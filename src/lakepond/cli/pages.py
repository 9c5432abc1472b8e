"""`lakepond report` and `lakepond view`: runs and lakes as web pages, in a file or served."""

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
from lakepond.cli.options import Flag, Place, between, optional
from lakepond.errors import ConfigError

PORT = 8917


@dataclass(frozen=True)
class Report:
    """Write an HTML page about a run, or several side by side: curves, trades, lake, time, memory.

    Example: lakepond report runs/demo

    Example: lakepond report runs/a runs/b --out compared.html --figures figures
    """

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...", help_behavior_hint="")]
    """folders of runs; finished, running or stopped"""
    out: Annotated[Path | None, optional("FILE", "RUN/report.html; report.html for several")] = None
    """file to write; it needs no other file and no network"""
    figures: Annotated[Path | None, optional("FOLDER", "none")] = None
    """folder to write each figure to, as SVG and PNG"""
    json: Flag = False
    """print the names of the written files as JSON"""

    def run(self) -> None:
        from lakepond.report.page import write_report

        if not self.runs:
            raise ConfigError("report needs at least one run; `lakepond ls` lists the runs below a folder.")
        out = self.out or (self.runs[0] / "report.html" if len(self.runs) == 1 else Path("report.html"))
        written = write_report(self.runs, out, pictures=self.figures)
        if self.json:
            words.print_json({"page": written[0], "figures": written[1:]})
            return
        print(written[0])
        if len(written) > 1:
            words.talk(f"{len(written) - 1} figures are in {self.figures}.")


@dataclass(frozen=True)
class ViewLake:
    """Show a lake in the browser: learning curves, commits, episodes, frames, trades, rows, checksums.

    Example: lakepond view runs/demo

    Example: lakepond view gs://my-bucket/demo
    """

    path: Place
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
