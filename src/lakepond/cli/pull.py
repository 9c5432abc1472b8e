"""`lakepond pull`: download a lake or a run from a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import words
from lakepond.cli.options import Flag, Json, optional
from lakepond.errors import SpecError


@dataclass(frozen=True)
class Pull:
    """Download a lake or a run from a bucket and check every file.

    Example: lakepond pull gs://my-bucket/demo runs/demo
    """

    url: Annotated[Positional[str], arg(metavar="URL")]
    """the URL it was pushed to"""
    path: Positional[Path]
    """folder to write; a pull that was interrupted continues there"""
    commit: Annotated[int | None, optional("N", "the newest intact one")] = None
    """number of the commit to download; only for a lake"""
    lazy: Flag = False
    """download only the commit; data follow when a replay opened with cloud=URL needs them"""
    json: Json = False

    def run(self) -> None:
        from lakepond.cloud.place import Cloud
        from lakepond.flow.cloud_to_lake import pull
        from lakepond.lake.read.lake import Lake
        from lakepond.runs.copies import is_run_in_cloud, pull_run

        place = Cloud.of(self.url)
        trainer, lake = None, None
        if is_run_in_cloud(place):
            if self.commit is not None:
                raise SpecError(f"{place} is a run, and --commit is only for a lake; leave --commit out.")
            run = pull_run(self.path, place, lazy=self.lazy)
            trainer = run.trainer
            lake = Lake.open(run.lake_folder) if run.lake_folder.exists() else None
        else:
            lake = pull(self.path, place, commit=self.commit, lazy=self.lazy)
        held: dict[str, Any] | None = None
        text = f"a run of {trainer}" if trainer else "a lake"
        if lake is not None:
            with lake:
                stats, heads = lake.stats(), lake.heads
            held = {"commit": stats.commit, "steps": stats.steps, "bytes": stats.bytes_on_disk}
            held["writers"] = {
                name: {"commit": head.number, "steps": head.recorded - head.oldest}
                for name, head in heads.items()
            }
            text += f" of {len(heads)} writers" if len(heads) > 1 else ""
            text += f", commit {stats.commit}, {stats.steps:,} steps, {formats.size(stats.bytes_on_disk)}"
        result = {"url": str(place), "path": self.path, "trainer": trainer, "lake": held}
        words.print_result(result, f"{self.path} is {text}.", as_json=self.json)

    def interrupted(self) -> str:
        return f"Downloaded files are kept; `lakepond pull {self.url} {self.path}` downloads the rest."
