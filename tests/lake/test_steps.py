import io
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakepond.errors import SpecError
from lakepond.lake.format.blocks import LakeCorrupt
from lakepond.lake.format.checksum import digest_of
from lakepond.lake.format.steps import StepsInfo, read_steps, write_steps

DTYPES = ["?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", ">f4", ">i8", "<c8",
          "<c16", "M8[us]", "m8[s]", "S5", "<U3", "V7", "g"]  # fmt: skip


def file_of(columns: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    info = write_steps(file, columns)
    data = file.getvalue()
    assert info == StepsInfo(len(next(iter(columns.values()))), len(data), digest_of(data))
    return file.getvalue()


def noise(rng: np.random.Generator, steps: int, dtype: str, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Any bytes at all: NaN with payloads, -0.0, invalid dates."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random((steps, *shape)) < 0.5
    size = steps * int(np.prod(shape))
    return np.frombuffer(rng.bytes(size * kind.itemsize), kind).reshape(steps, *shape)


def assert_same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(got) == list(expected)
    for name in expected:
        assert (got[name].dtype, got[name].shape) == (expected[name].dtype, expected[name].shape)
        assert got[name].tobytes() == expected[name].tobytes()


@given(
    steps=st.one_of(st.integers(0, 40), st.integers(8185, 8200), st.just(20_000)),
    forms=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3).map(tuple)),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_any_columns_come_back_bit_for_bit(steps, forms, seed, data):
    rng = np.random.default_rng(seed)
    columns = {f"é{i}": noise(rng, steps, dtype, shape) for i, (dtype, shape) in enumerate(forms)}
    file = file_of(columns)
    assert_same(read_steps(file), columns)
    names = data.draw(st.lists(st.sampled_from(list(columns)), unique=True))
    start, stop = sorted((data.draw(st.integers(0, steps)), data.draw(st.integers(0, steps))))
    assert_same(read_steps(file, names, start, stop), {name: columns[name][start:stop] for name in names})


def test_nan_payloads_and_the_sign_of_zero_are_kept():
    column = np.array([0x7FF8_0000_0000_0001, 0xFFF0_0000_0000_BEEF, 0x8000_0000_0000_0000], np.uint64).view(
        float
    )
    assert read_steps(file_of({"x": column}))["x"].tobytes() == column.tobytes()


def test_strided_columns_and_odd_bools_are_written_as_what_they_mean():
    wide = np.arange(60.0).reshape(20, 3)
    odd = np.array([0, 1, 2, 255], np.uint8).view(bool).repeat(5)
    got = read_steps(file_of({"a": wide[:, 1], "b": wide.T.reshape(20, 3), "c": odd}))
    np.testing.assert_array_equal(got["a"], wide[:, 1])
    np.testing.assert_array_equal(got["c"], np.array([False, True, True, True]).repeat(5))


def test_arrow_alone_reads_the_columns():
    columns = {
        "reward": np.arange(9000.0),
        "done": np.arange(9000) % 7 == 0,
        "action": np.ones((9000, 2, 3), "f2"),
    }
    table = pa.ipc.open_file(pa.BufferReader(file_of(columns))).read_all()
    np.testing.assert_array_equal(table["reward"].to_numpy(), columns["reward"])
    np.testing.assert_array_equal(table["done"].to_numpy(), columns["done"])
    assert table.schema.field("action").type == pa.list_(pa.float16(), 6)
    assert table["action"][0].as_py() == [1.0] * 6


def test_a_path_is_read_as_a_buffer_is(tmp_path):
    columns = {"step": np.arange(30_000)}
    (tmp_path / "steps").write_bytes(file_of(columns))
    assert_same(read_steps(tmp_path / "steps"), columns)
    assert_same(read_steps(str(tmp_path / "steps"), start=29_999), {"step": np.array([29_999])})
    with pytest.raises(FileNotFoundError):
        read_steps(tmp_path / "none")


def small() -> dict[str, np.ndarray]:
    return {
        "reward": np.arange(5.0),
        "done": np.arange(5) == 4,
        "action": np.arange(10, dtype="f4").reshape(5, 2),
    }


def same_or_corrupt(bad: bytes, expected: dict[str, np.ndarray], **part) -> bool:
    """True if it was noticed; otherwise the steps must be right."""
    try:
        got = read_steps(bad, **part)
    except LakeCorrupt:
        return True
    assert_same(got, expected)
    return False


def test_every_flipped_byte_is_noticed_or_does_no_harm():
    columns = small()
    good = file_of(columns)
    noticed = 0
    for at in range(len(good)):
        for mask in (0x01, 0x10, 0x80, 0xFF):
            bad = bytearray(good)
            bad[at] ^= mask
            noticed += same_or_corrupt(bytes(bad), columns)
            same_or_corrupt(
                bytes(bad), {"reward": columns["reward"][2:4]}, columns=["reward"], start=2, stop=4
            )
    assert noticed > len(good)  # Arrow's padding and its second copy of the schema are not read


def test_every_truncation_and_extension_is_noticed():
    good = file_of(small())
    for bad in [*(good[:length] for length in range(len(good))), good + b"\0", good[8:]]:
        with pytest.raises(LakeCorrupt):
            read_steps(bad)


@given(seed=st.integers(0, 2**32), cuts=st.integers(1, 8), steps=st.sampled_from([3, 9000]))
def test_a_file_with_holes_noise_and_swaps_never_gives_wrong_steps(seed, cuts, steps):
    rng = np.random.default_rng(seed)
    columns = {
        "a": rng.integers(0, 9, steps),
        "b": rng.integers(0, 9, steps),
        "c": rng.random((steps, 2)) < 0.1,
    }
    bad = bytearray(file_of(columns))
    for _ in range(cuts):
        at, to, size = rng.integers(0, len(bad), 3)
        size = min(size % 200, len(bad) - max(at, to))
        bad[at : at + size] = bad[to : to + size] if rng.random() < 0.7 else rng.bytes(size)
    same_or_corrupt(bytes(bad), columns)


@given(st.binary(max_size=200))
def test_noise_is_no_file_of_steps(data):
    for bad in (data, b"ARROW1\0\0" + data + b"ARROW1"):
        with pytest.raises(LakeCorrupt):
            read_steps(bad)


def test_an_arrow_file_of_somebody_else_is_refused():
    file = io.BytesIO()
    table = pa.table({"x": [1, 2]})
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(LakeCorrupt, match="is damaged"):
        read_steps(file.getvalue())


def test_a_lost_batch_is_noticed():
    columns = {"step": np.arange(20_000)}
    reader = pa.ipc.open_file(pa.BufferReader(file_of(columns)))
    for kept in ([0, 1], [1, 0, 2], [0, 1, 1], [0, 1, 2, 2], [0, 2]):
        file = io.BytesIO()
        with pa.ipc.new_file(file, reader.schema) as writer:
            for number in kept:
                writer.write_batch(*reader.get_batch_with_custom_metadata(number))
        with pytest.raises(LakeCorrupt):
            read_steps(file.getvalue())


def test_equal_columns_give_equal_bytes():
    assert file_of(small()) == file_of(small())


def test_invalid_columns_dtypes_and_ranges_are_refused():
    with pytest.raises(SpecError, match="equal length"):
        write_steps(io.BytesIO(), {"a": np.zeros(3), "b": np.zeros(4)})
    for wrong in ({}, {"a": np.array(1.0)}):
        with pytest.raises(SpecError, match="one or more columns"):
            write_steps(io.BytesIO(), wrong)
    for dtype in (object, "V0", [("x", "f4")], "T"):
        with pytest.raises(SpecError, match="has dtype"):
            write_steps(io.BytesIO(), {"a": np.empty(3, np.dtypes.StringDType() if dtype == "T" else dtype)})
    file = file_of(small())
    with pytest.raises(SpecError, match="requested were \\['height'\\]"):
        read_steps(file, ["height"])
    for start, stop in [(0, 6), (-1, 3), (4, 3)]:
        with pytest.raises(IndexError, match="\\[0, 5\\)"):
            read_steps(file, start=start, stop=stop)


def test_importing_the_lake_does_not_import_arrow():
    code = (
        "import sys, lakepond.lake.format.steps, lakepond.lake.format.shard\n"
        "sys.exit('pyarrow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_columns_are_compressed_as_far_as_it_is_worth_it(rng):
    noise_like = {"action": rng.random((2000, 216), np.float32)}
    plain = noise_like["action"].nbytes
    assert plain < len(file_of(noise_like)) < 1.01 * plain  # a tenth would be saved, at nine times the time
    discrete = {"action": rng.integers(0, 4, 20_000)}
    assert len(file_of(discrete)) < 0.08 * discrete["action"].nbytes  # the quick level saves to a fifth only
    half = rng.random((2000, 216), np.float32) * (rng.random((2000, 216)) < 0.5).astype(np.float32)
    assert len(file_of({"action": half})) < 0.65 * plain
    for columns in (noise_like, discrete, {"action": half}):
        assert_same(read_steps(file_of(columns)), columns)
