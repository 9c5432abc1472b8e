"""Minari datasets into a lake: Arrow and Parquet with pyarrow alone, HDF5 with h5py if it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from lakepond import untrusted
from lakepond.adapters.episodes import Episode, Imported, Progress, import_episodes
from lakepond.adapters.minari_hdf5 import read_hdf5
from lakepond.adapters.staging import refuse_existing
from lakepond.arrow_sizes import check_ipc, check_parquet
from lakepond.errors import SpecError
from lakepond.types import Array, Tree

IMAGE_SIDE = 32
"""Minari takes uint8 boxes of at least this height and width for images"""
MOST_RATIO = 1032
"""bytes that one byte of an Arrow or Parquet file may expand to, as for deflate"""


def import_minari(path: str | Path, lake: str | Path, *, progress: Progress | None = None) -> Imported:
    """Import all episodes of a Minari dataset, one after another, to a new lake."""
    refuse_existing(Path(lake))
    total = _metadata(_data(Path(path))).get("total_episodes", 0)
    total = total if isinstance(total, int) else 0
    return import_episodes(read_minari(path), lake, total=total, progress=progress)


def read_minari(path: str | Path) -> Iterator[Episode]:
    """Yield the episodes of a dataset; `path` is its folder, or the folder `data` in it.

    `infos` with one value per step, or one more, become extras; anything else in them is left out. A dataset
    that is damaged, or whose HDF5 file refers to another file, raises `SpecError`.
    """
    data = _data(Path(path))
    metadata = _metadata(data)
    with untrusted.blaming(data / "metadata.json", SpecError, "restore it, or export it with a newer Minari"):
        spaces = []
        for name in ("observation_space", "action_space"):
            if name not in metadata:
                raise SpecError(f"{data} does not say its {name}; export it with a newer Minari.")
            spaces.append(untrusted.parse_json(metadata[name]))
    jpeg = bool(metadata.get("jpeg_encoding", True))
    read: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
        "arrow": lambda data: _read_arrow(data, "arrow"),
        "parquet": lambda data: _read_arrow(data, "parquet"),
        "hdf5": read_hdf5,
    }
    form = metadata.get("data_format", "hdf5")
    if not isinstance(form, str) or form not in read:
        raise SpecError(f"{data} has the data format {form!r}; this reads {sorted(read)}.")
    episodes, number = read[form](data), 0
    while True:
        with untrusted.blaming(f"episode {number} of {data}", SpecError, "restore the dataset"):
            found = next(episodes, None)
            if found is None:
                return
            episode = _episode(found, spaces[0], spaces[1], jpeg)
        yield episode
        number += 1


def _data(path: Path) -> Path:
    for folder in (path, path / "data"):
        if (folder / "metadata.json").exists():
            return folder
    raise SpecError(f"{path} is not a Minari dataset: neither it nor its folder `data` has a metadata.json.")


def _metadata(data: Path) -> dict[str, Any]:
    with untrusted.blaming(data / "metadata.json", SpecError, "restore it"):
        return untrusted.read_json(data / "metadata.json")


def _read_arrow(data: Path, form: str) -> Iterator[dict[str, Any]]:
    import pyarrow.dataset as ds

    folders = sorted((f for f in data.iterdir() if f.name.isdecimal()), key=lambda folder: int(folder.name))
    for folder in folders:
        dataset = ds.dataset(folder, format=form, exclude_invalid_files=True)
        for file in dataset.files:
            (check_ipc if form == "arrow" else check_parquet)(file, MOST_RATIO)
        table = dataset.to_table().combine_chunks()
        table.validate(full=True)  # or offsets in the file may point outside of its buffers
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


def _episode(found: dict[str, Any], obs_space: Any, action_space: Any, jpeg: bool) -> Episode:
    steps = int(np.shape(found["terminations"])[0])
    obs = _values(found["observations"], obs_space, jpeg)
    count = _length(obs)
    columns = [np.asarray(found[name]) for name in ("rewards", "terminations", "truncations")]
    lengths = {steps, _length(actions := _values(found["actions"], action_space, jpeg)), *map(len, columns)}
    if len(lengths) > 1 or any(column.ndim != 1 or column.dtype.kind not in "biuf" for column in columns):
        raise ValueError(
            f"its actions, rewards, terminations and truncations do not belong together: {lengths}"
        )
    infos: dict[str, Any] = found.get("infos") or {}
    steps = min(steps, count - 1)  # Arrow pads all columns to the length of the observations
    return Episode(
        obs=obs,
        action=_first(actions, steps),
        reward=columns[0][:steps],
        terminated=columns[1][:steps].astype(bool),
        truncated=columns[2][:steps].astype(bool),
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
