"""One leaf of the observations: a ring of references to rows, or of the plain values if they are small.

The layout settles by itself. Until the row axis is known the whole observation is kept as one row;
once it is, the few steps held by then are laid out anew.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from lakepond.errors import RecordError
from lakepond.rows import RowAxis, RowStore, find_row_axis, windows_of, windows_of_source
from lakepond.rows.axis import AGAINST, PATIENCE, is_candidate
from lakepond.rows.kernel import Windows
from lakepond.types import Array, Field, RowSource, WindowRef

PLAIN_BYTES = 256
"""an observation up to this size is kept plainly: its references would cost what they save"""


class Observations:
    """The obs and next_obs of one leaf, for each place in the ring."""

    def __init__(self, path: str, spec: Field, capacity: int) -> None:
        self.path = path
        self.field = spec
        self.capacity = capacity
        self.dtype = np.dtype(spec.dtype)
        self.axis: RowAxis = None
        self.settled = spec.rows != "auto" or not any(
            is_candidate(spec.shape, spec.nbytes, a) for a in (0, -1)
        )
        self._pairs_against = self._pairs_unclear = 0
        self._starts: Array = np.zeros((0, 2), np.int32)
        self._plain: Array | None = None
        self.store: RowStore | None = None
        if spec.rows == "auto" and spec.nbytes <= PLAIN_BYTES:
            self.settled = True
            self._plain = np.empty((capacity, 2, *spec.shape), self.dtype)
        else:
            self._starts = np.zeros((capacity, 2), np.int32)
            self._lay_out(spec.rows if spec.rows in (0, -1) else None)

    def _lay_out(self, axis: RowAxis) -> None:
        self.axis = axis
        length = 1 if axis is None else self.field.shape[axis]
        self.store = RowStore(length, self.field.nbytes // length)

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

    def settle(self, pairs: list[tuple[Array | WindowRef, Array | WindowRef]]) -> RowAxis | Literal["open"]:
        """What these steps say about the row axis; "open" while nothing new follows from them."""
        for obs, next_obs in pairs:
            if isinstance(obs, WindowRef) or isinstance(next_obs, WindowRef):
                return 0
            for one, other in zip(obs, next_obs, strict=True):
                says: Any = find_row_axis(one, other)
                if says in (0, -1):
                    return says  # type: ignore[no-any-return]
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
        self._lay_out(axis)
        assert self.store is not None
        for k in range(len(places)):
            pair = np.empty((2, *self.field.shape), self.dtype)
            old.gather(old.look_up(starts[places[k]].astype(np.int64)), pair, None)
            self.reserve(1, int(lanes.max()) + 1)
            self._record(int(places[k]), lanes[k : k + 1], pair[:1], pair[1:])

    def must_grow(self, steps: int, lanes: int) -> bool:
        """Whether so many steps might not fit into memory as it is."""
        return self.store is not None and self.store.must_grow(2 * steps, lanes)

    def reserve(self, steps: int, lanes: int) -> None:
        """Make room for so many steps, in lanes up to that number; nobody may be reading."""
        if self.store is not None and self.store.must_grow(2 * steps, lanes):
            self.store.grow(2 * steps, lanes)

    def write(self, place: int, lanes: Array, obs: Array | WindowRef, next_obs: Array | WindowRef) -> None:
        """Keep the obs and next_obs of these steps, from that place of the ring on."""
        if self._plain is not None:
            places = np.arange(place, place + len(lanes)) % self.capacity
            self._plain[places, 0] = self._values(obs)
            self._plain[places, 1] = self._values(next_obs)
        else:
            self._record(place, lanes, obs, next_obs)

    def _record(self, place: int, lanes: Array, obs: Array | WindowRef, next_obs: Array | WindowRef) -> None:
        assert self.store is not None
        obs, next_obs = self._rows_first(obs), self._rows_first(next_obs)  # must live until the copy is made
        self.store.record(lanes, self._windows(obs), self._windows(next_obs), place, self._starts)

    def evict(self, place: int, steps: int) -> None:
        """Let go of the oldest steps, from that place of the ring on."""
        if self.store is not None:
            self.store.release(place, steps, self._starts)

    def _rows_first(self, obs: Array | WindowRef) -> Array | WindowRef:
        if isinstance(obs, WindowRef):
            return obs
        return np.ascontiguousarray(np.moveaxis(obs, -1, 1) if self.axis == -1 else obs)

    def _windows(self, obs: Array | WindowRef) -> Windows:
        if isinstance(obs, WindowRef):
            return windows_of_source(obs.source, np.atleast_1d(obs.stop))
        return windows_of(obs)

    def _values(self, obs: Array | WindowRef) -> Array:
        if not isinstance(obs, WindowRef):
            return obs
        length = self.field.shape[0]
        return np.stack([obs.source.rows[stop - length : stop] for stop in np.atleast_1d(obs.stop).tolist()])

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
            return Read(self, None, None, self._plain[places, which])
        slots = self.store.look_up(self._starts[places, which].astype(np.int64))
        return Read(self, self.store, slots, None)

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

    def into(self, out: Array, pool: ThreadPoolExecutor | None) -> None:
        """Copy them into `out`, whatever its layout; at the speed of memcpy if it came from `empty`."""
        if self.values is not None:
            out[...] = self.values.reshape(out.shape)
            return
        assert self.store is not None
        assert self.slots is not None
        target = out
        if self.axis == -1:
            target = np.moveaxis(out, -1, out.ndim - len(self.leaf.field.shape))
        if target.flags.c_contiguous:
            self.store.gather(self.slots, target, pool)
        else:
            straight = np.empty(target.shape, target.dtype)
            self.store.gather(self.slots, straight, pool)
            target[...] = straight

    def done(self) -> None:
        """Under the lock again: what was let go meanwhile may be used again."""
        if self.store is not None:
            self.store.readers -= 1
            self.store.settle()


def check_window(path: str, spec: Field, ref: WindowRef) -> None:
    """Refuse a WindowRef that does not fit the field."""
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
    stops = np.asarray(ref.stop)
    if stops.dtype.kind not in "iu" or stops.ndim > 1:
        raise RecordError(f"{path}: WindowRef stop must be an integer or an array of them, not {ref.stop!r}.")
    if stops.size and (stops.min() < spec.shape[0] or stops.max() > len(rows)):
        raise RecordError(
            f"{path}: WindowRef stop must lie in [{spec.shape[0]}, {len(rows)}] for windows of "
            f"{spec.shape[0]} of {len(rows)} rows, but is {stops.min()}..{stops.max()}."
        )
