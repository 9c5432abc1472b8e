"""The pond on the host: the newest `capacity` steps, whole.

A step's id counts every step ever recorded and never wraps; its place in the ring is `id % capacity`
and nobody else's business. The steps of a stream are linked, each to the one after it, so that n-step
returns and sequences follow a stream through its interleaved neighbours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from lakepond import forks
from lakepond.errors import SpecError
from lakepond.pond.observations import Handed, Observations, Spelled, ring_slice
from lakepond.pond.priorities import Priorities
from lakepond.rows import RowAxis, RowStore
from lakepond.types import Array, Field, Spec, WindowRef, leaves

STRAYS = -1
"""stands for the streams of steps that follow nothing"""
RESERVE_BYTES = 64 << 20
"""a batch is taken in parts whose observations could take so much memory if nothing repeats"""


def column_fields(spec: Spec) -> list[tuple[str, Field]]:
    """What is kept in plain columns, in the order in which it is handed over."""
    flag = Field((), "bool")
    flags = [("terminated", flag), ("truncated", flag)]
    return [*leaves(spec.action, "action"), ("reward", spec.reward), *flags, *spec.extras.items()]


class Pond:
    """Recent steps in RAM. One thread may append while another reads."""

    def __init__(self, spec: Spec, capacity: int, *, alpha: float | None = None) -> None:
        from lakepond.pond import links  # numba, not before it is needed

        self.spec = spec
        self.capacity = capacity
        self.recorded = 0
        """steps ever recorded: the id of the next one"""
        self.size = 0
        self._new_locks()
        self._part = max(1, min(capacity, RESERVE_BYTES // spec.step_nbytes))  # steps taken at a time
        try:
            self._following = np.zeros(capacity, np.int64)  # ids to its stream's next step, or 0
            self.leaves = [
                Observations(path, leaf, capacity, self._following) for path, leaf in leaves(spec.obs, "obs")
            ]
            self.columns: dict[str, Array] = {
                path: np.zeros((capacity, *leaf.shape), leaf.dtype) for path, leaf in column_fields(spec)
            }
            self._recorded_columns = list(self.columns.values())
            self.columns["stream"] = self._stream = np.zeros(capacity, np.int32)
            self._lane = np.zeros(capacity, np.int32)  # the lane of each step
            self.priorities = None if alpha is None else Priorities(capacity, alpha)
        except (MemoryError, ValueError) as error:
            raise SpecError(
                f"A capacity of {capacity:,} steps needs more memory than there is ({error}); lower it."
            ) from error
        self._lanes: dict[int, int] = {}  # the lane of each stream that has live steps
        self._streams: dict[int, int] = {}  # and back
        self._free_lanes: list[int] = []
        self._cut: set[int] = set()  # lanes whose next step follows nothing
        self._usual_streams: list[int] | None = None  # whose lanes were asked for last, and their lanes
        self._usual_lanes: Array = np.zeros(0, np.int64)
        self._usual_numbers: Array = np.zeros(0, np.int32)
        reward = self.columns["reward"]
        compiled = reward.dtype.char in "fd" and reward.dtype.isnative
        self._rewards = reward.reshape(capacity, -1) if compiled else np.zeros((capacity, 0))
        self._rare_rewards = reward if reward.dtype.kind == "f" and not compiled else None  # float16, say
        self.saw_nan = False
        """whether a reward has been NaN"""
        self._newest: Array = np.zeros(0, np.int64)  # the id of each lane's newest step, or -1
        self._link = links.advancer(self._lane, self._newest, self._following, self._rewards)
        forks.register(self)

    def _new_locks(self) -> None:
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._grower: int | None = None  # the thread that is about to move rows
        forks.hold_still(self._lock)

    def restart_in_child(self) -> None:
        """Nobody else reads here; that nobody was appending at the fork is what `hold_still` is for."""
        self._new_locks()
        for leaf in self.leaves:
            if leaf.store is not None:
                leaf.store.readers = 0
                leaf.store.settle()

    # --- what is held ----------------------------------------------------------------------------

    @property
    def oldest(self) -> int:
        """The id of the oldest step held."""
        return self.recorded - self.size

    @property
    def streams(self) -> list[int]:
        """The streams that have live steps."""
        return sorted(stream for stream in self._lanes if stream != STRAYS)

    def ids(self) -> Array:
        """The ids of all steps held, oldest first."""
        return np.arange(self.oldest, self.recorded)

    def places(self, ids: Array) -> Array:
        """Where in the ring steps lie."""
        return ids % self.capacity

    def ids_at(self, places: Array) -> Array:
        """The ids of the steps at places of the ring; none for a place that holds no step."""
        places = places[places < self.capacity]
        ids: Array = self.oldest + (places - self.oldest) % self.capacity
        return ids[ids < self.recorded]

    def following(self, ids: Array) -> Array:
        """The next step of each step's stream, or -1 where there is none yet."""
        ahead = self._following[ids % self.capacity]
        return np.where(ahead > 0, ids + ahead, -1)

    @property
    def nbytes(self) -> int:
        """All memory held; untouched parts of the ring are counted only once they are used."""
        used = min(self.recorded, self.capacity) / self.capacity
        columns = sum(c.nbytes for c in [*self.columns.values(), self._following, self._lane])
        priorities = 0 if self.priorities is None else self.priorities.nbytes
        return int(columns * used) + priorities + sum(leaf.nbytes for leaf in self.leaves)

    # --- recording -------------------------------------------------------------------------------

    def append(self, streams: list[int] | Array, values: Sequence[Handed], *, linked: bool = True) -> int:
        """Keep steps, in their order; the oldest leave when the pond is full. Returns the first one's id.

        `values` have been checked: the leaves of obs, those of next_obs, then the columns in the order of
        `column_fields`, all with a leading batch axis. `linked`: each follows the one before it in its
        stream; only if not may `streams` be an array.
        """
        first, part = self.recorded, self._part
        if len(streams) <= part:
            self._append(streams, values, linked)
        else:
            for at in range(0, len(streams), part):
                values_here = [_slice(value, at, at + part) for value in values]
                self._append(streams[at : at + part], values_here, linked)
        return first

    def _append(self, streams: list[int] | Array, values: Sequence[Handed], linked: bool) -> None:
        count = len(streams)
        with self._lock:
            if self._grower is not None:
                self._wait_for_growth()
            lanes = self._lanes_of(streams if linked else [STRAYS])  # type: ignore[arg-type]
            if not linked:
                lanes = np.full(count, lanes[0])
            for i, leaf in enumerate(self.leaves):
                if not leaf.settled:
                    self._settle(leaf, values[i], values[len(self.leaves) + i])
                if not leaf.has_room(count, len(self._newest)):
                    self._grow(count)
            first, size = self.recorded, self.size
            gone = max(0, size + count - self.capacity)
            cut = {lane: self._newest[lane] for lane in self._cut & set(lanes.tolist())} if self._cut else {}
            numbers = self._usual_numbers if linked else streams
            try:
                self._keep(values, lanes, numbers, gone, cut, first, size, linked)
            except BaseException:  # an interrupt in the middle: nothing is half recorded, then it is raised
                self._keep(values, lanes, numbers, gone, cut, first, size, linked, again=True)
                raise

    def _keep(
        self,
        values: Sequence[Handed],
        lanes: Array,
        streams: list[int] | Array,
        gone: int,
        cut: dict[int, int],
        first: int,
        size: int,
        linked: bool,
        again: bool = False,
    ) -> None:
        """Let so many of the oldest steps go and keep new ones. Begun again, it does what was not done yet.

        `cut`: the newest step of lanes that begin anew; the first new id and the steps held, before.
        """
        count, oldest, windows = len(lanes), first - size, len(self.leaves)
        for i, leaf in enumerate(self.leaves):
            if not again or leaf.until < first + count:
                leaf.turn(oldest, gone, lanes, values[i], values[windows + i], first)
        where = self.where(first, count)
        for i, column in enumerate(self._recorded_columns, 2 * windows):
            column[where] = values[i]
        self._stream[where] = streams
        done = again and linked and count and self._newest[lanes[-1]] == first + count - 1
        if not done:
            self._advance(oldest, gone, first, lanes, linked)
        if again:
            self._let_lanes_go()
        for lane, step in cut.items():
            if step >= oldest + gone:
                self._following[step % self.capacity] = 0
            self._cut.discard(lane)
        if self.priorities is not None:
            self.priorities.remove(np.arange(oldest, oldest + gone) % self.capacity)
            self.priorities.add(np.arange(first, first + count) % self.capacity)
        self.recorded, self.size = first + count, size + count - gone

    def _advance(self, oldest: int, gone: int, first: int, lanes: Array, linked: bool = True) -> None:
        emptied, saw_nan = self._link(
            oldest, gone, first, lanes, self._lane, self._newest, self._following, self._rewards, linked
        )
        self.saw_nan |= saw_nan
        if self._rare_rewards is not None:
            new = self._rare_rewards[np.arange(first, first + len(lanes)) % self.capacity]
            self.saw_nan |= bool(np.isnan(new).any())
        if emptied:
            self._let_lanes_go()

    def _let_lanes_go(self) -> None:
        """Lanes without a live step may be used again."""
        for lane in [lane for lane in self._streams if self._newest[lane] < 0]:
            self._usual_streams = None
            del self._lanes[self._streams.pop(lane)]
            self._free_lanes.append(lane)

    def where(self, first: int, count: int) -> slice | Array:
        """The places in the ring of so many steps from an id on; a slice, unless the ring ends between."""
        return ring_slice(first, count, self.capacity)

    def _lanes_of(self, streams: list[int]) -> Array:
        """A small number for each stream that has live steps; the stores keep their place by it."""
        if streams is self._usual_streams:
            return self._usual_lanes
        lanes = self._lanes
        for stream in streams:
            if stream not in lanes:
                if not self._free_lanes:
                    held = len(self._newest)
                    more = max(8, held // 2)
                    self._newest = np.concatenate([self._newest, np.full(more, -1)])
                    self._free_lanes.extend(range(held + more - 1, held - 1, -1))
                lane = lanes[stream] = self._free_lanes.pop()
                self._streams[lane] = stream
        self._usual_streams = None
        self._usual_numbers = np.array(streams, np.int32)
        self._usual_lanes = np.array([lanes[stream] for stream in streams], np.int64)
        self._usual_streams = streams  # last: an interrupt must not leave the lanes of others
        return self._usual_lanes

    def _settle(self, leaf: Observations, obs: Handed, next_obs: Handed) -> None:
        if isinstance(obs, Spelled) or isinstance(next_obs, Spelled):
            return
        axis = leaf.axis_of(obs, next_obs)
        if axis != "open":
            places = self.places(self.ids())
            leaf.lay_out_anew(axis, places, self._lane[places].astype(np.int64))

    def _grow(self, count: int) -> None:
        with self._unread():
            for leaf in self.leaves:
                if not leaf.has_room(count, len(self._newest)):
                    leaf.grow(count, len(self._newest))

    @contextmanager
    def _unread(self) -> Iterator[None]:
        """Growing moves rows, so it waits until nobody reads them; readers to come wait for it."""
        self._grower = threading.get_ident()
        try:
            self._change.wait_for(lambda: not any(leaf.store and leaf.store.readers for leaf in self.leaves))
            yield
        finally:
            self._grower = None
            self._change.notify_all()

    def _wait_for_growth(self) -> None:
        """Until no other thread moves rows."""
        own = threading.get_ident()
        while self._grower not in (None, own):
            self._change.wait()
        self._grower = None  # an interrupt may have kept it from ending one of its own
        self._change.notify_all()

    def _evict(self, again: bool = False) -> None:
        """Let go of all steps. Begun again, it does what was not done yet."""
        for leaf in self.leaves:
            if not again or leaf.until >= 0:
                leaf.let_go(self.oldest, self.size)
        self._advance(self.oldest, self.size, self.recorded, np.zeros(0, np.int64))
        if again:
            self._let_lanes_go()
        if self.priorities is not None:
            self.priorities.remove(self.places(self.ids()))
        self.size = 0

    def cut(self, streams: Sequence[int]) -> None:
        """What these streams record next follows nothing: a new episode begins without the last one's end."""
        with self.reading():
            for stream in streams:
                lane = self._lanes.get(stream)
                if lane is not None:
                    self._cut.add(lane)

    def clear(self) -> None:
        """Forget all steps; ids go on counting."""
        with self.reading():
            try:
                self._evict()
            except BaseException:  # an interrupt in the middle: all is forgotten, then it is raised
                self._evict(again=True)
                raise

    # --- to and from a lake ------------------------------------------------------------------------

    def begin_at(self, step: int) -> None:
        """Let the first step have that id; nothing may have been recorded."""
        self.recorded = step

    def takes_rows(self, leaf: int, length: int, axis: RowAxis) -> bool:
        """Whether the windows of a leaf are laid out like that."""
        observations = self.leaves[leaf]
        store = observations.store
        return store is not None and store.length == length and observations.axis == axis

    def make_room(self, leaf: int, rows: int) -> None:
        """Have room for so many rows of a leaf."""
        with self.reading():
            self._store_with_room(leaf, rows)

    def load_rows(self, leaf: int, rows: Array, numbers: Array | None) -> Array:
        """Keep rows for a leaf; returns their slots, held until `let_go_of_rows`.

        `numbers`: what the rows have in the lake that this pond is poured into, if they come from it.
        """
        with self.reading():
            return self._store_with_room(leaf, len(rows)).load(rows, numbers)

    def read_rows(self, leaf: int, count: int, read: Callable[[Array], object]) -> Array:
        """Keep so many rows that are not here yet, as `read` writes them to an array of (count, row_bytes).

        Returns their slots, held until `let_go_of_rows`. Nothing is copied where they lie side by side.
        """
        with self.reading():
            store = self._store_with_room(leaf, count)
            slots = store.reserve(count)
            store.readers += 1  # nor may they move meanwhile
        try:
            if count and slots[-1] - slots[0] == count - 1 and (np.diff(slots) == 1).all():
                read(store.slab.rows[slots[0] : slots[-1] + 1])
            elif count:
                rows = np.empty((count, store.row_bytes), np.uint8)
                read(rows)
                store.slab.rows[slots] = rows
        except BaseException:
            self.let_go_of_rows(leaf, slots)
            raise
        finally:
            with self.finishing():
                store.readers -= 1
                store.settle()
        return slots

    def _store_with_room(self, leaf: int, rows: int) -> RowStore:
        """The rows of a leaf, grown if need be; the pond is held still."""
        observations = self.leaves[leaf]
        store = observations.store
        assert store is not None
        if not store.has_rows(rows):
            with self._unread():
                store.grow_rows(rows)
        observations.rows_taken()
        return store

    def let_go_of_rows(self, leaf: int, slots: Array) -> None:
        """Hold them no more."""
        with self.reading():
            store = self.leaves[leaf].store
            assert store is not None
            store.unpin(slots)

    # --- reading ---------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the pond still, to choose and look up steps; rows are copied after it, in `Read.into`."""
        with self._lock:
            if self._grower is not None:
                self._wait_for_growth()
            yield

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """For `Read.done`: tells a recorder that waits to grow."""
        with self._lock:
            yield
            self._change.notify_all()


def _slice(value: Handed, start: int, stop: int) -> Handed:
    if isinstance(value, Spelled):
        return value._replace(starts=value.starts[start:stop])
    if isinstance(value, WindowRef):
        return WindowRef(value.source, value.stop[start:stop])  # type: ignore[index]  # an array by now
    return value[start:stop]
