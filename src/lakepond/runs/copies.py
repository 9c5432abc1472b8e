"""Push a run to the cloud and pull it: its lake, each segment once, and its other files.

    gs://bucket/demo/lake/...                the lake, pushed as a lake
    gs://bucket/demo/metrics.jsonl           the log, before the checkpoints that name a line of it
    gs://bucket/demo/checkpoints/00000012/   arrays first, state.json last: it marks the folder as complete
    gs://bucket/demo/config.json             last: it marks the run as complete

What did not change is not sent again. How the last push ended is noted in `upload.json`, for `status`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lakepond.adapters.cloud_sync import CloudSync, files_of
from lakepond.cloud import layout
from lakepond.cloud.place import Cloud
from lakepond.cloud.status import UploadStatus
from lakepond.cloud.store import Store
from lakepond.errors import CloudNotFound, LakepondError
from lakepond.flow.cloud_to_lake import pull
from lakepond.flow.lake_to_cloud import push
from lakepond.lake.files import write_bytes
from lakepond.lake.format import description
from lakepond.lake.links import check_folders, target_in
from lakepond.runs.checkpoints import STATE
from lakepond.runs.resume import OLD
from lakepond.runs.run import CONFIG, METRICS, WORKERS, Run
from lakepond.runs.status import UPLOAD

log = logging.getLogger("lakepond")
KNOWN = (CONFIG, METRICS, "checkpoints/", "lake/", f"{WORKERS}/", *layout.KNOWN)
"""the objects of a run or a lake in the cloud"""
LEFT_OUT = ("lock", UPLOAD, f"{WORKERS}/*", "*.dropped/*", "wandb/*", "tensorboard/*", f"{OLD}*/*")


def push_run(folder: Path, cloud: Cloud, *, timeout: float = 3600.0) -> UploadStatus | None:
    """Upload a run; return the progress of its lake within `timeout` seconds, None if it has no lake."""
    Run.open(folder)
    try:
        status = _send(folder, cloud, timeout)
    except (LakepondError, OSError) as error:
        _note(folder, cloud, str(error))
        raise
    _note(folder, cloud, None if status is None else status.last_error)
    return status


def _send(folder: Path, cloud: Cloud, timeout: float) -> UploadStatus | None:
    status = None
    check_folders(folder / "lake")
    # before the lake: a checkpoint of a running trainer that is newer names a commit that is not pushed yet
    names = [file.relative_to(folder).as_posix() for file in files_of(folder, LEFT_OUT)]
    if (folder / "lake" / description.NAME).exists():
        status = push(folder / "lake", lake_of(cloud), timeout=timeout)
        if not status.done:
            return status
    with _sync(cloud) as sync:
        for name in sorted(names, key=_order):
            if (folder / name).exists():  # an old checkpoint may be deleted meanwhile
                sync.upload_file(folder / name, name)
    return status


@contextmanager
def _sync(cloud: Cloud) -> Iterator[CloudSync]:
    """Uploads and downloads single files; its threads end with the block."""
    sync = CloudSync(cloud=cloud)
    try:
        yield sync
    finally:
        sync.shutdown(wait=False)


def _note(folder: Path, cloud: Cloud, error: str | None) -> None:
    status = {"url": str(cloud), "time": time.time(), "last_error": error}
    try:
        write_bytes(folder, UPLOAD, json.dumps(status, allow_nan=False).encode())
    except OSError as why:  # a full disk: the push itself is what counts
        log.warning("%s could not be written: %s", folder / UPLOAD, why)


def pull_run(folder: Path, cloud: Cloud, *, lazy: bool = False) -> Run:
    """Download a run to a folder: config, metrics, checkpoints, and the lake they belong to."""
    store = Store(cloud)
    listed = store.list(known=KNOWN)
    if CONFIG not in listed:
        raise CloudNotFound(f"{store.cloud} has no run (no {CONFIG}); `lakepond push` uploads one.")
    others = ("lake/", f"{WORKERS}/")
    with _sync(cloud) as sync:
        for name in sorted((name for name in listed if not name.startswith(others)), key=_order):
            sync.download_file(name, target_in(folder, name))
    run = Run.open(folder)
    check_folders(run.lake_folder)
    if f"lake/{description.NAME}" in listed:
        wanted = run.state().get("lake_commit")
        with pull(run.lake_folder, lake_of(cloud), lazy=lazy) as lake:
            newest = lake.commit.number
        if wanted is not None and wanted != newest:
            pull(run.lake_folder, lake_of(cloud), commit=wanted, lazy=lazy).close()
    return run


def lake_of(cloud: Cloud) -> Cloud:
    """The place of the lake of a run in the cloud."""
    return replace(cloud, url=f"{cloud.url.rstrip('/')}/lake")


def is_run_in_cloud(cloud: Cloud) -> bool:
    """Whether a place in the cloud holds a run, or a lake alone."""
    return Store(cloud).head(CONFIG) is not None


def has_lake_of_run(cloud: Cloud) -> bool:
    """Whether the lake of a run is there, also if the first push of the run ended before its other files."""
    return Store(lake_of(cloud)).head(description.NAME) is not None


def _order(name: str) -> tuple[int, str]:
    """Each file after those it refers to: a state names arrays and the length of the log."""
    ranks = {METRICS: 1, CONFIG: 3, "result.json": 4}
    return (ranks.get(name, 2 if name.endswith(f"/{STATE}") else 0), name)
