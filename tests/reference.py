"""Self-identifying data, and a reference model of a replay to compare with.

A world makes the observations of an episode's steps. An observation is a function of (episode, t) and differs
from all others, so a row or step in the wrong place is visible at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
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


@lru_cache(maxsize=1 << 14)
def _row(episode: int, t: int, shape: tuple[int, ...], dtype: str) -> Array:
    """A row that no other (episode, t) has; read-only, for it is made once."""
    size = math.prod(shape)
    if np.dtype(dtype).kind == "f":
        row = np.arange(size, dtype=dtype) + episode * 1000 + t
        row[0], row[-1] = np.nan, -0.0  # bits that comparing by value would lose
        row[1] = episode * 1000 + t
    else:
        row = np.random.default_rng([episode, t]).integers(0, 200, size).astype(dtype)
    row.flags.writeable = False
    return row.reshape(shape)


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
        World("image", Field((16, 24), "uint8"), lambda e, t: _row(e, t, (16, 24), "uint8").copy()),
        World("whole by choice", Field((4, 6, 5), "uint8", rows=None), _frames),
        World("vector", Field((5,), "float64"), lambda e, t: _row(e, t, (5,), "float64").copy()),
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


Step = dict[str, Any]


class PlainReplay:
    """A list of transitions and the simplest answer to each question; the newest `capacity` are live."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.all: list[Step] = []
        self.oldest = 0
        self.cuts: set[int] = set()
        """streams whose next step starts an episode"""
        self.cleared: set[int] = set()
        """streams whose last step was cleared, so that the next one has nothing to follow"""

    @property
    def recorded(self) -> int:
        """Steps ever recorded."""
        return len(self.all)

    def record(self, step: Step, *, follows: bool | None = None, alone: bool = False) -> None:
        """Append one step, with at least obs, next_obs, stream, reward, terminated and truncated.

        follows: whether it continues the previous step of its stream; None: if its obs is that next_obs.
        alone: it belongs to no sequence.
        """
        if step["stream"] in self.cuts | (self.cleared if follows is None else set()):
            follows = False
        self.cuts.discard(step["stream"])
        self.cleared.discard(step["stream"])
        self.all.append({**step, "follows": follows, "alone": alone})
        self.oldest = max(self.oldest, self.recorded - self.capacity)

    def clear(self) -> None:
        """Remove all steps; the next step of each stream follows none."""
        self.oldest = self.recorded
        self.cleared = {step["stream"] for step in self.all}

    def live(self) -> list[int]:
        """The ids of the live steps."""
        return list(range(self.oldest, self.recorded))

    def follow(self, step_id: int, length: int, cross: bool) -> list[int]:
        """A step and those after it in its stream, up to `length` of them."""
        ids = [step_id]
        while len(ids) < length:
            step = self.all[ids[-1]]
            if not cross and (step["terminated"] or step["truncated"]):
                break
            later = (i for i in range(ids[-1] + 1, self.recorded) if self.all[i]["stream"] == step["stream"])
            following = next(later, None)
            if following is None or step["alone"] or self.all[following]["alone"]:
                break
            if not cross and not self._continues(following, step):
                break
            ids.append(following)
        return ids

    def _continues(self, step_id: int, previous: Step) -> bool:
        follows: bool | None = self.all[step_id]["follows"]
        return same_bytes(self.all[step_id]["obs"], previous["next_obs"]) if follows is None else follows

    def n_step(self, step_id: int, n: int, gamma: float) -> tuple[int, float, float]:
        """The last step, the return up to it, and the multiplier for the bootstrap value."""
        ids = self.follow(step_id, n, cross=False)
        total = sum(gamma**k * float(self.all[i]["reward"]) for k, i in enumerate(ids))
        last = self.all[ids[-1]]
        return ids[-1], total, 0.0 if last["terminated"] else gamma ** len(ids)

    def sequences(self, length: int, cross: bool) -> set[tuple[int, ...]]:
        """All sequences of that length."""
        found = (tuple(self.follow(i, length, cross)) for i in self.live())
        return {ids for ids in found if len(ids) == length}
