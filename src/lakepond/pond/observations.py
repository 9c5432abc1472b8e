"""One leaf of the observations: windows of rows in a row store, or arrays if an observation is small.

The layout is detected automatically. Until it is known, each observation is stored as one row; then the steps
stored so far are stored again in the new layout. The layout is checked again after `RECHECKS` more steps, and
changed if the first steps were misleading.
"""

from __future__ import annotations

from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy import ndarray

from lakepond.errors import RecordError
from lakepond.rows import LayoutSearch, RowStore
from lakepond.rows.layouts import ROW_OVERHEAD, from_rows_first, rows_first
from lakepond.rows.memory import address_of
from lakepond.rows.state import NO_SOURCES, NO_STOPS, SourceWindows
from lakepond.types import Array, Field, RowLayout, RowSource, WindowRef

PLAIN_BYTES = 256
"""an observation up to this size is stored as an array: references would take as much as they save"""
RECHECKS = (256, 4096)
"""steps after which the layout is checked again"""
RECHECK_BYTES = 1 << 30
"""no check if the observations of these steps take more than this: storing them again would take seconds"""
NEVER = 1 << 62


class SlotWindows(NamedTuple):
    """The windows of some steps as slices of a track of slots, whose rows are in the pond and pinned."""

    track: Array
    starts: Array
    """(steps, 2): where obs and next_obs start in the track"""


Values = Array | WindowRef | SlotWindows
"""the obs or next_obs of some steps, as passed to `append`"""


class Observations:
    """The obs and next_obs of one leaf, for each place in the ring."""

    def __init__(self, path: str, spec: Field, ring: int) -> None:
        self.path = path
        self.field = spec
        self.ring = ring
        self.dtype = np.dtype(spec.dtype)
        self.axis: int | None = None
        """axis of the rows; None: each observation is one row"""
        self._search: LayoutSearch | None = None
        self._rechecks = list(RECHECKS)
        self.layout_chosen = spec.rows != "auto" or not LayoutSearch(spec).possible
        """whether a layout has been chosen"""
        self.plain: tuple[Array, Array] | None = None
        """rings of obs and of next_obs, if they are stored as arrays without rows"""
        self.store: RowStore | None = None
        if spec.rows == "auto" and spec.nbytes <= PLAIN_BYTES:
            self.layout_chosen = True
            self.plain = (
                np.zeros((ring, *spec.shape), self.dtype),
                np.zeros((ring, *spec.shape), self.dtype),
            )
        else:
            self._use_store(self._new_store(spec.row_layout))
        self.sources: WeakValueDictionary[int, RowSource] = WeakValueDictionary()
        """sources that windows were recorded from, by their tokens, as long as they exist"""
        self._last_source = 0
        self.hint: tuple[int, str] = (0, "")
        """(recorded, text): the hint is valid until that many steps are recorded; see `hints`"""
        self.search_from = NEVER if self.layout_chosen else 0
        """steps from this id on are evidence for a layout"""
        self.keepers = 0
        """how many loads of rows depend on the layout and its store: it is not changed meanwhile"""

    def _new_store(self, layout: RowLayout | None) -> tuple[int | None, RowStore]:
        length = 1 if layout is None else layout.length(self.field.shape)
        axis = None if layout is None else layout.axis
        return axis, RowStore(length, self.field.nbytes // length, self.dtype, self.ring)

    def _use_store(self, new: tuple[int | None, RowStore]) -> None:
        from lakepond.rows.compiling import address_taker  # numba, not before it is needed

        self._address_of = address_taker(self.dtype, 1 + len(self.field.shape))
        self._spare = 0  # number of steps that certainly fit
        self.axis, self.store = new

    @property
    def row_layout(self) -> RowLayout | None:
        """The rows as they are stored; None: each observation is one row, or a plain array."""
        if self.axis is None or self.store is None:
            return None
        return RowLayout(self.axis, self.field.shape[self.axis] // self.store.length)

    @property
    def layout(self) -> str:
        """Description of the layout for `stats()`."""
        if self.store is None:
            return "stored without deduplication"
        found = "" if self.layout_chosen else ", row axis not found yet"
        if self.axis is None:
            return f"whole observations of {self.store.row_bytes:,} B{found}"
        return f"{self.store.length} rows of {self.store.row_bytes:,} B along axis {self.axis}"

    # --- recording -------------------------------------------------------------------------------

    def find_layout(
        self, cursors: Array, obs: Values, next_obs: Values
    ) -> RowLayout | Literal["open"] | None:
        """Return the layout that these and earlier steps have; "open" if more steps are needed."""
        if isinstance(obs, SlotWindows) or isinstance(next_obs, SlotWindows):
            return "open"
        if isinstance(obs, WindowRef) or isinstance(next_obs, WindowRef):
            return RowLayout(0)
        if self._search is None:
            self._search = LayoutSearch(self.field)
        for cursor, one, other in zip(cursors.tolist(), obs, next_obs, strict=True):
            found = self._search.add(cursor, one, other)
            if found != "open":
                return found
        return "open"

    def choose_layout(self, found: RowLayout | None, ids: Array, cursors: Array, now: int) -> None:
        """Use a layout that was found; store the live steps, with these ids, again if it differs."""
        old = self.store
        assert old is not None
        # large rows cost little even if they do not repeat now
        keep = found is None and old.row_bytes >= 10 * ROW_OVERHEAD
        if found != self.row_layout and not keep:
            self._change_layout(found, old, ids, cursors)
        self.layout_chosen, self._search, self.search_from = True, None, NEVER
        if self._rechecks and 2 * self._rechecks[0] * self.field.nbytes <= RECHECK_BYTES:
            self.search_from = now + self._rechecks.pop(0)

    def _change_layout(self, found: RowLayout | None, old: RowStore, ids: Array, cursors: Array) -> None:
        """Store the live steps in another layout; published by one assignment at the end."""
        layout = self._new_store(found)
        axis, new = layout
        new.start_at(old.oldest)
        for step, cursor in zip(ids.tolist(), cursors.tolist(), strict=True):
            place = np.array([step % self.ring])
            pair = [rows_first(self.read(which, place), axis, 1) for which in (0, 1)]
            obs, next_obs = map(np.ascontiguousarray, pair)
            if new.spare() < 2 or cursor >= len(new.state.cursors):
                new.grow(2, int(cursors.max()) + 1)
            addresses = address_of(obs), address_of(next_obs)
            new.append(np.array([cursor]), *addresses, NO_SOURCES, step, old.oldest)
        self._use_store(layout)

    def has_room(self, steps: int, cursors: int) -> bool:
        """Whether that many new steps, in cursors [0, cursors), certainly fit without growing."""
        if self.store is None:
            return True
        if self._spare < steps:
            self._spare = self.store.spare() // 2
        return self._spare >= steps and cursors <= len(self.store.state.cursors)

    def grow(self, steps: int, cursors: int) -> None:
        """Make room for that many new steps, in cursors [0, cursors). There must be no reader."""
        if self.store is not None:
            self._spare = 0  # if it is interrupted
            self.store.grow(2 * steps, cursors)

    def append(self, cursors: Array, obs: Values, next_obs: Values, first: int, oldest: int) -> int:
        """Store the observations of new steps, with ids from `first` on; not visible until published.

        Releases the rows of steps before `oldest`. Returns how many cursors lost their newest step.
        """
        store = self.store
        if store is None:
            assert self.plain is not None
            where = ring_slice(first, len(cursors), self.ring)
            self.plain[0][where] = self._values(obs)
            self.plain[1][where] = self._values(next_obs)
            return 0
        self._spare = 0  # if it is interrupted
        if isinstance(obs, SlotWindows):
            emptied = store.evict(oldest)
            self._spare = store.append_slots(cursors, obs.track, obs.starts, first) // 2
            return emptied
        if type(obs) is type(next_obs) is ndarray:
            obs, next_obs = self._rows_first(obs), self._rows_first(next_obs)  # must live until copied
            here, there, sources = self._address_of(obs), self._address_of(next_obs), NO_SOURCES
        else:
            obs, next_obs = self._by_source(obs), self._by_source(next_obs)
            (here, source, stops), (there, next_source, next_stops) = map(self._windows, (obs, next_obs))
            sources = SourceWindows(source, stops, next_source, next_stops)
        spare, emptied = store.append(cursors, here, there, sources, first, oldest)
        self._spare = spare // 2
        return emptied

    def rows_added(self) -> None:
        """Forget the cached room, after rows were stored by other means than `append`."""
        self._spare = 0

    def _rows_first(self, obs: Array) -> Array:
        return np.ascontiguousarray(rows_first(obs, self.axis, 1))

    def _by_source(self, obs: Values) -> Array | WindowRef:
        """A window of a source unchanged, if its rows are those stored; else its values, rows first."""
        assert not isinstance(obs, SlotWindows)
        if isinstance(obs, WindowRef) and self.row_layout == (0, 1):
            if obs.source.token != self._last_source:
                self._last_source = obs.source.token
                self.sources[obs.source.token] = obs.source
            return obs
        return self._rows_first(self._values(obs))

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

    def use_layout(self, layout: RowLayout | None) -> None:
        """Set the layout before anything is recorded, unless one is chosen or declared."""
        if not self.layout_chosen:
            self.layout_chosen, self.search_from = True, NEVER
            assert self.store is not None
            new = self._new_store(layout)
            new[1].start_at(self.store.oldest)
            self._use_store(new)

    def read(self, which: int, places: Array) -> Array:
        """The obs (0) or next_obs (1) of steps by their places, copied while the lock is held."""
        assert self.store is not None
        rows = np.empty((len(places), *self.field.shape), self.dtype)
        self.store.gather(self.store.look_up(which, places)[np.newaxis], rows)
        return from_rows_first(rows, self.field.shape, self.axis, 1)

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
        rows = np.empty((*shape, *self.field.shape), self.dtype)
        return from_rows_first(rows, self.field.shape, self.axis, len(shape)) if self.axis else rows

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
        return rows_first(out, self.axis, out.ndim - len(self.leaf.field.shape))

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


def ring_slice(first: int, count: int, ring: int) -> slice | Array:
    """The places of steps [first, first + count) in a ring; a slice, unless they wrap around."""
    at = first % ring
    if at + count <= ring:
        return slice(at, at + count)
    return np.arange(at, at + count) % ring


def part_of(values: Values, start: int, stop: int) -> Values:
    """The values of steps [start, stop)."""
    if isinstance(values, SlotWindows):
        return values._replace(starts=values.starts[start:stop])
    if isinstance(values, WindowRef):
        return WindowRef(values.source, values.stop[start:stop])  # type: ignore[index]  # an array by now
    return values[start:stop]


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
    if spec.row_layout is not None and spec.row_layout.axis != 0:
        raise RecordError(
            f"{path}: a WindowRef is rows along axis 0, but the Spec declares rows={spec.rows}."
        )
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
