"""The sizes that a file declares are the ones that Arrow reads."""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from lakepond import arrow_sizes

ROWS = 100_000


def table() -> pa.Table:
    """Numbers, texts, a dictionary, lists, flags and gaps."""
    rng = np.random.default_rng(1)
    return pa.table(
        {
            "number": rng.random(ROWS),
            "text": [f"row {i % 700}" for i in range(ROWS)],
            "name": pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode(),
            "list": pa.array([[1, 2]] * ROWS),
            "flag": rng.random(ROWS) < 0.5,
            "gap": [None if i % 3 else float(i) for i in range(ROWS)],
        }
    )


@pytest.mark.parametrize("compression", ["uncompressed", "zstd", "lz4"])
def test_an_arrow_file_declares_the_bytes_that_its_batches_have(compression, tmp_path):
    file = tmp_path / "a.feather"
    pyarrow.feather.write_feather(table(), file, compression=compression)
    assert arrow_sizes.check_ipc(file, 1) == ROWS
    descriptor = os.open(file, os.O_RDONLY)

    def read_at(count: int, offset: int) -> bytes:
        return os.pread(descriptor, count, offset)

    try:
        footer = arrow_sizes.read_footer(read_at, file.stat().st_size)
        found = [arrow_sizes.read_batch(read_at, block) for block in footer.batches]
    finally:
        os.close(descriptor)
    with pa.OSFile(str(file)) as opened:
        reader = pa.ipc.open_file(opened)
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    assert [batch.rows for batch in found] == [batch.num_rows for batch in batches]
    for one, batch in zip(found, batches, strict=True):
        assert 0.9 * batch.nbytes < one.bytes < batch.get_total_buffer_size() + 4096


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_the_pages_of_a_parquet_file_are_all_found(compression, version, tmp_path):
    file = tmp_path / "a.parquet"
    pq.write_table(
        table(),
        file,
        compression=compression,
        data_page_version=version,
        row_group_size=30_000,
        write_page_index=True,
        write_page_checksum=True,
    )
    assert arrow_sizes.check_parquet(file, 1) == ROWS
    metadata = pq.ParquetFile(file).metadata
    with file.open("rb") as opened:
        for group in range(metadata.num_row_groups):
            for column in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(column)
                where = {7: chunk.total_compressed_size, 9: chunk.data_page_offset}
                if chunk.dictionary_page_offset is not None:
                    where[11] = chunk.dictionary_page_offset
                declared = sum(arrow_sizes._pages(opened.fileno(), where, file.stat().st_size))
                assert declared >= 8 * chunk.num_values
                assert declared >= 0.9 * chunk.total_uncompressed_size - 4096


def test_a_file_that_is_cut_or_changed_at_any_byte_never_gives_another_error_than_valueerror(tmp_path):
    small = pa.table({"a": np.arange(300.0), "b": ["x", "y", "z"] * 100})
    pyarrow.feather.write_feather(small, tmp_path / "a.arrow", compression="zstd")
    pq.write_table(small, tmp_path / "a.parquet", compression="zstd")
    rng = np.random.default_rng(2)
    for name, check in (("a.arrow", arrow_sizes.check_ipc), ("a.parquet", arrow_sizes.check_parquet)):
        data = (tmp_path / name).read_bytes()
        for _ in range(400):
            changed = bytearray(data[: rng.integers(len(data) + 1)] if rng.random() < 0.2 else data)
            for _ in range(rng.integers(1, 4)):
                if changed:
                    changed[rng.integers(len(changed))] = rng.integers(256)
            (tmp_path / "changed").write_bytes(bytes(changed))
            with suppress(ValueError):
                check(tmp_path / "changed", 1000)
