"""Which rows is an observation made of? Found from the observations of consecutive steps.

A layout is an axis and a size: `size` adjacent slices along `axis` are one row. Frame stacks and windows
repeat most of their rows in the next observation, at other places::

    obs       a b c d           a stack of 4 frames that moves by 1: axis 0, size 1
    next_obs  b c d e
    obs       r g b R G B       a stack of 2 colour frames, 6 slices, that moves by 3: axis 0, size 3
    next_obs  R G B r' g' b'

A pair of observations is evidence for an axis if one is the other moved by some slices along it and at least
one of the slices that enter is new. If nothing moves or nothing new enters (an empty screen, a padded stack,
a dot that moves over a blank board), the pair says nothing. Slices that stay where they are, such as a mask
beside a stack, are allowed if at least half of all slices move. `next_obs` is compared with its `obs`, then
with some earlier observations of its stream: a stack of the frames t - 6, t - 4, t - 2, t repeats those of
two steps ago.

Slices that always move together are one row. That takes fewer references, and a window is then the previous
one moved by exactly one row, which the store recognises fastest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import xxhash

from lakepond.types import Array, Field, RowLayout, normal_axis

MIN_ROW_BYTES = 16
"""a smaller row costs more to refer to than to store"""
MIN_SEARCHED_BYTES = 96
"""the same for rows that repeat only in later windows, which have to be searched for one by one"""
ROW_OVERHEAD = 48
"""bytes that a row takes besides its content: the state of its slot, its place in the index, a reference"""
WORTH = 0.9
"""new rows must take less than this fraction of an observation"""
ENOUGH = 8
"""pairs of evidence before rows of several slices are chosen: such rows do not repeat if fewer slices move"""
AGAINST = 32
"""pairs that fit no layout before the whole observation is taken for a row"""
PATIENCE = 4096
"""pairs that say nothing before it is"""
EARLIER = 5
"""observations of a stream that are remembered"""
EARLIER_BYTES = 64 << 20
"""they may take that much memory"""
PROBED = 16
"""values of each slice that are compared before all are"""


def rows_first(array: Array, axis: int | None, lead: int) -> Array:
    """A view with the row axis of the observations right after `lead` leading axes."""
    if not axis:  # None or 0
        return array
    return np.moveaxis(array, axis if axis < 0 else lead + axis, lead)


def from_rows_first(rows: Array, shape: tuple[int, ...], axis: int | None, lead: int) -> Array:
    """The inverse, for contiguous rows with `lead` leading axes: a view as observations of that shape."""
    if not axis:
        return rows.reshape(*rows.shape[:lead], *shape)
    moved = rows.reshape(*rows.shape[:lead], shape[axis], *np.delete(shape, axis))
    return np.moveaxis(moved, lead, axis if axis < 0 else lead + axis)


def divisors(number: int) -> list[int]:
    """All divisors, in ascending order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def bytes_stored(observations: Sequence[Array], layout: RowLayout | None) -> int:
    """What the distinct rows of some observations take in a layout."""
    field = observations[0]
    length = 1 if layout is None else layout.length(field.shape)
    axis = None if layout is None else layout.axis
    rows: set[int] = set()
    for obs in observations:
        moved = np.ascontiguousarray(rows_first(obs, axis, 0)).reshape(length, -1)
        rows.update(_digests(moved).tolist())
    return len(rows) * (field.nbytes // length + ROW_OVERHEAD)


class LayoutSearch:
    """Collects evidence from pairs of observations until it is enough to choose a layout."""

    def __init__(self, field: Field) -> None:
        self._shape, self._nbytes = field.shape, field.nbytes
        sides = [axis for axis, length in enumerate(field.shape) if length >= 2]
        # the first axis, the last, then those between
        self._axes = sorted(sides, key=lambda axis: (0 < axis < len(field.shape) - 1, axis))
        self._moves: dict[int, list[int]] = {axis: [] for axis in self._axes}
        self._against = self._unclear = 0
        self._earlier: dict[int, list[_Seen]] = {}

    @property
    def possible(self) -> bool:
        """Whether there is a layout that could pay."""
        largest = {axis: max(divisors(self._shape[axis])[:-1]) for axis in self._axes}
        return any(self._layout(axis, [move]) for axis in self._axes for move in (1, largest[axis]))

    def add(self, stream: int, obs: Array, next_obs: Array) -> RowLayout | Literal["open"] | None:
        """Add a step; those of a stream come in order. Returns the layout, None for one row, or "open"."""
        here, there, earlier = _Seen(obs), _Seen(next_obs), self._earlier.get(stream, [])
        if earlier and earlier[-1].data == here.data:
            here, earlier = earlier[-1], earlier[:-1]
        sure = self._compare(there, [here, *reversed(earlier)])
        if sure is not None:
            return sure
        most = min(EARLIER, EARLIER_BYTES // (self._nbytes * (1 + len(self._earlier))))
        self._earlier[stream] = [*earlier, here, there][-most:] if most else []
        return self._decide()

    def _compare(self, new: _Seen, known: list[_Seen]) -> RowLayout | None:
        """Count a pair; returns a layout only if this pair alone is enough for it."""
        if any(new.data == old.data for old in known):
            self._unclear += 1
            return None
        unclear = False
        for old in known:
            found, least = False, MIN_ROW_BYTES if old is known[0] else MIN_SEARCHED_BYTES
            for axis in self._axes:
                move = _move(old, new, axis)
                unclear = unclear or move == 0
                if not move:
                    continue
                layout = self._layout(axis, [*self._moves[axis], abs(move)], least)
                if layout is None:
                    continue
                if move > 0 and layout.size == 1:
                    return layout
                self._moves[axis].append(abs(move))
                found = True
            if found:
                return None
        self._unclear += unclear
        self._against += not unclear
        return None

    def _layout(self, axis: int, moves: list[int], least: int = MIN_ROW_BYTES) -> RowLayout | None:
        """The layout in which all these moves are by whole rows, unless it does not pay."""
        length = self._shape[axis]
        size = math.gcd(length, *moves)
        row_bytes = self._nbytes // length * size
        new_bytes = max(moves) // size * (row_bytes + ROW_OVERHEAD)
        if row_bytes < least or size == length or new_bytes > WORTH * self._nbytes:
            return None
        return RowLayout(normal_axis(self._shape, axis), size)

    def _decide(self) -> RowLayout | Literal["open"] | None:
        best = max(self._axes, key=lambda axis: len(self._moves[axis]), default=None)
        moves = self._moves[best] if best is not None else []
        ended = self._against >= AGAINST or self._unclear >= PATIENCE
        if best is not None and (len(moves) >= ENOUGH or (ended and 3 * len(moves) > self._against)):
            return self._layout(best, moves)
        return None if ended else "open"


class _Seen:
    """A copy of an observation, and the digests of its slices."""

    def __init__(self, obs: Array) -> None:
        self.data = obs.tobytes()
        self._obs = np.frombuffer(self.data, obs.dtype).reshape(obs.shape)
        self._digests: dict[int, Array] = {}
        self._probes: dict[int, list[int]] = {}

    def digests(self, axis: int) -> Array:
        """A number for each slice along an axis; different ones for different bytes, almost certainly."""
        found = self._digests.get(axis)
        if found is None:
            found = self._digests[axis] = _digests(np.ascontiguousarray(np.moveaxis(self._obs, axis, 0)))
        return found

    def may_be_moved(self, new: _Seen, axis: int) -> bool:
        """Whether `_move_of` may find anything, judging by a few values of each slice."""
        old, there = self._few(axis), new._few(axis)
        known = set(old)
        return (
            2 * sum(digest in known for digest in there) >= len(old)
            or there[0] in old[1:]
            or there[-1] in old[:-1]
        )

    def _few(self, axis: int) -> list[int]:
        found = self._probes.get(axis)
        if found is None:
            found = self._probes[axis] = _digests(np.ascontiguousarray(self._probe(axis))).tolist()
        return found

    def _probe(self, axis: int) -> Array:
        shape = self._obs.shape
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        at = np.unique(np.linspace(0, before * after - 1, PROBED).astype(np.int64))
        values: Array = self._obs.reshape(before, shape[axis], after)[at // after, :, at % after]
        return values.T


def _digests(slices: Array) -> Array:
    """A number for each slice along the first axis of a contiguous array."""
    plain = slices.reshape(len(slices), -1).view(np.uint8)
    if plain.shape[1] <= 8:
        padded = np.zeros((len(plain), 8), np.uint8)
        padded[:, : plain.shape[1]] = plain
        return padded.view(np.uint64).reshape(-1)
    return np.array([xxhash.xxh3_64_intdigest(row.data) for row in plain], np.uint64)


def _move(old: _Seen, new: _Seen, axis: int) -> int | None:
    """By how many slices one observation is the other, moved along an axis.

    None: it is not. 0: it may be, but that says nothing. Negative: it is, except for slices that stay.
    """
    if not old.may_be_moved(new, axis):
        return None
    here, there = old.digests(axis), new.digests(axis)
    found = [_move_of(here, there), _move_of(here[::-1], there[::-1])]  # the newest slice is last, or first
    if 0 in found and not any(found):
        return 0
    moves = [move for move in found if move]
    return max(moves, key=lambda move: (move > 0, -abs(move))) if moves else None


def _move_of(old: Array, new: Array) -> int | None:
    """`_move` towards the start: new[i] is old[i + move], and the last `move` slices enter."""
    length, stays, says_nothing = len(old), old == new, False
    for move in (np.flatnonzero(old[1:] == new[0]) + 1).tolist():
        if np.array_equal(old[move:], new[: length - move]):
            if not stays[: length - move].all() and not np.isin(new[length - move :], old).all():
                return int(move)
            says_nothing = True
    if not stays.all():
        first = int(np.argmin(stays))
        for move in np.flatnonzero(old[first + 1 :] == new[first]).tolist():
            move += 1
            moves = ~stays[: length - move] & (old[move:] == new[: length - move])
            enters = ~stays
            enters[: length - move] &= ~moves
            if (
                2 * np.count_nonzero(moves) >= length
                and 0 < np.count_nonzero(enters) <= move
                and not np.isin(new[enters], old).all()
            ):
                return -int(move)
    return 0 if says_nothing else None
