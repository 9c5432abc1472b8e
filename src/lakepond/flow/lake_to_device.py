"""lake ──fill──▶ device pond: exactly k of n transitions, in pieces of a fixed size, n steps folded into one.

Pieces are NumPy and padded, so that one compiled program takes them all; the next one is read while the
device takes the last. Each row of a piece is sent once, whatever number of transitions need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from lakepond.errors import SpecError, TooFewSteps
from lakepond.lake.commits import Segment
from lakepond.lake.lake import Lake
from lakepond.lake.reader import LeafPart
from lakepond.lake.tracks import covered
from lakepond.types import Array


class Piece(NamedTuple):
    """Rows, and transitions that point into them; the fields are those of `pond.device.Loaded`."""

    rows: Array
    rows_count: int
    at: Array
    next_at: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    span: Array
    steps_count: int


def pieces(
    lake: Lake,
    count: int,
    *,
    rng: np.random.Generator,
    n_step: int = 1,
    gamma: float = 1.0,
    size: int = 8192,
) -> Iterator[Piece]:
    """Exactly `count` of all live steps, every choice as likely as any other, in the order of the disk.

    n-step returns follow a stream within a segment, and end with its episode. A piece has at most `size`
    transitions and 2 * `size` rows of a stack's length more.
    """
    if not 1 <= count <= len(lake):
        raise TooFewSteps(f"{count:,} steps were asked for, but {lake.path} holds {len(lake):,}.")
    field = lake.spec.obs
    if not hasattr(field, "shape"):
        raise SpecError(f"{lake.path} has observations of several parts; a device pond takes a single array.")
    chosen = np.sort(lake.commit.oldest + rng.choice(len(lake), count, replace=False, shuffle=False))
    jobs: list[tuple[Segment, Array, Array]] = []
    for segment in lake.commit.segments:
        low, high = max(segment.first, lake.commit.oldest), segment.stop
        mine = chosen[np.searchsorted(chosen, low) : np.searchsorted(chosen, high)]
        jobs += [(segment, mine, np.arange(low, high))] if len(mine) else []
    with ThreadPoolExecutor(1, "lakepond-fill") as ahead:
        waiting = None
        for job in jobs:
            following = ahead.submit(_read, lake, *job, n_step, gamma, size)
            if waiting is not None:
                yield from waiting.result()
            waiting = following
        if waiting is not None:
            yield from waiting.result()


def _read(
    lake: Lake, segment: Segment, chosen: Array, ids: Array, n_step: int, gamma: float, size: int
) -> list[Piece]:
    """The chosen steps of a segment."""
    part = lake.reader.read(segment, ids)
    columns, leaf = part.columns, part.leaves[0]
    if not isinstance(leaf, LeafPart):
        raise SpecError(
            f"{lake.path} keeps its observations plainly; record more steps before filling from it."
        )
    start = chosen - ids[0]
    following = _following(columns["stream"])
    ended = columns["terminated"] | columns["truncated"]
    reward, last = columns["reward"][start].astype(np.float32), start
    span = np.ones(len(start), np.uint8)
    for i in range(1, n_step):
        then = following[last]
        goes_on = ~ended[last] & (then >= 0) & (span == i)
        last = np.where(goes_on, then, last)
        reward += np.where(goes_on, gamma**i * columns["reward"][last], 0).astype(np.float32)
        span += goes_on
    found = []
    for at in range(0, len(start), size):
        these = slice(at, at + size)
        found.append(_piece(lake, leaf, columns, start[these], last[these], reward[these], span[these], size))
    return found


def _following(stream: Array) -> Array:
    """For each step the place of the next one of its stream, or -1."""
    order = np.argsort(stream, kind="stable")
    following = np.full(len(stream), -1)
    same = stream[order[1:]] == stream[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    return following


def _piece(
    lake: Lake,
    leaf: LeafPart,
    columns: dict[str, Array],
    start: Array,
    last: Array,
    reward: Array,
    span: Array,
    size: int,
) -> Piece:
    length, field = leaf.layout.length, lake.spec.obs
    windows = np.stack([leaf.starts[start, 0], leaf.starts[last, 1]], axis=1)
    positions = covered(windows, length)
    slot = np.searchsorted(positions, windows)  # where each window starts among the rows that are sent
    numbers, place = np.unique(leaf.track[positions], return_inverse=True)
    row_shape = field.shape[1:] if length > 1 else field.shape
    plain = lake.reader.rows(0, numbers, leaf.layout.row_bytes)[place]
    rows = np.zeros((2 * size * length, *row_shape), field.dtype)
    rows[: len(positions)] = plain.reshape(-1).view(field.dtype).reshape(len(positions), *row_shape)

    def pad(values: Array) -> Array:
        return np.concatenate([values, np.zeros((size - len(values), *values.shape[1:]), values.dtype)])

    return Piece(
        rows=rows,
        rows_count=len(positions),
        at=pad((slot[:, 0] + length - 1).astype(np.int32)),
        next_at=pad((slot[:, 1] + length - 1).astype(np.int32)),
        action=pad(columns["action"][start]),
        reward=pad(reward),
        terminated=pad(columns["terminated"][last]),
        truncated=pad(columns["truncated"][last]),
        span=pad(span),
        steps_count=len(start),
    )
