"""`lakepond watch`: `status`, updated until the run ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from lakepond.cli import DONE, words
from lakepond.cli.options import Flag, at_least
from lakepond.cli.status import looking_at, picture, show

if TYPE_CHECKING:
    from lakepond.runs.status import RunStatus


@dataclass(frozen=True)
class Watch:
    """Show the state of a run, updated until it ends or you press Ctrl-C.

    Of a lake in a bucket it shows every writer, until none of them makes commits any more.

    Example: lakepond watch runs/demo

    Example: lakepond watch gs://my-bucket/demo

    Example: lakepond watch runs/demo --every 60 --json >> watch.jsonl
    """

    path: Annotated[Positional[str], arg(metavar="PATH|URL")]
    """a run, a lake, or the URL of a copy in a bucket"""
    every: float = 2.0
    """seconds between two updates, at least 0.1"""
    stay: Flag = False
    """continue after the run has ended, because it may be resumed"""
    json: Flag = False
    """print one line of JSON per update"""

    def run(self) -> int:
        at_least(0.1, every=self.every)
        try:
            look = looking_at(self.path)
            if self.json or not words.console().is_terminal:
                return self._repeat(look, lambda status: show(status, as_json=self.json))
            from rich.live import Live

            with Live(console=words.console(), auto_refresh=False, vertical_overflow="visible") as live:
                return self._repeat(look, lambda status: live.update(picture(status), refresh=True))
        except KeyboardInterrupt:
            return DONE

    def _repeat(self, look: Callable[[], RunStatus], show: Callable[[RunStatus], None]) -> int:
        while True:
            show(status := look())
            if status.state != "running" and not self.stay:
                return DONE
            time.sleep(self.every)
