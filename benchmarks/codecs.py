"""`python -m benchmarks.codecs`: in which form, through which library, do the rows of a segment lie on disk.

40,000 real Breakout frames; each contestant holds the same blocks of 32 frames, zstd level 1, and reads warm.

    library   frames in memory, two threads, groups of eight blocks: what the codec library itself can do
    form      a file, written and read by the code that would do it in the lake, checksums included

"raw" is zstandard decoding the touched blocks, one call a group, and nothing else: all else is a share of it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pyarrow as pa
import zstandard

from benchmarks.frames import play
from benchmarks.measure import interleaved
from benchmarks.report import machine
from lakepond.lake.format.shard import Shard, write_shard

ROWS, GROUP, REPEATS = 32, 8, 9
POOL = ThreadPoolExecutor(2)
Codec = tuple[Callable[[], Callable[[Any], bytes]], Callable[[], Callable[[list[bytes], np.ndarray], Any]]]


def _zstandard(checksum: bool) -> Codec:
    def decoder() -> Callable[[list[bytes], np.ndarray], Any]:
        zstd = zstandard.ZstdDecompressor()
        return lambda frames, out: zstd.stream_reader(b"".join(frames), read_across_frames=True).readinto(out)

    return lambda: zstandard.ZstdCompressor(level=1, write_checksum=checksum).compress, decoder


def _each(decode: Callable[[bytes, np.ndarray], Any]) -> Callable[[list[bytes], np.ndarray], None]:
    def group(frames: list[bytes], out: np.ndarray) -> None:
        for frame, place in zip(frames, np.split(out, len(frames)), strict=True):
            decode(frame, place)

    return group


def _arrow_decoder() -> Callable[[list[bytes], np.ndarray], None]:
    codec = pa.Codec("zstd")

    def one(frame: bytes, out: np.ndarray) -> None:  # it has no way to decode into an array
        out[:] = np.frombuffer(codec.decompress(frame, len(out)), np.uint8)

    return _each(one)


LIBRARIES: dict[str, Codec] = {
    "raw": _zstandard(False),
    "zstandard": _zstandard(False),
    "zstandard, frame checksum": _zstandard(True),
    "pyarrow": (lambda: lambda block: pa.Codec("zstd", 1).compress(block, asbytes=True), _arrow_decoder),
    "blosc2": (
        lambda: (
            lambda block: blosc2.compress2(
                block,
                codec=blosc2.Codec.ZSTD,
                clevel=1,
                typesize=1,
                nthreads=1,
                blocksize=block.nbytes,
                filters=[blosc2.Filter.NOFILTER],
            )
        ),
        lambda: _each(lambda frame, out: blosc2.decompress2(frame, dst=out, nthreads=1)),
    ),
}


class InMemory:
    """The blocks as a list of frames; `gather=False` only decodes."""

    def __init__(self, codec: Codec, gather: bool) -> None:
        self.codec, self.gather = codec, gather
        self.frames: list[bytes] = []

    def write(self, rows: np.ndarray) -> int:
        """Keep these rows; how many bytes they take."""
        parts = np.array_split(rows.reshape(-1, ROWS * rows.shape[1]), 16)
        work = lambda blocks: [compress(block) for compress in [self.codec[0]()] for block in blocks]  # noqa: E731
        self.frames = [frame for part in POOL.map(work, parts) for frame in part]
        return sum(map(len, self.frames))

    def read(self, indices: np.ndarray, out: np.ndarray) -> None:
        """The rows at these sorted indices, into `out`."""
        touched, first = np.unique(indices // ROWS, return_index=True)
        edges = np.append(first, len(indices))
        everything = len(indices) == len(touched) * ROWS

        def work(groups: list[int]) -> None:
            decode, size = self.codec[1](), ROWS * out.shape[1]
            scratch = np.empty((GROUP * ROWS, out.shape[1]), np.uint8)
            for at in groups:
                blocks = touched[at : at + GROUP]
                place = slice(edges[at], edges[at + len(blocks)])
                frames = [self.frames[block] for block in blocks]
                if everything:
                    decode(frames, out[place].reshape(-1))
                    continue
                decode(frames, scratch.reshape(-1)[: size * len(blocks)])
                if self.gather:
                    wanted = indices[place]
                    local = np.searchsorted(blocks, wanted // ROWS) * ROWS + wanted % ROWS
                    np.take(scratch, local, axis=0, out=out[place], mode="clip")

        starts = list(range(0, len(touched), GROUP))
        list(POOL.map(work, [starts[0::4], starts[1::4], starts[2::4], starts[3::4]]))


class LakeShard:
    """Ours: a Zarr v3 shard file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, rows: np.ndarray) -> int:
        """Keep these rows; how many bytes they take."""
        with open(self.path, "wb") as file:
            self.info = write_shard(file, [rows], row_bytes=rows.shape[1], block_rows=ROWS)
        self.shard = Shard(self.path, self.info)
        return self.info.bytes

    def read(self, indices: np.ndarray, out: np.ndarray) -> None:
        """The rows at these sorted indices, into `out`."""
        self.shard.read(indices, out, POOL)


class Blosc2Frame:
    """A blosc2 frame file: chunks of 512 rows, blocks of 32, its own two threads, a touched block a call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, rows: np.ndarray) -> int:
        """Keep these rows; how many bytes they take."""
        self.row = rows.shape[1]
        blosc2.set_nthreads(2)
        how = {"codec": blosc2.Codec.ZSTD, "clevel": 1, "typesize": 1, "filters": [blosc2.Filter.NOFILTER]}
        how |= {"nthreads": 2, "blocksize": ROWS * self.row}
        blosc2.SChunk(chunksize=512 * self.row, data=rows.reshape(-1), cparams=how, dparams={"nthreads": 2},
                      urlpath=str(self.path), contiguous=True, mode="w")  # fmt: skip
        self.frame = blosc2.open(str(self.path), mode="r", dparams={"nthreads": 2})
        return self.path.stat().st_size

    def read(self, indices: np.ndarray, out: np.ndarray) -> None:
        """The rows at these sorted indices, into `out`."""
        if len(indices) > 2 and indices[-1] - indices[0] == len(indices) - 1:
            self.frame.get_slice(indices[0] * self.row, (indices[-1] + 1) * self.row, out=out)
            return
        scratch = np.empty((ROWS, self.row), np.uint8)
        touched, first = np.unique(indices // ROWS, return_index=True)
        for block, low, high in zip(touched.tolist(), first, np.append(first[1:], len(indices)), strict=True):
            self.frame.get_slice(block * ROWS * self.row, (block + 1) * ROWS * self.row, out=scratch)
            np.take(scratch, indices[low:high] % ROWS, axis=0, out=out[low:high], mode="clip")


class ArrowIpc:
    """Arrow IPC, a batch a block: Arrow's own threads decode the buffers of a batch, and it has but one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, rows: np.ndarray) -> int:
        """Keep these rows; how many bytes they take."""
        kind = pa.binary(rows.shape[1])
        schema = pa.schema([("rows", kind)])
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
        with pa.ipc.new_file(str(self.path), schema, options=options) as writer:
            for block in rows.reshape(-1, ROWS, rows.shape[1]):
                writer.write_batch(
                    pa.record_batch([pa.Array.from_buffers(kind, ROWS, [None, pa.py_buffer(block)])], schema)
                )
        self.reader = [pa.ipc.open_file(pa.memory_map(str(self.path))) for _ in range(2)]
        return self.path.stat().st_size

    def read(self, indices: np.ndarray, out: np.ndarray) -> None:
        """The rows at these sorted indices, into `out`."""
        touched, first = np.unique(indices // ROWS, return_index=True)
        edges = np.append(first, len(indices))

        def work(thread: int) -> None:
            for at in range(thread, len(touched), 2):
                data = self.reader[thread].get_batch(int(touched[at])).column(0).buffers()[1]
                rows = np.frombuffer(data, np.uint8).reshape(ROWS, -1)
                low, high = edges[at], edges[at + 1]
                np.take(rows, indices[low:high] % ROWS, axis=0, out=out[low:high], mode="clip")

        list(POOL.map(work, range(2)))


def main() -> None:
    """Measure and print one table."""
    frames = play("breakout", 5000).frames
    rows = np.ascontiguousarray(frames[: len(frames) // ROWS * ROWS]).reshape(-1, 84 * 84)
    rng = np.random.default_rng(0)
    everything = np.arange(len(rows))
    asked = {"100 %": everything} | {
        f"{share} %": np.sort(rng.choice(len(rows), len(rows) * share // 100, replace=False))
        for share in (10, 1)
    }
    asked["32 rows"] = np.sort(rng.choice(len(rows), 32, replace=False))
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        forms = {"shard": LakeShard, "blosc2 frame": Blosc2Frame, "arrow ipc": ArrowIpc}
        held: dict[str, Any] = {name: InMemory(codec, name != "raw") for name, codec in LIBRARIES.items()}
        held |= {f"form: {name}": form(Path(folder) / name) for name, form in forms.items()}
        sizes = {name: one.write(rows) for name, one in held.items()}
        table = {name: [f"{rows.nbytes / size:.0f}"] for name, size in sizes.items()}
        columns = {"write": {name: lambda one=one: one.write(rows) for name, one in held.items()}}
        for label, indices in asked.items():
            out = np.zeros((len(indices), rows.shape[1]), np.uint8)
            for name, one in held.items():
                out[:] = 0
                one.read(indices, out)
                assert name == "raw" or np.array_equal(out, rows[indices]), (name, label)
            columns[label] = {
                name: lambda o=one, i=indices, t=out: o.read(i, t) for name, one in held.items()
            }
        for label, turns in columns.items():
            touched = len(np.unique(asked.get(label, everything) // ROWS)) * ROWS * rows.shape[1]
            rates = interleaved(turns, touched, 3 if label == "write" else REPEATS)
            for name, rate in rates.items():
                share = f"{rate.median / rates['raw'].median:.2f}"
                table[name].append(f"{share} ({rate.median / 1e6:,.0f})")
    for fact in machine().items():
        print("- {}: {}".format(*fact))
    print(f"- {len(rows):,} frames of 84 x 84; zstandard {zstandard.__version__}, pyarrow {pa.__version__}, "
          f"blosc2 {blosc2.__version__}; share of raw (median plain MB/s of blocks touched)\n")  # fmt: skip
    print("|  | ratio | " + " | ".join(columns) + " |\n|---|" + "---|" * (len(columns) + 1))
    for name, cells in table.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
