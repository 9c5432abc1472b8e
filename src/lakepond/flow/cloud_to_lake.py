"""cloud ──pull──▶ lake: the newest intact commit, or one by number; all segments, or each when it is read."""

from __future__ import annotations

from pathlib import Path

from lakepond.cloud.fetching import Fetcher, bring_commits, bring_segments
from lakepond.cloud.leases import Lease
from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.lake.elsewhere import Elsewhere, Segments
from lakepond.lake.format import description
from lakepond.lake.read.lake import Lake


def pull(path: str | Path, cloud: str | Cloud, *, commit: int | None = None, lazy: bool = False) -> Lake:
    """Download a lake to `path` and open it at its newest intact commit, or at the one with that number.

    lazy: download segments when they are read; by default all are downloaded before the call returns. An
    interrupted pull resumes with the next call. A lake that already exists at `path` is updated.

    Raises `CloudNotFound` if the lake or commit does not exist, `CloudConflict` if `path` contains another
    lake or conflicting commits, `CloudCorrupt` if a downloaded file does not match its checksum, and
    `CloudUnreachable` without network.
    """
    path, cloud = Path(path), Cloud.of(cloud)
    store = Store(cloud)
    chosen = bring_commits(path, store, Elsewhere(path, str(cloud)), commit)
    fetcher = Fetcher(path, store)
    if not lazy:
        bring_segments(path, chosen, fetcher, cloud)
    segments = Segments(path, bring=fetcher, pin=Lease(store, path).pin)
    return Lake(path, description.read(path), chosen, segments)
