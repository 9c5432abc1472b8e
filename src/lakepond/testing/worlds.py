"""Small worlds: each makes the observations of an episode's steps, every one different from all others.

An observation is a function of (episode, t), so that a row or step in the wrong place shows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lakepond.types import Array, Field, Tree, leaves


def same_bytes(a: Tree, b: Tree) -> bool:
    """Equal to the last bit, NaN and -0.0 included, in structure, shape and dtype too."""
    left, right = list(leaves(a)), list(leaves(b))
    if [path for path, _ in left] != [path for path, _ in right]:
        return False
    for (_, x), (_, y) in zip(left, right, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        if x.shape != y.shape or x.dtype != y.dtype or x.tobytes() != y.tobytes():
            return False
    return True


@dataclass(frozen=True)
class World:
    """How observations look, and which rows they are made of."""

    name: str
    fields: Tree
    observe: Callable[[int, int], Tree]
    """the observation at time t of an episode"""


def _row(episode: int, t: int, shape: tuple[int, ...], dtype: str) -> Array:
    """A row that no other (episode, t) has."""
    size = int(np.prod(shape))
    if np.dtype(dtype).kind == "f":
        row = np.arange(size, dtype=dtype) + episode * 1000 + t
        row[0], row[-1] = np.nan, -0.0  # bits that comparing by value would lose
        row[1] = episode * 1000 + t
        return row.reshape(shape)
    rng = np.random.default_rng([episode, t])
    return rng.integers(0, 200, size).astype(dtype).reshape(shape)


def _padded(length: int, shape: tuple[int, ...], dtype: str) -> Callable[[int, int], Array]:
    """A frame stack: at the start of an episode its first frame fills the stack."""
    return lambda episode, t: np.stack(
        [_row(episode, max(0, t - length + 1 + k), shape, dtype) for k in range(length)]
    )


def _window(length: int, shape: tuple[int, ...], dtype: str) -> Callable[[int, int], Array]:
    """A window over one history that all episodes share; an episode begins 7 days after the one before."""
    return lambda episode, t: np.stack([_row(0, 7 * episode + t + k, shape, dtype) for k in range(length)])


def _last_axis(first: Callable[[int, int], Array]) -> Callable[[int, int], Array]:
    return lambda episode, t: np.moveaxis(first(episode, t), 0, -1).copy()


def _noise(shape: tuple[int, ...]) -> Callable[[int, int], Array]:
    return lambda episode, t: np.random.default_rng([7, episode, t]).random(shape, np.float32)


def _both(a: Callable[[int, int], Any], b: Callable[[int, int], Any]) -> Callable[[int, int], Tree]:
    return lambda episode, t: {"image": a(episode, t), "rest": (b(episode, t), np.int64(t))}


def _colour_frames(episode: int, t: int) -> Array:
    """Three colour frames on the last axis, as `VecFrameStack` stacks them: zeros before the first frame."""
    shape, dtype = (6, 5, 3), "uint8"
    blank = np.zeros(shape, dtype)
    return np.concatenate(
        [_row(episode, i, shape, dtype) if i >= 0 else blank for i in (t - 2, t - 1, t)], -1
    )


def _sparse_frames(episode: int, t: int) -> Array:
    """A stack of every second frame."""
    return np.stack([_row(episode, max(0, i), (9, 11), "uint8") for i in (t - 4, t - 2, t)])


_frames = _padded(4, (6, 5), "uint8")
_days = _window(9, (4, 3), "float32")

WORLDS: dict[str, World] = {
    world.name: world
    for world in [
        World("frames first", Field((4, 6, 5), "uint8"), _frames),
        World("frames last", Field((6, 5, 4), "uint8"), _last_axis(_frames)),
        World("colour frames last", Field((6, 5, 9), "uint8"), _colour_frames),
        World("every second frame", Field((3, 9, 11), "uint8"), _sparse_frames),
        World(
            "window on the middle axis",
            Field((4, 9, 3), "float32"),
            lambda e, t: np.moveaxis(_days(e, t), 0, 1).copy(),
        ),
        World("market window", Field((9, 4, 3), "float32"), _days),
        World("declared window", Field((9, 4, 3), "float32", rows=0), _days),
        World("image", Field((16, 24), "uint8"), lambda e, t: _row(e, t, (16, 24), "uint8")),
        World("whole by choice", Field((4, 6, 5), "uint8", rows=None), _frames),
        World("vector", Field((5,), "float64"), lambda e, t: _row(e, t, (5,), "float64")),
        World("noise", Field((8, 12), "float32"), _noise((8, 12))),
        World("declared noise", Field((8, 12), "float32", rows=0), _noise((8, 12))),
        World("scalar", Field((), "int32"), lambda e, t: np.int32(1000 * e + t)),
        World(
            "dict and tuple",
            {"image": Field((4, 6, 5), "uint8"), "rest": (Field((9, 4, 3), "float32"), Field((), "int64"))},
            _both(_frames, _days),
        ),
    ]
}
