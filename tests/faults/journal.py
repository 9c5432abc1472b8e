"""Record every change that this process makes to the files below a folder, in order.

with recording(folder) as journal:
    replay.commit()
    journal.mark(acknowledged=10)

`journal.changes` then holds each creation, write, truncation, rename, link, deletion and fsync, and the marks
in between; `disk.Disk` rebuilds the folder as it was before any of them. The functions of `os` and `io` are
wrapped: writes by C code that does not use them are not seen, so `recording` ends with a comparison of the
rebuilt folder with the real one. One change at a time: a lock makes the order of all threads definite.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock


class Change(NamedTuple):
    """One change. `path` and `to` are relative to the recorded folder; `handle` numbers an open file."""

    kind: str
    """open, write, truncate, fsync, rename, link, unlink, mkdir, rmdir or mark"""
    path: str = ""
    to: str = ""
    handle: int = -1
    offset: int = 0
    """of a write; of a truncation, the new length"""
    data: bytes = b""
    marks: dict[str, Any] = {}  # noqa: RUF012  a default that nothing changes

    def __str__(self) -> str:
        where = f" -> {self.to}" if self.to else f" {len(self.data)} bytes at {self.offset}" * bool(self.data)
        return f"{self.kind} {self.path or self.handle}{where}"


@dataclass
class Journal:
    """What was recorded, and the folder as it was before."""

    root: Path
    before: dict[str, bytes | None]
    """every path at the start: its content, None for a folder"""
    changes: list[Change] = field(default_factory=list)

    def mark(self, **marks: Any) -> None:
        """Note facts of the model at this moment: what was handed over, what was acknowledged."""
        self.changes.append(Change("mark", marks=marks))


def tree(root: Path) -> dict[str, bytes | None]:
    """Every path below a folder and its content, None for a folder."""
    found: dict[str, bytes | None] = {}
    for folder, folders, files in os.walk(root):
        for name in sorted(folders):
            found[os.path.relpath(os.path.join(folder, name), root)] = None
        for name in sorted(files):
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = Path(path).read_bytes()
    return found


@contextlib.contextmanager
def recording(root: Path) -> Iterator[Journal]:
    """Record all changes below `root` until the block ends."""
    root = Path(os.path.realpath(root))
    journal = Journal(root, tree(root))
    recorder = _Recorder(journal)
    with contextlib.ExitStack() as patches:
        for module, name in PATCHED:
            patches.enter_context(mock.patch.object(module, name, getattr(recorder, f"_{name}")))
        patches.enter_context(mock.patch.object(builtins, "open", recorder._io_open))
        patches.enter_context(mock.patch.object(io, "open", recorder._io_open))
        patches.enter_context(
            mock.patch.object(shutil, "_USE_CP_SENDFILE", False)
        )  # copies with read and write
        yield journal


PATCHED = [
    (os, name)
    for name in (
        *("open", "close", "write", "pwrite", "truncate", "ftruncate", "fsync", "fdatasync"),
        *("rename", "replace", "link", "unlink", "remove", "mkdir", "rmdir"),
    )
]


class _Recorder:
    """The wrappers. Each does the real thing first and notes it if it succeeded."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._root = journal, f"{journal.root}{os.sep}"
        self.lock = threading.RLock()
        self.handles: dict[int, int] = {}  # of a file descriptor
        self._next = 0
        self.real = {name: getattr(module, name) for module, name in PATCHED}
        self._real_io_open = io.open

    def inside(self, path: Any, dir_fd: int | None = None) -> str | None:
        """A path relative to the recorded folder; None if it is not in it."""
        if isinstance(path, int):
            return None
        name = os.fsdecode(path)
        if dir_fd is not None:
            name = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
        parent, last = os.path.split(os.path.abspath(name))
        name = os.path.join(os.path.realpath(parent), last)
        if name == self._root[:-1]:
            return "."
        return name[len(self._root) :] if name.startswith(self._root) else None

    def note(self, *change: Any, **more: Any) -> None:
        self._journal.changes.append(Change(*change, **more))

    def opened(self, descriptor: int, path: str | None, existed: bool, truncates: bool) -> None:
        if path is None:
            self.handles.pop(descriptor, None)
            return
        self._next += 1
        self.handles[descriptor] = self._next
        self.note("open", path, "" if existed else "created", self._next)
        if existed and truncates:
            self.note("truncate", path, handle=self._next)

    def wrote(self, descriptor: int, offset: int, data: Any, count: int) -> None:
        if descriptor in self.handles and count:
            content = bytes(memoryview(data).cast("B")[:count])
            self.note("write", handle=self.handles[descriptor], offset=offset, data=content)

    # --- os ------------------------------------------------------------------------------------------

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self.lock:
            name = self.inside(path, dir_fd)
            existed = name is not None and os.path.lexists(self._root + name)
            descriptor: int = self.real["open"](path, flags, mode, dir_fd=dir_fd)
            self.opened(descriptor, name, existed, bool(flags & os.O_TRUNC))
            return descriptor

    def _close(self, descriptor: int) -> None:
        with self.lock:
            self.handles.pop(descriptor, None)
            self.real["close"](descriptor)

    def _write(self, descriptor: int, data: Any) -> int:
        with self.lock:
            offset = 0
            if descriptor in self.handles:
                appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
                offset = os.lseek(descriptor, 0, os.SEEK_END if appends else os.SEEK_CUR)
            count: int = self.real["write"](descriptor, data)
            self.wrote(descriptor, offset, data, count)
            return count

    def _pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        with self.lock:
            count: int = self.real["pwrite"](descriptor, data, offset)
            self.wrote(descriptor, offset, data, count)
            return count

    def _truncate(self, path: Any, length: int) -> None:
        with self.lock:
            if isinstance(path, int):
                self._ftruncate(path, length)
                return
            self.real["truncate"](path, length)
            if (name := self.inside(path)) is not None:
                self._next += 1
                self.note("open", name, "", self._next)
                self.note("truncate", name, handle=self._next, offset=length)

    def _ftruncate(self, descriptor: int, length: int) -> None:
        with self.lock:
            self.real["ftruncate"](descriptor, length)
            if descriptor in self.handles:
                self.note("truncate", handle=self.handles[descriptor], offset=length)

    def _sync(self, name: str, descriptor: Any) -> None:
        with self.lock:
            self.real[name](descriptor)
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            if number not in self.handles:  # a file that was opened to read may be synced, too
                self.opened(number, self.inside(os.readlink(f"/proc/self/fd/{number}")), True, False)
                handle = self.handles.pop(number, None)
            else:
                handle = self.handles[number]
            if handle is not None:
                self.note("fsync", handle=handle)

    def _fsync(self, descriptor: Any) -> None:
        self._sync("fsync", descriptor)

    def _fdatasync(self, descriptor: Any) -> None:
        self._sync("fdatasync", descriptor)

    def _two(self, kind: str, source: Any, target: Any, **where: Any) -> None:
        with self.lock:
            folders = (where.get("src_dir_fd"), where.get("dst_dir_fd"))
            names = [self.inside(path, at) for path, at in zip((source, target), folders, strict=True)]
            self.real[kind](source, target, **where)
            if None not in names:
                self.note("link" if kind == "link" else "rename", *names)
            elif names != [None, None]:
                raise AssertionError(f"{kind} from {source} to {target} crosses the recorded folder")

    def _rename(self, source: Any, target: Any, **where: Any) -> None:
        self._two("rename", source, target, **where)

    def _replace(self, source: Any, target: Any, **where: Any) -> None:
        self._two("replace", source, target, **where)

    def _link(self, source: Any, target: Any, **where: Any) -> None:
        self._two("link", source, target, **where)

    def _one(self, kind: str, noted: str, path: Any, *args: Any, dir_fd: int | None = None) -> None:
        with self.lock:
            name = self.inside(path, dir_fd)
            self.real[kind](path, *args, dir_fd=dir_fd)
            if name is not None:
                self.note(noted, name)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._one("unlink", "unlink", path, dir_fd=dir_fd)

    def _remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._one("remove", "unlink", path, dir_fd=dir_fd)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._one("mkdir", "mkdir", path, mode, dir_fd=dir_fd)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._one("rmdir", "rmdir", path, dir_fd=dir_fd)

    # --- io ------------------------------------------------------------------------------------------

    def _io_open(self, file: Any, mode: str = "r", buffering: int = -1, *args: Any, **text: Any) -> Any:
        """`open`, with a raw file whose writes are noted; buffers and encoders call it as usual."""
        if self.inside(file) is None or not set(mode) & set("wxa+"):
            return self._real_io_open(file, mode, buffering, *args, **text)
        names = ("encoding", "errors", "newline", "closefd", "opener")
        text = dict(zip(names, args, strict=False)) | text
        raw = _RawFile(self, file, mode.replace("b", "").replace("t", ""))
        if "b" in mode and buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        shown = io.TextIOWrapper(buffered, text.get("encoding"), text.get("errors"), text.get("newline"))
        shown.mode = mode  # type: ignore[misc]
        return shown


class _RawFile(io.FileIO):
    def __init__(self, recorder: _Recorder, file: Any, mode: str) -> None:
        self._recorder, self._appends = recorder, "a" in mode
        with recorder.lock:
            name = recorder.inside(file)
            existed = os.path.lexists(file)
            super().__init__(file, mode)
            recorder.opened(self.fileno(), name, existed, "w" in mode)

    def write(self, data: Any) -> int:  # type: ignore[override]
        with self._recorder.lock:
            offset = os.fstat(self.fileno()).st_size if self._appends else self.tell()
            count = super().write(data)
            self._recorder.wrote(self.fileno(), offset, data, count)
            return count

    def truncate(self, size: int | None = None) -> int:
        with self._recorder.lock:
            size = self.tell() if size is None else size
            super().truncate(size)
            number = self._recorder.handles.get(self.fileno())
            if number is not None:
                self._recorder.note("truncate", handle=number, offset=size)
            return size

    def close(self) -> None:
        with self._recorder.lock:
            if not self.closed:
                self._recorder.handles.pop(self.fileno(), None)
            super().close()


Perform = Callable[[Path, Journal], None]


def record(root: Path, perform: Perform) -> Journal:
    """Run `perform(root, journal)` while recording, and make sure that nothing was missed."""
    from faults.disk import Disk

    with recording(root) as journal:
        perform(root, journal)
    rebuilt, real = Disk.after(journal).content(), tree(journal.root)
    if rebuilt != real:
        odd = sorted(name for name in {*rebuilt, *real} if rebuilt.get(name, 0) != real.get(name, 0))
        raise AssertionError(f"the recorder missed changes of {odd[:5]}")
    return journal
