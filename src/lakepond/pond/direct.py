"""The fast path for small observations: append steps whose values need no conversion.

It accepts one step, or batches of one size, if every value has the right type, dtype and shape, and declines
anything else: the caller then validates the values, converts or refuses them, and appends them by
`Pond.append`. The checks are written out for the six values of a step: a loop over
them would take as long as storing them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from lakepond.pond.pond import Pond
from lakepond.types import STREAM_MAX, Array, Field

FLOATS = (float, int, bool, np.float64, np.float32, np.float16)
PYTHON_TYPES: dict[str, tuple[type, ...]] = {"b": (bool,), "i": (int, bool), "u": (int, bool), "f": FLOATS}
"""by kind of dtype: the scalar types that a column stores without changing their value"""
BYTES = {int: 128, float: 8, np.float64: 8, np.float32: 4}
"""of types whose largest numbers are infinite in a float of fewer bytes"""
IDS = 8192
"""step ids created at a time; callers get slices of them"""


class DirectAppend:
    """Appends to a pond without rows, whose obs and action are one array each; the pond's lock is held."""

    @classmethod
    def of(cls, pond: Pond) -> DirectAppend | None:
        """Return None for a pond that does not support the fast path."""
        spec = pond.spec
        flat = isinstance(spec.obs, Field) and isinstance(spec.action, Field) and not spec.extras
        return cls(pond) if flat and pond.plain else None

    def __init__(self, pond: Pond) -> None:
        spec = pond.spec
        self._pond = pond
        self._rings = pond.rings
        self._dtypes = [ring.dtype for ring in pond.rings[:4]]
        self._shapes = [ring.shape[1:] for ring in pond.rings[:4]]
        self._flags = frozenset({bool, np.bool_})
        self._actions, self._large_actions = _scalar_types(spec.action)
        self._rewards, self._large_rewards = _scalar_types(spec.reward)
        self._most_action, self._most_reward = map(most_of, self._dtypes[2:])
        self._least_reward = -self._most_reward
        self._casts = spec.reward.dtype.kind == "f"  # type: ignore[union-attr]
        self._first_id, self._ids = -IDS, np.zeros(0, np.int64)  # ids from there on; callers get slices
        # of batches like the last one that was checked:
        self._count = -1
        self._many_obs = self._many_actions = self._many_rewards = self._many_flags = (-1,)
        self._range: Array | None = None  # the streams of a batch without that argument
        self._streams: tuple[Any, bytes, Array] = (None, b"", np.zeros(0))  # as given, and what they are

    def expect(self, streams: list[int], stream: Any, *, without_stream: bool) -> None:
        """Accept batches like one that was validated, whose argument `stream` meant these streams.

        `without_stream`: also batches without the argument.
        """
        if type(stream) is ndarray:
            self._streams = (stream.dtype, stream.tobytes(), np.array(streams, np.int32))
        count = len(streams)
        if count > self._pond.part:
            return
        if not without_stream:
            self._range = None
        elif count != self._count or self._range is None:
            self._range = np.arange(count, dtype=np.int32)
        if count != self._count:
            shapes = [(count, *shape) for shape in (*self._shapes[1:], ())]
            self._many_obs, self._many_actions, self._many_rewards, self._many_flags = shapes
            self._count = count

    def append(
        self,
        obs: Any,
        next_obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        stream: int | Array | None,
    ) -> int | Array | None:
        """Append and return the id or ids; return None and append nothing if a value needs a conversion."""
        obs_dtype, _, action_dtype, reward_dtype = self._dtypes
        if (
            not (type(obs) is type(next_obs) is ndarray)
            or obs.dtype is not obs_dtype
            or next_obs.dtype is not obs_dtype
        ):
            return None
        pond = self._pond
        first = pond.recorded
        at = first % pond.ring
        one_obs, _, one_action, one_reward = self._shapes
        if obs.shape == one_obs:
            if stream is None:
                stream = 0
            elif type(stream) is not int or not 0 <= stream <= STREAM_MAX:
                return None
            flags = self._flags
            if next_obs.shape != one_obs or type(terminated) not in flags or type(truncated) not in flags:
                return None
            if type(action) is ndarray:
                if action.shape != one_action or action.dtype is not action_dtype:
                    return None
            elif type(action) not in self._actions and (
                type(action) not in self._large_actions or not abs(action) <= self._most_action
            ):
                return None
            if type(reward) in self._large_rewards:
                if not self._least_reward <= reward <= self._most_reward:
                    return None
            elif type(reward) is ndarray:
                if reward.shape != one_reward or reward.dtype is not reward_dtype:
                    return None
            elif type(reward) not in self._rewards:
                return None
            where: Any = at
            streams: Any = stream
            count = 1
        else:
            count, streams = self._count, self._range
            if stream is not None or streams is None:
                streams = self._checked_streams(stream)
            if (
                streams is None
                or at + count > pond.ring
                or not (type(action) is type(reward) is type(terminated) is type(truncated) is ndarray)
                or obs.shape != self._many_obs
                or next_obs.shape != self._many_obs
                or action.shape != self._many_actions
                or reward.shape != self._many_rewards
                or terminated.shape != self._many_flags
                or truncated.shape != self._many_flags
                or action.dtype is not action_dtype
                or (
                    reward.dtype is not reward_dtype
                    and not (self._casts and reward.dtype.kind == "f" and fits(reward, self._most_reward))
                )
                or not (terminated.dtype.kind == truncated.dtype.kind == "b")
            ):
                return None
            where = slice(at, at + count)
        obs_ring, next_ring, action_ring, reward_ring, terminated_ring, truncated_ring = self._rings
        try:
            action_ring[where] = action
            reward_ring[where] = reward
        except OverflowError:  # a Python integer outside the range of its column
            return None
        obs_ring[where] = obs
        next_ring[where] = next_obs
        terminated_ring[where] = terminated
        truncated_ring[where] = truncated
        pond.publish_run(count, streams)
        if where is at:
            return first
        offset = first - self._first_id
        if offset < 0 or offset + count > IDS:
            self._first_id, offset = first, 0
            self._ids = np.arange(first, first + IDS)
            self._ids.flags.writeable = False
        return self._ids[offset : offset + count]

    def _checked_streams(self, stream: int | Array | None) -> Array | None:
        """Return the streams of a batch if their bytes equal those validated before, else None."""
        dtype, content, streams = self._streams
        if type(stream) is ndarray and stream.dtype is dtype and stream.tobytes() == content:
            return streams if len(streams) == self._count else None
        return None


def most_of(dtype: np.dtype[Any]) -> float:
    """The largest number that floats of this dtype hold; 0 for any other dtype."""
    return float(np.finfo(dtype).max) if dtype.kind == "f" else 0.0


def fits(values: Array, most: float) -> bool:
    """Whether no number of an array is larger than `most`; False if one is NaN. Faster than `np.isfinite`."""
    if not values.size:
        return True
    return bool(-most <= values.item(values.argmin()) and values.item(values.argmax()) <= most)


def _scalar_types(field: Field) -> tuple[frozenset[type], frozenset[type]]:
    """The scalar types that a column stores without conversion, and those that may be too large for it."""
    dtype: Any = np.dtype(field.dtype)
    if field.shape:
        return frozenset(), frozenset()
    types = {dtype.type, *PYTHON_TYPES.get(dtype.kind, ())}
    large = {each for each in types if dtype.kind == "f" and BYTES.get(each, 0) > dtype.itemsize}
    return frozenset(types - large), frozenset(large)
