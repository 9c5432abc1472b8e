"""`lakepond view`: a local web page to look into a lake."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lakepond.cli import where, words

PORT = 8917


@dataclass(frozen=True)
class View:
    """Look into a lake in the browser: commits, episodes, frames, market windows, rows, checksums.

    Example: lakepond view runs/demo
    """

    path: Positional[Path]
    """a lake, or a run; it is only read, and its writer may go on"""
    port: Annotated[
        int | None, arg(metavar="N", help_behavior_hint=f"(default: {PORT}, or any free one)")
    ] = None
    """where to listen on 127.0.0.1; 0 takes any free port"""
    open: bool = False
    """open the page in the browser of this machine"""

    def run(self) -> None:
        """Serve until interrupted."""
        from lakepond.report.view import ViewServer

        folder = where.lake_folder(self.path)
        try:
            server = ViewServer(folder, PORT if self.port is None else self.port)
        except OSError:
            if self.port is not None:
                raise
            server = ViewServer(folder)
        with server:
            words.talk(f"shows {folder} to this machine alone; Ctrl-C stops it.")
            print(server.url, flush=True)
            if self.open:
                webbrowser.open(server.url)
            server.wait()
