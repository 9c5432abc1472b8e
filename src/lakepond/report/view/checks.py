"""Checking every byte of a commit, a file at a time: progress is told, and all that is broken is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import LakeError
from lakepond.lake.format.commits import Segment
from lakepond.lake.format.shard import Shard, ShardInfo
from lakepond.lake.read.lake import Lake, check_digest
from lakepond.lake.read.reader import LeafPart


def check(lake: Lake) -> Iterator[dict[str, Any]]:
    """The same checks as `Lake.verify`, a line a file: `state` whole, broken (then `error`) or elsewhere."""
    done, total = 0, sum(lake.commit.files().values())
    with ThreadPoolExecutor(2, "lakepond-check") as pool:
        for name, size, look in _looks(lake, pool):
            state, error = _look(lake, name, look)
            done += size
            yield {"file": name, "state": state, "error": error, "done": done, "of": total}


Look = Callable[[Path], object]


def _looks(lake: Lake, pool: ThreadPoolExecutor) -> Iterator[tuple[str, int, Look]]:
    """Every file of the commit, its size and how it is checked."""
    for file in lake.commit.rows:
        yield file.name, file.shard.bytes, partial(_check_rows, file.shard, pool)
    for segment in lake.commit.segments:
        yield segment.name, segment.steps.bytes, partial(_check_steps, lake, segment)
    for info in lake.commit.weights:
        yield f"{info.digest}.steps", info.bytes, partial(check_digest, digest=info.digest)


def _look(lake: Lake, name: str, look: Look) -> tuple[str, str | None]:
    segments = lake.reader.segments
    if not segments.reachable(name):
        return "elsewhere", None
    try:
        with segments.using(name) as there:
            look(there)
    except (LakeError, OSError) as error:
        return "broken", str(error)
    return "whole", None


def _check_rows(info: ShardInfo, pool: ThreadPoolExecutor, file: Path) -> None:
    with Shard(file, info) as shard:
        shard.verify(pool)


def _check_steps(lake: Lake, segment: Segment, file: Path) -> None:
    check_digest(file, segment.steps.digest)
    part = lake.reader.read(segment, np.arange(segment.first, segment.stop))
    for i, leaf in enumerate(part.leaves):
        if isinstance(leaf, LeafPart):
            lake.reader.check_rows(i, leaf.track, leaf.layout.row_bytes)
