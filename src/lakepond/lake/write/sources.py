"""Row sources, stored once per lake and shared by all its writers.

    sources/<digest>.source        some rows of a source: a row file, named by its content
    sources/<digest>.<codec>.json  which files hold the rows with that digest; written after them
    sources/lock                   locked while a source is written

Files are cut at fixed rows and compressed in the same way by every writer, so two writers of one source write
the same files. A process that is killed leaves files that the next one completes. Nothing is ever deleted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lakepond.errors import LakeCorrupt, RecordError, SpecError
from lakepond.lake.files import make_folders, sync_folder, write_atomic, write_bytes
from lakepond.lake.format.blocks import ShardInfo, block_rows_for
from lakepond.lake.format.checksum import Digest
from lakepond.lake.format.entries import RowsFile
from lakepond.lake.format.names import SOURCES, delete_temporary
from lakepond.lake.format.sealed import seal, unseal
from lakepond.lake.format.shard_writer import write_shard
from lakepond.lake.format.version import check_version, version
from lakepond.lake.lock import FileLock
from lakepond.lake.write.handover import SourceRows
from lakepond.types import Array

WAIT_SECONDS = 600.0
"""for another process that writes a source"""
FILE_BYTES = 48 << 20
"""rows of a file, uncompressed"""


def digest_of_rows(rows: Array) -> str:
    """The digest of rows, (n, row_bytes) uint8: of their bytes, and of their number and size."""
    return digests_of_rows(rows, [len(rows)])[0]


def digests_of_rows(rows: Array, counts: Sequence[int]) -> list[str]:
    """The digests of the first rows of an array, for each of some sorted counts; each byte is hashed once."""
    digest, at, found = Digest(), 0, []
    for count in counts:
        digest.update(rows[at:count].data)
        at = count
        found.append(digest.copy(json.dumps([count, rows.shape[1]], allow_nan=False).encode()).hexdigest())
    return found


class Sources:
    """The row sources of a lake. Any number of writers may store the same one at the same time."""

    def __init__(self, lake: Path, codec: str) -> None:
        self._folder, self._codec = lake / SOURCES, codec

    def files(self, leaf: int, source: SourceRows) -> tuple[list[RowsFile], int]:
        """The files of a source, durable, and how many bytes had to be written for that."""
        shards, written = self._read(source), 0
        if shards is None:
            make_folders(self._folder)
            with FileLock(self._folder / "lock", create=True) as lock:
                lock.wait(WAIT_SECONDS)
                shards = self._read(source)  # another process may have written it in the meantime
                if shards is None:
                    shards = self._write(source)
                    written = sum(shard.bytes for shard in shards)
        files: list[RowsFile] = []
        for shard in shards:
            files.append(RowsFile(leaf, files[-1].stop if files else source.first, shard, source=True))
        return files, written

    def _read(self, source: SourceRows) -> list[ShardInfo] | None:
        """The files of a source, if all of them are on this disk."""
        try:
            content = unseal((self._folder / f"{source.digest}.{self._codec}.json").read_bytes())
            check_version(content, source.digest)
            shards = [
                ShardInfo(**{n: f[n] for n in ShardInfo.__dataclass_fields__}) for f in content["files"]
            ]
            sizes = [(self._folder / f"{shard.digest}.source").stat().st_size for shard in shards]
        except (OSError, ValueError, TypeError, KeyError, LakeCorrupt, SpecError):
            return None  # it is written again
        complete = sum(shard.rows for shard in shards) == len(source.rows)
        return shards if complete and sizes == [shard.bytes for shard in shards] else None

    def _write(self, source: SourceRows) -> list[ShardInfo]:
        delete_temporary(self._folder)
        row_bytes = source.rows.shape[1]
        size = max(1, FILE_BYTES // row_bytes)
        shards = [
            self._write_file(source.rows[start : start + size]) for start in range(0, len(source.rows), size)
        ]
        if digest_of_rows(source.rows) != source.digest:
            raise RecordError(
                "the array of a RowSource was changed after windows were recorded from it and before they "
                "were committed: record from an array that does not change."
            )
        sync_folder(self._folder)
        data = seal({**version(), "files": [asdict(shard) for shard in shards]})
        write_bytes(self._folder, f"{source.digest}.{self._codec}.json", data)
        return shards

    def _write_file(self, rows: Array) -> ShardInfo:
        row_bytes = rows.shape[1]
        return write_atomic(
            self._folder,
            lambda file: write_shard(
                file,
                [rows],
                row_bytes=row_bytes,
                block_rows=block_rows_for(row_bytes),
                codec=self._codec,
                sync=True,
            ),
            lambda shard: f"{shard.digest}.source",
            sync=False,
        )
