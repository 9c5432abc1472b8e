"""Some steps of a lake in memory, each distinct row once, and batches of them.

`Lake.sample` decodes the rows of each batch by itself. Steps that are loaded together are decoded once, and a
batch of them is then a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lakepond.lake.format.tracks import covered, distinct
from lakepond.lake.read.assemble import PART_STEPS
from lakepond.lake.read.lake import Lake
from lakepond.lake.read.reader import LeafPart, Part
from lakepond.rows.layouts import from_rows_first
from lakepond.types import Array, Batch, Field, Spec, Tree, leaves, rebuild

ALIGNED = 64
Allocate = Callable[[int], Array]
"""returns an array of that many bytes, aligned"""


class Place(NamedTuple):
    """One array of a batch within the bytes that hold all of them."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    axis: int | None = None
    """of an observation, along which its rows are; see `Layout`"""
    lead: int = 0
    """axes before those of the observation"""

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def of(self, data: Array) -> Array:
        """The array, as a view."""
        flat = data[self.offset : self.offset + self.nbytes].view(self.dtype)
        if self.axis is None:
            return flat.reshape(self.shape)
        first, rest = self.shape[: self.lead], self.shape[self.lead :]
        return from_rows_first(flat.reshape(*first, -1), rest, self.axis, self.lead)


class LoadedWindows(NamedTuple):
    """The windows of one leaf: rows, the sequence in which windows refer to them, and where each starts."""

    rows: Array
    """(rows, row_bytes) uint8"""
    track: Array
    """positions in `rows`"""
    starts: Array
    """(steps, 2): of obs and next_obs in `track`"""
    length: int
    axis: int | None

    @property
    def nbytes(self) -> int:
        """Memory for them."""
        return self.rows.nbytes + self.track.nbytes + self.starts.nbytes


class Observation(NamedTuple):
    """One leaf of obs (`which` 0) or next_obs (1)."""

    leaf: int
    which: int


class LoadedSteps:
    """Steps of a lake, by sorted ids, decoded."""

    def __init__(self, lake: Lake, ids: Array) -> None:
        self.ids, self._spec = ids, lake.spec
        reader = lake.reader
        parts = [reader.read(segment, some) for segment, some in reader.parts(ids, PART_STEPS)]
        self._columns = {
            name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
        }
        self._fields: list[Field] = [field for _, field in leaves(lake.spec.obs)]
        self._leaves = [_leaf(lake, i, parts) for i in range(len(self._fields))]
        self.form = batch_form(lake.spec)

    @property
    def nbytes(self) -> int:
        """Memory for the steps."""
        columns = sum(values.nbytes for values in self._columns.values())
        return columns + sum(leaf.nbytes for leaf in self._leaves)

    def batch(
        self, at: Array, allocate: Allocate, weight: Array | None = None
    ) -> tuple[Array, tuple[Place, ...]]:
        """The steps at these positions among `ids`, in any shape: an array of bytes, and what is where in it.

        `weight`: of each step, ones if not given. `views` makes a `Batch` of the two, in any process.
        """
        values = self._values(at, weight)
        places: list[Place] = []
        size = 0
        for value in values:
            place = self._place(size, value, at)
            places.append(place)
            size += -(-place.nbytes // ALIGNED) * ALIGNED
        data = allocate(size)
        for value, place in zip(values, places, strict=True):
            target = data[place.offset : place.offset + place.nbytes]
            if isinstance(value, Observation):
                self._gather(value, at.reshape(-1), target)
            else:
                target.view(value.dtype).reshape(value.shape)[...] = value
        return data, tuple(places)

    def _place(self, offset: int, value: Array | Observation, at: Array) -> Place:
        if not isinstance(value, Observation):
            return Place(offset, value.dtype.str, value.shape)
        field, leaf = self._fields[value.leaf], self._leaves[value.leaf]
        axis = leaf.axis if isinstance(leaf, LoadedWindows) else None
        return Place(offset, np.dtype(field.dtype).str, (*at.shape, *field.shape), axis, at.ndim)

    def _values(self, at: Array, weight: Array | None) -> list[Array | Observation]:
        """What a batch has, in the order of its fields; observations are not copied yet."""
        small = {name: values[at] for name, values in self._columns.items()}
        obs, next_obs = ([Observation(i, which) for i in range(len(self._leaves))] for which in (0, 1))
        return [
            *obs,
            *(small[path] for path, _ in leaves(self._spec.action, "action")),
            small["reward"],
            *next_obs,
            small["terminated"],
            small["truncated"],
            (~small["terminated"]).astype(np.float32),
            np.ones(at.shape, np.float32) if weight is None else weight,
            self.ids[at],
            small["stream"],
            *(small[name] for name in self._spec.extras),
            np.ones(at.shape, np.int64),
        ]

    def _gather(self, value: Observation, at: Array, target: Array) -> None:
        """Copy the observations of one leaf to an array of bytes."""
        leaf, which = self._leaves[value.leaf], value.which
        if isinstance(leaf, LoadedWindows):
            rows = leaf.track[leaf.starts[at, which][:, None] + np.arange(leaf.length)].reshape(-1)
            out = target.reshape(len(rows), leaf.rows.shape[1])
            np.take(leaf.rows, rows, axis=0, out=out, mode="clip")  # "raise" would copy
        else:
            target.view(leaf.dtype).reshape(len(at), *leaf.shape[2:])[...] = leaf[at, which]


def batch_form(spec: Spec) -> Tree:
    """The tree of a batch, with None in place of each array."""
    obs, action = (rebuild(tree, lambda: None) for tree in (spec.obs, spec.action))
    return (obs, action, None, obs, None, None, None, None, None, None, dict.fromkeys(spec.extras), None)


def views(form: Tree, data: Array, places: Sequence[Place]) -> Batch:
    """A batch of that form whose arrays are views of `data`."""
    found = iter([place.of(data) for place in places])
    return Batch(*rebuild(form, lambda: next(found)))


def _leaf(lake: Lake, i: int, parts: list[Part]) -> LoadedWindows | Array:
    """The observations of one leaf: windows, or values (steps, 2, *shape) where it is stored so."""
    found = [part.leaves[i] for part in parts]
    windows = [leaf for leaf in found if isinstance(leaf, LeafPart)]
    if len(windows) < len(found) or len({leaf.layout for leaf in windows}) > 1:
        return np.concatenate(
            [np.stack([lake.observations(i, leaf, which) for which in (0, 1)], axis=1) for leaf in found]
        )
    layout = windows[0].layout
    numbers, starts, offset = [], [], 0
    for leaf in windows:
        positions = covered(leaf.starts, layout.length)
        numbers.append(leaf.track[positions])
        starts.append(np.searchsorted(positions, leaf.starts) + offset)
        offset += len(positions)
    known, track = distinct(np.concatenate(numbers))
    rows = lake.reader.rows(i, known, layout.row_bytes)
    return LoadedWindows(rows, track, np.concatenate(starts), layout.length, layout.axis)
