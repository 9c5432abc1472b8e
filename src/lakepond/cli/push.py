"""`lakepond push`: what is new, to the cloud."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lakepond.cli import DONE, NO, where, words


@dataclass(frozen=True)
class Push:
    """Send a lake, or a whole run, to a bucket: each file once, only what is not there.

    Example: lakepond push runs/demo gs://my-bucket/demo
    """

    path: Positional[Path]
    """a lake or a run; it may be being written"""
    url: Annotated[
        Positional[str | None],
        arg(metavar="URL", help_behavior_hint="(default: the bucket in CLOUD_BUCKET)"),
    ] = None
    """gs://bucket/prefix, s3://, az:// or file:///folder; a run gets its lake under lake/"""
    timeout: float = 3600.0
    """seconds after which it stops and says how far it came"""
    json: bool = False
    """print JSON instead of a line"""

    def run(self) -> int:
        """Push; exit code 1 if not all arrived."""
        from lakepond.flow.lake_to_cloud import push
        from lakepond.runs.copies import push_run

        place = where.cloud_for(self.path, self.url)
        if where.is_run(self.path):
            told = push_run(self.path, place, timeout=self.timeout)
        else:
            told = push(where.lake_folder(self.path), place, timeout=self.timeout)
        done = told is None or told.done
        if self.json:
            status = None if told is None else asdict(told)
            words.print_json({"path": self.path, "url": str(place), "done": done, "status": status})
        else:
            print(f"{self.path} is in {place}: {told or 'no lake'}" if done else f"{place}: {told}")
        if not done:
            words.talk(f"Not all arrived; `lakepond push {self.path} {place}` sends the rest.")
        return DONE if done else NO

    def interrupted(self) -> str:
        """How to go on."""
        return f"What arrived stays there: `lakepond push {self.path} {self.url or ''}` sends the rest."
