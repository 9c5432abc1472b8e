"""The pond on the host: the newest `capacity` steps, in RAM.

A step's id counts every step ever recorded and never wraps; its place in the ring is `id % ring`. The ring
has more places than `capacity`, so new steps are written to places that nobody reads::

    ids     … │ oldest ............ recorded │ recorded + count … │
              │ live: what can be sampled    │ being written      │ evicted or never used

`append` writes the new steps, then advances one counter, `recorded`: that publishes them, and the oldest
steps are no longer live. An interrupted append leaves nothing visible; the next one removes what it left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from lakepond import forks
from lakepond.errors import SpecError
from lakepond.pond.links import ALONE, DERIVE, STARTS, Links
from lakepond.pond.observations import Observations, SlotWindows, Values, ring_slice
from lakepond.pond.priorities import Priorities
from lakepond.rows import RowAxis, RowStore
from lakepond.types import Array, Field, Spec, WindowRef, leaves

SPARE = 1024
"""places of the ring beyond the capacity; a larger batch is appended in parts"""
RESERVE_BYTES = 64 << 20
"""observations of a part may take that much memory if nothing repeats"""
UNLINKED = 1024
"""steps recorded before links and priorities are brought up to date, if nobody samples"""


def column_fields(spec: Spec) -> list[tuple[str, Field]]:
    """The fields stored as columns, in the order in which they are handed over."""
    flag = Field((), "bool")
    flags = [("terminated", flag), ("truncated", flag)]
    return [*leaves(spec.action, "action"), ("reward", spec.reward), *flags, *spec.extras.items()]


class Pond:
    """Recent steps in RAM. One thread may append while others read."""

    def __init__(self, spec: Spec, capacity: int, *, alpha: float | None = None) -> None:
        self.spec = spec
        self.capacity = capacity
        self.recorded = 0
        """steps ever recorded: the id of the next one"""
        self._cleared = 0  # steps before this one were forgotten
        self._first = 0  # the id of the first step of this pond
        self._new_locks()
        spare = min(capacity, SPARE)
        self._part = max(1, min(spare, RESERVE_BYTES // spec.step_nbytes))  # steps appended at a time
        self._lag = min(UNLINKED, max(1, capacity // 2))
        self.ring = capacity + spare
        try:
            self.links = Links(self.ring)
            self.leaves = [Observations(path, leaf, self.ring) for path, leaf in leaves(spec.obs, "obs")]
            self.columns: dict[str, Array] = {
                path: np.zeros((self.ring, *leaf.shape), leaf.dtype) for path, leaf in column_fields(spec)
            }
            self._written = list(self.columns.values())
            self.columns["stream"] = self.links.stream
            self._ended = (self.columns["terminated"], self.columns["truncated"])
            self.priorities = None if alpha is None else Priorities(self.ring, alpha)
        except (MemoryError, ValueError) as error:
            raise SpecError(
                f"A capacity of {capacity:,} steps needs more memory than there is ({error}); lower it."
            ) from error
        self._lanes = Lanes()
        self._cuts: dict[int, int] = {}  # a stream's first step from that id on starts an episode
        self.plain = all(leaf.store is None for leaf in self.leaves)
        """whether no observation is stored as rows"""
        obs = [leaf.plain[which] for which in (0, 1) for leaf in self.leaves if leaf.plain is not None]
        self.rings = [*obs, *self._written] if self.plain else []
        """without rows: the rings of all values, in the order in which they are handed over"""
        self.saw_nan = False
        """whether a reward has been NaN"""
        reward = self.columns["reward"]
        self._float_rewards = reward if reward.dtype.kind in "fc" else None

        forks.register(self)

    def _new_locks(self) -> None:
        self.lock = threading.RLock()
        self._change = threading.Condition(self.lock)
        self._grower: int | None = None  # the thread that is about to move rows
        forks.hold_still(self.lock)

    def restart_in_child(self) -> None:
        """In a forked child nobody else reads; `hold_still` ensures that nobody was appending at the fork."""
        self._new_locks()
        for leaf in self.leaves:
            if leaf.store is not None:
                leaf.store.readers = 0
                leaf.store.free_pending()

    # --- what is stored --------------------------------------------------------------------------

    @property
    def oldest(self) -> int:
        """The id of the oldest live step."""
        return max(self._cleared, self.recorded - self.capacity)

    @property
    def size(self) -> int:
        """The number of live steps."""
        return min(self.recorded - self._cleared, self.capacity)

    @property
    def streams(self) -> list[int]:
        """The streams that have live steps."""
        self.update()
        oldest = self.oldest
        return sorted(stream for stream, step in self.links.newest.items() if step >= oldest)

    def ids(self) -> Array:
        """The ids of all live steps, oldest first."""
        return np.arange(self.oldest, self.recorded)

    def places(self, ids: Array) -> Array:
        """The places of steps in the ring."""
        return ids % self.ring

    def ids_at(self, places: Array) -> Array:
        """The ids of the live steps at places of the ring; none for a place without one."""
        oldest = self.oldest
        ids: Array = oldest + (places - oldest) % self.ring
        return ids[ids < self.recorded]

    @property
    def nbytes(self) -> int:
        """Resident memory: places of the ring that were never written take none."""
        used = min(self.recorded - self._first, self.ring) / self.ring
        rings = sum(column.nbytes for column in self._written) + self.links.nbytes
        rings += 0 if self.priorities is None else self.priorities.nbytes
        return int(rings * used) + sum(leaf.nbytes(used) for leaf in self.leaves)

    # --- recording -------------------------------------------------------------------------------

    def append(
        self, streams: list[int] | Array, values: Sequence[Values], *, join: int | Array = DERIVE
    ) -> int:
        """Append steps in their order; the oldest are evicted when the pond is full. Returns the first id.

        `values` have been checked: the leaves of obs, those of next_obs, then the columns in the order of
        `column_fields`, all with a leading batch axis. `join`: see `links`; for each step, or for all.
        """
        with self.lock:
            first, part = self.recorded, self._part
            for at in range(0, len(streams), part):
                if len(streams) <= part:
                    self._append(streams, values, join)
                    break
                some = join if isinstance(join, int) else join[at : at + part]
                self._append(streams[at : at + part], [_slice(v, at, at + part) for v in values], some)
            return first

    def _append(self, streams: list[int] | Array, values: Sequence[Values], join: int | Array) -> None:
        if self._grower is not None:
            self.wait_for_growth()
        first, count, windows = self.recorded, len(streams), len(self.leaves)
        where = ring_slice(first, count, self.ring)
        if self.plain:
            lanes = streams  # their number is all that counts
        else:
            lanes = self._lanes.of(streams, alone=isinstance(join, int) and join == ALONE)
            self._make_room(lanes, count, values)
        for i, leaf in enumerate(self.leaves):
            leaf.append(lanes, values[i], values[windows + i], first)  # type: ignore[arg-type]
        for i, column in enumerate(self._written, 2 * windows):
            column[where] = values[i]
        rewards = self._float_rewards
        if rewards is not None and not self.saw_nan and np.isnan(np.add.reduce(rewards[where], axis=None)):
            self.saw_nan = bool(np.isnan(rewards[where]).any())  # the sum of inf and -inf is NaN, too
        self.links.stream[where] = streams
        self.links.join[where] = join
        if self._cuts:
            self._apply_cuts(streams, first)
        self.recorded = first + count  # publishes them
        if self._cuts:
            for stream in streams:
                self._cuts.pop(stream, None)
        if self.recorded - self.links.stop >= self._lag:
            self.update()
        if not self.plain:
            self._evict()

    def append_one(self, values: Sequence[object], stream: int, join: int = DERIVE) -> int:
        """`append` for one step of a pond without rows whose values fit their columns; the lock is held."""
        step = self.recorded
        at = step % self.ring
        for ring, value in zip(self.rings, values, strict=True):
            ring[at] = value
        links = self.links
        links.stream[at] = stream
        links.join[at] = join
        if self._float_rewards is not None and (self._float_rewards[at] != self._float_rewards[at]).any():
            self.saw_nan = True
        if self._cuts:
            self._apply_cuts([stream], step)
        self.recorded = step + 1  # publishes it
        if self._cuts:
            self._cuts.pop(stream, None)
        if step - links.stop >= self._lag:
            self.update()
        return step

    def _apply_cuts(self, streams: list[int] | Array, first: int) -> None:
        """The first step of a stream that was cut starts an episode."""
        for i, stream in reversed(list(enumerate(streams))):
            cut = self._cuts.get(stream)
            if cut is not None:
                since = self.links.stream[np.arange(cut, first) % self.ring]
                if not (since == stream).any() and stream not in streams[:i]:
                    self.links.join[(first + i) % self.ring] = STARTS

    def _make_room(self, lanes: Array, count: int, values: Sequence[Values]) -> None:
        """Remove what an interrupted append left, choose layouts, and grow until the new steps fit."""
        for i, leaf in enumerate(self.leaves):
            if leaf.store is None:
                continue
            if leaf.store.stop > self.recorded:
                leaf.store.discard(self.recorded)
            obs, next_obs = values[i], values[len(self.leaves) + i]
            if not (leaf.settled or isinstance(obs, SlotWindows) or isinstance(next_obs, SlotWindows)):
                axis = leaf.axis_of(obs, next_obs)
                if axis != "open":
                    self._evict()
                    ids = self.ids()
                    streams = self.links.stream[self.places(ids)].tolist()
                    leaf.change_layout(axis, ids, self._lanes.of(streams, alone=False))
            if not leaf.has_room(count, self._lanes.count):
                with self._unread():
                    leaf.grow(count, self._lanes.count)

    def _evict(self) -> None:
        """Release the rows of steps that are no longer live. Idempotent."""
        oldest, emptied = self.oldest, 0
        for leaf in self.leaves:
            if leaf.store is not None:
                emptied = leaf.store.evict(oldest)
        if emptied or self._lanes.count > 64 + 2 * self.capacity:
            store = next(leaf.store for leaf in self.leaves if leaf.store is not None)
            self._lanes.free_unused(store.state.lanes["step"], oldest)

    def update(self) -> None:
        """Bring links and priorities up to date with the steps recorded; the lock is held."""
        links, oldest, recorded = self.links, self.oldest, self.recorded
        if links.stop < recorded:
            links.update(oldest, recorded, self._ended, self._follows)
        if self.priorities is not None:
            self.priorities.sync(oldest, recorded)

    def _follows(self, places: Array, previous: Array) -> Array:
        found = np.ones(len(places), np.bool_)
        for leaf in self.leaves:
            found &= leaf.follows(places, previous)
        return found

    @contextmanager
    def _unread(self) -> Iterator[None]:
        """Wait until nobody copies rows, because growing moves them; later readers wait for it."""
        self._grower = threading.get_ident()
        try:
            self._change.wait_for(lambda: not any(leaf.store and leaf.store.readers for leaf in self.leaves))
            yield
        finally:
            self._grower = None
            self._change.notify_all()

    @property
    def growing(self) -> bool:
        """Whether a thread is about to move rows."""
        return self._grower is not None

    def wait_for_growth(self) -> None:
        """Wait until no other thread moves rows; the lock is held."""
        own = threading.get_ident()
        while self._grower not in (None, own):
            self._change.wait()
        self._grower = None  # one of its own may have been interrupted
        self._change.notify_all()

    def cut(self, streams: Sequence[int]) -> None:
        """Let the next step of these streams start an episode, though the last one did not end."""
        with self.reading():
            for stream in streams:
                self._cuts[stream] = self.recorded

    def end(self, stream: int, *, terminated: bool, truncated: bool) -> int:
        """Set the end flags of the newest live step of a stream; returns its id, or -1 if there is none."""
        with self.reading():
            self.update()
            newest = self.links.recent(stream, 1, self.oldest)
            for step in newest:
                for flag, value in zip(self._ended, (terminated, truncated), strict=True):
                    flag[step % self.ring] = value
            return newest[0] if newest else -1

    def clear(self) -> None:
        """Forget all steps; ids continue to count."""
        with self.reading():
            self._cleared = self.recorded  # publishes it
            self._evict()
            if self.priorities is not None:
                self.priorities.sync(self.oldest, self.recorded)

    # --- to and from a lake ------------------------------------------------------------------------

    def start_at(self, step: int) -> None:
        """Let the first step have that id; nothing may have been recorded."""
        for leaf in self.leaves:
            if leaf.store is not None:
                leaf.store.start_at(step)
        self.links.stop = step
        if self.priorities is not None:
            self.priorities.start_at(step)
        self._cleared = self._first = self.recorded = step

    def takes_rows(self, leaf: int, length: int, axis: RowAxis) -> bool:
        """Whether the windows of a leaf have that layout."""
        observations = self.leaves[leaf]
        store = observations.store
        return store is not None and store.length == length and observations.axis == axis

    def make_room(self, leaf: int, rows: int) -> None:
        """Make room for that many rows of a leaf."""
        with self.reading():
            self._store_with_room(leaf, rows)

    def load_rows(self, leaf: int, rows: Array, numbers: Array | None) -> Array:
        """Store rows for a leaf; returns their slots, pinned until `unpin_rows`.

        `numbers`: of the rows in the lake that this pond is poured into, if they come from it.
        """
        with self.reading():
            return self._store_with_room(leaf, len(rows)).load(rows, numbers)

    def read_rows(self, leaf: int, count: int, read: Callable[[Array], object]) -> Array:
        """Store rows that are not in the pond yet, as `read` writes them to an array of (count, row_bytes).

        Returns their slots, pinned until `unpin_rows`. Adjacent slots are written without a copy.
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
            self.unpin_rows(leaf, slots)
            raise
        finally:
            with self.finishing():
                store.readers -= 1
                store.free_pending()
        return slots

    def _store_with_room(self, leaf: int, rows: int) -> RowStore:
        """The store of a leaf, grown if necessary; the lock is held."""
        observations = self.leaves[leaf]
        store = observations.store
        assert store is not None
        if not store.has_rows(rows):
            with self._unread():
                store.grow_rows(rows)
        observations.rows_added()
        return store

    def unpin_rows(self, leaf: int, slots: Array) -> None:
        """Undo the pin of `load_rows` or `read_rows`."""
        with self.reading():
            store = self.leaves[leaf].store
            assert store is not None
            store.unpin(slots)

    # --- reading ---------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock, to choose and look up steps; rows are copied after it, by `Read.into`."""
        with self.lock:
            if self._grower is not None:
                self.wait_for_growth()
            yield

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Hold the lock for `Read.done`, then wake a recorder that waits to grow."""
        with self.lock:
            yield
            self._change.notify_all()


class Lanes:
    """A small number for each stream that has live steps: row stores keep their place in a stream by it."""

    def __init__(self) -> None:
        self.count = 0
        """numbers in use or free are [0, count)"""
        self._lanes: dict[int, int] = {}
        self._free: list[int] = []
        self._last: tuple[list[int], Array] = ([], np.zeros(0, np.int64))

    def of(self, streams: list[int] | Array, *, alone: bool) -> Array:
        """The lanes of these streams; `alone`: steps that follow nothing share one."""
        if alone:
            return np.full(len(streams), self._lane(-1), np.int64)
        last, lanes = self._last
        if last is not streams:
            lanes = np.array([self._lane(int(stream)) for stream in streams], np.int64)
            if isinstance(streams, list):
                self._last = (streams, lanes)
        return lanes

    def _lane(self, stream: int) -> int:
        lane = self._lanes.get(stream)
        if lane is None:
            if not self._free:  # an interrupt may lose a number until `free_unused`, never use one twice
                held = self.count
                self.count += max(8, held // 2)
                self._free = list(range(self.count - 1, held - 1, -1))
            lane = self._free.pop()
            self._lanes[stream] = lane
        return lane

    def free_unused(self, newest: Array, oldest: int) -> None:
        """Free the lanes whose newest step is before `oldest`."""
        self._last = ([], np.zeros(0, np.int64))
        used = {stream: lane for stream, lane in self._lanes.items() if newest[lane] >= oldest}
        self._free = sorted(set(range(self.count)) - set(used.values()), reverse=True)
        self._lanes = used


def _slice(value: Values, start: int, stop: int) -> Values:
    if isinstance(value, SlotWindows):
        return value._replace(starts=value.starts[start:stop])
    if isinstance(value, WindowRef):
        return WindowRef(value.source, value.stop[start:stop])  # type: ignore[index]  # an array by now
    return value[start:stop]
