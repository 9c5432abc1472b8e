"""The pond on the accelerator: pure `init`, `begin`, `add` and `sample`, for `jit`, `scan` and `vmap`.

Frames are kept once. A lane is one copy of an environment; its frames lie in a ring of their own, and a step
only says where the newest frame of its observation is, and of what followed::

    lane 0   rows   a0 a0 a0 a0 a1 a2 b0 b0 b0 b0 b1 ...      stacks of 4; a0 is repeated at the start
             step      at ───────^  ^─ next_at                obs a0 a0 a0 a1, next_obs a0 a0 a1 a2

What truly followed always has a row of its own, and behind an episode's end the next one's first stack is
written whole: overlap cannot go wrong there. 1M Atari steps take 7.5 GB, not 56. Should episodes be so short
that a lane's rows run out, its oldest steps leave early; what is sampled is always right.

`load` is the other way in: transitions in any order, n steps folded into one, as `fill` brings them from a
lake. `vmap` makes four ponds of one. The only module of the pond that knows JAX.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.errors import SampleError, SpecError
from lakepond.pond.device_memory import check_fits
from lakepond.types import Batch, Field

BLOCK = 512
"""priorities are summed up in blocks of this many, so that a draw looks at few numbers"""


class Priorities(NamedTuple):
    """Priorities to the power of alpha, and their sums by block."""

    weight: jax.Array
    """(lanes * capacity,), rounded up to whole blocks"""
    block: jax.Array
    largest: jax.Array


class PondState(NamedTuple):
    """What a device pond holds."""

    rows: jax.Array
    """(lanes, rows, *row)"""
    cursor: jax.Array
    """(lanes,): rows ever written"""
    steps: jax.Array
    """steps ever added to each lane: they go on together"""
    oldest: jax.Array
    """(lanes,): the oldest step held"""
    at: jax.Array
    """(lanes, capacity): the newest row of the observation, as counted by the cursor"""
    next_at: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    span: jax.Array
    """how many steps a transition spans: 1, unless it was loaded folded"""
    priorities: Priorities | None


class Added(NamedTuple):
    """Steps of every lane, (steps, lanes, ...), as a rollout gives them."""

    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    """the true one, also where an episode ended"""
    terminated: jax.Array
    truncated: jax.Array
    begun: jax.Array
    """what the next step starts from: a new episode where this one ended"""


class Loaded(NamedTuple):
    """A piece of what `fill` brings: rows and transitions that point into them, padded to a fixed size."""

    rows: Any
    """(n, *row)"""
    rows_count: Any
    """how many of them are meant"""
    at: Any
    """(m,): the newest row of the observation, counted from the first of this piece"""
    next_at: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    span: Any
    steps_count: Any
    """how many of these are meant"""


@dataclass(frozen=True)
class DevicePond:
    """The shape of a pond, and all that can be done to one."""

    obs: Field
    """with `rows=0` an observation is a stack of frames along its first axis, else it is one row"""
    lanes: int
    capacity: int
    """steps a lane"""
    rows: int = 0
    """rows a lane; 0: a sixteenth more than steps, room for the stacks at the start of episodes"""
    action: Field = field(default_factory=lambda: Field((), "int32"))
    alpha: float | None = None
    """sample by priority ** alpha"""

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.capacity < 1:
            raise SpecError(
                f"a device pond needs lanes and capacity of at least 1, not {self.lanes}, {self.capacity}."
            )
        least = 2 * self.length + 1
        if self.rows == 0:
            object.__setattr__(self, "rows", self.capacity + self.capacity // 16 + least)
        if self.rows < least:
            raise SpecError(
                f"a lane of {self.rows} rows is too short; a stack of {self.length} needs {least}."
            )

    @property
    def length(self) -> int:
        """Rows of an observation."""
        return self.obs.shape[0] if self.obs.rows == 0 else 1

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of a row."""
        return self.obs.shape[1:] if self.obs.rows == 0 else self.obs.shape

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return math.prod(self.row) * np.dtype(self.obs.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """What it takes on the device."""
        step = 15 + self.action.nbytes + (0 if self.alpha is None else 4)
        return self.lanes * (self.rows * self.row_bytes + self.capacity * step)

    def init(self, *, ponds: int = 1) -> PondState:
        """An empty one; `ponds`: how many there will be, so that it is known beforehand whether they fit."""
        check_fits(self.nbytes * ponds, self.lanes * self.capacity * ponds)
        shape = (self.lanes, self.capacity)
        return PondState(
            rows=jnp.zeros((self.lanes, self.rows, *self.row), self.obs.dtype),
            cursor=jnp.zeros(self.lanes, jnp.int32),
            steps=jnp.int32(0),
            oldest=jnp.zeros(self.lanes, jnp.int32),
            at=jnp.zeros(shape, jnp.int32),
            next_at=jnp.zeros(shape, jnp.int32),
            action=jnp.zeros((*shape, *self.action.shape), self.action.dtype),
            reward=jnp.zeros(shape, jnp.float32),
            terminated=jnp.zeros(shape, bool),
            truncated=jnp.zeros(shape, bool),
            span=jnp.ones(shape, jnp.uint8),
            priorities=None if self.alpha is None else _no_priorities(self.lanes * self.capacity),
        )

    # --- adding ----------------------------------------------------------------------------------

    def begin(self, pond: PondState, obs: jax.Array) -> PondState:
        """Write the observations, (lanes, ...), from which the first steps start."""
        places = (pond.cursor[:, None] + jnp.arange(self.length)) % self.rows
        rows = pond.rows.at[jnp.arange(self.lanes)[:, None], places].set(self._frames(obs))
        return pond._replace(rows=rows, cursor=pond.cursor + self.length)

    def add(self, pond: PondState, new: Added) -> PondState:
        """Add steps of every lane, (steps, lanes, ...), as time went; the oldest leave when it is full."""
        count = new.reward.shape[0]
        if count > self.capacity:
            raise SpecError(f"{count} steps a lane do not fit a pond of {self.capacity}; add fewer at once.")
        ended = new.terminated | new.truncated
        written = 1 + self.length * ended.astype(jnp.int32)  # what followed, and the next episode's stack
        before = pond.cursor + jnp.cumsum(written, axis=0) - written
        lane = jnp.broadcast_to(jnp.arange(self.lanes), (count, self.lanes))
        newest = self._frames(new.next_obs)[:, :, -1]
        rows = pond.rows.at[lane, before % self.rows].set(newest)

        def write_stacks(rows: jax.Array) -> jax.Array:
            places = (before[..., None] + 1 + jnp.arange(self.length)) % self.rows
            places = jnp.where(ended[..., None], places, self.rows)  # out of bounds: dropped
            return rows.at[lane[..., None], places].set(self._frames(new.begun), mode="drop")

        rows = jax.lax.cond(ended.any(), write_stacks, lambda rows: rows, rows)
        place = (pond.steps + jnp.arange(count)) % self.capacity

        def put(column: jax.Array, values: jax.Array) -> jax.Array:
            return column.at[:, place].set(jnp.swapaxes(values, 0, 1).astype(column.dtype))

        after = pond._replace(
            rows=rows,
            cursor=pond.cursor + written.sum(axis=0),
            steps=pond.steps + count,
            at=put(pond.at, before - 1),
            next_at=put(pond.next_at, before),
            action=put(pond.action, new.action),
            reward=put(pond.reward, new.reward),
            terminated=put(pond.terminated, new.terminated),
            truncated=put(pond.truncated, new.truncated),
            span=put(pond.span, jnp.ones((count, self.lanes))),
        )
        after = after._replace(oldest=self._oldest(after))
        return after if self.alpha is None else self._prioritise(pond, after, place)

    def empty(self, pond: PondState) -> PondState:
        """Forget all steps, after they have been poured; the lanes go on where they are."""
        none = None if self.alpha is None else _no_priorities(self.lanes * self.capacity)
        return pond._replace(oldest=jnp.full_like(pond.oldest, pond.steps), priorities=none)

    def held(self, pond: PondState) -> jax.Array:
        """How many steps can be sampled."""
        return (pond.steps - pond.oldest).sum()

    def _oldest(self, pond: PondState) -> jax.Array:
        """The oldest step of each lane whose rows are all there; by bisection, for `at` only grows."""
        lane = jnp.arange(self.lanes)

        def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = bounds
            middle = (low + high) // 2
            first = pond.at[lane, middle % self.capacity] - self.length + 1
            there = first >= pond.cursor - self.rows
            return jnp.where(there, low, jnp.minimum(middle + 1, high)), jnp.where(there, middle, high)

        low = jnp.maximum(pond.oldest, pond.steps - self.capacity)
        high = jnp.full_like(low, pond.steps)
        found: jax.Array = jax.lax.fori_loop(0, self.capacity.bit_length() + 1, halve, (low, high))[1]
        return found

    # --- loading ---------------------------------------------------------------------------------

    def load(self, pond: PondState, piece: Loaded) -> PondState:
        """Append a piece to a pond of one lane, whose transitions then stand each for itself."""
        base = pond.cursor[0]
        place = jnp.arange(piece.rows.shape[0])
        row = jnp.where(place < piece.rows_count, base + place, self.rows)  # out of bounds: dropped
        number = jnp.arange(piece.at.shape[0])
        step = jnp.where(number < piece.steps_count, pond.steps + number, self.capacity)

        def put(column: jax.Array, values: jax.Array) -> jax.Array:
            return column.at[0, step].set(values.astype(column.dtype), mode="drop")

        priorities = pond.priorities
        if priorities is not None:
            meant = jnp.where(number < piece.steps_count, step, -1)
            priorities = _set(priorities, meant, jnp.broadcast_to(priorities.largest, step.shape))
        return pond._replace(
            rows=pond.rows.at[0, row].set(piece.rows, mode="drop"),
            cursor=pond.cursor + piece.rows_count,
            steps=pond.steps + piece.steps_count,
            at=put(pond.at, base + piece.at),
            next_at=put(pond.next_at, base + piece.next_at),
            action=put(pond.action, piece.action),
            reward=put(pond.reward, piece.reward),
            terminated=put(pond.terminated, piece.terminated),
            truncated=put(pond.truncated, piece.truncated),
            span=put(pond.span, piece.span),
            priorities=priorities,
        )

    def cleared(self, pond: PondState) -> PondState:
        """As it was made, to be loaded anew."""
        none = None if self.alpha is None else _no_priorities(self.lanes * self.capacity)
        return pond._replace(
            cursor=jnp.zeros(self.lanes, jnp.int32),
            steps=jnp.int32(0),
            oldest=jnp.zeros(self.lanes, jnp.int32),  # not the same zeros: both may be donated
            priorities=none,
        )

    # --- sampling --------------------------------------------------------------------------------

    def sample(
        self,
        pond: PondState,
        key: jax.Array,
        batch: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        beta: float = 0.4,
    ) -> Batch:
        """Steps at random with replacement, uniformly or by priority; not from an empty pond.

        n-step returns stop at an episode's end and at the newest step; of a loaded pond take n_step=1, for
        there they are folded in. `discount` is gamma ** steps, and 0 where the game was over; `step_id` is
        what `update_priorities` takes.
        """
        if n_step < 1 or batch < 1:
            raise SampleError(f"sample takes a batch and n_step of at least 1, not {batch} and {n_step}.")
        lane, step, weight = (self._uniform if self.alpha is None else self._by_priority)(
            pond, key, batch, beta
        )
        place = step % self.capacity
        number = lane * self.capacity + place
        # the lane's next steps at once; none counts behind an episode's end or the newest step
        later = jnp.arange(n_step)
        wraps = place[:, None] + later >= self.capacity
        numbers = number[:, None] + later - jnp.where(wraps, self.capacity, 0)
        over = _at(pond.terminated, numbers) | _at(pond.truncated, numbers)
        goes_on = ~over & (step[:, None] + later + 1 < pond.steps)
        counts = jnp.ones(batch, bool)
        rewards = _at(pond.reward, numbers)
        reward, more = rewards[:, 0], jnp.zeros(batch, jnp.int32)
        for i in range(1, n_step):
            counts = counts & goes_on[:, i - 1]
            reward, more = reward + jnp.where(counts, gamma**i * rewards[:, i], 0.0), more + counts
        end = jnp.take_along_axis(numbers, more[:, None], axis=1)[:, 0]
        span = _at(pond.span, number).astype(jnp.int32) + more
        terminated = _at(pond.terminated, end)
        obs, next_obs = self._gather(pond, lane, _at(pond.at, number), _at(pond.next_at, end))
        found: dict[str, Any] = dict(
            obs=obs,
            action=_at(pond.action, number),
            reward=reward,
            next_obs=next_obs,
            terminated=terminated,
            truncated=_at(pond.truncated, end),
            discount=jnp.where(terminated, 0.0, gamma ** span.astype(jnp.float32)),
            weight=weight,
            step_id=number,
            stream=lane,
            extras={},
        )
        return Batch(**found)

    def update_priorities(self, pond: PondState, step_id: jax.Array, priority: jax.Array) -> PondState:
        """Set the priorities of sampled steps, usually to the size of their TD errors."""
        if pond.priorities is None or self.alpha is None:
            raise SampleError("this device pond has no priorities; make it with alpha=0.6, say.")
        value = (jnp.abs(priority) + 1e-6) ** self.alpha
        return pond._replace(priorities=_set(pond.priorities, step_id, value))

    def _uniform(
        self, pond: PondState, key: jax.Array, batch: int, _: float
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Lane, step and weight: every step that is held as likely as any other."""
        counts = pond.steps - pond.oldest
        ends = jnp.cumsum(counts)
        drawn = jax.random.randint(key, (batch,), 0, jnp.maximum(ends[-1], 1))
        lane = jnp.searchsorted(ends, drawn, side="right", method="compare_all")
        return lane, pond.oldest[lane] + drawn - (ends - counts)[lane], jnp.ones(batch)

    def _by_priority(
        self, pond: PondState, key: jax.Array, batch: int, beta: float
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Lane, step and importance weight, the largest of which is 1."""
        priorities = pond.priorities
        assert priorities is not None
        key_block, key_within = jax.random.split(key)
        ends = jnp.cumsum(priorities.block)
        drawn = jax.random.uniform(key_block, (batch,)) * ends[-1]
        block = jnp.minimum(jnp.searchsorted(ends, drawn, side="right"), len(ends) - 1)
        inside = jnp.cumsum(priorities.weight.reshape(-1, BLOCK)[block], axis=1)
        target = jax.random.uniform(key_within, (batch,)) * inside[:, -1:].T[0]
        number = block * BLOCK + (inside <= target[:, None]).sum(1).clip(0, BLOCK - 1)
        lane, place = number // self.capacity, number % self.capacity
        newest = pond.steps - 1
        step = newest - (newest - place) % self.capacity  # the newest that lies there
        chance = priorities.weight[number] / ends[-1]
        weight = (chance * self.held(pond)) ** -beta
        return lane, step, weight / weight.max()

    def _prioritise(self, before: PondState, after: PondState, place: jax.Array) -> PondState:
        """New steps get the largest priority; those that left for want of rows get none."""
        priorities = after.priorities
        assert priorities is not None
        lane = jnp.arange(self.lanes)[:, None] * self.capacity
        most = min(self.capacity, len(place) * (1 + self.length))  # a row that is written evicts one at most
        gone = before.oldest[:, None] + jnp.arange(most)
        number = jnp.where(gone < after.oldest[:, None], lane + gone % self.capacity, -1)
        priorities = _set(priorities, number.reshape(-1), jnp.zeros(number.size))
        number = (lane + place).reshape(-1)
        priorities = _set(priorities, number, jnp.broadcast_to(priorities.largest, number.shape))
        return after._replace(priorities=priorities)

    # --- frames ----------------------------------------------------------------------------------

    def _frames(self, obs: jax.Array) -> jax.Array:
        """Observations (..., *shape) as rows (..., length, *row)."""
        return obs if self.obs.rows == 0 else jnp.expand_dims(obs, obs.ndim - len(self.row))

    def _gather(
        self, pond: PondState, lane: jax.Array, newest: jax.Array, next_newest: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The observations whose newest rows are these, and those of the next ones."""
        older = jnp.arange(self.length - 1, -1, -1)
        place = (jnp.stack([newest, next_newest])[..., None] - older) % self.rows
        # without the barrier the compiler puts this arithmetic into the loop over all bytes
        number: jax.Array = jax.lax.optimization_barrier(lane[:, None] * self.rows + place)  # type: ignore[no-untyped-call]
        shape = len(lane), *self.obs.shape
        if self.length > 1:
            return _at(pond.rows, number[0]).reshape(shape), _at(pond.rows, number[1]).reshape(shape)
        both = _at(pond.rows, number).reshape(2, *shape)  # small rows: on a CPU 1.6 times as fast as apart
        return both[0], both[1]


def _at(column: jax.Array, number: jax.Array) -> jax.Array:
    """Of an array (lanes, places, ...) what lies at these numbers, which count through all lanes."""
    flat = column.reshape(column.shape[0] * column.shape[1], -1)
    found = flat.at[number].get(mode="promise_in_bounds")
    return found.reshape(*number.shape, *column.shape[2:])


def _no_priorities(size: int) -> Priorities:
    blocks = -(-size // BLOCK)
    return Priorities(jnp.zeros(blocks * BLOCK), jnp.zeros(blocks), jnp.float32(1.0))


def _set(priorities: Priorities, number: jax.Array, value: jax.Array) -> Priorities:
    """Numbers below 0 or beyond the end are left alone."""
    number = jnp.where(number < 0, priorities.weight.size, number)
    weight = priorities.weight.at[number].set(value, mode="drop")
    touched = number // BLOCK
    sums = weight.reshape(-1, BLOCK)[touched.clip(0, len(priorities.block) - 1)].sum(1)
    block = priorities.block.at[touched].set(sums, mode="drop")
    return Priorities(weight, block, jnp.maximum(priorities.largest, value.max()))
