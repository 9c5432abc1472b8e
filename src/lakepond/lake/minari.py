"""A lake as a Minari dataset, in Minari's Arrow format: a folder an episode, images as they are, not as JPEG.

    <path>/data/metadata.json           spaces, counts, "jpeg_encoding": false
    <path>/data/<episode>/part-0.arrow  observations (one more than steps), actions, rewards, ...
    <path>/data/<episode>/metadata.json

Minari itself is not needed. `minari.MinariDataset(path / "data")` opens it, from version 0.5.4 on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import SpecError
from lakepond.lake.episodes import Episode
from lakepond.types import Array, Field, Spec, Tree, leaves

VERSION = "0.5.4"
"""the first that reads images without JPEG"""


def write_minari(
    path: Path,
    spec: Spec,
    episodes: Iterable[Episode],
    *,
    dataset_id: str,
    total: int,
    progress: Callable[[int, int], None] | None,
) -> int:
    """Write episodes one by one; returns how many. The metadata, which makes it a dataset, comes last."""
    data = path / "data"
    if path.exists() and any(path.iterdir()):
        raise SpecError(f"{path} is there already; name a new folder.")
    for tree in (spec.obs, spec.action):
        for name, field in leaves(tree):
            if np.dtype(field.dtype).kind not in "biuf":
                raise SpecError(f"Minari has no space for {field} {name}; leave it out, or export to Arrow.")
    data.mkdir(parents=True)
    count = steps = size = 0
    seen: dict[str, tuple[int, int]] = {}
    for episode in episodes:
        size += _write_episode(data / str(count), count, spec, episode)
        count, steps = count + 1, steps + episode.steps
        for name, values in (*leaves(episode.obs, "obs"), *leaves(episode.action, "action")):
            if values.ndim == 1 and values.dtype == np.int64:
                low, high = seen.get(name, (0, 0))
                seen[name] = min(low, int(values.min())), max(high, int(values.max()))
        if progress is not None:
            progress(steps, total)
    told = {
        "total_episodes": count,
        "total_steps": steps,
        "data_format": "arrow",
        "jpeg_encoding": False,
        "observation_space": json.dumps(_space(spec.obs, "obs", seen)),
        "action_space": json.dumps(_space(spec.action, "action", seen)),
        "dataset_id": dataset_id,
        "minari_version": VERSION,
        "dataset_size": round(size / 1e6, 1),
    }
    aside = data / "metadata.json.aside"
    aside.write_text(json.dumps(told))
    os.replace(aside, data / "metadata.json")
    return count


def _write_episode(folder: Path, number: int, spec: Spec, episode: Episode) -> int:
    import pyarrow as pa

    count = episode.steps
    columns = {
        "observations": _arrays(spec.obs, episode.obs),
        "actions": _arrays(spec.action, episode.action, pad=1),
        "rewards": pa.array(np.append(_one(episode.reward), 0).astype(episode.reward.dtype)),
        "terminations": pa.array(np.append(episode.terminated, False)),
        "truncations": pa.array(np.append(episode.truncated, False)),
    }
    infos = {**episode.extras, "stream": np.full(count, episode.stream, np.int32)}
    arrays, fields = [], []
    for name, values in infos.items():
        plain = _padded(values.reshape(count, -1), 1)
        arrays.append(_array(plain) if values.ndim > 1 else pa.array(plain[:, 0]))
        shape = {"shape": ",".join(map(str, values.shape[1:]))} if values.ndim > 1 else None
        fields.append(pa.field(name, arrays[-1].type, metadata=shape))
    columns["infos"] = pa.StructArray.from_arrays(arrays, fields=fields)
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    folder.mkdir()
    file = folder / "part-0.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    (folder / "metadata.json").write_text(json.dumps({"id": number, "total_steps": count}))
    return file.stat().st_size


def _arrays(spec: Tree, values: Tree, pad: int = 0) -> Any:
    """Values as Minari lays them out: structs for dicts and tuples, flat fixed-size lists for arrays."""
    import pyarrow as pa

    if isinstance(spec, Field):
        if _is_discrete(spec):
            return pa.array(_padded(values.reshape(-1, 1), pad)[:, 0])
        values = values.astype(np.int8) if values.dtype.kind == "b" else values
        return _array(_padded(values.reshape(len(values), -1), pad))
    items = spec.items() if isinstance(spec, dict) else enumerate(spec)
    named = {str(key): _arrays(sub, values[key], pad) for key, sub in items}
    return pa.StructArray.from_arrays(list(named.values()), names=list(named))


def _array(values: Array) -> Any:
    import pyarrow as pa

    kind = pa.list_(pa.from_numpy_dtype(values.dtype), values.shape[1])
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind)


def _padded(values: Array, pad: int) -> Array:
    return np.concatenate([values, np.zeros((pad, values.shape[1]), values.dtype)])


def _one(reward: Array) -> Array:
    if reward.ndim > 1:
        raise SpecError(f"Minari's rewards are numbers, not {reward.shape[1:]}; export to Arrow instead.")
    return reward


def _is_discrete(field: Field) -> bool:
    return not field.shape and np.dtype(field.dtype) == np.int64


def _space(spec: Tree, path: str, seen: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """A Gymnasium space as Minari writes it; `seen`: the lowest and the highest of each whole number."""
    if isinstance(spec, dict):
        inner = {key: _space(sub, f"{path}[{key!r}]", seen) for key, sub in spec.items()}
        return {"type": "Dict", "subspaces": inner}
    if isinstance(spec, tuple):
        return {"type": "Tuple", "subspaces": [_space(s, f"{path}[{i}]", seen) for i, s in enumerate(spec)]}
    dtype = np.dtype(spec.dtype)
    lowest, highest = seen.get(path, (0, 0))
    if _is_discrete(spec) and lowest >= 0:
        return {"type": "Discrete", "dtype": "int64", "start": 0, "n": 1 + highest}
    if dtype.kind == "b":
        return {"type": "MultiBinary", "n": list(spec.shape) or [1]}
    low: float = -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)
    high: float = np.inf if dtype.kind == "f" else int(np.iinfo(dtype).max)
    full = [np.full(spec.shape, bound, object).tolist() for bound in (low, high)]
    return {"type": "Box", "dtype": dtype.name, "shape": list(spec.shape), "low": full[0], "high": full[1]}
