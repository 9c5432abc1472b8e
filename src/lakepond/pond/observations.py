"""One leaf of the observations: a ring of references to rows, or of the plain values if they are small.

The layout settles by itself. Until the row axis is known the whole observation is kept as one row;
once it is, the few steps held by then are laid out anew.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy import ndarray

from lakepond.errors import RecordError
from lakepond.rows import RowAxis, RowStore, find_row_axis
from lakepond.rows.axis import AGAINST, PATIENCE, is_candidate
from lakepond.rows.books import NO_SOURCES, NO_STOPS, Sources
from lakepond.types import Array, Field, RowSource, WindowRef

PLAIN_BYTES = 256
"""an observation up to this size is kept plainly: its references would cost what they save"""


class Spelled(NamedTuple):
    """The windows of some steps as parts of a track of slots, whose rows are in the pond and held."""

    track: Array
    starts: Array
    """(steps, 2): where obs and next_obs start in the track"""
    held: Array


Handed = Array | WindowRef | Spelled
"""the observations of some steps, as they are handed over"""


class Observations:
    """The obs and next_obs of one leaf, for each place in the ring."""

    def __init__(self, path: str, spec: Field, capacity: int, following: Array) -> None:
        """`following`: how many places on in the ring the next step of each step's stream lies, or 0."""
        self._following = following
        self.path = path
        self.field = spec
        self.capacity = capacity
        self.dtype = np.dtype(spec.dtype)
        self.axis: RowAxis = None
        self.settled = spec.rows != "auto" or not any(
            is_candidate(spec.shape, spec.nbytes, a) for a in (0, -1)
        )
        self._pairs_against = self._pairs_unclear = 0
        self._starts: Array = np.zeros((0, 2), np.int64)
        self._plain: Array | None = None
        self.store: RowStore | None = None
        if spec.rows == "auto" and spec.nbytes <= PLAIN_BYTES:
            self.settled = True
            self._plain = np.empty((2, capacity, *spec.shape), self.dtype)
        else:
            self._starts = np.zeros((capacity, 2), np.int64)
            self._lay_out(spec.rows if spec.rows in (0, -1) else None)

    def _lay_out(self, axis: RowAxis) -> None:
        from lakepond.rows.calling import address_taker  # numba, not before it is needed

        self.axis = axis
        length = 1 if axis is None else self.field.shape[axis]
        self.store = RowStore(length, self.field.nbytes // length, self.dtype)
        self._address_of = address_taker(self.dtype, 1 + len(self.field.shape))
        self._room = 0  # steps that are sure to fit

    @property
    def layout(self) -> str:
        """How the leaf is kept, for people."""
        if self.store is None:
            return "plain"
        found = "" if self.settled else ", row axis not found yet"
        if self.axis is None:
            return f"whole observations of {self.store.row_bytes:,} B{found}"
        return f"{self.store.length} rows of {self.store.row_bytes:,} B along axis {self.axis}"

    # --- recording -------------------------------------------------------------------------------

    def axis_of(self, obs: Array | WindowRef, next_obs: Array | WindowRef) -> RowAxis | Literal["open"]:
        """The row axis, as far as these steps and those before them tell; "open" while they do not."""
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

    def lay_out_anew(self, axis: RowAxis, places: Array, lanes: Array) -> None:
        """Settle on a row axis; `places` are the live steps, oldest first."""
        self.settled = True
        old = self.store
        if axis is None or old is None:
            return
        starts = self._starts.copy()
        before = self.axis, old, self._room
        try:
            self._lay_out(axis)
            self._move(old, starts, places, lanes)
        except BaseException:  # an interrupt, say
            self.axis, self.store, self._room = before
            self._starts[:], self.settled = starts, False
            raise

    def _move(self, old: RowStore, starts: Array, places: Array, lanes: Array) -> None:
        """Keep the live steps of another store here."""
        for k in range(len(places)):
            pair = np.empty((2, *self.field.shape), self.dtype)
            for which in (0, 1):
                old.gather(old.look_up(starts, which, places[k : k + 1])[np.newaxis], pair[which])
            if not self.has_room(1, int(lanes.max()) + 1):
                self.grow(1, int(lanes.max()) + 1)
            self.turn(0, 0, lanes[k : k + 1], pair[:1], pair[1:], int(places[k]))

    @property
    def until(self) -> int:
        """The id after the newest step kept; values that are kept plainly may be written twice."""
        return 0 if self.store is None else self.store.until

    def has_room(self, steps: int, lanes: int) -> bool:
        """Whether so many new steps, in lanes up to that number, are sure to fit into memory as it is."""
        if self.store is None:
            return True
        if self._room < steps:
            self._room = self.store.room() // 2
        return self._room >= steps and lanes <= len(self.store.books.lanes)

    def grow(self, steps: int, lanes: int) -> None:
        """Make room for so many new steps, in lanes up to that number. Nobody may be reading."""
        if self.store is not None:
            self._room = 0  # if it is interrupted
            self.store.grow(2 * steps, lanes)
            self._room = self.store.room() // 2

    def turn(
        self,
        oldest: int,
        gone: int,
        lanes: Array,
        obs: Handed,
        next_obs: Handed,
        first: int,
    ) -> None:
        """Let go of so many of the oldest steps, from an id on; keep new ones, from another on."""
        if self.store is None:
            assert self._plain is not None
            where = ring_slice(first, len(lanes), self.capacity)
            self._plain[0][where] = self._values(obs)
            self._plain[1][where] = self._values(next_obs)
            return
        self._room = 0  # if it is interrupted
        rings = self._starts, self._following
        if isinstance(obs, Spelled):
            spare = self.store.turn_spelled(oldest, gone, lanes, obs.track, obs.starts, first, *rings)
            self._room = spare // 2
            return
        if type(obs) is type(next_obs) is ndarray:
            obs, next_obs = self._rows_first(obs), self._rows_first(next_obs)  # must live till copied
            here, there, sources = self._address_of(obs), self._address_of(next_obs), NO_SOURCES
        else:
            obs, next_obs = self._by_source(obs), self._by_source(next_obs)
            (here, source, stops), (there, next_source, next_stops) = map(self._windows, (obs, next_obs))
            sources = Sources(source, stops, next_source, next_stops)
        self._room = self.store.turn(oldest, gone, lanes, here, there, sources, first, *rings) // 2

    def rows_taken(self) -> None:
        """Rows have come in another way than by `turn`: what room there is has to be looked at again."""
        self._room = 0

    def let_go(self, oldest: int, gone: int) -> None:
        """Let go of so many of the oldest steps and keep none; `until` tells of it by -1."""
        if self.store is not None:
            none = np.zeros(0, np.int64)
            self.store.turn(oldest, gone, none, 0, 0, NO_SOURCES, -1, self._starts, self._following)

    def _rows_first(self, obs: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(obs, -1, 1) if self.axis == -1 else obs)

    def _by_source(self, obs: Handed) -> Array | WindowRef:
        """A window of a source as such, if rows are kept along its axis; its values otherwise, rows first."""
        assert not isinstance(obs, Spelled)
        return obs if isinstance(obs, WindowRef) and self.axis == 0 else self._rows_first(self._values(obs))

    def _windows(self, obs: Array | WindowRef) -> tuple[int, int, Array]:
        """Address, source and stops."""
        if isinstance(obs, WindowRef):
            return obs.source.address, obs.source.token, obs.stop  # type: ignore[return-value]  # an array
        return self._address_of(obs), 0, NO_STOPS

    def _values(self, obs: Handed) -> Array:
        assert not isinstance(obs, Spelled)
        if not isinstance(obs, WindowRef):
            return obs
        length = self.field.shape[0]
        if not len(obs.stop):  # type: ignore[arg-type]  # an array by now
            return np.empty((0, *self.field.shape), self.dtype)
        return np.stack([obs.source.rows[stop - length : stop] for stop in obs.stop])  # type: ignore[union-attr]

    # --- to and from a lake ------------------------------------------------------------------------

    def starts(self, places: Array) -> Array:
        """Where the windows of some steps start, (steps, 2)."""
        return self._starts[places]

    def plain(self, places: Array) -> Array:
        """The values of some steps of a leaf that is kept plainly, (steps, 2, *shape)."""
        assert self._plain is not None
        return np.stack([self._plain[0][places], self._plain[1][places]], axis=1)

    def settle_on(self, axis: RowAxis) -> None:
        """Take a row axis for granted, before anything is recorded."""
        if not self.settled:
            self.settled = True
            self._lay_out(axis)

    # --- reading ---------------------------------------------------------------------------------

    def empty(self, shape: tuple[int, ...]) -> Array:
        """An array that `Read.into` fills without a detour, for so many observations."""
        if self.axis != -1:
            return np.empty((*shape, *self.field.shape), self.dtype)
        rows_first = np.empty((*shape, self.field.shape[-1], *self.field.shape[:-1]), self.dtype)
        return np.moveaxis(rows_first, len(shape), -1)

    def look_up(self, places: Array, which: int) -> Read:
        """What is needed to read obs (0) or next_obs (1) of these steps later, without a lock."""
        if self.store is None:
            assert self._plain is not None
            return Read(self, None, None, np.take(self._plain[which], places, axis=0))
        return Read(self, self.store, self.store.look_up(self._starts, which, places), None)

    @property
    def nbytes(self) -> int:
        """All memory held."""
        plain = 0 if self._plain is None else self._plain.nbytes
        return plain + self._starts.nbytes + (0 if self.store is None else self.store.nbytes)


class Read:
    """Observations that have been looked up and not yet copied."""

    def __init__(
        self, leaf: Observations, store: RowStore | None, slots: Array | None, values: Array | None
    ) -> None:
        self.leaf, self.store, self.slots, self.values = leaf, store, slots, values
        self.axis = leaf.axis
        if store is not None:
            store.readers += 1

    def rows_first(self, out: Array) -> Array:
        """A view of `out` in the order of the rows; contiguous if it came from `empty`."""
        return np.moveaxis(out, -1, out.ndim - len(self.leaf.field.shape)) if self.axis == -1 else out

    def into(self, out: Array) -> None:
        """Copy them into `out`, whatever its layout."""
        if self.values is not None:
            out[...] = self.values.reshape(out.shape)
            return
        assert self.store is not None
        assert self.slots is not None
        target = self.rows_first(out)
        straight = np.empty(target.shape, target.dtype)
        self.store.gather(self.slots[np.newaxis], straight)
        target[...] = straight

    def done(self) -> None:
        """Under the lock again: what was let go meanwhile may be used again."""
        if self.store is not None:
            self.store.readers -= 1
            self.store.settle()


def ring_slice(first: int, count: int, capacity: int) -> slice | Array:
    """The places in a ring of so many steps from an id on; a slice, unless the ring ends between."""
    at = first % capacity
    if at + count <= capacity:
        return slice(at, at + count)
    return np.arange(at, at + count) % capacity


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
            f"{path}: WindowRef stop must lie in [{spec.shape[0]}, {len(rows)}] for windows of "
            f"{spec.shape[0]} of {len(rows)} rows, but is {low}..{high}."
        )
    return stops
