"""Files that are read again and again, with a bounded number of descriptors for the whole process.

However many lakes are open, at most `MOST_OPEN` of their files are, besides those that are being read at this
moment. The least recently read ones are closed, and opened again when they are read again.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from lakepond import forks

MOST_OPEN = 128
"""descriptors that are kept open"""


class ReadFile:
    """A file that any number of threads read; it is open, or can be opened, until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.readers = 0
        """threads that read it now"""
        self.file: FileIO | None = None
        self._closed = False

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """A descriptor that stays open until the end of the block, to be used with `os.pread`."""
        with _open.lock:
            self.readers += 1  # from here on it is not evicted
        try:
            yield self._opened().fileno()
        finally:
            with _open.lock:
                self.readers -= 1

    def _opened(self) -> FileIO:
        file = self.file if self.file is not None or self._closed else FileIO(self.path)
        with _open.lock:
            if self._closed or file is None:
                raise ValueError(f"{self.path} is closed.")
            unneeded = (
                [] if self.file is None or self.file is file else [file]
            )  # two threads opened it at once
            self.file = file = self.file or file
            unneeded += _open.read_last(self)
        for each in unneeded:
            each.close()
        return file

    def close(self) -> None:
        """Close the file for good."""
        with _open.lock:
            file, self.file, self._closed = self.file, None, True
            _open.files.pop(id(self), None)
        if file is not None:
            file.close()


class _OpenFiles:
    """The files that are open, the least recently read first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.files: OrderedDict[int, weakref.ref[ReadFile]] = OrderedDict()
        forks.register(self)

    def read_last(self, file: ReadFile) -> list[FileIO]:
        """Note that a file is read now; returns those that are to be closed for it. Needs the lock."""
        self.files[id(file)] = weakref.ref(file)
        self.files.move_to_end(id(file))
        found: list[FileIO] = []
        if len(self.files) > MOST_OPEN:
            for key in list(self.files)[:-MOST_OPEN]:
                old = self.files[key]()
                if old is None or not old.readers:
                    del self.files[key]
                    if old is not None and old.file is not None:
                        found.append(old.file)
                        old.file = None
        return found

    def restart_in_child(self) -> None:
        """No thread of the parent reads here."""
        self.lock = threading.Lock()
        for known in list(self.files.values()):
            file = known()
            if file is not None:
                file.readers = 0


_open = _OpenFiles()
