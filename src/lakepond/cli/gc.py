"""`lakepond gc`: what nothing needs any more, out of the cloud."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lakepond.cli import words

NONE = arg(metavar="N", help_behavior_hint="(default: all are kept)")


@dataclass(frozen=True)
class Gc:
    """Find what no commit in a bucket needs any more, and with --delete delete it.

    Commits that checkpoints of the run name are kept, whatever else is said, and so are those that a reader
    on another machine has a lease on.

    Example: lakepond gc gs://my-bucket/demo --keep-last 5

    Example: lakepond gc gs://my-bucket/demo --keep-last 5 --delete
    """

    url: Annotated[Positional[str], arg(metavar="URL")]
    """the place of a run or of a lake in the cloud"""
    keep_last: Annotated[int | None, NONE] = None
    """newest commits to keep"""
    keep_every: Annotated[int | None, NONE] = None
    """and beside them each whose number is a multiple of this"""
    older_than: float = 24.0
    """hours; what is younger stays, for a push may be under way"""
    lake: Annotated[Path | None, arg(metavar="PATH")] = None
    """a lake on this disk whose commits need what they name, too"""
    delete: bool = False
    """do it; without, only tell"""
    json: bool = False
    """print JSON instead of a line"""

    def run(self) -> None:
        """Look, tell, and delete if asked to."""
        from lakepond.cloud.place import Cloud
        from lakepond.flow.cloud_gc import gc
        from lakepond.runs.copies import is_run_in_cloud

        place = Cloud.of(self.url)
        if is_run_in_cloud(place):
            place = replace(place, url=f"{place.url.rstrip('/')}/lake")
        swept = gc(
            place,
            keep_last=self.keep_last,
            keep_every=self.keep_every,
            older_than=3600 * self.older_than,
            dry_run=not self.delete,
            lake=self.lake,
        )
        if self.json:
            words.print_json({"url": self.url, **asdict(swept)})
            return
        print(f"{self.url}: {swept}")
        if not self.delete and (swept.commits or swept.segments):
            words.talk("Nothing was deleted; --delete does it.")

    def interrupted(self) -> str:
        """What to know after Ctrl-C."""
        return "No commit that is kept was touched; run it again to finish."
