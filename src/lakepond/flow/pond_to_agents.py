"""pond ──sample──▶ agents: choose steps, follow their streams, copy what was asked for.

Choosing happens while the pond is held still; the copies, nearly all of the time, after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy import ndarray

from lakepond.errors import SampleError, TooFewSteps
from lakepond.pond import Pond
from lakepond.pond.observations import Observations, Read
from lakepond.rows import RowStore
from lakepond.types import Array, Batch, Tree, leaves, rebuild

PARALLEL_BYTES = 4 << 20
"""a batch smaller than this is not worth a second thread"""
ROUNDS = 8
"""tries at drawing sequences before all that are possible are listed"""


def check_arguments(
    pond: Pond,
    batch_size: int,
    rng: np.random.Generator,
    n_step: int,
    gamma: float,
    length: int | None,
    replace: bool,
    beta: float | None,
    without: Collection[str] = (),
) -> None:
    """Refuse what cannot be asked of `sample`."""
    if without:
        known = {path for name in ("obs", "next_obs") for path, _ in leaves(pond.spec.obs, name)}
        if isinstance(without, str) or not known.issuperset(without):
            raise SampleError(
                f"without names observations to leave out, some of {sorted(known)}, but is {without!r}."
            )
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise SampleError(f"batch_size must be a whole number, at least 1, but is {batch_size!r}.")
    if not isinstance(rng, np.random.Generator):
        raise SampleError(f"rng must be a numpy.random.Generator, not {type(rng).__name__}; see default_rng.")
    if n_step < 1 or not 0 <= gamma <= 1:
        raise SampleError(f"n_step must be at least 1 and gamma in [0, 1], but are {n_step} and {gamma}.")
    if length is not None and (length < 1 or n_step > 1 or not replace):
        raise SampleError(
            f"length must be at least 1 and stands alone, but is {length} with n_step={n_step}, "
            f"replace={replace}; compute returns from the sequence."
        )
    if beta is not None and pond.priorities is None:
        raise SampleError("beta weighs prioritised samples; make the replay with Replay(..., alpha=0.6).")


def draw(pond: Pond, count: int, rng: np.random.Generator) -> Array:
    """Ids of steps with replacement: uniform, or in proportion to priority."""
    if pond.priorities is None:
        return pond.oldest + rng.integers(pond.size, size=count)
    places = pond.priorities.draw(count, rng)
    return pond.oldest + (places - pond.oldest) % pond.capacity


def draw_distinct(pond: Pond, count: int, rng: np.random.Generator) -> Array:
    """Ids of steps without replacement, uniform or by priority."""
    if pond.priorities is None:
        return pond.oldest + rng.permutation(pond.size)[:count]
    # Efraimidis and Spirakis 2006: the largest of u ** (1 / w) are a weighted draw without replacement
    weights = pond.priorities.weights(pond.places(pond.ids()))
    keys = np.log(rng.random(pond.size)) / weights
    return pond.oldest + np.argsort(-keys)[:count]


def draw_sequences(pond: Pond, count: int, length: int, cross: bool, rng: np.random.Generator) -> Array:
    """Ids (count, length): steps of one stream that follow each other; every possible start alike."""
    kept: list[Array] = []
    missing = count
    for _ in range(ROUNDS):
        found = follow(pond, draw(pond, 2 * missing, rng), length, cross)
        found = found[found[:, -1] >= 0][:missing]
        kept.append(found)
        missing -= len(found)
        if missing == 0:
            return np.concatenate(kept)
    possible = follow(pond, pond.ids(), length, cross)
    possible = possible[possible[:, -1] >= 0]
    if not len(possible):
        raise TooFewSteps(
            f"none of the {pond.size:,} steps begins {length} steps of one stream"
            f"{'' if cross else ' within an episode'}; record more, or ask for a shorter length."
        )
    if pond.priorities is None:
        chosen = rng.integers(len(possible), size=missing)
    else:
        weights = pond.priorities.weights(pond.places(possible[:, 0]))
        chosen = rng.choice(len(possible), size=missing, p=weights / weights.sum())
    return np.concatenate([*kept, possible[chosen]])


def follow(pond: Pond, ids: Array, length: int, cross: bool) -> Array:
    """Ids (len(ids), length): each step and those after it in its stream; -1 from where it cannot go on."""
    steps = np.full((len(ids), length), -1, np.int64)
    steps[:, 0] = ids
    ended = pond.columns["terminated"] | pond.columns["truncated"] if not cross else None
    for t in range(1, length):
        here = steps[:, t - 1]
        there = np.where(here >= 0, pond.following(here), -1)
        if ended is not None:
            there = np.where(ended[here % pond.capacity], -1, there)
        steps[:, t] = there
    return steps


def n_step_return(pond: Pond, ids: Array, n: int, gamma: float) -> tuple[Array, Array, Array]:
    """The last step, the discounted reward up to it and the discount after it.

    Goes on for n steps, to the end of the episode or to the newest step of the stream, whichever is first.
    """
    reward = pond.columns["reward"]
    steps = follow(pond, ids, n, cross=False)
    there = steps >= 0
    powers = gamma ** np.arange(n)
    values = reward[steps % pond.capacity]
    shape = (1, n) + (1,) * (reward.ndim - 1)
    mask = there.reshape(*there.shape, *(1,) * (reward.ndim - 1))
    total = (np.where(mask, values, 0) * powers.reshape(shape)).sum(axis=1).astype(reward.dtype)
    taken = there.sum(axis=1)
    last = steps[np.arange(len(ids)), taken - 1]
    return last, total, np.asarray(gamma**taken)


def importance(pond: Pond, ids: Array, beta: float) -> Array:
    """(N P) ** -beta, over the largest such weight there is, so that weights only scale down."""
    if pond.priorities is None:
        return np.ones(len(ids), np.float32)
    weights = pond.priorities.weights(pond.places(ids))
    scaled: Array = (weights / pond.priorities.least()) ** -beta
    return scaled.astype(np.float32)


def sample(
    pond: Pond,
    choose: Callable[[], Array],
    *,
    n_step: int = 1,
    gamma: float = 1.0,
    beta: float = 0.0,
    without: Collection[str] = (),
    out: Batch | None = None,
    pool: Executor | None = None,
) -> Batch:
    """Deliver the steps that `choose` returns: ids (B,), or (B, T) for sequences."""
    reads: list[tuple[Read, Array]] = []
    try:
        with pond.reading():
            ids = choose()
            into = _Outputs(ids.shape, out, without)
            columns = pond.columns
            places = last_places = pond.places(ids)
            if n_step > 1:
                last, reward, ahead = n_step_return(pond, ids, n_step, gamma)
                reward, last_places = into.put("reward", reward), pond.places(last)
            else:
                reward, ahead = into.take("reward", columns["reward"], places), np.asarray(gamma)
            terminated = into.take("terminated", columns["terminated"], last_places)
            spec = pond.spec
            batch = Batch(
                obs=_tree(spec.obs, [into.look_up(leaf, "obs", places, 0) for leaf in pond.leaves]),
                action=_tree(
                    spec.action, [into.take(p, columns[p], places) for p, _ in leaves(spec.action, "action")]
                ),
                reward=reward,
                next_obs=_tree(
                    spec.obs, [into.look_up(leaf, "next_obs", last_places, 1) for leaf in pond.leaves]
                ),
                terminated=terminated,
                truncated=into.take("truncated", columns["truncated"], last_places),
                discount=into.put("discount", (ahead * ~terminated).astype(np.float32)),
                weight=into.put("weight", importance(pond, ids.reshape(len(ids), -1)[:, 0], beta)),
                step_id=into.put("step_id", ids),
                stream=into.take("stream", columns["stream"], places),
                extras={name: into.take(f"extras[{name!r}]", columns[name], places) for name in spec.extras},
            )
            into.begin(reads)
        _copy(reads, pool)
    finally:
        with pond.finishing():
            for read, _ in reads:
                read.done()
    return batch


def _copy(reads: list[tuple[Read, Array]], pool: Executor | None) -> None:
    """Copy what was looked up: obs and next_obs of a leaf together; if it is much, half on another thread."""
    together: dict[RowStore, list[tuple[Array, Array]]] = {}
    for read, out in reads:
        target = read.rows_first(out)
        if read.store is not None and read.slots is not None and target.flags.c_contiguous:
            together.setdefault(read.store, []).append((read.slots, target))
        else:
            read.into(out)
    for store, parts in together.items():
        slots, outs = np.stack([slots for slots, _ in parts]), [out for _, out in parts]
        windows = slots.shape[1] // store.length
        if pool is None or windows < 2 or sum(out.nbytes for out in outs) < PARALLEL_BYTES:
            store.gather(slots, *outs)
            continue
        other = pool.submit(store.gather, slots, *outs, part=(windows // 2, windows))
        try:
            store.gather(slots, *outs, part=(0, windows // 2))
        finally:
            other.result()


def _tree(spec: Tree, values: list[Any]) -> Tree:
    ordered = iter(values)
    return rebuild(spec, lambda: next(ordered))


class _Outputs:
    """The arrays of a batch: those of `out` where one is given, else new ones."""

    def __init__(self, shape: tuple[int, ...], out: Batch | None, without: Collection[str] = ()) -> None:
        self._shape = shape
        self._without = without
        self._given: dict[str, Array] = {}
        self._asked: list[tuple[Observations, Array, int, Array]] = []
        for name, value in () if out is None else out._asdict().items():
            if type(value) is ndarray:
                self._given[name] = value
            else:
                self._given.update(leaves(value, name))

    def _array(self, path: str, shape: tuple[int, ...], dtype: Any) -> Array | None:
        given = self._given.get(path)
        if given is None:
            if self._given:
                raise SampleError(f"out has no {path}; pass a batch that this replay has delivered.")
            return None
        if given.shape != shape or given.dtype != dtype:
            raise SampleError(
                f"out.{path} is {given.dtype.name}{list(given.shape)}, this sample needs "
                f"{np.dtype(dtype).name}{list(shape)}; pass a batch of an earlier call like this one."
            )
        return given

    def take(self, path: str, column: Array, places: Array) -> Array:
        """Values of a column."""
        given = self._array(path, (*self._shape, *column.shape[1:]), column.dtype)
        if given is None:
            return column[places]
        return np.take(column, places, axis=0, out=given, mode="clip")

    def put(self, path: str, values: Array) -> Array:
        """Values that have been computed."""
        given = self._array(path, values.shape, values.dtype)
        if given is None:
            return values
        given[...] = values
        return given

    def look_up(self, leaf: Observations, name: str, places: Array, which: int) -> Array | None:
        """Where observations will be copied to, once the pond is let go; None if they are left out."""
        path = name + leaf.path.removeprefix("obs")
        if path in self._without:
            return None
        target = self._array(path, (*self._shape, *leaf.field.shape), leaf.dtype)
        if target is None:
            target = leaf.empty(self._shape)
        self._asked.append((leaf, places.reshape(-1), which, target))
        return target

    def begin(self, reads: list[tuple[Read, Array]]) -> None:
        """From here on the rows that were asked for are held, until the reads are done."""
        for leaf, places, which, target in self._asked:
            reads.append((leaf.look_up(places, which), target))
