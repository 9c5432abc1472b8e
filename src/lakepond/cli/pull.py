"""`lakepond pull`: a lake or a run out of the cloud."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lakepond.cli import words
from lakepond.errors import SpecError


@dataclass(frozen=True)
class Pull:
    """Bring a lake, or a whole run, from a bucket to this machine, checked.

    Example: lakepond pull gs://my-bucket/demo runs/demo
    """

    url: Annotated[Positional[str], arg(metavar="URL")]
    """where it was pushed to"""
    path: Positional[Path]
    """a folder for it; one that holds some of it already is gone on with"""
    commit: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the newest whole one)")] = (
        None
    )
    """which commit, of a lake"""
    lazy: bool = False
    """bring the commit only; segments come when a replay opened with cloud=URL touches them"""
    json: bool = False
    """print JSON instead of a line"""

    def run(self) -> None:
        """Pull, tell."""
        from lakepond.cloud.place import Cloud
        from lakepond.flow.cloud_to_lake import pull
        from lakepond.lake.lake import Lake
        from lakepond.runs.copies import is_run_in_cloud, pull_run

        place = Cloud.of(self.url)
        trainer = None
        if is_run_in_cloud(place):
            if self.commit is not None:
                raise SpecError(f"{place} is a run, which is pulled whole; leave --commit out.")
            run = pull_run(self.path, place, lazy=self.lazy)
            trainer, folder = run.trainer, run.lake_folder
        else:
            folder = self.path
            pull(folder, place, commit=self.commit, lazy=self.lazy).close()
        stats = None
        if folder.exists():
            with Lake.open(folder, self.commit) as lake:
                stats = lake.stats()
        if self.json:
            told = None if stats is None else {"commit": stats.commit, "steps": stats.steps}
            size = {} if stats is None else {"bytes": stats.bytes_on_disk}
            lake_told = None if told is None else told | size
            words.print_json({"url": str(place), "path": self.path, "trainer": trainer, "lake": lake_told})
            return
        what = f"a run of {trainer}" if trainer else "a lake"
        held = "" if stats is None else f", commit {stats.commit}, {words.count(stats.steps)} steps"
        size_text = "" if stats is None else f", {words.size(stats.bytes_on_disk)}"
        print(f"{self.path} is {what}{held}{size_text}.")

    def interrupted(self) -> str:
        """How to go on."""
        return f"What came stays: `lakepond pull {self.url} {self.path}` brings the rest."
