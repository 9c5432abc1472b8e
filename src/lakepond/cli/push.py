"""`lakepond push`: upload new files of a lake or a run to a bucket."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from lakepond import formats
from lakepond.cli import DONE, NO, where, words
from lakepond.cli.options import Json, at_least, optional

if TYPE_CHECKING:
    from lakepond.cloud.status import UploadStatus


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


def _uploaded(status: UploadStatus | None) -> str:
    """What a finished push uploaded of the lake; other files of a run are not counted."""
    if status is None:
        return "a run without a lake"
    if not status.uploaded:
        return "the lake had no new files"
    files = formats.counted(status.uploaded, "new file")
    return f"uploaded {files} of the lake, {formats.size(status.uploaded_bytes)}"
