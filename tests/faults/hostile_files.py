"""Data files of others that lie: .npz, Minari (HDF5, Arrow, Parquet), pickles, and tables of prices."""

from __future__ import annotations

import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Build = Callable[[Path], None]
SECRET = "not for others"


def episode(steps: int = 40) -> dict[str, np.ndarray]:
    """An episode whose rewards are the numbers of its steps."""
    return {
        "obs": np.arange(3.0 * (steps + 1), dtype=np.float32).reshape(steps + 1, 3),
        "action": np.arange(steps),
        "reward": np.arange(steps, dtype=np.float32),
        "terminated": np.arange(steps) == steps - 1,
        "truncated": np.zeros(steps, bool),
    }


# --- npz -------------------------------------------------------------------------------------------


def npz(change: Callable[[bytes], bytes] = lambda data: data, **other: Any) -> Build:
    """A folder of two episodes, of which the second is changed."""

    def build(folder: Path) -> None:
        home = folder / "data"
        home.mkdir()
        np.savez_compressed(home / "0.npz", **episode())
        out = io.BytesIO()
        np.savez_compressed(out, **{**episode(), **other})
        (home / "1.npz").write_bytes(change(out.getvalue()))

    return build


def flip(share: float, mask: int = 255) -> Callable[[bytes], bytes]:
    """Change one byte."""

    def change(data: bytes) -> bytes:
        at = int(share * (len(data) - 1))
        return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]

    return change


def member(name: str, data: bytes, method: int = zipfile.ZIP_DEFLATED) -> Build:
    """A folder with one .npz file that has one more member."""

    def build(folder: Path) -> None:
        home = folder / "data"
        home.mkdir()
        np.savez_compressed(home / "0.npz", **episode())
        with zipfile.ZipFile(home / "0.npz", "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a name that is there already
            archive.writestr(name, data, method)

    return build


def npy_header(descr: str, shape: str, order: str = "False") -> bytes:
    """The header of an .npy file."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}"
    text += " " * (63 - (len(text) + 10) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def bomb(folder: Path) -> None:
    """A member that says it expands a million times."""
    npz()(folder)
    file = folder / "data" / "1.npz"
    data = bytearray(file.read_bytes())
    at = data.index(b"PK\x01\x02")  # the first entry of the central directory
    data[at + 24 : at + 28] = struct.pack("<I", 0xFFFFFFF0)
    file.write_bytes(bytes(data))


def objects(folder: Path) -> None:
    """A pickle inside of an .npz file, which would make a file if it were opened."""

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, (str(folder / "opened"), "w")

    home = folder / "data"
    home.mkdir()
    np.savez(
        home / "0.npz", **{**episode(), "action": np.array([Trap()] * 40, dtype=object)}, allow_pickle=True
    )


NPZ: dict[str, Build] = {
    "a flipped byte in compressed data": npz(flip(0.2)),
    "a flipped byte in the middle": npz(flip(0.5, 1)),
    "a directory without its end": npz(lambda data: data[:-10]),
    "a file cut in half": npz(lambda data: data[: len(data) // 2]),
    "an empty file": npz(lambda data: b""),
    "a file that is not a zip": npz(lambda data: b"PK" + b"x" * 400),
    "a shape of 2^60": member("extra.npy", npy_header("'<f8'", "(1152921504606846976,)")),
    "a negative shape": member("extra.npy", npy_header("'<f8'", "(-5,)") + bytes(40)),
    "a header that is no dict": member("extra.npy", b"\x93NUMPY\x01\x00\x06\x00[1,2]\n"),
    "a header without an end": member("extra.npy", b"\x93NUMPY\x01\x00\xff\xff{"),
    "a header of version 9": member("extra.npy", b"\x93NUMPY\x09\x00" + bytes(200)),
    "a member that is no array": member("extra.npy", b"hello"),
    "a bzip2 member": member("extra.npy", npy_header("'<f8'", "(1,)") + bytes(8), zipfile.ZIP_BZIP2),
    "a member twice": member("reward.npy", npy_header("'<f8'", "(1,)") + bytes(8)),
    "a member that expands a million times": bomb,
    "Python objects": objects,
    "an episode of another shape": npz(obs=np.zeros((41, 5), np.float32)),
    "a stream that is a table": npz(stream=np.zeros((2, 2))),
    "a negative stream": npz(stream=np.array(-5)),
    "rewards without an axis": npz(reward=np.float32(4)),
    "texts for flags": npz(terminated=np.array(["no"] * 40)),
    "a reward per agent": npz(reward=np.zeros((40, 2), np.float32)),
    "an observation in two forms": npz(**{"obs['a']": np.zeros((41, 2)), "obs['a'][0]": np.zeros((41, 2))}),
    "records with fields": npz(action=np.zeros(40, [("a", "<i4"), ("b", "<i4")])),
}


# --- Minari ----------------------------------------------------------------------------------------

BOX = {"type": "Box", "dtype": "float32", "shape": [3], "low": [0] * 3, "high": [1] * 3}
SPACES = {"observation_space": json.dumps(BOX), "action_space": json.dumps({"type": "Discrete", "n": 3})}


def minari(form: str, write: Callable[[Path], None], **other: Any) -> Build:
    """A dataset with this metadata, whose data is written by `write`."""

    def build(folder: Path) -> None:
        home = folder / "data"
        home.mkdir()
        metadata = {"data_format": form, "total_episodes": 1, **SPACES, **other}
        (home / "metadata.json").write_text(json.dumps({k: v for k, v in metadata.items() if v is not ...}))
        write(home)

    return build


def hdf5(change: Callable[[Any, Path], None]) -> Build:
    """An HDF5 dataset with one good episode, changed before it is closed."""

    def write(home: Path) -> None:
        import h5py

        (home.parent / "secret.bin").write_bytes(SECRET.encode() * 400)
        with h5py.File(home.parent / "other.hdf5", "w") as other:
            other["values"] = np.zeros(40, np.float32)
        with h5py.File(home / "main_data.hdf5", "w") as file:
            group = file.create_group("episode_0")
            found = episode()
            group["observations"], group["actions"] = found["obs"], found["action"]
            group["rewards"], group["terminations"] = found["reward"], found["terminated"]
            group["truncations"] = found["truncated"]
            change(group, home.parent)

    return minari("hdf5", write)


def replaced(name: str, **settings: Any) -> Callable[[Any, Path], None]:
    """A dataset of the episode, made in another way."""

    def change(group: Any, folder: Path) -> None:
        del group[name]
        group.create_dataset(name, **settings)

    return change


def external(group: Any, folder: Path) -> None:
    """Rewards that are the bytes of another file."""
    del group["rewards"]
    group.create_dataset("rewards", (40,), "<f4", external=[(str(folder / "secret.bin"), 0, 160)])


def external_link(group: Any, folder: Path) -> None:
    """Rewards that are in another file."""
    import h5py

    del group["rewards"]
    group["rewards"] = h5py.ExternalLink(str(folder / "other.hdf5"), "/values")


def soft_link(group: Any, folder: Path) -> None:
    """A link to the group itself."""
    import h5py

    group["infos"] = h5py.SoftLink("/episode_0")


def hard_link(group: Any, folder: Path) -> None:
    """A group in itself."""
    group["infos"] = group


def virtual(group: Any, folder: Path) -> None:
    """Rewards that are put together of those of another file."""
    import h5py

    del group["rewards"]
    layout = h5py.VirtualLayout((40,), "<f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.hdf5"), "values", (40,))
    group.create_virtual_dataset("rewards", layout)


def reward_group(group: Any, folder: Path) -> None:
    """A group where rewards are expected."""
    del group["rewards"]
    group.create_group("rewards")


def unknown_filter(group: Any, folder: Path) -> None:
    """Rewards under a filter that would be loaded from a library."""
    import h5py

    del group["rewards"]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((40,))
    plist.set_filter(h5py.h5z.FILTER_SCALEOFFSET, 0, (2, 0))
    h5py.h5d.create(group.id, b"rewards", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((40,)), plist)


def arrow(data: bytes, name: str = "part-0.arrow") -> Callable[[Path], None]:
    """One episode with these bytes as its file."""

    def write(home: Path) -> None:
        (home / "0").mkdir()
        (home / "0" / name).write_bytes(data)

    return write


def table_of(**columns: Any) -> bytes:
    """An Arrow file."""
    out = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def wild_offsets() -> bytes:
    """An Arrow file with a list whose offsets point far outside of its values."""
    offsets = pa.py_buffer(np.array([0, 1 << 30, 2], np.int32))
    lists = pa.Array.from_buffers(
        pa.list_(pa.float32()), 2, [None, offsets], children=[pa.array([1.0, 2.0], pa.float32())]
    )
    return table_of(observations=lists)


NOTHING: Callable[[Path], None] = lambda home: None  # noqa: E731
MINARI: dict[str, Build] = {
    "external storage": hdf5(external),
    "an external link": hdf5(external_link),
    "a soft link": hdf5(soft_link),
    "a group in itself": hdf5(hard_link),
    "a virtual dataset": hdf5(virtual),
    "an unusual filter": hdf5(unknown_filter),
    "a shape that is not stored": hdf5(
        replaced("observations", shape=(1 << 33, 3), dtype="<f4", chunks=(1024, 3))
    ),
    "chunks of 2 GB": hdf5(
        replaced("rewards", shape=(40,), maxshape=(None,), dtype="<f4", chunks=(1 << 29,), compression="gzip")
    ),
    "texts for rewards": hdf5(replaced("rewards", data=["a"] * 40)),
    "a reward that is a group": hdf5(
        lambda group, folder: (group.pop("rewards"), group.create_group("rewards"))[0]
    ),
    "no terminations": hdf5(lambda group, folder: group.pop("terminations")),
    "rewards of another length": hdf5(replaced("rewards", data=np.zeros(7))),
    "an episode without a number": hdf5(lambda group, folder: group.file.create_group("episode_x")),
    "a file that is not HDF5": minari("hdf5", lambda home: (home / "main_data.hdf5").write_bytes(b"x" * 900)),
    "an HDF5 file cut short": minari(
        "hdf5", lambda home: (home / "main_data.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n")
    ),
    "an unknown form": minari("zarr", NOTHING),
    "a form that is a list": minari(["hdf5"], NOTHING),
    "a space that is no JSON": minari("hdf5", NOTHING, observation_space="{"),
    "a space that is a number": minari("hdf5", NOTHING, observation_space=5),
    "no space": minari("hdf5", NOTHING, action_space=...),
    "a space nested 100,000 deep": minari("arrow", arrow(table_of(a=[1])), observation_space="[" * 100_000),
    "a space of another type": minari("arrow", arrow(table_of(a=[1])), observation_space="[]"),
    "an Arrow file without columns": minari("arrow", arrow(table_of(a=[1]))),
    "an Arrow file that is something else": minari("arrow", arrow(b"ARROW1" * 30)),
    "offsets outside of the file": minari("arrow", arrow(wild_offsets())),
    "a Parquet file that is something else": minari("parquet", arrow(b"PAR1" * 30, "part-0.parquet")),
}


# --- tables of prices ------------------------------------------------------------------------------

HEAD = "date,symbol,open,high,low,close\n"
LINE = "2020-01-02,A,1,2,1,1.5\n"


def text(content: str | bytes, name: str = "prices.csv") -> Build:
    """A file with this content."""

    def build(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return build


def scattered(rows: int) -> str:
    """Every row has a day and a symbol of its own: the panel would have rows * rows cells."""
    days = np.datetime64("1900-01-01") + np.arange(rows)
    return HEAD + "".join(f"{day},S{i},1,2,1,1.5\n" for i, day in enumerate(days))


def parquet(rows: int, same: bool) -> Build:
    """A Parquet file of many rows in few bytes: all the same, or days times symbols."""

    def build(folder: Path) -> None:
        k = np.arange(0 if same else rows)
        days = np.zeros(rows, "datetime64[D]") if same else k // 4096 + np.datetime64("1970-01-01")
        names = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(rows, np.int32) if same else (k % 4096).astype(np.int32)),
            pa.array([f"S{i}" for i in range(1 if same else 4096)]),
        )
        prices = {name: np.full(rows, 1.5) for name in ("open", "high", "low", "close")}
        table = pa.table({"date": days, "symbol": names, **prices})
        pq.write_table(table, folder / "prices.parquet", compression="zstd", row_group_size=rows)

    return build


def long_symbol(folder: Path) -> None:
    """One text of 256 kB that every row repeats."""
    rows = 20_000
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["S" * (1 << 18)]))
    days = np.datetime64("1970-01-01") + np.arange(rows)
    prices = {name: np.full(rows, -1.5) for name in ("open", "high", "low", "close")}
    pq.write_table(
        pa.table({"date": days, "symbol": names, **prices}), folder / "prices.parquet", compression="zstd"
    )


def lying_page(folder: Path) -> None:
    """A page that says that it expands to 1.8 GB."""
    values = np.zeros(200_000)
    pq.write_table(
        pa.table({"date": values}), folder / "prices.parquet", compression="zstd", use_dictionary=False
    )
    data = (folder / "prices.parquet").read_bytes()
    # after the type of the page (field 1), its uncompressed size (field 2) as a zigzag varint
    size = pq.ParquetFile(folder / "prices.parquet").metadata.row_group(0).column(0).data_page_offset
    head = data[size : size + 8]
    assert head[:3] == b"\x15\x00\x15", head
    end = 3
    while head[end] & 128:
        end += 1
    number = (1_800_000_000 << 1).to_bytes(5, "little")
    value, varint = int.from_bytes(number, "little"), b""
    while value > 127:
        varint, value = varint + bytes([value & 127 | 128]), value >> 7
    lie = data[: size + 3] + varint + bytes([value]) + data[size + end + 1 :]
    (folder / "prices.parquet").write_bytes(lie)


def feather(size: int | None = None, column: Any = None) -> Build:
    """An Arrow file of prices whose buffers lie, or with a column of another type."""

    def build(folder: Path) -> None:
        from pyarrow import feather as written

        from faults.hostile_lakes import lying_buffer

        count = 5000
        columns = {name: np.full(count, 1.5) for name in ("open", "high", "low", "close")}
        days = np.datetime64("1970-01-01") + np.arange(count)
        symbols = column if column is not None else ["A"] * count
        table = pa.table({"date": days, "symbol": symbols, **columns})
        written.write_feather(table, folder / "prices.feather", compression="zstd")
        if size is not None:
            file = folder / "prices.feather"
            file.write_bytes(lying_buffer(size)(file.read_bytes()))

    return build


PRICES: dict[str, tuple[str, Build]] = {
    "a field of 1 MB": ("prices.csv", text(HEAD + LINE + "2020-01-03," + "A" * (1 << 20) + ",1,2,1,1.5\n")),
    "NULs": ("prices.csv", text(HEAD + LINE + "\0" * 500)),
    "200,000 columns": ("prices.csv", text(",".join(f"c{i}" for i in range(200_000)) + "\n")),
    "bytes that are no text": ("prices.csv", text(bytes(range(128, 256)) * 20)),
    "an empty table": ("prices.csv", text("")),
    "a quote without an end": ("prices.csv", text(HEAD + '2020-01-02,"A' + "\n1" * 100_000)),
    "a number of 5,000 digits": ("prices.csv", text(HEAD + f"2020-01-02,A,{'9' * 5000},2,1,1.5\n")),
    "a day of the year 10^9": ("prices.csv", text(HEAD + "9999999999,A,1,2,1,1.5\n2020-01-02,A,1,2,1,1.5\n")),
    "12,000 days of 12,000 symbols": ("prices.csv", text(scattered(12_000))),
    "4 million equal rows": ("prices.parquet", parquet(1 << 22, same=True)),
    "5 million rows in few bytes": ("prices.parquet", parquet(5 << 20, same=False)),
    "a text that expands to 5 GB": ("prices.parquet", long_symbol),
    "a page that says 1.8 GB": ("prices.parquet", lying_page),
    "a Parquet file that is something else": ("prices.parquet", text(b"PAR1" * 60, "prices.parquet")),
    "a buffer that says 2^40 bytes": ("prices.feather", feather(1 << 40)),
    "a column of lists": ("prices.feather", feather(column=[["A"]] * 5000)),
    "a column of binary views": ("prices.feather", feather(column=pa.array([b"A"] * 5000, pa.binary_view()))),
    "a Feather file that is something else": ("prices.feather", text(b"ARROW1" * 60, "prices.feather")),
    "an array of 2^60 prices": (
        "prices.npy",
        text(npy_header("'<f8'", "(1073741824, 268435456, 4)"), "prices.npy"),
    ),
    "an array of Python objects": (
        "prices.npy",
        text(npy_header("'|O'", "(1,)") + b"\x80\x04N.", "prices.npy"),
    ),
    "an array with a broken header": (
        "prices.npy",
        text(b"\x93NUMPY\x01\x00\x10\x00((((((((((((((((", "prices.npy"),
    ),
    "an archive that is no zip": ("prices.npz", text(b"PK\x05\x06" + bytes(17), "prices.npz")),
}

PICKLES: dict[str, Build] = {
    "a pickle that runs a command": text(b"cos\nsystem\n(S'touch opened'\ntR.", "buffer.pkl"),
    "a pickle cut short": text(b"\x80\x04\x95\xff", "buffer.pkl"),
    "a gzip file cut short": text(b"\x1f\x8b\x08\x00", "buffer.pkl"),
    "an empty pickle": text(b"", "buffer.pkl"),
    "a pickle with a text of 2^60 bytes": text(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60), "buffer.pkl"),
}
