"""Minari datasets into a lake: Arrow and Parquet with pyarrow alone, HDF5 with h5py if it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from lakepond.adapters.episodes import Episode, Imported, Progress, import_episodes
from lakepond.errors import SpecError
from lakepond.types import Array, Tree

IMAGE_SIDE = 32
"""Minari takes uint8 boxes of at least this height and width for images"""


def import_minari(path: str | Path, lake: str | Path, *, progress: Progress | None = None) -> Imported:
    """All episodes of a Minari dataset in a new lake, one after another."""
    told = _metadata(_data(Path(path)))
    total = int(told.get("total_episodes", 0))
    return import_episodes(read_minari(path), lake, total=total, progress=progress)


def read_minari(path: str | Path) -> Iterator[Episode]:
    """The episodes of a dataset, one by one; `path` is its folder, or the folder `data` in it.

    `infos` with one value a step, or one more, become extras; anything else in them is left out.
    """
    data = _data(Path(path))
    told = _metadata(data)
    try:
        spaces = [json.loads(told[name]) for name in ("observation_space", "action_space")]
    except KeyError as error:
        raise SpecError(f"{data} does not say its {error.args[0]}; export it with a newer Minari.") from None
    jpeg = bool(told.get("jpeg_encoding", True))
    read: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
        "arrow": lambda data: _read_arrow(data, "arrow"),
        "parquet": lambda data: _read_arrow(data, "parquet"),
        "hdf5": _read_hdf5,
    }
    form = told.get("data_format", "hdf5")
    if form not in read:
        raise SpecError(f"{data} has the data format {form!r}; this reads {sorted(read)}.")
    for episode in read[form](data):
        yield _episode(episode, spaces[0], spaces[1], jpeg)


def _data(path: Path) -> Path:
    for folder in (path, path / "data"):
        if (folder / "metadata.json").exists():
            return folder
    raise SpecError(f"{path} is no Minari dataset: it has no metadata.json, nor has its folder data.")


def _metadata(data: Path) -> dict[str, Any]:
    try:
        told = json.loads((data / "metadata.json").read_text())
    except ValueError as error:
        raise SpecError(f"{data / 'metadata.json'} is no JSON: {error}; restore it.") from error
    return dict(told)


def _read_arrow(data: Path, form: str) -> Iterator[dict[str, Any]]:
    import pyarrow.dataset as ds

    folders = sorted((f for f in data.iterdir() if f.name.isdigit()), key=lambda folder: int(folder.name))
    for folder in folders:
        table = ds.dataset(folder, format=form, exclude_invalid_files=True).to_table().combine_chunks()
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        columns = {name: c.chunk(0) if hasattr(c, "chunks") else c for name, c in columns.items()}
        yield {name: _from_arrow(values) for name, values in columns.items()}


def _from_arrow(values: Any) -> Any:
    """A dict for a struct, an array for numbers and lists of them, a list for bytes."""
    import pyarrow as pa

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


def _read_hdf5(data: Path) -> Iterator[dict[str, Any]]:
    try:
        import h5py
    except ImportError:
        raise SpecError(f"{data} is HDF5; install h5py to read it.") from None

    def plain(node: Any) -> Any:
        return {key: plain(node[key]) for key in node} if isinstance(node, h5py.Group) else node[()]

    with h5py.File(data / "main_data.hdf5", "r") as file:
        for name in sorted(file, key=lambda name: int(name.removeprefix("episode_"))):
            yield plain(file[name])


def _episode(found: dict[str, Any], obs_space: Any, action_space: Any, jpeg: bool) -> Episode:
    steps = int(np.shape(found["terminations"])[0])
    obs = _values(found["observations"], obs_space, jpeg)
    count = _length(obs)
    infos: dict[str, Any] = found.get("infos") or {}
    steps = min(steps, count - 1)  # Arrow pads all columns to the length of the observations
    return Episode(
        obs=obs,
        action=_first(_values(found["actions"], action_space, jpeg), steps),
        reward=np.asarray(found["rewards"])[:steps],
        terminated=np.asarray(found["terminations"])[:steps].astype(bool),
        truncated=np.asarray(found["truncations"])[:steps].astype(bool),
        extras=dict(_extras(infos, steps)),
        stream=int(np.ravel(infos["stream"])[0]) if len(infos.get("stream", ())) else 0,
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
        return _decoded(found)
    if space["type"] in ("MultiDiscrete", "MultiBinary"):
        shape = np.shape(found)[1:]
    return np.ascontiguousarray(found).reshape(len(found), *shape)


def _decoded(frames: Any) -> Array:
    try:
        from PIL import Image
    except ImportError:
        raise SpecError("the images of this dataset are JPEG; install Pillow to read them.") from None
    return np.stack([np.asarray(Image.open(BytesIO(bytes(frame)))) for frame in frames])


def _extras(infos: dict[str, Any], steps: int) -> Iterator[tuple[str, Array]]:
    for name, values in infos.items():
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "biufc" or name == "stream":
            continue
        if name.isidentifier() and steps <= len(values) <= steps + 1:
            yield name, values[:steps]


def _length(tree: Tree) -> int:
    while isinstance(tree, dict | tuple):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return len(tree)


def _first(tree: Tree, count: int) -> Tree:
    if isinstance(tree, dict):
        return {key: _first(sub, count) for key, sub in tree.items()}
    return tuple(_first(sub, count) for sub in tree) if isinstance(tree, tuple) else tree[:count]
