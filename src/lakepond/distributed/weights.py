"""Weights in a file or an object, for collectors that run without Ray.

`save_weights` of the learner replaces `weights.npz`; collectors look for a new one every few seconds. Weights
are a dict of arrays, which may be nested, as those of Flax and PyTorch (`state_dict`). Nothing is pickled.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.errors import CloudNotFound, ConfigError
from lakepond.types import Array

NAME = "weights.npz"
SEPARATOR = "//"
"""between the keys of nested dicts"""


def save_weights(place: str | os.PathLike[str] | Cloud, params: Mapping[str, Any]) -> None:
    """Replace the weights at a place: a folder, or the URL of one in a bucket ("gs://bucket/run").

    params: a dict of arrays, which may be nested. The URL of the lake itself may be used.
    """
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **_flat(params, ""))
    Store.at(place).replace(NAME, buffer.getvalue())


class SavedWeights:
    """The weights at a place, as a collector reads them."""

    def __init__(self, place: str | os.PathLike[str] | Cloud) -> None:
        self._store = Store.at(place)
        self._last: object = None
        self.version = 0
        """how often new ones were found"""

    def newest(self) -> dict[str, Any] | None:
        """The weights, if they have changed since the last call; one HEAD, and a GET if so."""
        found = self._store.head(NAME)
        if found is None or found[1:] == self._last:
            return None
        try:
            data = self._store.read(NAME)
        except CloudNotFound:
            return None
        self._last, self.version = found[1:], self.version + 1
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return _nested({name: arrays[name] for name in arrays.files})


def _flat(params: Mapping[str, Any], path: str) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for key, value in params.items():
        if not isinstance(key, str) or not key or SEPARATOR in key:
            raise ConfigError(f"weights have the key {key!r}; keys are texts without {SEPARATOR!r}.")
        if isinstance(value, Mapping):
            found |= _flat(value, f"{path}{key}{SEPARATOR}")
            continue
        array = np.asarray(value)
        if array.dtype.kind not in "biufc":
            raise ConfigError(
                f"the weights {path}{key} are {array.dtype.name}; give a dict of arrays of numbers, which "
                "may be nested."
            )
        found[path + key] = array
    return found


def _nested(arrays: Mapping[str, Array]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, array in arrays.items():
        *keys, last = path.split(SEPARATOR)
        inner = found
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[last] = array
    return found
