"""Gymnasium spaces as JSON, without Gymnasium: `{"type": "Box", "low": ..., "high": ...}` and the like.

    Box            low, high   one number, or nested lists of the field's shape; None: unbounded
    Discrete       n, start
    MultiDiscrete  nvec, start
    MultiBinary

The shape and the dtype are those of the field that has the space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def from_gymnasium(space: Any) -> dict[str, Any] | None:
    """The JSON of a space, determined by its attributes; None for a space of another kind."""
    if hasattr(space, "low") and hasattr(space, "high"):
        return {"type": "Box", "low": _bound(space.low), "high": _bound(space.high)}
    if hasattr(space, "nvec"):
        start = np.asarray(getattr(space, "start", np.zeros_like(space.nvec)))
        return {"type": "MultiDiscrete", "nvec": np.asarray(space.nvec).tolist(), "start": start.tolist()}
    if hasattr(space, "n") and hasattr(space, "start"):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    return {"type": "MultiBinary"} if hasattr(space, "n") else None


def from_minari(space: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON of a space that Minari wrote, without its shape and dtype; None for another kind."""
    kind = space.get("type")
    if kind == "Box":
        return {"type": kind, "low": _bound(space["low"]), "high": _bound(space["high"])}
    if kind == "Discrete":
        return {"type": kind, "n": space["n"], "start": space.get("start", 0)}
    if kind == "MultiDiscrete":
        start = space.get("start", np.zeros_like(space["nvec"]).tolist())
        return {"type": kind, "nvec": space["nvec"], "start": start}
    return {"type": kind} if kind == "MultiBinary" else None


def to_minari(space: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    """A space as Minari writes it: with its shape and dtype, bounds in full."""
    if space["type"] == "Discrete":
        return {"type": "Discrete", "dtype": "int64", "start": space["start"], "n": space["n"]}
    if space["type"] == "MultiDiscrete":
        return {**space, "dtype": dtype.name}
    if space["type"] == "MultiBinary":
        return {"type": "MultiBinary", "n": shape[0] if len(shape) == 1 else list(shape) or 1}
    low, high = bounds(space, shape, dtype)
    return {
        "type": "Box",
        "dtype": dtype.name,
        "shape": list(shape),
        "low": low.tolist(),
        "high": high.tolist(),
    }


def bounds(space: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """The lowest and highest values of a Box, in its dtype; unbounded integers have those of the dtype."""
    found = []
    for name, sign in (("low", -1), ("high", 1)):
        integers = None if dtype.kind == "f" else np.iinfo(dtype)
        limit = sign * np.inf if integers is None else integers.min if sign < 0 else integers.max
        values = np.asarray(space[name], object)
        filled = [limit if value is None else value for value in values.reshape(-1).tolist()]
        found.append(np.broadcast_to(np.array(filled, dtype).reshape(values.shape), shape))
    return found[0], found[1]


def check(space: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """ValueError if this is not the JSON of a space with this shape and dtype."""
    kind = space.get("type") if isinstance(space, Mapping) else None
    try:
        if kind == "Box" and dtype.kind in "iuf":
            low, high = bounds(space, shape, dtype)
            fits = bool((low <= high).all())
        elif kind == "Discrete":
            numbers = isinstance(space["n"], int) and isinstance(space["start"], int)
            fits = numbers and shape == () and space["n"] > 0
        elif kind == "MultiDiscrete":
            both = [np.asarray(space[name]) for name in ("nvec", "start")]
            fits = all(each.shape == shape and each.dtype.kind == "i" for each in both)
        else:
            fits = kind == "MultiBinary"
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the space {kind} is not valid: {type(error).__name__} {error}") from None
    if not fits:
        raise ValueError(f"the space {space!s:.200} is not one for {dtype.name}{list(shape)}")


def _bound(values: Any) -> Any:
    """One number if all are equal, else nested lists; None for an infinite number."""
    array = np.asarray(values)
    if array.size and (array == array.flat[0]).all():
        array = np.asarray(array.flat[0])
    values_or_none = array.astype(object)
    values_or_none[~np.isfinite(array)] = None
    return values_or_none.tolist()
