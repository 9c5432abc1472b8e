"""lake ──push──▶ cloud: the commits of a lake on this disk that the cloud does not have."""

from __future__ import annotations

import time
from pathlib import Path

from lakepond.cloud.place import Cloud
from lakepond.cloud.progress import watching
from lakepond.cloud.pusher import Pusher
from lakepond.cloud.status import UploadStatus, together
from lakepond.cloud.store import Store
from lakepond.lake import writers
from lakepond.lake.format import commits, description
from lakepond.paths import on_disk


def push(path: str | Path, cloud: str | Cloud, *, timeout: float = 3600.0) -> UploadStatus:
    """Upload the commits of all writers of a local lake that the cloud does not have; return the progress.

    path: folder of the lake; it may be written by other processes meanwhile. cloud: URL or `Cloud`.
    timeout: maximum seconds; the upload resumes with the next call. Raises `LakeNotFound` if `path` is not a
    lake. Errors of the cloud are retried and reported in `UploadStatus.last_error`.
    """
    path, cloud, until = on_disk(path), Cloud.of(cloud), time.monotonic() + timeout
    description.read(path)
    store = Store(cloud)
    done: list[UploadStatus] = []
    names = [name for name in writers.names(path) if commits.numbers(writers.home(path, name) / "commits")]
    for writer in names or [""]:
        pusher = Pusher(path, cloud, store=store, writer=writer)
        try:
            pusher.push()
            with watching(lambda: together([*done, pusher.status()])):  # noqa: B023
                done.append(pusher.wait(max(0.0, until - time.monotonic())))
        finally:
            pusher.close(0.0)
    return together(done)
