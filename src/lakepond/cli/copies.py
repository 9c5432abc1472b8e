"""`lakepond push`, `pull` and `gc`: the copy of a lake or a run in a bucket."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import DONE, NO, where, words
from lakepond.cli.options import Flag, Json, KeepAll, at_least, optional, retention
from lakepond.errors import SpecError

if TYPE_CHECKING:
    from lakepond.cloud.status import UploadStatus

Url = Annotated[Positional[str], arg(metavar="URL")]


@dataclass(frozen=True)
class Push:
    """Upload a lake or a run to a bucket; files that already exist there are skipped.

    Example: lakepond push runs/demo gs://my-bucket/demo
    """

    path: Positional[Path]
    """a lake or a run; another process may be writing it"""
    url: Annotated[Positional[str | None], optional("[URL]", "the bucket in CLOUD_BUCKET")] = None
    """gs://bucket/prefix, s3://, az:// or file:///folder; the lake of a run goes to lake/ below it"""
    timeout: float = 3600.0
    """seconds after which the upload stops; the next push continues it"""
    json: Json = False

    def run(self) -> int:
        at_least(1, timeout=self.timeout)
        from lakepond.flow.lake_to_cloud import push
        from lakepond.runs.copies import push_run

        place = where.cloud_for(self.path, self.url)
        where.check_bucket(place)
        if where.is_run(self.path):
            status = push_run(self.path, place, timeout=self.timeout)
        else:
            status = push(where.lake_folder(self.path), place, timeout=self.timeout)
        done = status is None or status.done
        found = None if status is None else asdict(status)
        words.print_result(
            {"path": self.path, "url": str(place), "done": done, "status": found},
            f"{self.path} is in {place}: {_uploaded(status)}." if done else f"{place}: {status}",
            as_json=self.json,
        )
        if not done:
            words.talk(f"The upload is not complete; `lakepond push {self.path} {place}` uploads the rest.")
        return DONE if done else NO

    def interrupted(self) -> str:
        return f"Uploaded files are kept; `lakepond push {self.path} {self.url or ''}` uploads the rest."


@dataclass(frozen=True)
class Pull:
    """Download a lake or a run from a bucket and check every file.

    Example: lakepond pull gs://my-bucket/demo runs/demo
    """

    url: Url
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
        if is_run_in_cloud(place):
            if self.commit is not None:
                raise SpecError(f"{place} is a run, and --commit is only for a lake; leave --commit out.")
            run = pull_run(self.path, place, lazy=self.lazy)
            trainer, text = run.trainer, f"a run of {run.trainer}"
            lake = Lake.open(run.lake_folder) if run.lake_folder.exists() else None
        else:
            trainer, text = None, "a lake"
            lake = pull(self.path, place, commit=self.commit, lazy=self.lazy)
        held = None
        if lake is not None:
            with lake:
                stats, heads = lake.stats(), lake.heads
            writers = {
                name: {"commit": head.number, "steps": head.recorded - head.oldest}
                for name, head in heads.items()
            }
            size = stats.bytes_on_disk
            held = {"commit": stats.commit, "steps": stats.steps, "bytes": size, "writers": writers}
            text += f" of {len(heads)} writers" if len(heads) > 1 else ""
            text += f", commit {stats.commit}, {stats.steps:,} steps, {formats.size(size)}"
        result = {"url": str(place), "path": self.path, "trainer": trainer, "lake": held}
        words.print_result(result, f"{self.path} is {text}.", as_json=self.json)

    def interrupted(self) -> str:
        return f"Downloaded files are kept; `lakepond pull {self.url} {self.path}` downloads the rest."


@dataclass(frozen=True)
class Gc:
    """Find files in a bucket that no commit uses, and delete them with --delete.

    The first run marks them; a run at least --older-than hours later deletes those that are still unused.
    Commits that a checkpoint of the run or a snapshot refers to are always kept, and so are those that a
    reader on another machine has a lease on. Each writer of the lake is collected alone.

    Example: lakepond gc gs://my-bucket/demo --keep-last 5

    Example: lakepond gc gs://my-bucket/demo --keep-last 5 --delete
    """

    url: Url
    """the URL of a run or a lake in a bucket"""
    keep_last: KeepAll = None
    """number of newest commits of each writer to keep"""
    keep_every: KeepAll = None
    """also keep each commit whose number is a multiple of this"""
    snapshots: KeepAll = None
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


def _uploaded(status: UploadStatus | None) -> str:
    """What a finished push uploaded of the lake; other files of a run are not counted."""
    if status is None:
        return "a run without a lake"
    if not status.uploaded:
        return "the lake had no new files"
    files = formats.counted(status.uploaded, "new file")
    return f"uploaded {files} of the lake, {formats.size(status.uploaded_bytes)}"
