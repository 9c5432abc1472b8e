"""Lakes as Arrow and Parquet tables, one row per step, and back; some megabytes at a time.

Arrays are fixed-size lists in C order; their dtype and shape are in the field's metadata. The metadata of the
schema has the spec, with its spaces, as in `lake.json`. An extra that is named `step_id` is the column
`extras['step_id']`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakepond import untrusted
from lakepond.adapters.episodes import (
    Imported,
    Progress,
    batches,
    column_of_extra,
    piece_steps,
    recording,
    totals,
)
from lakepond.adapters.staging import refuse_existing
from lakepond.arrow_sizes import check_ipc, check_parquet
from lakepond.errors import SpecError
from lakepond.lake.files import write_path
from lakepond.lake.format import description
from lakepond.lake.format.columns import Column
from lakepond.lake.format.sealed import strict
from lakepond.lake.read.episodes import episode_ids
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk
from lakepond.types import Array, Batch, Spec, leaves, rebuild

SPEC = b"lakepond.spec"


def to_arrow(lake: Lake, *, next_obs: bool = True) -> Any:
    """A `pyarrow.RecordBatchReader` over all live steps; `next_obs=False` leaves that out."""
    columns = _columns(lake.spec, next_obs)
    metadata = {SPEC: strict(description.spec_to_json(lake.spec))}
    schema = pa.schema([column.field for column in columns], metadata)

    def record_batches() -> Iterator[Any]:
        for batch in batches(lake):
            values = _values(batch)
            arrays = [column.to_arrow(np.ascontiguousarray(values[column.name])) for column in columns]
            yield pa.record_batch(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, record_batches())


def export_parquet(lake: Lake, path: str | Path, *, next_obs: bool = True) -> None:
    """Write one Parquet file, compressed with zstd; atomic."""
    open_file = partial(pq.ParquetWriter, compression="zstd", use_dictionary=False)
    _export(to_arrow(lake, next_obs=next_obs), on_disk(path), open_file)


def export_arrow(lake: Lake, path: str | Path, *, next_obs: bool = True) -> None:
    """Write one Arrow IPC file; atomic."""
    _export(to_arrow(lake, next_obs=next_obs), on_disk(path), pa.ipc.new_file)


def _export(batches: Any, path: Path, open_file: Callable[[str, Any], Any]) -> None:
    if path.exists():
        raise SpecError(f"{path} already exists; name another file.")

    def write(temporary: Path) -> None:
        with open_file(str(temporary), batches.schema) as file:
            for batch in batches:
                file.write_batch(batch)

    write_path(path, write)


def import_arrow(path: str | Path, lake: str | Path, *, progress: Progress | None = None) -> Imported:
    """Import a table that lakepond exported, Parquet or Arrow IPC, to a new lake; `progress` counts steps."""
    refuse_existing(lake)
    with untrusted.blaming(path, SpecError, "export it again"):
        total, spec, batches = _opened(on_disk(path))
    done = 0
    with recording(lake, spec) as replay:
        while True:
            with untrusted.blaming(path, SpecError, "export it again"):
                table = next(batches, None)
                if table is None:
                    break
                values = {c.name: _from_arrow(table[c.name], c) for c in _columns(spec, next_obs=True)}
            steps = {name: values[name] for name in ("reward", "terminated", "truncated", "stream")}
            steps |= {name: values[column_of_extra(name)] for name in spec.extras}
            for name, tree in (("obs", spec.obs), ("next_obs", spec.obs), ("action", spec.action)):
                steps[name] = rebuild(tree, iter([values[leaf] for leaf, _ in leaves(tree, name)]).__next__)
            replay.record(**steps)
            done += table.num_rows
            if progress is not None:
                progress(done, total)
        if not done:
            raise SpecError(f"{path} has no steps; there is nothing to import.")
        replay.commit()
        with replay.lake() as written:
            episodes = sum(1 for _ in episode_ids(written.reader, written.spec))
        return totals(replay, episodes)


def _opened(path: Path) -> tuple[int, Spec, Iterator[Any]]:
    """The number of steps, the spec and the record batches of a Parquet or Arrow IPC file."""
    with path.open("rb") as file:
        parquet = file.read(4) == b"PAR1"
    total = (check_parquet if parquet else check_ipc)(path)
    if parquet:
        table = pq.ParquetFile(path)
        spec = _spec_of(table.schema_arrow, path)
        return total, spec, _validated(table.iter_batches(batch_size=piece_steps(spec)), spec)
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    spec = _spec_of(reader.schema, path)
    return total, spec, _validated(map(reader.get_batch, range(reader.num_record_batches)), spec)


def _validated(batches: Iterable[Any], spec: Spec) -> Iterator[Any]:
    """The batches of a file, divided as in an export: other tools write larger ones."""
    size = piece_steps(spec)
    for batch in batches:
        batch.validate(full=True)  # or offsets in the file may point outside of its buffers
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)


def _spec_of(schema: Any, path: str | Path) -> Spec:
    found = (schema.metadata or {}).get(SPEC)
    if found is None:
        raise SpecError(
            f"{path} has no spec of a lake, only the columns {', '.join(schema.names)[:200]}; import takes "
            "tables that lakepond exported, others are recorded with Replay.record."
        )
    spec = description.spec_from_json(untrusted.parse_json(found))
    missing = [column.name for column in _columns(spec, next_obs=True) if column.name not in schema.names]
    if missing:
        raise SpecError(f"{path} has no {', '.join(missing)}; export it again, with next_obs.")
    return spec


def _from_arrow(values: Any, column: Column) -> Array:
    if values.type != column.type or values.null_count:
        raise ValueError(f"column {column.name!r} is {values.type} where {column.type} is expected")
    if pa.types.is_fixed_size_binary(values.type):
        flat = np.frombuffer(b"".join(values.to_pylist()), column.dtype)
    else:
        flat = (values.flatten() if column.shape else values).to_numpy(zero_copy_only=False)
    return flat.reshape(len(values), *column.shape)


def _columns(spec: Spec, next_obs: bool) -> list[Column]:
    observed = [*leaves(spec.obs, "obs"), *(leaves(spec.obs, "next_obs") if next_obs else ())]
    extras = ((column_of_extra(name), field) for name, field in spec.extras.items())
    fields = [*observed, *leaves(spec.action, "action"), ("reward", spec.reward), *extras]
    return [
        Column("step_id", np.dtype(np.int64), ()),
        Column("stream", np.dtype(np.int32), ()),
        *(Column(name, np.dtype(field.dtype), field.shape) for name, field in fields),
        *(Column(name, np.dtype(bool), ()) for name in ("terminated", "truncated")),
    ]


def _values(batch: Batch) -> dict[str, Array]:
    trees = {"obs": batch.obs, "next_obs": batch.next_obs, "action": batch.action}
    values = {path: value for name, tree in trees.items() for path, value in leaves(tree, name)}
    values |= {column_of_extra(name): value for name, value in batch.extras.items()}
    others = ("reward", "terminated", "truncated", "step_id", "stream")
    return values | {name: getattr(batch, name) for name in others}
