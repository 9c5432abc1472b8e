"""The pond on the host: the newest `capacity` steps, in RAM.

A step's id counts every step ever recorded and never wraps; its place in the ring is `id % ring`. The ring
has more places than `capacity`, so new steps are written to places that no reader uses::

    ids     … │ oldest ............ recorded │ recorded + count … │
              │ live: what can be sampled    │ being written      │ evicted or never used

`append` writes the new steps, then advances one counter, `recorded`, which publishes them and ends the life
of the oldest steps. An interrupted append leaves nothing visible; the next one removes its remains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from lakepond import forks
from lakepond.errors import SpecError
from lakepond.pond.cursors import Cursors
from lakepond.pond.growth_lock import GrowthLock
from lakepond.pond.observations import Observations, Values, part_of, ring_slice
from lakepond.rows import RowStore
from lakepond.sampling.links import ALONE, DERIVE, Links
from lakepond.sampling.priorities import Priorities
from lakepond.types import Array, Field, Spec, leaves

SPARE = 1024
"""places of the ring beyond the capacity; a larger batch is appended in parts"""
RESERVE_BYTES = 64 << 20
"""maximum bytes of the observations of a part, if nothing repeats"""
UNLINKED = 1024
"""links and priorities are updated after this many steps if no reader did; none are computed before a reader
needs them for the first time"""


def column_fields(spec: Spec) -> list[tuple[str, Field]]:
    """The fields stored as columns, in the order of the values passed to `append`."""
    flag = Field((), "bool")
    flags = [("terminated", flag), ("truncated", flag)]
    return [*leaves(spec.action, "action"), ("reward", spec.reward), *flags, *spec.extras.items()]


class Pond(GrowthLock):
    """Recent steps in RAM. One thread may append while others read."""

    def __init__(self, spec: Spec, capacity: int, *, alpha: float | None = None) -> None:
        self.spec = spec
        self.capacity = capacity
        self.recorded = 0
        """steps ever recorded: the id of the next one"""
        self._cleared = 0  # steps before this one were cleared, or never loaded
        self.cleared = 0
        """steps before this one were removed by `clear`; a lake stores it, so that they stay away"""
        self._first = 0  # the id of the first step of this pond
        self._new_locks()
        spare = min(capacity, SPARE)
        self.part = max(1, min(spare, RESERVE_BYTES // spec.step_nbytes))
        """maximum number of steps that are appended at a time"""
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
        self._cursors = Cursors()
        self._stays_linked = alpha is not None
        # first step and streams of the run that is not written yet
        self._run: tuple[int, int | Array | None] = (0, None)
        self._due = self._lag  # number of recorded steps at which links and priorities are updated
        self._caught_up = 0
        self._writing = False  # observations of steps that are not published may be stored
        self._last_streams: tuple[list[int], Array] = ([], np.zeros(0, np.int32))
        self.plain = all(leaf.store is None for leaf in self.leaves)
        """whether no observation is stored as rows"""
        obs = [leaf.plain[which] for which in (0, 1) for leaf in self.leaves if leaf.plain is not None]
        self.rings = [*obs, *self._written] if self.plain else []
        """if there are no rows: the rings of all values, in the order of the values passed to `append`"""
        self.has_alone = False
        """whether a step may be ALONE, see `links`"""
        self.saw_nan = False
        """whether a reward has been NaN; found by `catch_up`, at the latest after `UNLINKED` steps"""
        reward = self.columns["reward"]
        self._float_rewards = reward if reward.dtype.kind in "fc" else None

        forks.register(self)

    def restart_in_child(self) -> None:
        """Reset locks and readers in a forked child; `hold_still` ensures that no append was in progress."""
        self._new_locks()
        for leaf in self.leaves:
            leaf.keepers = 0
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
            self.wait_for_growth()
            first, part = self.recorded, self.part
            if len(streams) <= part:
                self._append(streams, values, join)
                return first
            for at in range(0, len(streams), part):
                some = join if isinstance(join, int) else join[at : at + part]
                self._append(streams[at : at + part], [part_of(v, at, at + part) for v in values], some)
            return first

    def _append(self, streams: list[int] | Array, values: Sequence[Values], join: int | Array) -> None:
        first, count = self.recorded, len(streams)
        at = first % self.ring
        where: Any = slice(at, at + count) if at + count <= self.ring else ring_slice(first, count, self.ring)
        emptied = self._append_observations(streams, values, type(join) is int and join == ALONE)
        for column, value in zip(self._written, values[2 * len(self.leaves) :], strict=True):
            column[where] = value
        if type(streams) is list and type(join) is int and join == DERIVE:
            self.publish_run(count, self._numbers(streams))
        else:
            self.publish(count, where, self._numbers(streams), join)
        self._writing = False
        if emptied or self._cursors.count > 64 + 2 * self.capacity:
            self._free_cursors()

    def publish(
        self, count: int, where: int | slice | Array, streams: int | Array, join: int | Array
    ) -> None:
        """Publish `count` new steps, whose values have been written to these places of the ring."""
        self.write_run()
        self.links.stream[where] = streams
        self.links.join[where] = join
        self.has_alone = self.has_alone or bool(np.any(join == ALONE))
        self._run = (self.recorded + count, None)
        self._advance(count)

    def publish_run(self, count: int, streams: int | Array) -> None:
        """`publish`, with joins to be derived; an array `streams` never changes.

        Both columns are written when a reader needs them, for all consecutive calls with the same streams.
        """
        if streams is not self._run[1]:
            self.write_run()
            self._run = (self.recorded, streams)
        self._advance(count)

    def _advance(self, count: int) -> None:
        recorded = self.recorded + count
        self.recorded = recorded  # publishes them
        if recorded >= self._due:
            self._due = recorded + self._lag
            if self._stays_linked:  # also to the steps that they have just evicted
                self._update(max(self._cleared, recorded - count - self.capacity))
            else:
                self.catch_up()

    def write_run(self) -> None:
        """Write streams and joins of the steps that the current run of equal appends has published."""
        (start, streams), stop = self._run, self.recorded
        if streams is not None and start < stop:
            where = ring_slice(start, stop - start, self.ring)
            repeated = streams if isinstance(streams, int) else np.resize(streams, stop - start)
            self.links.stream[where] = repeated
            self.links.join[where] = DERIVE
        self._run = (stop, streams)

    def catch_up(self) -> None:
        """Complete the columns; set `saw_nan` if a new reward is NaN. For readers; the lock is held."""
        if self._caught_up == self.recorded:
            return
        self.write_run()
        rewards, start, stop = self._float_rewards, max(self._caught_up, self.oldest), self.recorded
        if rewards is not None and not self.saw_nan:
            self.saw_nan = bool(np.isnan(rewards[ring_slice(start, stop - start, self.ring)]).any())
        self._caught_up = stop

    def _numbers(self, streams: list[int] | Array) -> Array:
        """Streams as an array, cached for the list that `Intake` passes again and again, unchanged."""
        if type(streams) is ndarray:
            return streams
        if streams is not self._last_streams[0]:
            self._last_streams = (streams, np.array(streams, np.int32))  # type: ignore[assignment]
        return self._last_streams[1]

    def _append_observations(self, streams: list[int] | Array, values: Sequence[Values], alone: bool) -> int:
        """Store the observations of new steps; returns how many cursors lost their newest step."""
        emptied, windows, first, oldest = 0, len(self.leaves), self.recorded, self.oldest
        if self.plain:
            cursors: Any = streams  # only their number is used
        else:
            cursors = self._cursors.of(streams, shared=alone)
            self._make_room(cursors, values, alone)
            self._writing = True
        for i, leaf in enumerate(self.leaves):
            emptied += leaf.append(cursors, values[i], values[windows + i], first, oldest)
        return emptied

    def _make_room(self, cursors: Array, values: Sequence[Values], alone: bool) -> None:
        """Remove the remains of an interrupted append, search for layouts, and grow if necessary."""
        for i, leaf in enumerate(self.leaves):
            if leaf.store is None:
                continue
            if self._writing:
                leaf.store.discard(self.recorded)
            if self.recorded >= leaf.search_from and not alone and not leaf.keepers:
                self._find_layout(leaf, cursors, values[i], values[len(self.leaves) + i])
            if not leaf.has_room(len(cursors), self._cursors.count):
                with self.unread():
                    leaf.grow(len(cursors), self._cursors.count)

    def _find_layout(self, leaf: Observations, cursors: Array, obs: Values, next_obs: Values) -> None:
        """Choose the layout of a leaf once enough steps have been seen."""
        found = leaf.find_layout(cursors, obs, next_obs)
        if found != "open":
            self.evict()
            self.catch_up()
            ids = self.ids()
            streams = self.links.stream[self.places(ids)].tolist()
            leaf.choose_layout(found, ids, self._cursors.of(streams), self.recorded)

    def evict(self) -> None:
        """Release the rows of steps that are no longer live; otherwise the next append does. Idempotent."""
        for leaf in self.leaves:
            if leaf.store is not None:
                leaf.store.evict(self.oldest)

    def _free_cursors(self) -> None:
        """Free the cursors of streams without live steps."""
        for leaf in self.leaves:
            if leaf.store is not None:
                self._cursors.free_unused(leaf.store.state.cursors["step"], self.oldest)
                break

    def update(self) -> None:
        """Update links and priorities to include all recorded steps; the lock is held.

        After the first call, `publish` updates them regularly, so that no call takes long.
        """
        self._stays_linked = True
        self._update(self.oldest)

    def _update(self, oldest: int) -> None:
        """`update`, with links to the steps from `oldest` on, whose places were not used again yet."""
        self.catch_up()
        links, recorded = self.links, self.recorded
        if links.stop < recorded:
            links.update(oldest, recorded, self._ended, self._follows)
        if self.priorities is not None:
            self.priorities.sync(self.oldest, recorded)

    def _follows(self, places: Array, previous: Array) -> Array:
        found = np.ones(len(places), np.bool_)
        for leaf in self.leaves:
            found &= leaf.follows(places, previous)
        return found

    def cut(self, streams: Sequence[int]) -> None:
        """Start a new episode with the next step of these streams."""
        with self.reading():
            if not self.links.cuts.keys().isdisjoint(streams):
                self.update()  # applies the earlier cuts to the steps recorded since
            for stream in streams:
                self.links.cuts[stream] = self.recorded

    def pending_cuts(self) -> dict[int, int]:
        """The streams that were cut and have no step since; by stream, the first id after the cut."""
        with self.reading():
            self.update()
            return dict(self.links.cuts)

    def end(self, stream: int, *, terminated: bool, truncated: bool) -> int:
        """Set the end flags of a stream's newest live step, unless it has ended; returns its id.

        -1 if there is none, or if it is ALONE: other steps of its episode are elsewhere.
        """
        with self.reading():
            self.update()
            newest = self.links.recent(stream, 1, self.oldest)
            if newest and self.links.join[newest[0] % self.ring] == ALONE:
                return -1
            for place in (step % self.ring for step in newest):
                if not (self._ended[0][place] or self._ended[1][place]):
                    self._ended[0][place], self._ended[1][place] = terminated, truncated
            return newest[0] if newest else -1

    def set_ends(self, ends: Mapping[int, tuple[bool, bool]]) -> None:
        """Set the end flags of steps that are the newest of their stream; evicted ones are ignored."""
        with self.reading():
            self.update()
            for step, flags in ends.items():
                if self.oldest <= step < self.recorded:
                    for column, flag in zip(self._ended, flags, strict=True):
                        column[step % self.ring] = flag

    def clear(self) -> None:
        """Remove all steps; ids continue."""
        with self.reading():
            self.cleared = self._cleared = self.recorded  # publishes it
            self.evict()
            self._free_cursors()
            if self.priorities is not None:
                self.priorities.sync(self.oldest, self.recorded)

    # --- to and from a lake ------------------------------------------------------------------------

    def start_at(self, step: int) -> None:
        """Set the id of the first step; nothing may have been recorded."""
        for leaf in self.leaves:
            if leaf.store is not None:
                leaf.store.start_at(step)
        self.links.stop = step
        if self.priorities is not None:
            self.priorities.start_at(step)
        self._cleared = self._first = self._caught_up = self.recorded = step

    def keep_layout(self, leaf: int, layout: tuple[int, int | None] | None = None) -> bool:
        """Whether a leaf has windows of that length and axis; if so, it keeps them until `release_layout`.

        Slots belong to the store of one layout: without this, a step that is recorded while rows are loaded
        could replace the store. None: whatever layout it has.
        """
        with self.reading():
            observations = self.leaves[leaf]
            store = observations.store
            if store is None or layout not in (None, (store.length, observations.axis)):
                return False
            observations.keepers += 1
            return True

    def release_layout(self, leaf: int, slots: Sequence[Array]) -> None:
        """Undo one `keep_layout`, and the pins of the slots that were loaded meanwhile."""
        with self.reading():
            observations = self.leaves[leaf]
            assert observations.store is not None
            for each in slots:
                observations.store.unpin(each)
            observations.keepers -= 1

    def make_room(self, leaf: int, rows: int) -> None:
        """Make room for that many rows of a leaf."""
        with self.reading():
            self._store_with_room(leaf, rows)

    def load_rows(self, leaf: int, rows: Array, numbers: Array | None) -> Array:
        """Store rows for a leaf that keeps its layout; returns their slots, pinned until `release_layout`.

        `numbers`: row numbers in the lake of this pond, if the rows come from it.
        """
        with self.reading():
            assert self.leaves[leaf].keepers, "the slots would be those of another store"
            return self._store_with_room(leaf, len(rows)).load(rows, numbers)

    def read_rows(self, leaf: int, count: int, read: Callable[[Array], object]) -> Array:
        """Store rows that are not in the pond yet, as `read` writes them to an array of (count, row_bytes).

        As `load_rows`. Adjacent slots are written without a copy.
        """
        with self.reading():
            assert self.leaves[leaf].keepers, "the slots would be those of another store"
            store = self._store_with_room(leaf, count)
            slots = store.reserve(count)
            store.readers += 1  # the slab must not move meanwhile
        try:
            if count and slots[-1] - slots[0] == count - 1 and (np.diff(slots) == 1).all():
                read(store.slab.rows[slots[0] : slots[-1] + 1])
            elif count:
                rows = np.empty((count, store.row_bytes), np.uint8)
                read(rows)
                store.slab.rows[slots] = rows
        except BaseException:
            with self.finishing():  # not `reading`: a thread that waits to grow waits for this reader
                store.unpin(slots)
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
            with self.unread():
                store.grow_rows(rows)
        observations.rows_added()
        return store
