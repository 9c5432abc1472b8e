"""lake ──push──▶ cloud: the commits of a lake on this disk that the cloud does not have."""

from __future__ import annotations

from pathlib import Path

from lakepond.cloud.place import Cloud
from lakepond.cloud.progress import watching
from lakepond.cloud.pusher import Pusher
from lakepond.cloud.status import UploadStatus
from lakepond.lake.format import description


def push(path: str | Path, cloud: str | Cloud, *, timeout: float = 3600.0) -> UploadStatus:
    """Upload the commits of a local lake that the cloud does not have; return the progress.

    path: folder of the lake; it may be written by another process meanwhile. cloud: URL or `Cloud`.
    timeout: maximum seconds; the upload resumes with the next call. Raises `LakeNotFound` if `path` is not a
    lake. Errors of the cloud are retried and reported in `UploadStatus.last_error`.
    """
    path = Path(path)
    description.read(path)
    pusher = Pusher(path, Cloud.of(cloud))
    try:
        pusher.push()
        with watching(pusher.status):
            return pusher.wait(timeout)
    finally:
        pusher.close(0.0)
