"""agents ──record──▶ pond: what an agent hands over is checked whole before any of it is kept."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from lakepond.errors import RecordError
from lakepond.pond import column_fields
from lakepond.pond.observations import check_window
from lakepond.types import STREAM_MAX, Array, Field, RowSource, Spec, Tree, WindowRef, leaves

Looks = tuple[list[Any], list[Any]]
FIELDS = ("obs", "next_obs", "action", "reward", "terminated", "truncated")
MISSING: Any = object()
"""Stands for a field that was not handed over."""


class Intake:
    """Turns the arguments of `record` into what a pond takes, or says in one sentence what is wrong."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        obs, next_obs = list(leaves(spec.obs, "obs")), list(leaves(spec.obs, "next_obs"))
        self._fields: list[tuple[str, Field]] = [*obs, *next_obs, *column_fields(spec)]
        self._windows = len(obs)
        self._simple = isinstance(spec.obs, Field) and isinstance(spec.action, Field)
        self._usual: Looks | None = None  # what the last steps looked like, if nothing had to be converted
        self._usual_count: int | None = None
        self._fits: list[Any] = []  # how each of its values gets a batch axis, if they are one step
        self._one: list[int] = [0]  # the stream of the last single step
        self._range: list[int] = []

    def check(
        self, given: tuple[Tree, ...], extras: dict[str, Any], stream: int | Array | None
    ) -> tuple[list[int], Sequence[Any], bool]:
        """The streams and values of the steps, and whether they came as a batch; `given`: as in `FIELDS`."""
        values: Any = given if self._simple and not extras else self._flat(given, extras)
        look = _look_of_six(*values) if len(values) == 6 else _looks(values)
        if look == self._usual:  # they look like the last, which were right
            count = self._usual_count
            if count is None:
                values = [fit(value) for fit, value in zip(self._fits, values, strict=True)]
        else:
            count, values = self._fit(self._flat(given, extras))
        return self._streams(stream, 1 if count is None else count), values, count is not None

    def _flat(self, given: tuple[Tree, ...], extras: dict[str, Any]) -> list[Any]:
        spec = self.spec
        for name, value in zip(FIELDS, given, strict=True):
            if value is MISSING:
                raise RecordError(
                    f"record is missing {name!r}; hand over {', '.join([*FIELDS, *spec.extras])}."
                )
        if extras.keys() != spec.extras.keys():
            raise RecordError(
                f"record got the extra fields {sorted(extras) or 'none'}, the Spec declares "
                f"{sorted(spec.extras) or 'none'}; hand over each declared one, or declare it in extras."
            )
        more = [extras[name] for name in spec.extras] if extras else []
        if self._simple:
            return [*given, *more]
        obs, next_obs, action, *rest = given
        return [
            *_along(spec.obs, obs, "obs"),
            *_along(spec.obs, next_obs, "next_obs"),
            *_along(spec.action, action, "action"),
            *rest,
            *more,
        ]

    def _fit(self, values: list[Any]) -> tuple[int | None, list[Any]]:
        """How many steps there are, and the values as arrays with a leading batch axis."""
        self._usual = None
        count = self._count(values[0])
        fitted: list[Any] = []
        for i, ((path, field), value) in enumerate(zip(self._fields, values, strict=True)):
            fit = _window if i < 2 * self._windows else _column
            fitted.append(fit(path, field, value, count))
        # what only had to be given a batch axis need not be looked at when it comes like this again
        self._fits = [
            _axis_adder(path, field, value, fit)
            for (path, field), value, fit in zip(self._fields, values, fitted, strict=True)
        ]
        as_they_came = all(one is other for one, other in zip(fitted, values, strict=True))
        if as_they_came or (count is None and None not in self._fits):
            self._usual, self._usual_count = _looks(values), count
        return count, fitted

    def _streams(self, stream: int | Array | None, size: int) -> list[int]:
        if stream is not None:
            if size == 1 and type(stream) is int and 0 <= stream <= STREAM_MAX:
                if stream != self._one[0]:
                    self._one = [stream]
                return self._one
            return _streams(stream, size)
        if len(self._range) != size:
            self._range = list(range(size))
        return self._range

    def _count(self, first: Any) -> int | None:
        """How many steps the first leaf of obs stands for; None for one step without a batch axis."""
        path, field = self._fields[0]
        if isinstance(first, WindowRef):
            stop = first.stop
            return None if isinstance(stop, int) or np.ndim(stop) == 0 else len(stop)
        shape = np.shape(first)
        if shape == field.shape:
            return None
        if shape[1:] == field.shape:
            return int(shape[0])
        raise _misfit(path, field, shape, None)


def _look(value: Any) -> tuple[Any, Any]:
    """What tells whether a value is like another: dtype and shape, source of a window, type of a number."""
    if type(value) is ndarray:
        return value.dtype, value.shape
    return (id(value.source), type(value.stop)) if type(value) is WindowRef else (type(value), None)


def _looks(values: Sequence[Any]) -> Looks:
    both = [_look(value) for value in values]
    return [one for one, _ in both], [other for _, other in both]


def _look_of_six(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Looks:
    """The same, written out for arrays: a step of most environments is six of them."""
    if type(a) is type(b) is type(c) is type(d) is type(e) is type(f) is ndarray:
        return (
            [a.dtype, b.dtype, c.dtype, d.dtype, e.dtype, f.dtype],
            [a.shape, b.shape, c.shape, d.shape, e.shape, f.shape],
        )
    return _looks((a, b, c, d, e, f))


def _axis_adder(path: str, field: Field, value: Any, fitted: Any) -> Callable[[Any], Any] | None:
    """How values like this one get a batch axis, if that is all they need."""
    if type(value) is WindowRef:
        return _window_fitter(path, field, value.source) if type(value.stop) is int else None
    if type(value) is np.ndarray and value.dtype == fitted.dtype:
        return _ADD_AXIS
    if type(value) in PLAIN_NUMBERS and type(fitted) is np.ndarray:
        return lambda number: _number(path, number, fitted.dtype)
    return None


_ADD_AXIS = operator.itemgetter(np.newaxis)


def _window_fitter(path: str, field: Field, source: RowSource) -> Callable[[WindowRef], WindowRef]:
    first, last = field.shape[0], len(source.rows)

    def fit(value: WindowRef) -> WindowRef:
        stop: Any = value.stop
        if not first <= stop <= last:
            check_window(path, field, value)  # says so
        return WindowRef(source, np.array([stop], np.int64))

    return fit


def _number(path: str, value: Any, dtype: np.dtype[Any]) -> Array:
    """One Python number as an array of one."""
    try:
        return np.array([value], dtype)
    except OverflowError:
        raise RecordError(f"{path} is {value}, which is no {dtype.name}; change it, or the Spec.") from None


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
    if type(value) is WindowRef:
        stops = check_window(path, field, value)
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


PLAIN_NUMBERS = {bool: "biufc", int: "iufc", float: "fc"}
"""the kinds of dtype that a Python number can become without changing"""


def _column(path: str, field: Field, value: Any, count: int | None) -> Array:
    dtype: Any = field.dtype
    if count is None and not field.shape and dtype.kind in PLAIN_NUMBERS.get(type(value), ""):
        return _number(path, value, dtype)
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.dtype != dtype:
        array = _cast(path, array, dtype)
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
