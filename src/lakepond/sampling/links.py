"""Which step follows which in its stream, for n-step returns and sequences.

Each step has one number in the ring, `join`, that says how it relates to the previous step of its stream:

    CONTINUES   its obs is the next_obs of that step: the same episode, unless that step ended it
    STARTS      it starts an episode: after a reset, a restart or a gap
    ALONE       it was chosen at random (`fill_from`): neither n-step returns nor sequences go through it
    DERIVE      not computed yet: recording writes this, and the links are computed when they are needed

`CONTINUES` is what a lake stores as `follows_previous`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lakepond.types import Array

ALONE, STARTS, CONTINUES, DERIVE = -1, 0, 1, 2
CHUNK = 1 << 16
"""steps linked at a time, which bounds the memory for it"""


class NextSteps:
    """The next step of each step, for steps in a ring: step `id` is at place `id % ring`."""

    def __init__(self, ahead: Array) -> None:
        self.ring = len(ahead)
        self.ahead = ahead
        """distance to the next step of the stream: positive if it continues the episode, negative if it
        starts another, 0 if there is none"""

    def follow(self, places: Array, length: int, across_episodes: bool) -> tuple[Array, Array]:
        """Distances (len(places), length) from each step to those after it, and how many there are.

        Beyond the last one the distance stays the same.
        """
        distance = np.zeros((len(places), length), np.int64)
        count = np.ones(len(places), np.int64)
        at = places
        for t in range(1, length):
            step = self.ahead.take(at)
            step = np.abs(step) if across_episodes else np.maximum(step, 0)
            alive = step > 0
            if not alive.any():
                distance[:, t:] = distance[:, t - 1 : t]
                break
            distance[:, t] = distance[:, t - 1] + step
            count += alive
            at = (at + step) % self.ring
        return distance, count

    def n_step(
        self, places: Array, reward_at: Callable[[Array], Array], n: int, gamma: float
    ) -> tuple[Array, Array, Array]:
        """The place of the last step of each n-step transition, its return, and how many steps it has.

        A transition has n steps, or fewer where the episode ends, or where the stream ends for now.
        `reward_at(places)` returns rewards; the places may be beyond the end of the ring, which they wrap
        around. Summed in float64; integer rewards give a float return.
        """
        total = reward_at(places)
        dtype = total.dtype if total.dtype.kind in "fc" else np.promote_types(total.dtype, np.float32)
        total = total.astype(np.promote_types(dtype, np.float64))
        count = np.ones(len(places), np.int64)
        at, tail = places, (1,) * (total.ndim - 1)
        for k in range(1, n):
            step = self.ahead.take(at, mode="wrap")
            alive = step > 0
            if k % 8 == 0 and not alive.any():
                break
            at = at + step * alive
            count += alive
            there = alive.reshape(-1, *tail) if tail else alive
            np.add(total, reward_at(at) * np.float64(gamma**k), out=total, where=there)
        return at % self.ring, total.astype(dtype), count


def previous_steps(ids: Array, streams: Array, newest: dict[int, int]) -> tuple[Array, dict[int, int]]:
    """The previous step in its stream, or -1, of each of these steps; and the newest step of each stream.

    `newest`: the newest earlier step of each stream; not changed.
    """
    order = np.argsort(streams, kind="stable")
    by_stream, in_order = streams[order], ids[order]
    first = np.ones(len(ids), np.bool_)
    first[1:] = by_stream[1:] != by_stream[:-1]
    previous = np.empty(len(ids), np.int64)
    previous[order[1:]] = in_order[:-1]
    names = by_stream[first].tolist()
    previous[order[first]] = [newest.get(name, -1) for name in names]
    last = np.append(np.flatnonzero(first)[1:], len(ids)) - 1
    return previous, dict(zip(names, in_order[last].tolist(), strict=True))


class Links(NextSteps):
    """The links of the steps in a pond. Computed for steps [.., stop); the caller holds the pond's lock."""

    def __init__(self, ring: int) -> None:
        super().__init__(np.zeros(ring, np.int32))
        self.stream = np.zeros(ring, np.int32)
        self.join = np.zeros(ring, np.int8)
        self.behind = np.zeros(ring, np.int32)
        """distance to the previous step of the stream, or 0"""
        self.newest: dict[int, int] = {}
        """the newest step of each stream; those of streams without live steps are dropped now and then"""
        self.cuts: dict[int, int] = {}
        """by stream: its first step with this id or a later one starts an episode; dropped once linked"""
        self.stop = 0
        self._linked: tuple[int, dict[int, int]] | None = None  # `stop` and newest steps, to be published

    @property
    def nbytes(self) -> int:
        """Memory of the whole ring."""
        return sum(array.nbytes for array in (self.stream, self.join, self.ahead, self.behind))

    def update(
        self, oldest: int, recorded: int, ended: tuple[Array, Array], follows: Callable[[Array, Array], Array]
    ) -> None:
        """Link all steps up to `recorded`.

        `ended`: the rings of terminated and truncated. `follows(places, previous)`: whether the obs of steps
        are the next_obs of others.
        """
        self._publish()  # after an interrupt
        start = max(self.stop, oldest)
        while start < recorded:
            stop = min(start + CHUNK, recorded)
            newest = self._link(np.arange(start, stop), oldest, ended, follows)
            self._linked = (stop, newest)
            self._publish()
            start = stop
        if len(self.newest) > 64 + 2 * (recorded - oldest):
            self.newest = {stream: step for stream, step in self.newest.items() if step >= oldest}

    def _link(
        self,
        ids: Array,
        oldest: int,
        ended: tuple[Array, Array],
        follows: Callable[[Array, Array], Array],
    ) -> dict[int, int]:
        """Write the links of new steps, return the newest step of each of their streams. Idempotent."""
        places = ids % self.ring
        streams = self.stream[places]
        previous, newest = previous_steps(ids, streams, self.newest)
        for stream, cut in self.cuts.items():
            first = places[(streams == stream) & (ids >= cut) & (previous < cut)]
            self.join[first] = np.minimum(self.join[first], STARTS)  # or ALONE
        self.ahead[places] = self.behind[places] = 0
        linked = previous >= oldest
        here, before = places[linked], previous[linked] % self.ring
        distance = (ids[linked] - previous[linked]).astype(np.int32)
        self.behind[here] = distance
        join = self.join[here]
        derive = np.flatnonzero(join == DERIVE)
        join[derive] = follows(here[derive], before[derive])
        after_alone = self.join[before] == ALONE
        join[after_alone] = np.minimum(join[after_alone], STARTS)  # or ALONE
        self.join[here] = join
        rest = places[~linked]
        self.join[rest] = np.where(self.join[rest] == DERIVE, STARTS, self.join[rest])
        continues = (join == CONTINUES) & ~(ended[0][before] | ended[1][before])
        alone = (join == ALONE) | after_alone
        self.ahead[before] = np.where(alone, 0, np.where(continues, distance, -distance))
        return newest

    def _publish(self) -> None:
        """Include the steps that `_link` has linked. Idempotent, so it can be repeated after an interrupt."""
        if self._linked is not None:
            self.newest.update(self._linked[1])
            for stream in [each for each, cut in self.cuts.items() if self.newest.get(each, -1) >= cut]:
                del self.cuts[stream]
            self.stop = self._linked[0]
            self._linked = None

    def recent(self, stream: int, count: int, oldest: int) -> list[int]:
        """The newest `count` live steps of a stream, newest first; fewer if there are no more."""
        found: list[int] = []
        step = self.newest.get(stream, -1)
        while step >= oldest and len(found) < count:
            found.append(step)
            behind = int(self.behind[step % self.ring])
            step = step - behind if behind else -1
        return found
