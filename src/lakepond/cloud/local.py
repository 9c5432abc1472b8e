"""file:///folder: a bucket on a disk, perhaps a mounted one. Writes are atomic; durable when `put` returns.

obstore has a local store, too, but one that does not sync, so that a power cut may take what was put.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lakepond.cloud.bucket import Checks, Exists, Listed
from lakepond.errors import CloudError, CloudNotFound, CloudRefused, CloudUnreachable
from lakepond.lake.files import TEMPORARY_SUFFIX, make_folders, write_bytes, write_path
from lakepond.lake.format.names import delete_temporary

PIECE = 8 << 20


class LocalBucket:
    """Objects as files under a folder."""

    checks: Checks = "own"

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._cleaned: set[Path] = set()

    def put(self, name: str, data: bytes, *, create: bool, timeout: float) -> str | None:
        """Store bytes, synced."""
        with self._blaming(name):
            target = self._prepare(name)
            try:
                write_bytes(target.parent, target.name, data, existing="refuse" if create else "replace")
            except FileExistsError:
                raise Exists(f"{target} already exists.") from None
        return None

    def put_file(self, name: str, path: Path, timeout: float) -> None:
        """Store a file, synced."""
        with self._blaming(name):
            write_path(self._prepare(name), partial(_copy, path))

    def _prepare(self, name: str) -> Path:
        """Create a file's folder and delete files of uploads that were killed there; return its path."""
        target = self._folder / name
        make_folders(target.parent)
        if target.parent not in self._cleaned:
            delete_temporary(target.parent)
            self._cleaned.add(target.parent)
        return target

    def get(self, name: str, timeout: float) -> Iterator[bytes]:
        """The bytes, piece by piece."""
        with self._blaming(name), (self._folder / name).open("rb") as file:
            while piece := file.read(PIECE):
                yield piece

    def head(self, name: str) -> Listed | None:
        """Size and time of one file; None unless there is a regular file of that name."""
        with self._blaming(name):
            try:
                status = (self._folder / name).stat()
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                    raise
                return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return Listed(name, status.st_size, None, status.st_mtime)

    def list(self, prefix: str) -> Iterator[Listed]:
        """All files under a prefix."""
        folders = [prefix]
        while folders:
            folder = Path(folders.pop())
            with self._blaming(prefix):  # a listing that lacks a folder is not a listing
                try:
                    entries = os.scandir(self._folder / folder)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                with entries:
                    for entry in entries:
                        name = (folder / entry.name).as_posix()
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(name)
                        elif not name.endswith(TEMPORARY_SUFFIX) and (found := self.head(name)) is not None:
                            yield found

    def folders(self, prefix: str) -> Sequence[str]:
        """The names of the folders directly below a prefix, sorted."""
        with self._blaming(prefix):
            try:
                found = os.scandir(self._folder / prefix)
            except (FileNotFoundError, NotADirectoryError):
                return []
            with found:
                return sorted(entry.name for entry in found if entry.is_dir())

    def delete(self, name: str) -> None:
        """Delete one file."""
        with self._blaming(name):
            (self._folder / name).unlink(missing_ok=True)

    @contextmanager
    def _blaming(self, name: str) -> Iterator[None]:
        try:
            yield
        except CloudError:
            raise
        except FileNotFoundError as error:
            if str(error.filename).endswith(TEMPORARY_SUFFIX):  # by a machine that does not see our locks
                raise CloudUnreachable(f"{error.filename} was deleted while it was written.") from error
            raise CloudNotFound(f"{self._folder} has no {name}.") from error
        except PermissionError as error:
            raise CloudRefused(f"{self._folder / name} cannot be used: {error.strerror}.") from error
        except OSError as error:  # a full disk, a share that is gone: worth another try
            raise CloudUnreachable(f"{self._folder / name} cannot be used: {error.strerror}.") from error


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
