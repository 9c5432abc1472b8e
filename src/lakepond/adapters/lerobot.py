"""Lakes as datasets in LeRobot's layout (v3.0), and back.

The folder is a dataset of the Hugging Face Hub, too::

    <path>/README.md                             what `datasets.load_dataset(path)` loads: data/*/*.parquet
    <path>/data/chunk-000/file-000.parquet       one row per step, in episodes
    <path>/final/chunk-000/file-000.parquet      the last observation of each episode: one row per episode
    <path>/meta/info.json                        features with their spaces; "lakepond": the spec
    <path>/meta/tasks.parquet                    one task
    <path>/meta/episodes/chunk-000/file-000.parquet

Arrays are nested fixed-size lists. There are no videos and no meta/stats.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakepond import untrusted
from lakepond.adapters.episodes import Episode, Imported, Progress, exporting, import_episodes
from lakepond.adapters.staging import refuse_existing
from lakepond.arrow_sizes import check_parquet
from lakepond.errors import SpecError
from lakepond.lake.files import write_bytes, write_path
from lakepond.lake.format import description
from lakepond.lake.format.sealed import strict
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk
from lakepond.types import Array, Field, Spec, keys_of, leaves, rebuild

FILE_BYTES = 100 << 20
"""uncompressed bytes from which on a data file is followed by another one"""
FILES_PER_CHUNK = 1000
NUMBERS = {
    **dict.fromkeys(("next.done", "next.terminated", "next.truncated"), "bool"),
    "timestamp": "float32",
    **dict.fromkeys(("stream", "frame_index", "episode_index", "index", "task_index"), "int64"),
}
"""the columns that every dataset has, and their dtypes"""
PLACE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
CARD = """---
tags: [LeRobot, reinforcement-learning]
configs:
- config_name: default
  data_files: data/*/*.parquet
---

{steps:,} steps in {episodes:,} episodes, exported from a lake by lakepond in the layout of LeRobot v3.0.
`meta/info.json` has the features and their spaces. `final/` has the last observation of each episode.
"""


def export_lerobot(lake: Lake, path: str | Path, *, fps: int = 30, progress: Progress | None = None) -> int:
    """Write the episodes one by one and meta/info.json last; return the number of episodes.

    `fps`: steps per second, for the timestamps. `progress` counts steps.
    """
    path, spec = on_disk(path), lake.spec
    for name, field in _names(spec).items():
        if np.dtype(field.dtype).kind not in "biuf":
            raise SpecError(
                f"{name} is {field}; LeRobot has numbers and bools only: export to Arrow instead."
            )
    rows: list[dict[str, Any]] = []
    with closing(_Files(path / "data")) as data, closing(_Files(path / "final")) as final:
        for number, first, episode in exporting(lake, path, progress):
            count, columns = episode.steps, _columns(spec, episode)
            steps = {name: values[:count] for name, values in columns.items()}
            chunk, file = data.write({**steps, **_numbers(episode, number, first, fps)})
            last = {name: columns[name][count:] for name in columns if name.startswith("observation.")}
            final.write({"episode_index": np.array([number]), **last})
            row = {"episode_index": number, "tasks": ["default"], "length": count}
            row |= {"data/chunk_index": chunk, "data/file_index": file}
            rows.append({**row, "dataset_from_index": first, "dataset_to_index": first + count})
    _write_meta(path, spec, rows, len(lake), fps)
    return len(rows)


def _names(spec: Spec) -> dict[str, Field]:
    """The column of each field of a step; `SpecError` if two have the same one."""
    named = [(_column("observation", name), f) for name, f in leaves(spec.obs)]
    named += [(_column("action", name), f) for name, f in leaves(spec.action)]
    named += [("next.reward", spec.reward)]
    named += [(f"extra.{name}", field) for name, field in spec.extras.items()]
    names = [name for name, _ in named]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError(f"two fields have the LeRobot column {twice[0]!r}; rename one, or export to Arrow.")
    return dict(named)


def _column(kind: str, path: str) -> str:
    """`observation.camera.0` for a leaf `['camera'][0]`; a single observation is `observation.state`."""
    keys = keys_of(path)
    single = "observation.state" if kind == "observation" else kind
    return ".".join([kind, *map(str, keys)]) if keys else single


def _columns(spec: Spec, episode: Episode) -> dict[str, Array]:
    """The arrays of an episode by column; the observations have one more than steps."""
    extras = [episode.extras[name] for name in spec.extras]
    trees = (episode.obs, episode.action, episode.reward, extras)
    return dict(zip(_names(spec), (values for tree in trees for _, values in leaves(tree)), strict=True))


def _numbers(episode: Episode, number: int, first: int, fps: int) -> dict[str, Array]:
    """Flags and numbers of an episode's steps by column, as in NUMBERS."""
    count = episode.steps
    frames = np.arange(count)
    return {
        "next.done": episode.terminated | episode.truncated,
        "next.terminated": episode.terminated,
        "next.truncated": episode.truncated,
        "stream": np.full(count, episode.stream, np.int64),
        "timestamp": (frames / fps).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.full(count, number),
        "index": first + frames,
        "task_index": np.zeros(count, np.int64),
    }


class _Files:
    """Parquet files of about FILE_BYTES; an episode is never divided."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number, self._bytes = folder, -1, FILE_BYTES
        self._writer: Any = None

    def write(self, columns: dict[str, Array]) -> tuple[int, int]:
        """Append rows; returns the numbers of the chunk and the file that they are in."""
        table = pa.table({name: _nested(values) for name, values in columns.items()})
        if self._bytes >= FILE_BYTES:
            self.close()
            self._number, self._bytes = self._number + 1, 0
            file = self._folder / _place(self._number)
            file.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(file, table.schema, compression="zstd")
        self._writer.write_table(table, max(1, table.num_rows))  # one row group per episode
        self._bytes += table.nbytes
        return divmod(self._number, FILES_PER_CHUNK)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _place(number: int) -> str:
    chunk, file = divmod(number, FILES_PER_CHUNK)
    return PLACE.format(chunk_index=chunk, file_index=file)


def _nested(values: Array) -> Any:
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def _write_meta(path: Path, spec: Spec, rows: list[dict[str, Any]], steps: int, fps: int) -> None:
    features = {name: _feature(field) for name, field in _names(spec).items()}
    features |= {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in NUMBERS.items()}
    info = {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": len(rows),
        "total_frames": steps,
        "total_tasks": 1,
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": FILE_BYTES >> 20,
        "video_files_size_in_mb": 0,
        "fps": fps,
        "splits": {"train": f"0:{len(rows)}"},
        "data_path": f"data/{PLACE}",
        "video_path": None,
        "features": features,
        "lakepond": description.spec_to_json(spec),
    }
    episodes = path / "meta/episodes" / _place(0)
    episodes.parent.mkdir(parents=True, exist_ok=True)
    write_path(episodes, lambda file: pq.write_table(pa.Table.from_pylist(rows), file))
    tasks = pa.table({"task_index": [0], "task": ["default"]}).replace_schema_metadata(_PANDAS)
    write_path(path / "meta/tasks.parquet", lambda file: pq.write_table(tasks, file))
    write_bytes(path, "README.md", CARD.format(steps=steps, episodes=len(rows)).encode())
    write_bytes(path / "meta", "info.json", strict(info, indent=1))


def _feature(field: Field) -> dict[str, Any]:
    feature = {"dtype": np.dtype(field.dtype).name, "shape": list(field.shape) or [1], "names": None}
    return feature if field.space is None else {**feature, "space": dict(field.space)}


_COLUMNS = [
    {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
    for name, kind, dtype in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
]
_PANDAS = {"pandas": json.dumps({"index_columns": ["task"], "column_indexes": [], "columns": _COLUMNS})}
"""pandas reads the tasks as the index, as LeRobot expects"""


def import_lerobot(path: str | Path, lake: str | Path, *, progress: Progress | None = None) -> Imported:
    """Import a dataset that `export_lerobot` wrote to a new lake."""
    refuse_existing(lake)
    path = on_disk(path)
    with untrusted.blaming(path / "meta/info.json", SpecError, "export it again"):
        info = untrusted.read_json(path / "meta/info.json")
        if "lakepond" not in info:
            raise SpecError(
                f"{path} does not have the last observation of each episode; only datasets that lakepond "
                "exported are read."
            )
        spec = description.spec_from_json(info["lakepond"])
        total = int(info["total_episodes"])
    return import_episodes(
        _read(path, spec, total), lake, spec=lambda _: spec, total=total, progress=progress
    )


def _read(path: Path, spec: Spec, total: int) -> Iterator[Episode]:
    fields = _names(spec)
    numbers = {name: Field((), NUMBERS[name]) for name in ("next.terminated", "next.truncated", "stream")}
    steps, last = _episodes(path / "data"), _episodes(path / "final")
    for number in range(total):
        with untrusted.blaming(f"episode {number} of {path}", SpecError, "export it again"):
            table, final = next(steps, None), next(last, None)
            if table is None or final is None or final.num_rows != 1:
                raise ValueError("its steps or its last observation are missing")
            for part in (table, final):
                if part["episode_index"][0].as_py() != number:
                    raise ValueError("the episodes are not in order")
            values = {name: _values(table[name], field) for name, field in {**fields, **numbers}.items()}
            for name in filter(lambda name: name.startswith("observation."), fields):
                values[name] = np.concatenate([values[name], _values(final[name], fields[name])])
            in_order = iter(values.values())  # observations, then actions
            episode = Episode(
                obs=rebuild(spec.obs, in_order.__next__),
                action=rebuild(spec.action, in_order.__next__),
                reward=values["next.reward"],
                terminated=values["next.terminated"],
                truncated=values["next.truncated"],
                extras={name: values[f"extra.{name}"] for name in spec.extras},
                stream=int(values["stream"][0]),
            )
        yield episode


def _episodes(folder: Path) -> Iterator[Any]:
    """The rows of each episode of a folder of Parquet files."""
    for file in sorted(folder.glob("chunk-*/file-*.parquet")):
        check_parquet(file)
        table = pq.ParquetFile(file)
        for group in range(table.num_row_groups):
            rows = table.read_row_group(group)
            rows.validate(full=True)
            yield rows


def _values(values: Any, field: Field) -> Array:
    flat = values.combine_chunks()
    for size in field.shape:
        if not pa.types.is_fixed_size_list(flat.type) or flat.type.list_size != size:
            raise ValueError(f"a column is {values.type} where {field} is expected")
        flat = flat.flatten()
    if flat.null_count or flat.type != pa.from_numpy_dtype(np.dtype(field.dtype)):
        raise ValueError(f"a column is {values.type} where {field} is expected")
    array: Array = flat.to_numpy(zero_copy_only=False)
    return array.reshape(len(values), *field.shape)
