"""The files of a commit: one page of them, which are in the cloud, and whether their bytes are intact."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from lakepond.errors import LakeError, LakepondError
from lakepond.lake.elsewhere import known
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.entries import File, Manifest, Segment
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.read.lake import Lake
from lakepond.lake.read.verify import QUEUED, THREADS, Check, checks
from lakepond.report.commits import uploads
from lakepond.runs.status import UPLOAD
from lakepond.untrusted import read_json


def describe_files(catalog: Catalog, kind: str, offset: int, most: int) -> tuple[list[dict[str, Any]], int]:
    """Some segments (`kind` steps) or files of rows, newest first, and how many there are.

    Reads only the manifests that list files of the page.
    """
    lists = [leaf for leaf, _ in catalog.commit.lists() if (leaf is None) == (kind == "steps")]
    # the newest of the first leaf at the end
    waiting = [(leaf, entry) for leaf in reversed(lists) for entry in catalog.live_files(leaf)]
    of = sum(entry.files for _, entry in waiting)
    found: list[dict[str, Any]] = []
    while waiting and len(found) < most:
        leaf, entry = waiting.pop()
        if entry.files <= offset:
            offset -= entry.files
        elif isinstance(entry, Manifest):
            waiting += [(leaf, each) for each in catalog.read(entry, leaf)]
        else:
            found.append(_describe_file(catalog, entry))
    return found, of


def _describe_file(catalog: Catalog, file: File) -> dict[str, Any]:
    shared = {"file": file.name, "first": file.first, "bytes": file.bytes}
    if isinstance(file, Segment):
        ranges = [(leaf, *each) for leaf, needed in enumerate(file.needs) for each in needed]
        needs = {rows.name for leaf, start, stop in ranges for rows in catalog.rows(leaf, start, stop)}
        return shared | {"steps": file.steps.steps, "needs": len(needs)}
    shard = file.shard
    return shared | {"leaf": file.leaf, "rows": shard.rows, "bytes_plain": shard.rows * shard.row_bytes}


def describe_uploads(lake: Path | None, writer: str, commit: Commit | None) -> dict[str, Any]:
    """Where the files of a commit are, and the result of the last push of the run around the lake."""
    last, found = None, []
    if lake is not None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            noted = read_json(lake.resolve().parent / UPLOAD)
            last = {"place": noted["url"], "time": noted["time"], "error": noted["last_error"]}
        found = [] if commit is None else uploads(lake, commit, writer)
    return {"commit": None if commit is None else commit.number, "places": found, "last_push": last}


def check(lake: Lake) -> Iterator[dict[str, Any]]:
    """The checks of `Lake.verify`, one line per file: `state` intact, broken (then `error`) or elsewhere.

    A manifest gets a line only if it is broken.
    """
    done, total = 0, sum(head.catalog.totals().bytes for head in lake.reader.heads)
    found = _checks(lake)
    with ThreadPoolExecutor(THREADS, "lakepond-check") as pool:
        while some := list(islice(found, QUEUED)):
            for each, error in zip(some, pool.map(_run, some), strict=True):
                done += each.bytes
                if error is not None or each.bytes:
                    state = "intact" if error is None else "broken"
                    yield {"file": each.name, "state": state, "error": error, "done": done, "of": total}
    for name, size in _elsewhere(lake):
        done += size
        yield {"file": name, "state": "elsewhere", "error": None, "done": done, "of": total}


def _checks(lake: Lake) -> Iterator[Check]:
    with suppress(LakeError):  # a broken manifest, which its own check reports: what it lists is not known
        yield from checks(lake)


def _run(check: Check) -> str | None:
    try:
        check.run()
    except (LakepondError, OSError) as error:
        return str(error)
    return None


def _elsewhere(lake: Lake) -> Iterator[tuple[str, int]]:
    """The files that are only elsewhere, without manifests."""
    there = known(lake.path)
    for head in lake.reader.heads if there else ():
        with suppress(LakeError):
            for name, size in head.catalog.files():
                if name in there and head.segments.local(name) is None and not name.endswith(".manifest"):
                    yield name, size
