"""Checking every byte of a commit, one file at a time, with progress; every broken file is named."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any

from lakepond.errors import LakeError, LakepondError
from lakepond.lake.elsewhere import known
from lakepond.lake.read.lake import Lake
from lakepond.lake.read.verify import QUEUED, THREADS, Check, checks


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
    with suppress(LakeError):  # a manifest is broken, as its own check reports: what it lists is not known
        yield from checks(lake)


def _run(check: Check) -> str | None:
    try:
        check.run()
    except (LakepondError, OSError) as error:
        return str(error)
    return None


def _elsewhere(lake: Lake) -> Iterator[tuple[str, int]]:
    """The files that are only elsewhere, manifests left out."""
    there = known(lake.path)
    for head in lake.reader.heads if there else ():
        with suppress(LakeError):
            for name, size in head.catalog.files():
                if name in there and head.segments.local(name) is None and not name.endswith(".manifest"):
                    yield name, size
