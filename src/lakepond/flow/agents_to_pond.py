"""agents ──record──▶ pond: validate all values of a call before any of them is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from lakepond.errors import RecordError
from lakepond.pond import column_fields
from lakepond.pond.direct import fits, most_of
from lakepond.pond.observations import check_window
from lakepond.sampling.links import CONTINUES, STARTS
from lakepond.types import STREAM_MAX, Array, Field, Spec, Tree, WindowRef, leaves

FIELDS = ("obs", "next_obs", "action", "reward", "terminated", "truncated")
MISSING: Any = object()
"""Marks an argument that was not passed."""
SMALL = 65_504.0
"""a number up to this size is finite in any float dtype: checking for overflow takes a microsecond"""
BATCHES_CHECKED = 16
"""batches without `stream` that are checked for consecutive steps"""


class Intake:
    """Validates and converts the arguments of `record`; raises `RecordError` with one sentence.

    Not thread-safe: called under the pond's lock.
    """

    def __init__(self, spec: Spec, *, cast: bool = False) -> None:
        """`cast`: convert observations of another float dtype to that of the spec."""
        self.spec, self._cast = spec, cast
        obs, next_obs = list(leaves(spec.obs, "obs")), list(leaves(spec.obs, "next_obs"))
        self._fields: list[tuple[str, Field]] = [*obs, *next_obs, *column_fields(spec)]
        self._windows = len(obs)
        self._flat_spec = isinstance(spec.obs, Field) and isinstance(spec.action, Field) and not spec.extras
        self._accepted = [  # columns take floats of another precision up to `most_of`
            (
                np.dtype(field.dtype),
                field.shape,
                most_of(np.dtype(field.dtype)) if i >= 2 * self._windows else 0.0,
            )
            for i, (_, field) in enumerate(self._fields)
        ]
        self._last_batch: tuple[int, list[Any]] = (-1, [])
        self.unchecked = BATCHES_CHECKED
        """batches without `stream` that will still be checked for consecutive steps"""
        self._range: list[int] = []
        self._one: list[int] = [0]
        self._last_streams: tuple[Any, bytes, list[int]] = (None, b"", [])

    def values(self, given: tuple[Tree, ...], extras: dict[str, Any]) -> Sequence[Any]:
        """The leaves of all arguments, in the order of `Pond.append`; `given`: in the order of `FIELDS`."""
        if extras or not self._flat_spec:
            return self._flat(given, extras)
        for value in given:
            if value is MISSING:
                return self._flat(given, extras)
        return given

    def check(
        self, values: Sequence[Any], stream: int | Array | None
    ) -> tuple[list[int], Sequence[Any], bool]:
        """The streams and values of the steps, and whether they came as a batch."""
        count, batched = self._count_of_valid_batch(values), True
        if count is None:
            count, batched, values = self._fit(values)
        if stream is None and batched and count > 1 and self.unchecked > 0:
            self.unchecked -= 1
            self._refuse_consecutive(values, count)
        return self._streams(stream, count), values, batched

    def _count_of_valid_batch(self, values: Sequence[Any]) -> int | None:
        """Number of steps of a batch of arrays that need no conversion; None for anything else."""
        first = values[0]
        if type(first) is not ndarray or not first.shape:
            return None
        count, expected = self._last_batch
        if len(first) != count:
            count = len(first)
            expected = [(dtype, (count, *shape), most) for dtype, shape, most in self._accepted]
            self._last_batch = count, expected
        for value, (dtype, shape, most) in zip(values, expected, strict=True):
            if type(value) is not ndarray or value.shape != shape:
                return None
            same = value.dtype is dtype or value.dtype == dtype
            if not same and not (most and value.dtype.kind == "f" and fits(value, most)):
                return None
        return count

    def _refuse_consecutive(self, values: Sequence[Any], count: int) -> None:
        """Refuse a rollout of one environment without `stream`: it would be `count` environments."""
        moved = False
        for obs, next_obs in zip(values[: self._windows], values[self._windows :], strict=False):
            if type(obs) is not ndarray or type(next_obs) is not ndarray:
                return
            for i in range(count - 1):
                if obs[i + 1].tobytes() != next_obs[i].tobytes():
                    return
                moved = moved or obs[i + 1].tobytes() != obs[i].tobytes()
        if moved:
            raise RecordError(
                f"each obs of this batch of {count} is the next_obs before it: if they are consecutive steps "
                f"of one stream pass stream=0; if they are {count} environments, stream=np.arange({count})."
            )

    def _flat(self, given: tuple[Tree, ...], extras: dict[str, Any]) -> list[Any]:
        spec = self.spec
        if "done" in extras and "done" not in spec.extras:
            raise RecordError(
                "done is split into terminated, after which there is no future value, and truncated, after "
                "which there is (a time limit); pass both."
            )
        for name, value in zip(FIELDS, given, strict=True):
            if value is MISSING:
                raise RecordError(f"record is missing {name!r}; pass {', '.join([*FIELDS, *spec.extras])}.")
        if extras.keys() != spec.extras.keys():
            raise RecordError(
                f"record got the extra fields {sorted(extras) or 'none'}, the Spec declares "
                f"{sorted(spec.extras) or 'none'}; pass each declared one, or declare it in extras."
            )
        more = [extras[name] for name in spec.extras] if extras else []
        obs, next_obs, action, *rest = given
        return [
            *_leaves_like(spec.obs, obs, "obs"),
            *_leaves_like(spec.obs, next_obs, "next_obs"),
            *_leaves_like(spec.action, action, "action"),
            *rest,
            *more,
        ]

    def _fit(self, values: Sequence[Any]) -> tuple[int, bool, list[Any]]:
        """The number of steps, whether they came as a batch, and all values with a batch axis."""
        for (path, field), value in zip(self._fields, values, strict=True):
            if value is None:
                how = "its last observation at the end of an episode" if "next_obs" in path else "a value"
                raise RecordError(f"{path} is None, but the Spec declares {field}; pass {how}.")
            if isinstance(value, np.ma.MaskedArray):
                raise RecordError(
                    f"{path} is a masked array, and its mask would be lost; pass the data, and the mask as "
                    "an extra field."
                )
        count = self._count(values[0])
        fitted: list[Any] = []
        for i, ((path, field), value) in enumerate(zip(self._fields, values, strict=True)):
            if i < 2 * self._windows:
                fitted.append(_window(path, field, value, count, self._cast))
            else:
                fitted.append(_column(path, field, value, count))
        return 1 if count is None else count, count is not None, fitted

    def _streams(self, stream: int | Array | None, size: int) -> list[int]:
        """The stream of each step; the same list object for the same streams, so that callers can cache."""
        if stream is None:
            if len(self._range) != size:
                self._range = list(range(size))
            return self._range
        if size == 1 and type(stream) is int and 0 <= stream <= STREAM_MAX:
            if self._one[0] != stream:
                self._one = [stream]
            return self._one
        if type(stream) is not ndarray:
            return stream_numbers(stream, size)
        dtype, last, streams = self._last_streams
        if stream.dtype != dtype or len(streams) != size or stream.tobytes() != last:
            streams = stream_numbers(stream, size)
            self._last_streams = (stream.dtype, stream.tobytes(), streams)
        return streams

    def _count(self, first: Any) -> int | None:
        """How many steps the first leaf of obs stands for; None for one step without a batch axis."""
        path, field = self._fields[0]
        if isinstance(first, WindowRef):
            stop = first.stop
            return None if isinstance(stop, int) or np.ndim(stop) == 0 else len(stop)
        shape = np.shape(first) if hasattr(first, "shape") else as_array(path, first).shape
        if shape == field.shape:
            return None
        if shape[1:] == field.shape:
            return int(shape[0])
        raise _misfit(path, field, shape, None)


def as_array(path: str, value: Any) -> Array:
    """A value as a NumPy array: a tensor of PyTorch too, on any device, with or without gradients."""
    if type(value) is ndarray:
        return value
    if hasattr(value, "detach"):  # a tensor; the core does not import torch
        try:
            array: Array = value.numpy(force=True)
        except TypeError as error:
            raise RecordError(
                f"{path} is a tensor without a NumPy dtype: {error}; convert it first."
            ) from None
        return array
    try:
        return np.asarray(value)
    except ValueError as error:  # nested lists of different lengths
        raise RecordError(f"{path} is not a valid array: {error}") from None


def joins_of(follows_previous: Any) -> int | Array:
    """Convert the argument `follows_previous` of `record` to joins."""
    array = np.asarray(follows_previous)
    if array.dtype != np.bool_ or array.ndim > 1:
        raise RecordError(f"follows_previous must be a bool or an array of them, not {follows_previous!r}.")
    joins = np.where(array, CONTINUES, STARTS)
    return int(joins) if joins.ndim == 0 else joins


def check_length(join: int | Array, count: int) -> None:
    """Refuse `follows_previous` that is not one bool, or one for each step."""
    if not isinstance(join, int) and len(join) != count:
        raise RecordError(f"follows_previous has {len(join)} values for {count} steps.")


def _leaves_like(spec: Tree, value: Tree, path: str) -> list[Any]:
    """The leaves of a value, in the order of the spec's tree."""
    if isinstance(spec, Field):
        return [value]
    if isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            got = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise RecordError(f"{path} must be a dict with the keys {sorted(spec)}, but is {got}.")
        return [
            leaf for key, sub in spec.items() for leaf in _leaves_like(sub, value[key], f"{path}[{key!r}]")
        ]
    if type(value) not in (tuple, list) or len(value) != len(spec):
        got = f"{len(value)} values" if isinstance(value, tuple | list) else type(value).__name__
        raise RecordError(f"{path} must be a tuple of {len(spec)} values, but is {got}.")
    return [leaf for i, sub in enumerate(spec) for leaf in _leaves_like(sub, value[i], f"{path}[{i}]")]


def _window(path: str, field: Field, value: Any, count: int | None, cast: bool) -> Array | WindowRef:
    if type(value) is WindowRef:
        stops = check_window(path, field, value)
        if len(stops) != (1 if count is None else count):
            raise RecordError(
                f"{path} has {len(stops)} windows, obs has {1 if count is None else count} steps."
            )
        return WindowRef(value.source, stops)
    array = as_array(path, value)
    if array.dtype != field.dtype:
        dtype = np.dtype(field.dtype)
        floats = array.dtype.kind == dtype.kind == "f"
        if not (cast and floats):
            if not hasattr(value, "dtype"):
                raise RecordError(
                    f"{path} is a {type(value).__name__}, which NumPy reads as {array.dtype.name}, but the "
                    f'Spec declares {dtype.name}; pass np.asarray({path}, "{dtype.name}").'
                )
            option = ", or create the Replay with cast=True" if floats else ""
            option = " (cast=True converts floats only)" if cast else option
            raise RecordError(
                f"{path} is {array.dtype.name}, but the Spec declares {dtype.name}; convert it with "
                f".astype({dtype.name!r}){option}, or change the Spec (bytes are stored unchanged)."
            )
        array = _converted(path, array, dtype)
    return _batched(path, field, array, count)


def _converted(path: str, value: Any, dtype: np.dtype[Any]) -> Array:
    """A Python number or an array in a dtype; refused where a finite number would become infinite."""
    number = value if type(value) is not ndarray else value.item() if value.size == 1 else np.inf
    try:
        if -SMALL <= number <= SMALL or dtype.kind in "biu":
            return np.array(value, dtype)
        with np.errstate(over="raise"):
            return np.array(value, dtype)
    except (OverflowError, FloatingPointError):
        what = "has a number" if value is not number else f"is {value},"
        raise RecordError(
            f"{path} {what} outside the range of {dtype.name}; scale it, or change the Spec."
        ) from None


PLAIN_NUMBERS = {bool: "biufc", int: "iufc", float: "fc"}
"""the kinds of dtype that a Python number can become without changing"""


def _column(path: str, field: Field, value: Any, count: int | None) -> Array:
    dtype: Any = field.dtype
    if count is None and not field.shape and dtype.kind in PLAIN_NUMBERS.get(type(value), ""):
        return _converted(path, value, dtype)[np.newaxis]
    array = as_array(path, value)
    if array.dtype != dtype:
        array = _cast(path, array, dtype)
    return _batched(path, field, array, count)


def _cast(path: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert between numeric dtypes of one kind; integers and bools only if no value changes."""
    cast = None
    if array.dtype.kind in "biuf" and dtype.kind in "biufc":
        cast = _converted(path, array, dtype)
    changes = dtype.kind in "biu" and (
        array.dtype.kind == "f" or (cast is not None and (cast != array).any())
    )
    if cast is None or changes or (dtype.kind == "b" and array.dtype.kind != "b"):
        how = "first" if dtype.kind != "b" else "with .astype(bool)" if array.ndim else f"with bool({path})"
        raise RecordError(
            f"{path} is {array.dtype.name}, but the Spec declares {dtype.name}; convert it {how}."
        )
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
            f"{path} has the shape {list(shape)}, but the Spec declares {list(field.shape)}, or that with a "
            "leading batch axis; pass one step, or a batch in which every field has the same leading axis."
        )
    return RecordError(
        f"{path} has the shape {list(shape)}, but the batch of {count} steps needs {[count, *field.shape]}."
    )


def stream_numbers(stream: Any, size: int) -> list[int]:
    """A stream, or one for each of some steps, as a list of that size."""
    array = np.asarray(stream)
    if array.dtype.kind not in "iu" or array.ndim > 1 or (array.ndim == 1 and array.shape != (size,)):
        raise RecordError(
            f"stream must be an integer or an array of {size} of them, not {stream!r}; "
            "give every agent or environment a number."
        )
    if array.size and (array.min() < 0 or array.max() > STREAM_MAX):
        raise RecordError(f"stream must be in [0, {STREAM_MAX}], but is {stream!r}.")
    return [int(array)] * size if array.ndim == 0 else [int(s) for s in array]
