"""The files of a commit, a page at a time; only the manifests that list files of the page are read."""

from __future__ import annotations

from typing import Any

from lakepond.lake.format.entries import File, Manifest, Segment
from lakepond.lake.read.catalog import Catalog


def tell_files(catalog: Catalog, kind: str, offset: int, most: int) -> tuple[list[dict[str, Any]], int]:
    """Some segments (`kind` steps) or files of rows, newest first, and how many there are."""
    lists = [leaf for leaf, _ in catalog.commit.lists() if (leaf is None) == (kind == "steps")]
    # the newest of the first leaf at the end
    waiting = [(leaf, entry) for leaf in reversed(lists) for entry in catalog.live_files(leaf)]
    of = sum(entry.files for _, entry in waiting)
    found: list[File] = []
    while waiting and len(found) < most:
        leaf, entry = waiting.pop()
        if entry.files <= offset:
            offset -= entry.files
        elif isinstance(entry, Manifest):
            waiting += [(leaf, each) for each in catalog.read(entry, leaf)]
        else:
            found.append(entry)
    return [_tell(catalog, file) for file in found], of


def _tell(catalog: Catalog, file: File) -> dict[str, Any]:
    told = {"file": file.name, "first": file.first, "bytes": file.bytes}
    if isinstance(file, Segment):
        needs = [
            each.name
            for leaf, ranges in enumerate(file.needs)
            for start, stop in ranges
            for each in catalog.rows(leaf, start, stop)
        ]
        return told | {"steps": file.steps.steps, "needs": len(set(needs))}
    shard = file.shard
    return told | {
        "leaf": file.leaf,
        "rows": shard.rows,
        "bytes_plain": shard.rows * shard.row_bytes,
        "codec": shard.codec,
    }
