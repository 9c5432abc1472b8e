"""pond ──sample──▶ agents: copy chosen steps into a batch.

Steps are chosen and small columns are copied while the pond is locked; rows, which take most of the time, are
copied without the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Executor
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy import ndarray

from lakepond.errors import SampleError
from lakepond.pond import Pond
from lakepond.pond.observations import Observations, Read
from lakepond.rows import RowStore
from lakepond.sampling.arguments import left_out
from lakepond.sampling.draw import importance
from lakepond.types import Array, Batch, Field, Tree, leaves, rebuild

PARALLEL_BYTES = 4 << 20
"""a smaller batch is not worth a second thread"""


@lru_cache(maxsize=8)
def powers(gamma: float, n: int) -> Array:
    """`gamma` to the power of 0, 1, ..., n."""
    found: Array = (gamma ** np.arange(n + 1)).astype(np.float32)
    found.flags.writeable = False
    return found


class Delivery:
    """Copies steps of one pond into batches."""

    def __init__(self, pond: Pond) -> None:
        self._pond = pond
        spec = pond.spec
        self._obs_paths = [
            (f"{name}{leaf.path.removeprefix('obs')}", leaf, which)
            for which, name in enumerate(("obs", "next_obs"))
            for leaf in pond.leaves
        ]
        self._paths = [path for path, _, _ in self._obs_paths]
        self._actions = [path for path, _ in leaves(spec.action, "action")]

    def batch(
        self,
        choose: Callable[[], Array],
        *,
        n_step: int = 1,
        gamma: float | None = None,
        beta: float = 0.0,
        exclude: Collection[str] = (),
        only: Collection[str] | None = None,
        out: Batch | None = None,
        pool: Executor | None = None,
        linked: bool = True,
    ) -> Batch:
        """Return the steps that `choose` selects: ids (B,), or (B, T) for sequences; called under the lock.

        `linked`: whether choosing or n-step returns need links and priorities that are up to date.
        """
        pond = self._pond
        if exclude or only is not None:
            exclude = left_out(self._paths, exclude, only)
        given = None if out is None else _arrays_of(out)
        reads: list[tuple[Read, Array]] = []
        try:
            with pond.lock:
                pond.wait_for_growth()
                if linked:
                    pond.update()
                else:
                    pond.catch_up()
                ids = choose()
                batch = self._fill(ids, n_step, gamma, beta, exclude, given, reads)
            if reads:
                _copy(reads, pool)
        finally:
            if reads:
                with pond.finishing():
                    for read, _ in reads:
                        read.done()
        return batch

    def _fill(
        self,
        ids: Array,
        n_step: int,
        gamma: float | None,
        beta: float,
        exclude: Collection[str],
        given: dict[str, Array] | None,
        reads: list[tuple[Read, Array]],
    ) -> Batch:
        pond, spec = self._pond, self._pond.spec
        columns, discount = pond.columns, 1.0 if gamma is None else gamma
        places = last = ids % pond.ring
        if n_step == 1:
            reward = _take(columns["reward"], places, "reward", given)
            num_steps = np.ones(ids.shape, np.int64)
            factor: Any = np.float32(discount)
        else:
            rewards = partial(columns["reward"].take, axis=0, mode="wrap")
            last, total, num_steps = pond.links.n_step(places, rewards, n_step, discount)
            reward = _put(total, "reward", given)
            factor = powers(discount, n_step).take(num_steps)
        terminated = _take(columns["terminated"], last, "terminated", given)
        windows: list[Array | None] = []
        waiting: list[tuple[Observations, Array, int, Array]] = []
        for path, leaf, which in self._obs_paths:
            where = last if which else places
            if path in exclude:
                windows.append(None)
            elif leaf.plain is not None:
                windows.append(_take(leaf.plain[which], where, path, given))
            else:
                target = None
                if given is not None:
                    target = _given(given, path, (*ids.shape, *leaf.field.shape), leaf.dtype)
                target = leaf.empty(ids.shape) if target is None else target
                windows.append(target)
                waiting.append((leaf, where.reshape(-1), which, target))
        half = len(pond.leaves)
        actions = [_take(columns[path], places, path, given) for path in self._actions]
        first = ids if ids.ndim == 1 else ids[:, 0]
        batch = Batch(
            obs=_tree(spec.obs, windows[:half]),
            action=_tree(spec.action, actions),
            reward=reward,
            next_obs=_tree(spec.obs, windows[half:]),
            terminated=terminated,
            truncated=_take(columns["truncated"], last, "truncated", given),
            discount=_put(~terminated * factor, "discount", given),
            weight=_put(importance(pond, first, beta), "weight", given),
            step_id=_put(ids, "step_id", given),
            stream=_take(columns["stream"], places, "stream", given),
            extras={n: _take(columns[n], places, f"extras[{n!r}]", given) for n in spec.extras},
            num_steps=_put(num_steps, "num_steps", given),
        )
        for leaf, where, which, target in waiting:  # last: from here on rows are pinned
            reads.append((leaf.look_up(where, which), target))
        return batch


def _copy(reads: list[tuple[Read, Array]], pool: Executor | None) -> None:
    """Copy rows: obs and next_obs of a leaf together; half of a large batch on another thread."""
    together: dict[RowStore, list[tuple[Array, Array]]] = {}
    for read, out in reads:
        target = read.rows_first(out)
        if target.flags.c_contiguous:
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
    if isinstance(spec, Field):
        return values[0]
    ordered = iter(values)
    return rebuild(spec, lambda: next(ordered))


def _arrays_of(out: Batch) -> dict[str, Array]:
    """The arrays of a batch by path."""
    if not isinstance(out, Batch):
        raise SampleError(f"out must be a Batch that this replay returned, not {type(out).__name__}.")
    given: dict[str, Array] = {}
    for name, value in out._asdict().items():
        if type(value) is ndarray:
            given[name] = value
        elif value is not None:
            given.update(leaves(value, name))
    return given


def _given(given: dict[str, Array], path: str, shape: tuple[int, ...], dtype: Any) -> Array:
    """The array of `out` for a field; refused unless it can be overwritten with this sample."""
    array = given.get(path)
    if array is None:
        raise SampleError(f"out has no {path}; pass a batch that this replay returned.")
    if type(array) is not ndarray or not array.flags.writeable:
        raise SampleError(
            f"out.{path} is {'read-only' if type(array) is ndarray else type(array).__name__}; pass the "
            "writeable NumPy arrays of an earlier batch, or omit out."
        )
    if array.shape != shape or array.dtype != dtype:
        raise SampleError(
            f"out.{path} is {array.dtype.name}{list(array.shape)}, this sample needs "
            f"{np.dtype(dtype).name}{list(shape)}; pass a batch returned by an earlier call with "
            "the same arguments."
        )
    return array


def _take(column: Array, places: Array, path: str, given: dict[str, Array] | None) -> Array:
    """Values of a column at some places, in the array of `out` if there is one."""
    if given is None:
        return column.take(places, axis=0)
    array = _given(given, path, (*places.shape, *column.shape[1:]), column.dtype)
    return column.take(places, axis=0, out=array, mode="clip")


def _put(values: Array, path: str, given: dict[str, Array] | None) -> Array:
    """Computed values, in the array of `out` if there is one."""
    if given is None:
        return values
    array = _given(given, path, values.shape, values.dtype)
    array[...] = values
    return array
