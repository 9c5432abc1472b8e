"""`lakepond gc`: delete files in a bucket that no commit uses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lakepond.cli import where, words
from lakepond.cli.options import Flag, Json, at_least, optional, retention

NONE = optional("N", "keep all")


@dataclass(frozen=True)
class Gc:
    """Find files in a bucket that no commit uses, and delete them with --delete.

    The first run marks them; a run at least --older-than hours later deletes those that are still unused.
    Commits that a checkpoint of the run or a snapshot refers to are always kept, and so are those that a
    reader on another machine has a lease on. Each writer of the lake is collected alone.

    Example: lakepond gc gs://my-bucket/demo --keep-last 5

    Example: lakepond gc gs://my-bucket/demo --keep-last 5 --delete
    """

    url: Annotated[Positional[str], arg(metavar="URL")]
    """the URL of a run or a lake in a bucket"""
    keep_last: Annotated[int | None, NONE] = None
    """number of newest commits of each writer to keep"""
    keep_every: Annotated[int | None, NONE] = None
    """also keep each commit whose number is a multiple of this"""
    snapshots: Annotated[int | None, NONE] = None
    """number of newest snapshots to keep"""
    older_than: float = 24.0
    """hours; younger files are kept, because a push may be in progress"""
    lake: Annotated[Path | None, optional("PATH", "none")] = None
    """a lake on this disk; files that its commits use are kept, too"""
    delete: Flag = False
    """mark and delete the files; without it they are only counted"""
    json: Json = False

    def run(self) -> None:
        retention(self.keep_last, self.keep_every)
        at_least(0, older_than=self.older_than, snapshots=self.snapshots or 0)
        from lakepond.cloud.garbage import gc

        swept = gc(
            where.lake_in_cloud(self.url),
            keep_last=self.keep_last,
            keep_every=self.keep_every,
            keep_snapshots=self.snapshots,
            older_than=3600 * self.older_than,
            dry_run=not self.delete,
            lake=self.lake,
        )
        if self.json:
            words.print_json({"url": self.url, **asdict(swept)})
            return
        if len(swept.writers) > 1:
            for name, one in swept.writers.items():
                print(f"  {name or '(no name)'}: {one.in_words(swept.dry_run)}")
        if swept.sources.segments or swept.sources.marked:
            print(f"  row sources: {swept.sources.in_words(swept.dry_run)}")
        print(f"{self.url}: {swept}")
        if not self.delete and (swept.commits or swept.segments):
            words.talk("Nothing was deleted; add --delete to mark them, and run it again to delete them.")
        elif swept.marked:
            words.talk(f"Run it again after {self.older_than:g} hours to delete what is marked.")

    def interrupted(self) -> str:
        return "No commit that is kept was changed; run it again to finish."
