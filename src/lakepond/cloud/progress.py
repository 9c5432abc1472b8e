"""A line on the terminal while a call waits for the cloud; without a terminal, nothing is printed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakepond.cloud.status import UploadStatus


@contextmanager
def watching(status: Callable[[], UploadStatus]) -> Iterator[None]:
    """Show how far it is, with bytes, rate and time left, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    start, stop = status(), threading.Event()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("push")

        def draw() -> None:
            while not stop.wait(0.2):
                now = status()
                sent = now.uploaded_bytes - start.uploaded_bytes
                text = f"push ({now.last_error})" if now.last_error else "push"
                progress.update(task, description=text, completed=sent, total=sent + now.pending_bytes)

        thread = threading.Thread(target=draw, name="lakepond-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
