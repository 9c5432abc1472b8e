"""agents ──record──▶ pond: what an agent hands over is checked whole before any of it is kept."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from lakepond.errors import RecordError
from lakepond.pond import Steps
from lakepond.pond.observations import check_window
from lakepond.types import STREAM_MAX, Array, Field, Spec, Tree, WindowRef, leaves

MISSING: Any = object()
"""Stands for a field that was not handed over."""


class Intake:
    """Turns the arguments of `record` into `Steps`, or says in one sentence what is wrong with them."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        flag = Field((), "bool")
        self._obs: list[tuple[str, Field]] = list(leaves(spec.obs, "obs"))
        self._next_obs: list[tuple[str, Field]] = list(leaves(spec.obs, "next_obs"))
        self._columns: list[tuple[str, Field]] = [
            *leaves(spec.action, "action"),
            ("reward", spec.reward),
            ("terminated", flag),
            ("truncated", flag),
            *spec.extras.items(),
        ]
        self._warned = False
        self._usual: list[Any] = []  # what the last batch looked like
        self._range: list[int] = []

    def check(
        self, fields: Mapping[str, Tree], extras: Mapping[str, Any], stream: int | Array | None
    ) -> tuple[Steps, bool]:
        """The steps, and whether they came as a batch."""
        spec = self.spec
        for name, given in fields.items():
            if given is MISSING:
                everything = ", ".join([*fields, *spec.extras])
                raise RecordError(f"record is missing {name!r}; hand over {everything}.")
        if extras.keys() != spec.extras.keys():
            raise RecordError(
                f"record got the extra fields {sorted(extras) or 'none'}, the Spec declares "
                f"{sorted(spec.extras) or 'none'}; hand over each declared one, or declare it in extras."
            )
        obs = _along(spec.obs, fields["obs"], "obs")
        next_obs = _along(spec.obs, fields["next_obs"], "next_obs")
        values = _along(spec.action, fields["action"], "action")
        values += [fields["reward"], fields["terminated"], fields["truncated"]]
        values += [extras[name] for name in spec.extras]
        looks = _looks(obs, next_obs, values)
        if looks != self._usual:
            self._usual = []
            count = self._count(obs[0])
            obs = [_window(p, f, v, count) for (p, f), v in zip(self._obs, obs, strict=True)]
            next_obs = [_window(p, f, v, count) for (p, f), v in zip(self._next_obs, next_obs, strict=True)]
            values = [_column(p, f, v, count) for (p, f), v in zip(self._columns, values, strict=True)]
            if all(look[0] is np.ndarray for look in looks) and _looks(obs, next_obs, values) == looks:
                self._usual = looks  # a batch of arrays, none of them converted: the next like it is right
        else:
            count = len(obs[0])
        columns = {path: value for (path, _), value in zip(self._columns, values, strict=True)}
        steps = Steps(self._streams(stream, 1 if count is None else count), obs, next_obs, columns)
        self._warn_of_nan(columns["reward"])
        return steps, count is not None

    def _streams(self, stream: int | Array | None, size: int) -> list[int]:
        if stream is not None:
            return _streams(stream, size)
        if len(self._range) != size:
            self._range = list(range(size))
        return self._range

    def _count(self, first: Any) -> int | None:
        """How many steps the first leaf of obs stands for; None for one step without a batch axis."""
        path, field = self._obs[0]
        if isinstance(first, WindowRef):
            return None if np.ndim(first.stop) == 0 else len(first.stop)  # type: ignore[arg-type]
        shape = np.shape(first)
        if shape == field.shape:
            return None
        if shape[1:] == field.shape:
            return int(shape[0])
        raise _misfit(path, field, shape, None)

    def _warn_of_nan(self, reward: Array) -> None:
        if self._warned or (total := reward.sum()) == total or not np.isnan(reward).any():
            return
        self._warned = True
        warnings.warn(
            "a recorded reward is NaN; it is kept as it is (said once): look at the environment",
            RuntimeWarning,
            stacklevel=4,
        )


def _looks(*lists: list[Any]) -> list[Any]:
    return [
        (type(v), getattr(v, "dtype", None), getattr(v, "shape", None)) for values in lists for v in values
    ]


def _along(spec: Tree, value: Tree, path: str) -> list[Any]:
    """The leaves of a value, in the order of the spec's tree."""
    if isinstance(spec, Field):
        return [value]
    if isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            got = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise RecordError(f"{path} must be a dict with the keys {sorted(spec)}, but is {got}.")
        return [leaf for key, sub in spec.items() for leaf in _along(sub, value[key], f"{path}[{key!r}]")]
    if type(value) not in (tuple, list) or len(value) != len(spec):
        got = f"{len(value)} values" if isinstance(value, tuple | list) else type(value).__name__
        raise RecordError(f"{path} must be a tuple of {len(spec)} values, but is {got}.")
    return [leaf for i, sub in enumerate(spec) for leaf in _along(sub, value[i], f"{path}[{i}]")]


def _window(path: str, field: Field, value: Any, count: int | None) -> Array | WindowRef:
    if isinstance(value, WindowRef):
        check_window(path, field, value)
        stops = np.atleast_1d(value.stop)
        if len(stops) != (1 if count is None else count):
            raise RecordError(
                f"{path} has {len(stops)} windows, obs has {1 if count is None else count} steps."
            )
        return WindowRef(value.source, stops)
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.dtype != field.dtype:
        raise RecordError(
            f"{path} is {array.dtype.name}, the Spec says {np.dtype(field.dtype).name}; convert it with "
            f".astype({np.dtype(field.dtype).name!r}), or change the Spec (bytes are kept as they are)."
        )
    return _batched(path, field, array, count)


def _column(path: str, field: Field, value: Any, count: int | None) -> Array:
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.dtype != field.dtype:
        array = _cast(path, array, np.dtype(field.dtype))
    return _batched(path, field, array, count)


def _cast(path: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Between numbers of one kind, as from Python's to float32; never where a value would change by it."""
    cast = array.astype(dtype) if array.dtype.kind in "biuf" and dtype.kind in "biufc" else None
    whole = dtype.kind in "biu" and (array.dtype.kind == "f" or (cast is not None and (cast != array).any()))
    if cast is None or whole or (dtype.kind == "b" and array.dtype.kind != "b"):
        raise RecordError(f"{path} is {array.dtype.name}, the Spec says {dtype.name}; convert it first.")
    return cast


def _batched(path: str, field: Field, array: Array, count: int | None) -> Array:
    if count is None:
        if array.shape != field.shape:
            raise _misfit(path, field, array.shape, None)
        return array[np.newaxis]
    if array.shape != (count, *field.shape):
        raise _misfit(path, field, array.shape, count)
    return array


def _misfit(path: str, field: Field, shape: tuple[int, ...], count: int | None) -> RecordError:
    if count is None:
        return RecordError(
            f"{path} has the shape {list(shape)}, the Spec says {list(field.shape)}, or that with a leading "
            "batch axis; hand over one step, or a batch in which every field has the same leading axis."
        )
    return RecordError(
        f"{path} has the shape {list(shape)}, but the batch of {count} steps needs {[count, *field.shape]}."
    )


def _streams(stream: int | Array, size: int) -> list[int]:
    array = np.asarray(stream)
    if array.dtype.kind not in "iu" or array.ndim > 1 or (array.ndim == 1 and array.shape != (size,)):
        raise RecordError(
            f"stream must be a whole number or an array of {size} of them, not {stream!r}; "
            "give every agent or environment a number."
        )
    if array.size and (array.min() < 0 or array.max() > STREAM_MAX):
        raise RecordError(f"stream must lie in [0, {STREAM_MAX}], but is {stream!r}.")
    return [int(array)] * size if array.ndim == 0 else [int(s) for s in array]
