import io
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakepond.errors import LakepondError, SpecError
from lakepond.lake.format import shard as shard_module
from lakepond.lake.format.checksum import Tally, crc32c, digest_of
from lakepond.lake.format.shard import (
    LakeCorrupt,
    Shard,
    ShardInfo,
    block_rows_for,
    write_shard,
    zarr_metadata,
)


def telling_rows(count: int, row_bytes: int) -> np.ndarray:
    """Row i is i, i + 1, i + 2 ... in base 251: any mix-up shows, and it compresses like a picture."""
    return ((np.arange(count)[:, None] + np.arange(row_bytes)) % 251).astype(np.uint8)


def written(path: Path, rows: np.ndarray, block_rows: int, codec: str = "zstd", parts: int = 1) -> ShardInfo:
    with open(path, "wb") as file:
        return write_shard(
            file, np.array_split(rows, parts), row_bytes=rows.shape[1], block_rows=block_rows, codec=codec
        )


def read_all(shard: Shard) -> np.ndarray:
    return shard.rows(0, len(shard), np.empty((len(shard), shard.info.row_bytes), np.uint8))


def read_and_verify(path: Path, info: ShardInfo) -> None:
    with Shard(path, info) as shard:
        read_all(shard)
        shard.verify()


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shards")


codecs = pytest.mark.parametrize("codec", ["zstd", "none"])


@given(
    count=st.integers(0, 300),
    row_bytes=st.integers(1, 90),
    block_rows=st.integers(1, 40),
    parts=st.integers(1, 9),
    codec=st.sampled_from(["zstd", "none"]),
    pooled=st.booleans(),
    data=st.data(),
)
def test_any_rows_in_any_order_come_back(
    folder, pool, count, row_bytes, block_rows, parts, codec, pooled, data
):
    rows = telling_rows(count, row_bytes)
    info = written(folder / "any", rows, block_rows, codec, parts)
    assert (info.rows, info.bytes) == (count, (folder / "any").stat().st_size)
    indices = np.array(
        data.draw(st.lists(st.integers(0, count - 1), max_size=80) if count else st.just([])), int
    )
    if data.draw(st.booleans()):
        indices.sort()
    start, stop = sorted((data.draw(st.integers(0, count)), data.draw(st.integers(0, count))))
    with Shard(folder / "any", info) as shard:
        threads = pool if pooled else None
        got = shard.read(indices, np.empty((len(indices), row_bytes), np.uint8), threads)
        np.testing.assert_array_equal(got, rows[indices])
        got = shard.rows(start, stop, np.empty((stop - start, row_bytes), np.uint8), threads)
        np.testing.assert_array_equal(got, rows[start:stop])
        if codec == "none":
            np.testing.assert_array_equal(shard.view(start, stop), rows[start:stop])
        shard.verify()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((84, 84), np.uint8), ((108, 9), np.float32), ((3,), np.bool_), ((), np.int64), ((2, 2), np.complex64),
     ((5,), np.float16)],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 64, 101])
@codecs
def test_zarr_reads_the_same_array(tmp_path, rng, shape, dtype, count, codec):
    import zarr

    array = (rng.standard_normal((count, *shape)) * 100).astype(dtype)
    if array.dtype.kind == "f":
        array.reshape(-1)[0] = np.nan
    rows = array.reshape(count, -1).view(np.uint8)
    info = written(tmp_path / "rows", rows, 32, codec)
    chunk = tmp_path / "array" / "/".join(["c"] + ["0"] * array.ndim)
    chunk.parent.mkdir(parents=True)
    (tmp_path / "rows").rename(chunk)
    (tmp_path / "array" / "zarr.json").write_text(json.dumps(zarr_metadata(info, shape, dtype)))
    opened = zarr.open_array(tmp_path / "array", mode="r")
    assert (opened.shape, opened.dtype) == (array.shape, array.dtype)
    assert opened[:].tobytes() == array.tobytes()
    assert opened[count - 1 :].tobytes() == array[count - 1 :].tobytes()


def test_zarr_reads_a_shard_without_rows(tmp_path):
    import zarr

    info = written(tmp_path / "rows", telling_rows(0, 7), 4)
    (tmp_path / "zarr.json").write_text(json.dumps(zarr_metadata(info)))
    assert zarr.open_array(tmp_path, mode="r")[:].shape == (0, 7)


def test_zarr_metadata_refuses_a_shape_that_does_not_fit(tmp_path):
    info = written(tmp_path / "rows", telling_rows(3, 7), 4)
    with pytest.raises(SpecError, match="7 bytes"):
        zarr_metadata(info, (2,), np.float32)


@codecs
def test_every_flipped_byte_is_noticed(tmp_path, codec):
    rows = telling_rows(19, 13)
    info = written(tmp_path / "rows", rows, 4, codec)
    good = (tmp_path / "rows").read_bytes()
    for at in range(len(good)):
        for mask in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[at] ^= mask
            (tmp_path / "rows").write_bytes(bad)
            with pytest.raises(LakeCorrupt), Shard(tmp_path / "rows", info) as shard:
                read_all(shard)
            with pytest.raises(LakeCorrupt), Shard(tmp_path / "rows", info) as shard:
                shard.verify()
            if codec == "none":
                with pytest.raises(LakeCorrupt), Shard(tmp_path / "rows", info) as shard:
                    shard.view(0, len(rows))


@codecs
def test_a_broken_block_leaves_the_others_readable(tmp_path, codec):
    rows = telling_rows(19, 13)
    info = written(tmp_path / "rows", rows, 4, codec)
    bad = bytearray((tmp_path / "rows").read_bytes())
    bad[2] ^= 1  # in block 0
    (tmp_path / "rows").write_bytes(bad)
    with Shard(tmp_path / "rows", info) as shard:
        np.testing.assert_array_equal(shard.rows(4, 19, np.empty((15, 13), np.uint8)), rows[4:])
        with pytest.raises(LakeCorrupt, match="block 0 of 5"):
            shard.rows(3, 4, np.empty((1, 13), np.uint8))


@codecs
@pytest.mark.parametrize("count", [0, 19])
def test_every_truncation_and_extension_is_noticed(tmp_path, codec, count):
    info = written(tmp_path / "rows", telling_rows(count, 13), 4, codec)
    good = (tmp_path / "rows").read_bytes()
    for bad in [*(good[:length] for length in range(len(good))), good + b"\0", good + good]:
        (tmp_path / "rows").write_bytes(bad)
        with pytest.raises(LakeCorrupt, match=f"{len(bad)} bytes where {len(good)}"):
            Shard(tmp_path / "rows", info)
        if len(bad) < len(good):  # and a metadata that has been cut in the same way
            with pytest.raises(LakeCorrupt):
                read_and_verify(tmp_path / "rows", replace(info, bytes=len(bad)))


def test_a_file_cut_while_open_is_noticed(tmp_path):
    info = written(tmp_path / "rows", telling_rows(50, 13), 4)
    with Shard(tmp_path / "rows", info) as shard:
        (tmp_path / "rows").write_bytes(b"")
        with pytest.raises(LakeCorrupt, match="cut off"):
            read_all(shard)


@given(words=st.lists(st.one_of(st.integers(0, 400), st.integers(0, 2**64 - 1)), min_size=10, max_size=10),
       codec=st.sampled_from(["zstd", "none"]))  # fmt: skip
def test_an_index_that_lies_gives_a_clear_error_or_the_rows(folder, words, codec):
    rows = telling_rows(19, 13)
    info = written(folder / "lies", rows, 4, codec)
    index = np.array(words, "<u8").tobytes()
    good = (folder / "lies").read_bytes()
    (folder / "lies").write_bytes(good[: -len(index) - 4] + index + crc32c(index).to_bytes(4, "little"))
    try:
        with Shard(folder / "lies", info) as shard:
            np.testing.assert_array_equal(read_all(shard), rows)
    except LakeCorrupt:
        pass


@given(noise=st.binary(max_size=300), rows=st.integers(0, 40), codec=st.sampled_from(["zstd", "none"]))
def test_noise_is_no_shard(folder, noise, rows, codec):
    (folder / "noise").write_bytes(noise)
    with pytest.raises(LakeCorrupt):
        read_and_verify(folder / "noise", ShardInfo(rows, 13, 4, codec, len(noise), ""))


@pytest.mark.parametrize("row_bytes", [1, 12, 14, 26])
def test_blocks_of_another_size_are_noticed_although_every_sum_is_right(tmp_path, row_bytes):
    info = replace(written(tmp_path / "rows", telling_rows(16, 13), 4), row_bytes=row_bytes)
    with (
        Shard(tmp_path / "rows", info) as shard,
        pytest.raises(LakeCorrupt, match=f"not hold {4 * row_bytes} b"),
    ):
        read_all(shard)


def test_a_name_tells_the_content(tmp_path):
    infos = [
        written(tmp_path / name, telling_rows(100, 13), 8, parts=parts)
        for name, parts in [("a", 1), ("b", 7)]
    ]
    assert infos[0] == infos[1]
    assert len(infos[0].digest) == 40
    assert written(tmp_path / "c", telling_rows(101, 13), 8).digest != infos[0].digest


def test_a_caller_may_use_its_array_again_for_the_next_part(tmp_path, rng):
    rows = rng.integers(0, 256, (4000, 50), dtype=np.uint8)

    def parts():
        buffer = np.empty((1000, 50), np.uint8)
        for at in range(0, 4000, 1000):
            buffer[:] = rows[at : at + 1000]
            yield buffer
            buffer[:] = 0

    for block_rows in (3, 64, 700):
        with open(tmp_path / "rows", "wb") as file:
            info = write_shard(file, parts(), row_bytes=50, block_rows=block_rows)
        with Shard(tmp_path / "rows", info) as shard:
            np.testing.assert_array_equal(read_all(shard), rows)


def test_memory_is_bounded_however_long_the_shard(tmp_path):
    import tracemalloc

    part = telling_rows(200, 7056)

    def peak(parts: int) -> int:
        tracemalloc.start()
        with open(tmp_path / "rows", "wb") as file:
            info = write_shard(file, (part for _ in range(parts)), row_bytes=7056, block_rows=32)
        with Shard(tmp_path / "rows", info) as shard:
            out = np.empty((64, 7056), np.uint8)
            for at in range(0, len(shard) - 64, 64):
                shard.rows(at, at + 64, out)
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(10) < 8_000_000  # 14 MB of rows
    assert peak(100) < 8_000_000  # 141 MB


def test_a_random_read_decodes_only_the_blocks_it_touches(tmp_path, monkeypatch):
    info = written(tmp_path / "rows", telling_rows(1000, 13), 10)
    decoded: list[int] = []
    with Shard(tmp_path / "rows", info) as shard:
        decode = shard._blocks.decode
        monkeypatch.setattr(
            shard._blocks, "decode", lambda blocks, *rest: (decoded.extend(blocks), decode(blocks, *rest))
        )
        shard.read(np.array([999, 5, 500, 5, 7, 501]), np.empty((6, 13), np.uint8))
        assert sorted(decoded) == [0, 50, 99]


def test_a_read_from_inside_a_full_pool_does_not_wait_for_ever(tmp_path):
    rows = telling_rows(500, 13)
    info = written(tmp_path / "rows", rows, 4)
    with Shard(tmp_path / "rows", info) as shard, ThreadPoolExecutor(1) as pool:
        got = pool.submit(shard.rows, 0, 500, np.empty((500, 13), np.uint8), pool).result(timeout=20)
    np.testing.assert_array_equal(got, rows)


def test_an_error_in_a_helping_thread_reaches_the_caller(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_module, "_WORKERS", 4)
    info = written(tmp_path / "rows", telling_rows(4000, 13), 4)
    bad = bytearray((tmp_path / "rows").read_bytes())
    bad[info.bytes // 3] ^= 1
    (tmp_path / "rows").write_bytes(bad)
    with Shard(tmp_path / "rows", info) as shard, ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            with pytest.raises(LakeCorrupt):
                shard.rows(0, 4000, np.empty((4000, 13), np.uint8), pool)


def test_views_copy_nothing_are_read_only_and_outlive_the_shard(tmp_path):
    rows = telling_rows(100, 13)
    info = written(tmp_path / "rows", rows, 8, "none")
    shard = Shard(tmp_path / "rows", info)
    view = shard.view(3, 97)
    assert np.shares_memory(view, shard.view(0, 100, check=False))
    shard.close()
    np.testing.assert_array_equal(view, rows[3:97])
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="closed"):
        shard.view(0, 1, check=False)


def test_invalid_rows_settings_and_indices_are_refused(tmp_path):
    rows = telling_rows(10, 13)
    for wrong in (rows.astype(np.int16), rows[:, :12], rows[:, ::2], rows[0]):
        with pytest.raises(SpecError, match="contiguous uint8"):
            write_shard(io.BytesIO(), [wrong], row_bytes=13, block_rows=4)
    for wrong in ({"row_bytes": 0}, {"block_rows": 0}, {"codec": "lz4"}, {"block_rows": 1 << 30}):
        with pytest.raises(SpecError, match="no shard has"):
            write_shard(io.BytesIO(), [rows], **({"row_bytes": 13, "block_rows": 4} | wrong))
    info = written(tmp_path / "rows", rows, 4)
    with Shard(tmp_path / "rows", info) as shard:
        for indices in ([10], [-1], [0, 11]):
            with pytest.raises(IndexError, match="rows \\[0, 10\\)"):
                shard.read(np.array(indices), np.empty((len(indices), 13), np.uint8))
        with pytest.raises(ValueError, match="contiguous uint8"):
            shard.read(np.array([1]), np.empty((2, 13), np.uint8))
        with pytest.raises(TypeError):
            shard.read(np.array([1.5]), np.empty((1, 13), np.uint8))
        with pytest.raises(SpecError, match="codec='none'"):
            shard.view(0, 1)
    with pytest.raises(ValueError, match="closed"):
        read_all(shard)
    with pytest.raises(FileNotFoundError):
        Shard(tmp_path / "none", info)
    assert issubclass(LakeCorrupt, LakepondError)
    assert issubclass(LakeCorrupt, ValueError)


def test_a_block_is_about_32_atari_frames():
    assert [block_rows_for(size) for size in (84 * 84, 108 * 9 * 4, 1, 10**9)] == [32, 58, 225_792, 1]


@settings(max_examples=40)
@given(st.binary(max_size=4096).map(lambda data: data[: len(data) // 4 * 4]))
def test_crc32c_is_the_one_of_the_standard(data):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
        table.append(byte)
    register = 0xFFFFFFFF
    for byte in data:
        register = table[(register ^ byte) & 255] ^ register >> 8
    assert crc32c(data) == register ^ 0xFFFFFFFF


def test_crc32c_of_the_standard_s_examples():  # RFC 3720, B.4
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_a_tally_hashes_pieces_of_every_size_in_order(tmp_path):
    rng, whole = np.random.default_rng(0), b""
    with (tmp_path / "file").open("wb", buffering=0) as file:
        tally = Tally(file)
        for size in (10, 300_000, 5, 2_000_000, 70_000, 100, 3_000_000, 4_500_000, 7):
            piece = rng.bytes(size)
            whole += piece
            tally.write(piece)
        name = tally.finish(sync=True)
    assert (tmp_path / "file").read_bytes() == whole
    assert name == digest_of(whole)
    assert tally.bytes == len(whole)
