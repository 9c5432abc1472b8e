"""A lake for whoever reads Arrow or Parquet: a step a row, some megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import SpecError
from lakepond.lake.assemble import batch_of
from lakepond.lake.columns import Column
from lakepond.lake.files import write_path
from lakepond.lake.reader import LakeReader
from lakepond.types import Array, Batch, Spec, leaves

BATCH_BYTES = 16 << 20
"""plain bytes in a record batch"""


def to_arrow(reader: LakeReader, spec: Spec, *, next_obs: bool) -> Any:
    """A `pyarrow.RecordBatchReader` over all live steps.

    Arrays are fixed-size lists in C order; their dtype and shape are in the field's metadata.
    """
    import pyarrow as pa

    columns = _columns(spec, next_obs)
    schema = pa.schema([column.field for column in columns])

    def batches() -> Iterator[Any]:
        size = max(1, min(8192, BATCH_BYTES // spec.step_nbytes))
        for start in range(reader.commit.oldest, reader.commit.recorded, size):
            ids = np.arange(start, min(start + size, reader.commit.recorded))
            values = _values(batch_of(reader, spec, ids))
            parts = [np.ascontiguousarray(values[column.name]) for column in columns]
            arrays = [column.to_arrow(part) for column, part in zip(columns, parts, strict=True)]
            yield pa.record_batch(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def to_parquet(reader: LakeReader, spec: Spec, path: Path, *, next_obs: bool) -> None:
    """The same as one Parquet file, zstd'ed; it appears whole or not at all."""
    import pyarrow.parquet as pq

    if path.exists():
        raise SpecError(f"{path} is there already; name another file.")
    batches = to_arrow(reader, spec, next_obs=next_obs)

    def write(aside: Path) -> None:
        with pq.ParquetWriter(aside, batches.schema, compression="zstd", use_dictionary=False) as writer:
            for batch in batches:
                writer.write_batch(batch)

    write_path(path, write)


def _columns(spec: Spec, next_obs: bool) -> list[Column]:
    flag, number = np.dtype(bool), np.dtype(np.int64)
    observed = [*leaves(spec.obs, "obs"), *(leaves(spec.obs, "next_obs") if next_obs else ())]
    fields = [*observed, *leaves(spec.action, "action"), ("reward", spec.reward), *spec.extras.items()]
    return [
        Column("step_id", number, ()),
        Column("stream", np.dtype(np.int32), ()),
        *(Column(name, np.dtype(field.dtype), field.shape) for name, field in fields),
        Column("terminated", flag, ()),
        Column("truncated", flag, ()),
    ]


def _values(batch: Batch) -> dict[str, Array]:
    trees = {"obs": batch.obs, "next_obs": batch.next_obs, "action": batch.action}
    values = {path: value for name, tree in trees.items() for path, value in leaves(tree, name)}
    values |= {
        name: getattr(batch, name) for name in ("reward", "terminated", "truncated", "step_id", "stream")
    }
    return values | batch.extras
