"""One leaf of the observations: windows of rows in a row store, or plain arrays if an observation is small.

The layout is chosen automatically. Until the row axis is known each observation is stored as one row; once it
is, the few steps stored by then are stored again in the new layout.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy import ndarray

from lakepond.errors import RecordError
from lakepond.rows import RowAxis, RowStore, find_row_axis
from lakepond.rows.axis import AGAINST, PATIENCE, is_candidate
from lakepond.rows.memory import address_of
from lakepond.rows.state import NO_SOURCES, NO_STOPS, Sources
from lakepond.types import Array, Field, RowSource, WindowRef

PLAIN_BYTES = 256
"""an observation up to this size is stored as a plain array: references would cost what they save"""


class SlotWindows(NamedTuple):
    """The windows of some steps as slices of a track of slots, whose rows are in the pond and pinned."""

    track: Array
    starts: Array
    """(steps, 2): where obs and next_obs start in the track"""
    pinned: Array


Values = Array | WindowRef | SlotWindows
"""the obs or next_obs of some steps, as they are handed over"""


class Observations:
    """The obs and next_obs of one leaf, for each place in the ring."""

    def __init__(self, path: str, spec: Field, ring: int) -> None:
        self.path = path
        self.field = spec
        self.ring = ring
        self.dtype = np.dtype(spec.dtype)
        self.axis: RowAxis = None
        self.settled = spec.rows != "auto" or not any(
            is_candidate(spec.shape, spec.nbytes, a) for a in (0, -1)
        )
        self._pairs_against = self._pairs_unclear = 0
        self.plain: tuple[Array, Array] | None = None
        """rings of obs and of next_obs, if they are stored as plain arrays"""
        self.store: RowStore | None = None
        if spec.rows == "auto" and spec.nbytes <= PLAIN_BYTES:
            self.settled = True
            self.plain = (
                np.zeros((ring, *spec.shape), self.dtype),
                np.zeros((ring, *spec.shape), self.dtype),
            )
        else:
            self._use_store(self._new_store(spec.rows if spec.rows in (0, -1) else None))

    def _new_store(self, axis: RowAxis) -> tuple[RowAxis, RowStore]:
        length = 1 if axis is None else self.field.shape[axis]
        return axis, RowStore(length, self.field.nbytes // length, self.dtype, self.ring)

    def _use_store(self, layout: tuple[RowAxis, RowStore]) -> None:
        from lakepond.rows.compiling import address_taker  # numba, not before it is needed

        self._address_of = address_taker(self.dtype, 1 + len(self.field.shape))
        self._spare = 0  # steps that are sure to fit
        self.axis, self.store = layout

    @property
    def layout(self) -> str:
        """How the leaf is stored, for people."""
        if self.store is None:
            return "plain"
        found = "" if self.settled else ", row axis not found yet"
        if self.axis is None:
            return f"whole observations of {self.store.row_bytes:,} B{found}"
        return f"{self.store.length} rows of {self.store.row_bytes:,} B along axis {self.axis}"

    # --- recording -------------------------------------------------------------------------------

    def axis_of(self, obs: Array | WindowRef, next_obs: Array | WindowRef) -> RowAxis | Literal["open"]:
        """The row axis, as far as these steps and those before them show; "open" while they do not."""
        if isinstance(obs, WindowRef) or isinstance(next_obs, WindowRef):
            return 0
        for one, other in zip(obs, next_obs, strict=True):
            says = find_row_axis(one, other)
            if says == 0 or says == -1:
                return says
            self._pairs_against += says == "none"
            self._pairs_unclear += says == "unclear"
            if self._pairs_against >= AGAINST or self._pairs_unclear >= PATIENCE:
                return None
        return "open"

    def change_layout(self, axis: RowAxis, ids: Array, lanes: Array) -> None:
        """Settle on a row axis and store the live steps again; published by one assignment at the end."""
        old = self.store
        if axis is None or old is None:
            self.settled = True
            return
        before = self.axis
        layout = self._new_store(axis)
        new = layout[1]
        new.start_at(old.oldest)
        pair = np.empty((2, 1, *self.field.shape), self.dtype)
        for step, lane in zip(ids.tolist(), lanes.tolist(), strict=True):
            place = np.array([step % self.ring])
            for which in (0, 1):
                rows = np.ascontiguousarray(_rows_first(pair[which], before, 1))
                old.gather(old.look_up(which, place)[np.newaxis], rows)
                _rows_first(pair[which], before, 1)[...] = rows
            if new.spare() < 2 or lane >= len(new.state.lanes):
                new.grow(64, int(lanes.max()) + 1)
            obs, next_obs = (np.ascontiguousarray(_rows_first(each, axis, 1)) for each in pair)
            new.append(np.array([lane]), address_of(obs), address_of(next_obs), NO_SOURCES, step)
        self.settled = True
        self._use_store(layout)

    @property
    def stop(self) -> int | None:
        """The id after the newest step stored; None for plain arrays, which may be written twice."""
        return None if self.store is None else self.store.stop

    def has_room(self, steps: int, lanes: int) -> bool:
        """Whether that many new steps, in lanes [0, lanes), are sure to fit without growing."""
        if self.store is None:
            return True
        if self._spare < steps:
            self._spare = self.store.spare() // 2
        return self._spare >= steps and lanes <= len(self.store.state.lanes)

    def grow(self, steps: int, lanes: int) -> None:
        """Make room for that many new steps, in lanes [0, lanes). Nobody may be reading."""
        if self.store is not None:
            self._spare = 0  # if it is interrupted
            self.store.grow(2 * steps, lanes)

    def append(self, lanes: Array, obs: Values, next_obs: Values, first: int) -> None:
        """Store the observations of new steps, with ids from `first` on; not visible until published."""
        store = self.store
        if store is None:
            assert self.plain is not None
            where = ring_slice(first, len(lanes), self.ring)
            self.plain[0][where] = self._values(obs)
            self.plain[1][where] = self._values(next_obs)
            return
        self._spare = 0  # if it is interrupted
        if isinstance(obs, SlotWindows):
            self._spare = store.append_slots(lanes, obs.track, obs.starts, first) // 2
            return
        if type(obs) is type(next_obs) is ndarray:
            obs, next_obs = self._rows_first(obs), self._rows_first(next_obs)  # must live until copied
            here, there, sources = self._address_of(obs), self._address_of(next_obs), NO_SOURCES
        else:
            obs, next_obs = self._by_source(obs), self._by_source(next_obs)
            (here, source, stops), (there, next_source, next_stops) = map(self._windows, (obs, next_obs))
            sources = Sources(source, stops, next_source, next_stops)
        self._spare = store.append(lanes, here, there, sources, first) // 2

    def rows_added(self) -> None:
        """Rows were stored otherwise than by `append`: ask the store again how much room there is."""
        self._spare = 0

    def _rows_first(self, obs: Array) -> Array:
        return np.ascontiguousarray(_rows_first(obs, self.axis, 1))

    def _by_source(self, obs: Values) -> Array | WindowRef:
        """A window of a source unchanged, if rows are stored along its axis; else its values, rows first."""
        assert not isinstance(obs, SlotWindows)
        return obs if isinstance(obs, WindowRef) and self.axis == 0 else self._rows_first(self._values(obs))

    def _windows(self, obs: Array | WindowRef) -> tuple[int, int, Array]:
        """Address, source and stops."""
        if isinstance(obs, WindowRef):
            return obs.source.address, obs.source.token, obs.stop  # type: ignore[return-value]  # an array
        return self._address_of(obs), 0, NO_STOPS

    def _values(self, obs: Values) -> Array:
        assert not isinstance(obs, SlotWindows)
        if not isinstance(obs, WindowRef):
            return obs
        length = self.field.shape[0]
        if not len(obs.stop):  # type: ignore[arg-type]  # an array by now
            return np.empty((0, *self.field.shape), self.dtype)
        return np.stack([obs.source.rows[stop - length : stop] for stop in obs.stop])  # type: ignore[union-attr]

    # --- to and from a lake ------------------------------------------------------------------------

    def values(self, places: Array) -> Array:
        """Both observations of some steps of a leaf that is stored as plain arrays, (steps, 2, *shape)."""
        assert self.plain is not None
        return np.stack([self.plain[0][places], self.plain[1][places]], axis=1)

    def settle_on(self, axis: RowAxis) -> None:
        """Choose a row axis before anything is recorded."""
        if not self.settled:
            self.settled = True
            assert self.store is not None
            layout = self._new_store(axis)
            layout[1].start_at(self.store.oldest)
            self._use_store(layout)

    # --- reading ---------------------------------------------------------------------------------

    def follows(self, places: Array, previous: Array) -> Array:
        """Whether the obs of each step is, byte for byte, the next_obs of a previous one, by their places."""
        if self.store is not None:
            return self.store.follows(places, previous)
        assert self.plain is not None
        count = len(places)
        if not count:
            return np.zeros(0, np.bool_)
        here = np.ascontiguousarray(self.plain[0][places]).view(np.uint8).reshape(count, -1)
        there = np.ascontiguousarray(self.plain[1][previous]).view(np.uint8).reshape(count, -1)
        found: Array = (here == there).all(axis=1)
        return found

    def empty(self, shape: tuple[int, ...]) -> Array:
        """An array for that many observations which `Read.into` fills without an intermediate copy."""
        if self.axis != -1:
            return np.empty((*shape, *self.field.shape), self.dtype)
        rows_first = np.empty((*shape, self.field.shape[-1], *self.field.shape[:-1]), self.dtype)
        return np.moveaxis(rows_first, len(shape), -1)

    def look_up(self, places: Array, which: int) -> Read:
        """A reference to obs (0) or next_obs (1) of these steps, to be read later, without a lock."""
        assert self.store is not None
        return Read(self, self.store, self.store.look_up(which, places))

    def nbytes(self, used: float) -> int:
        """Resident memory; `used` is the fraction of the ring that was ever written."""
        plain = 0 if self.plain is None else 2 * self.plain[0].nbytes
        return int(plain * used) + (0 if self.store is None else self.store.nbytes(used))


class Read:
    """Observations that were looked up and are not yet copied."""

    def __init__(self, leaf: Observations, store: RowStore, slots: Array) -> None:
        self.leaf, self.store, self.slots = leaf, store, slots
        self.axis = leaf.axis
        store.readers += 1

    def rows_first(self, out: Array) -> Array:
        """A view of `out` in the order of the rows; contiguous if it came from `empty`."""
        return _rows_first(out, self.axis, out.ndim - len(self.leaf.field.shape))

    def into(self, out: Array) -> None:
        """Copy them into `out`, whatever its layout."""
        target = self.rows_first(out)
        contiguous = np.empty(target.shape, target.dtype)
        self.store.gather(self.slots[np.newaxis], contiguous)
        target[...] = contiguous

    def done(self) -> None:
        """Under the lock again: slots that lost their last reference meanwhile may be reused."""
        self.store.readers -= 1
        self.store.free_pending()


def _rows_first(array: Array, axis: RowAxis, lead: int) -> Array:
    """A view with the row axis of the observations right after `lead` leading axes."""
    return np.moveaxis(array, axis, lead) if axis == -1 else array


def ring_slice(first: int, count: int, ring: int) -> slice | Array:
    """The places of steps [first, first + count) in a ring; a slice, unless they wrap around."""
    at = first % ring
    if at + count <= ring:
        return slice(at, at + count)
    return np.arange(at, at + count) % ring


def check_window(path: str, spec: Field, ref: WindowRef) -> Array:
    """The stops of a WindowRef, or why it does not fit the field."""
    if not isinstance(ref.source, RowSource):
        raise RecordError(f"{path}: WindowRef needs a RowSource, not {type(ref.source).__name__}.")
    rows = ref.source.rows
    if not spec.shape or rows.shape[1:] != spec.shape[1:] or rows.dtype != spec.dtype:
        raise RecordError(
            f"{path}: the source has rows of {rows.dtype.name}{list(rows.shape[1:])}, the field {spec} "
            f"has rows of {np.dtype(spec.dtype).name}{list(spec.shape[1:])}."
        )
    if spec.rows == -1:
        raise RecordError(f"{path}: a WindowRef is rows along axis 0, but the Spec says rows=-1.")
    stops = np.array([ref.stop] if isinstance(ref.stop, int) else ref.stop, ndmin=1)
    if stops.dtype.kind not in "iu" or stops.ndim > 1:
        raise RecordError(f"{path}: WindowRef stop must be an integer or an array of them, not {ref.stop!r}.")
    stops = stops.astype(np.int64, copy=False)
    low, high = (stops[0], stops[0]) if len(stops) == 1 else (stops.min(initial=2**62), stops.max(initial=0))
    if len(stops) and (low < spec.shape[0] or high > len(rows)):
        raise RecordError(
            f"{path}: WindowRef stop must be in [{spec.shape[0]}, {len(rows)}] for windows of "
            f"{spec.shape[0]} of {len(rows)} rows, but is {low}..{high}."
        )
    return stops
