"""One episode: the ids of its steps, which alternate with those of other streams, and its values."""

from __future__ import annotations

from typing import Any

import numpy as np

from lakepond.errors import TooFewSteps
from lakepond.formats import json_numbers
from lakepond.lake.read.lake import Lake
from lakepond.types import Array, leaves

PIECE_STEPS = 1 << 16
"""steps of a wide column read at a time"""
POINTS = 1000
"""points of a curve"""


def find_ids(lake: Lake, stream: int, first: int, last: int) -> Array:
    """The steps of a stream in [first, last]; `TooFewSteps` if there are none."""
    first, last = max(first, lake.commit.oldest), min(last, lake.commit.recorded - 1)
    found = [np.empty(0, np.int64)]
    for _, some, columns in lake.reader.scan(["stream"], first, last + 1):
        found.append(some[columns["stream"] == stream])
    ids = np.concatenate(found)
    if not len(ids):
        raise TooFewSteps(f"stream {stream} has no step in [{first}, {last}] of commit {lake.commit.number}.")
    return ids


def read_columns(lake: Lake, ids: Array, names: list[str]) -> dict[str, Array]:
    """Small columns of the steps with these sorted ids."""
    parts: dict[str, list[Array]] = {name: [] for name in names}
    for mine in np.split(ids, np.flatnonzero(np.diff(ids // PIECE_STEPS)) + 1):
        for _, some, columns in lake.reader.scan(names, int(mine[0]), int(mine[-1]) + 1):
            which = mine[np.searchsorted(mine, some[0]) : np.searchsorted(mine, some[-1] + 1)] - some[0]
            for name in names:
                parts[name].append(columns[name][which])
    return {name: np.concatenate(some) for name, some in parts.items()}


def observe(lake: Lake, ids: Array, leaf: int, name: str = "obs") -> Array:
    """`obs` or `next_obs` of the steps with these sorted ids, of one leaf."""
    which = ("obs", "next_obs").index(name)
    return np.concatenate([lake.observations(leaf, part.leaves[leaf], which) for part in lake.parts(ids)])


def describe_episode(lake: Lake, ids: Array) -> dict[str, Any]:
    """Rewards, returns and actions over an episode, thinned to `POINTS` points where it is longer."""
    actions = [path for path, _ in leaves(lake.spec.action, "action")]
    columns = read_columns(lake, ids, ["reward", "terminated", "truncated", *actions])
    reward = columns["reward"].reshape(len(ids), -1).sum(axis=1).astype("f8")
    edges = np.unique(np.linspace(0, len(ids), min(POINTS, len(ids)) + 1).astype(np.int64))
    starts = edges[:-1]
    total = np.cumsum(np.where(np.isfinite(reward), reward, 0.0))
    ended = "terminated" if columns["terminated"][-1] else "truncated" if columns["truncated"][-1] else "open"
    return {
        "first": int(ids[0]),
        "last": int(ids[-1]),
        "steps": len(ids),
        "end": ended,
        "total": json_numbers([total[-1]])[0],
        "at": starts.tolist(),
        "reward": json_numbers(np.add.reduceat(reward, starts) / np.diff(edges)),
        "return": json_numbers(total[edges[1:] - 1]),
        "actions": [_describe_action(path, columns[path], starts) for path in actions],
    }


def _describe_action(path: str, values: Array, starts: Array) -> dict[str, Any]:
    """Integers as they are, and up to eight parts of a continuous action as curves."""
    flat = values.reshape(len(values), -1)
    shared: dict[str, Any] = {"path": path, "shape": list(values.shape[1:]), "dtype": values.dtype.name}
    if flat.shape[1] == 1 and values.dtype.kind in "iub":
        return shared | {"kind": "choice", "values": flat[starts, 0].astype(int).tolist()}
    if values.dtype.kind not in "fiub" or flat.shape[1] > 8:
        return shared | {"kind": "wide"}
    return shared | {"kind": "parts", "values": [json_numbers(part) for part in flat[starts].T.tolist()]}
