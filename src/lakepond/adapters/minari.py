"""Lakes as Minari datasets, and back.

Exports are in Minari's Arrow format, lossless: images are not JPEG. Minari itself is not needed; from version
0.5.4 on `minari.MinariDataset(path / "data")` opens them, and `minari.load_dataset(dataset_id)` does if
`path` is `$MINARI_DATASETS_PATH/<dataset_id>`::

    <path>/data/metadata.json           spaces, counts, "jpeg_encoding": false
    <path>/data/<episode>/part-0.arrow  observations (one more than steps), actions, rewards, ...
    <path>/data/<episode>/metadata.json

Imports read Arrow and Parquet with pyarrow alone, and HDF5 with h5py if it is installed.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from lakepond import spaces, untrusted
from lakepond.adapters.episodes import (
    Episode,
    Imported,
    Progress,
    exporting,
    import_episodes,
    spec_of,
)
from lakepond.adapters.staging import refuse_existing
from lakepond.arrow_sizes import check_ipc, check_parquet
from lakepond.errors import SpecError
from lakepond.lake.files import write_bytes
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk
from lakepond.types import Array, Field, Spec, Tree, leaves, map_leaves

VERSION = "0.5.4"
"""the first that reads images without JPEG"""
IMAGE_SIDE = 32
"""Minari takes uint8 boxes of at least this height and width for images"""


def export_minari(
    lake: Lake, path: str | Path, *, dataset_id: str = "lakepond/lake-v0", progress: Progress | None = None
) -> int:
    """Write the episodes one by one and the dataset metadata last; return the number of episodes.

    Spaces are those of the spec. Where it has none, numbers are unbounded, and an int64 scalar is a Discrete
    that ends at the highest number. `progress` counts steps.
    """
    path, spec = on_disk(path), lake.spec
    data = path / "data"
    for tree in (spec.obs, spec.action):
        for name, field in leaves(tree):
            if np.dtype(field.dtype).kind not in "biuf":
                raise SpecError(f"Minari has no space for {field} {name}; leave it out, or export to Arrow.")
    if spec.reward.shape:
        raise SpecError(f"Minari's rewards are numbers, not {spec.reward.shape}; export to Arrow instead.")
    count = size = 0
    seen: dict[str, tuple[int, int]] = {}
    for number, _, episode in exporting(lake, path, progress):
        size += _write_episode(data / str(number), number, spec, episode)
        count = number + 1
        for name, values in (*leaves(episode.obs, "obs"), *leaves(episode.action, "action")):
            if values.ndim == 1 and values.dtype == np.int64:
                low, high = seen.get(name, (0, 0))
                seen[name] = min(low, int(values.min())), max(high, int(values.max()))
    metadata = {
        "total_episodes": count,
        "total_steps": len(lake),
        "data_format": "arrow",
        "jpeg_encoding": False,
        # the bounds of a space may be Infinity, as Minari itself writes them
        "observation_space": json.dumps(_space(spec.obs, "obs", seen)),
        "action_space": json.dumps(_space(spec.action, "action", seen)),
        "dataset_id": dataset_id,
        "minari_version": VERSION,
        "dataset_size": round(size / 1e6, 1),
        **({} if spec.env_spec is None else {"env_spec": spec.env_spec}),
    }
    data.mkdir(exist_ok=True)
    write_bytes(data, "metadata.json", json.dumps(metadata, allow_nan=False).encode())
    return count


def _write_episode(folder: Path, number: int, spec: Spec, episode: Episode) -> int:
    columns = {
        "observations": _arrays(spec.obs, episode.obs),
        "actions": _arrays(spec.action, map_leaves(_padded, episode.action)),
        "rewards": pa.array(_padded(episode.reward)),
        "terminations": pa.array(_padded(episode.terminated)),
        "truncations": pa.array(_padded(episode.truncated)),
    }
    infos = {**episode.extras, "stream": np.full(episode.steps, episode.stream, np.int32)}
    arrays, fields = [], []
    for name, values in infos.items():
        arrays.append(_array(_padded(values)) if values.ndim > 1 else pa.array(_padded(values)))
        shape = {"shape": ",".join(map(str, values.shape[1:]))} if values.ndim > 1 else None
        fields.append(pa.field(name, arrays[-1].type, metadata=shape))
    columns["infos"] = pa.StructArray.from_arrays(arrays, fields=fields)
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    folder.mkdir(parents=True)
    file = folder / "part-0.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    metadata = {"id": number, "total_steps": episode.steps}
    (folder / "metadata.json").write_text(json.dumps(metadata, allow_nan=False))
    return file.stat().st_size


def _arrays(spec: Tree, values: Tree) -> Any:
    """Values as Minari lays them out: structs for dicts and tuples, flat fixed-size lists for arrays."""
    if isinstance(spec, Field):
        if _is_discrete(spec):
            return pa.array(values.reshape(-1))
        return _array(values.astype(np.int8) if values.dtype.kind == "b" else values)
    items = spec.items() if isinstance(spec, dict) else enumerate(spec)
    named = {str(key): _arrays(sub, values[key]) for key, sub in items}
    if len(named) < len(spec):
        raise SpecError(f"the keys {list(spec)} are not distinct as text, which Minari needs; rename one.")
    return pa.StructArray.from_arrays(list(named.values()), names=list(named))


def _array(values: Array) -> Any:
    kind = pa.list_(pa.from_numpy_dtype(values.dtype), math.prod(values.shape[1:]))
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind)


def _padded(values: Array) -> Array:
    """With a row of zeros at the end: all columns are as long as the observations."""
    return np.concatenate([values, np.zeros_like(values[:1])])


def _is_discrete(field: Field) -> bool:
    """Whether Minari stores the field as a plain number: the space is a Discrete."""
    if field.space is not None:
        return bool(field.space["type"] == "Discrete")
    return not field.shape and np.dtype(field.dtype) == np.int64


def _space(spec: Tree, path: str, seen: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """A Gymnasium space as Minari writes it; `seen`: the lowest and the highest of each integer."""
    if isinstance(spec, dict):
        inner = {key: _space(sub, f"{path}[{key!r}]", seen) for key, sub in spec.items()}
        return {"type": "Dict", "subspaces": inner}
    if isinstance(spec, tuple):
        return {"type": "Tuple", "subspaces": [_space(s, f"{path}[{i}]", seen) for i, s in enumerate(spec)]}
    dtype = np.dtype(spec.dtype)
    space = spec.space
    if space is None:
        lowest, highest = seen.get(path, (0, 0))
        if _is_discrete(spec) and lowest >= 0:
            space = {"type": "Discrete", "start": 0, "n": 1 + highest}
        elif dtype.kind == "b":
            space = {"type": "MultiBinary"}
        else:
            space = {"type": "Box", "low": None, "high": None}
    return spaces.to_minari(space, spec.shape, dtype)


def import_minari(path: str | Path, lake: str | Path, *, progress: Progress | None = None) -> Imported:
    """Import all episodes of a Minari dataset, one after another, to a new lake."""
    refuse_existing(lake)
    data, metadata, (obs_space, action_space) = _described(on_disk(path))
    total, env_spec = metadata.get("total_episodes"), metadata.get("env_spec")

    def spec(first: Episode) -> Spec:
        found = spec_of(first)
        with untrusted.blaming(data / "metadata.json", SpecError, "restore it"):
            return replace(
                found,
                obs=_with_spaces(found.obs, obs_space),
                action=_with_spaces(found.action, action_space),
                env_spec=env_spec if isinstance(env_spec, str) else None,
            )

    total = total if isinstance(total, int) else 0
    return import_episodes(read_minari(path), lake, spec=spec, total=total, progress=progress)


def _with_spaces(tree: Tree, space: Any) -> Tree:
    """A tree of fields with the spaces that Minari's metadata has."""
    if isinstance(tree, dict):
        return {key: _with_spaces(sub, space["subspaces"][key]) for key, sub in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_with_spaces(sub, space["subspaces"][i]) for i, sub in enumerate(tree))
    return replace(tree, space=spaces.from_minari(space))


def read_minari(path: str | Path) -> Iterator[Episode]:
    """Yield the episodes of a dataset; `path` is its folder, or the folder `data` in it.

    `infos` with one value per step, or one more, become extras; anything else in them is left out. A dataset
    that is damaged, or whose HDF5 file refers to another file, raises `SpecError`.
    """
    data, metadata, (obs_space, action_space) = _described(on_disk(path))
    jpeg = bool(metadata.get("jpeg_encoding", True))
    form = metadata.get("data_format", "hdf5")
    if form not in ("arrow", "hdf5", "parquet"):
        raise SpecError(f"{data} has the data format {form!r}; this reads arrow, hdf5 and parquet.")
    episodes = _read_hdf5(data) if form == "hdf5" else _read_arrow(data, form)
    for number in itertools.count():
        with untrusted.blaming(f"episode {number} of {data}", SpecError, "restore the dataset"):
            found = next(episodes, None)
            if found is None:
                return
            episode = _episode(found, obs_space, action_space, jpeg)
        yield episode


def _described(path: Path) -> tuple[Path, dict[str, Any], list[Any]]:
    """The data folder of a dataset, its metadata, and the spaces of observations and actions."""
    data = next((folder for folder in (path, path / "data") if (folder / "metadata.json").exists()), None)
    if data is None:
        raise SpecError(
            f"{path} is not a Minari dataset: neither it nor its folder `data` has a metadata.json."
        )
    found = []
    with untrusted.blaming(data / "metadata.json", SpecError, "restore it, or export it with a newer Minari"):
        metadata = untrusted.read_json(data / "metadata.json")
        for name in ("observation_space", "action_space"):
            if name not in metadata:
                raise SpecError(f"{data} does not say its {name}; export it with a newer Minari.")
            found.append(untrusted.parse_json(metadata[name]))
    return data, metadata, found


def _read_hdf5(data: Path) -> Iterator[dict[str, Any]]:
    try:
        from lakepond.adapters.minari_hdf5 import read_hdf5
    except ImportError:
        raise SpecError(f"{data} is HDF5; install h5py to read it.") from None
    return read_hdf5(data)


def _read_arrow(data: Path, form: str) -> Iterator[dict[str, Any]]:
    folders = sorted((f for f in data.iterdir() if f.name.isdecimal()), key=lambda folder: int(folder.name))
    for folder in folders:
        dataset = ds.dataset(folder, format=form, exclude_invalid_files=True)
        for file in dataset.files:
            (check_ipc if form == "arrow" else check_parquet)(file)
        table = dataset.to_table()
        table.validate(full=True)  # or offsets in the file may point outside of its buffers
        yield {name: _from_arrow(table[name].combine_chunks()) for name in table.column_names}


def _from_arrow(values: Any) -> Any:
    """A dict for a struct, an array for numbers and lists of them, a list for bytes."""
    if pa.types.is_struct(values.type):
        fields = [values.type.field(i) for i in range(values.type.num_fields)]
        return {f.name: _shaped(_from_arrow(values.field(i)), f) for i, f in enumerate(fields)}
    if pa.types.is_fixed_size_list(values.type):
        flat = values.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(values), values.type.list_size)
    if pa.types.is_list(values.type):
        return np.stack(values.to_numpy(zero_copy_only=False))
    if pa.types.is_binary(values.type):
        return values.to_pylist()
    return values.to_numpy(zero_copy_only=False)


def _shaped(values: Any, field: Any) -> Any:
    if isinstance(values, np.ndarray) and field.metadata and b"shape" in field.metadata:
        shape = [int(n) for n in field.metadata[b"shape"].split(b",") if n]
        return values.reshape(len(values), *shape)
    return values


def _episode(found: dict[str, Any], obs_space: Any, action_space: Any, jpeg: bool) -> Episode:
    steps = int(np.shape(found["terminations"])[0])
    obs = _values(found["observations"], obs_space, jpeg)
    count = len(next(leaves(obs))[1])
    columns = [np.asarray(found[name]) for name in ("rewards", "terminations", "truncations")]
    actions = _values(found["actions"], action_space, jpeg)
    lengths = {steps, len(next(leaves(actions))[1]), *map(len, columns)}
    if len(lengths) > 1 or any(column.ndim != 1 or column.dtype.kind not in "biuf" for column in columns):
        raise ValueError(
            f"its actions, rewards, terminations and truncations do not belong together: {lengths}"
        )
    infos: dict[str, Any] = found.get("infos") or {}
    steps = min(steps, count - 1)  # Arrow pads all columns to the length of the observations
    stream = np.ravel(infos.get("stream", 0))
    if len(stream) and (stream.dtype.kind not in "iu" or (stream[:steps] != stream[0]).any()):
        raise SpecError("the info `stream` must be one integer per episode; rename it in the dataset.")
    extras = {
        name: values[:steps]
        for name, values in infos.items()
        if isinstance(values, np.ndarray)
        and values.dtype.kind in "biufc"
        and name != "stream"
        and name.isidentifier()
        and steps <= len(values) <= steps + 1
    }
    return Episode(
        obs=obs,
        action=map_leaves(lambda leaf: leaf[:steps], actions),
        reward=columns[0][:steps],
        terminated=columns[1][:steps].astype(bool),
        truncated=columns[2][:steps].astype(bool),
        extras=extras,
        stream=int(stream[0]) if len(stream) else 0,
    )


def _values(found: Any, space: dict[str, Any], jpeg: bool) -> Tree:
    if space["type"] == "Dict":
        return {key: _values(found[key], sub, jpeg) for key, sub in space["subspaces"].items()}
    if space["type"] == "Tuple":
        named = found if "_index_0" not in found else {k.removeprefix("_index_"): v for k, v in found.items()}
        return tuple(_values(named[str(i)], sub, jpeg) for i, sub in enumerate(space["subspaces"]))
    if space["type"] == "Text":
        raise SpecError("a Text space has no fixed width; leave it out of the dataset before importing.")
    shape = tuple(space.get("shape", ()))
    if jpeg and space.get("dtype") == "uint8" and len(shape) in (2, 3) and min(shape[:2]) >= IMAGE_SIDE:
        return _decoded(found, shape)
    if space["type"] in ("MultiDiscrete", "MultiBinary"):
        shape = np.shape(found)[1:]
    return np.ascontiguousarray(found).reshape(len(found), *shape)


def _decoded(frames: Any, shape: tuple[int, ...]) -> Array:
    """JPEG images of one shape, decoded."""
    try:
        from PIL import Image
    except ImportError:
        raise SpecError("the images of this dataset are JPEG; install Pillow to read them.") from None
    found = []
    for frame in frames:
        with Image.open(BytesIO(bytes(frame)), formats=["JPEG"]) as image:
            if image.size != (shape[1], shape[0]):  # before it is decoded
                raise ValueError(f"an image has {image.size} pixels where {shape} is declared")
            found.append(np.asarray(image))
    return np.stack(found)
