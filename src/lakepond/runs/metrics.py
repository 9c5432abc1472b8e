"""The log of a run: one line of JSON per call, and a copy in TensorBoard and Weights & Biases if requested.

The file is the truth; the others are copies for people who look there. Only lines that could not be written,
as on a full disk, are kept in memory.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeGuard, cast

from lakepond import untrusted
from lakepond.errors import RunCorrupt, RunError

log = logging.getLogger("lakepond")
LINE_BYTES = 16 << 20
"""length from which a line is not taken for one that a trainer wrote"""
Logger = Literal["tensorboard", "wandb"]
TIME_LIMIT = 2e11
"""steps, and seconds since 1970, are fewer: dates end with the year 9999"""
LARGEST = 1e300
"""larger numbers are not drawn: sums and ratios of them would overflow"""


class Metrics:
    """`metrics.jsonl`, appended to by the one process that trains."""

    def __init__(
        self, path: Path, loggers: Sequence[Logger], *, run_name: str, run_id: str, config: Mapping[str, Any]
    ) -> None:
        self.path = path
        if path.is_symlink():
            raise RunError(
                f"{path} is a symbolic link, which is not followed: replace it with the file itself."
            )
        self._file = path.open("ab", buffering=0)
        self._file.truncate(_complete_bytes(path))  # a killed process may have left a line incomplete
        self._waiting: deque[tuple[int, bytes]] = deque()  # lines to be written, each with its offset
        self._copies = {name: _open_copy(name, path.parent, run_name, run_id, config) for name in loggers}
        self._failed: set[str] = set()  # copies whose failure was reported

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one line; values are numbers, strings, or lists of them, by any name but `step` and `time`.

        If it cannot be written, as on a full disk, this raises why; the line is kept and written by the next
        `log`, `flush` or `mark` that can. A copy that fails is reported once and ends nothing.
        """
        plain = {name: _plain(value) for name, value in metrics.items()}
        if taken := plain.keys() & {"step", "time"}:
            raise RunError(f"{min(taken)!r} is in every line of the log; give the metric another name.")
        line = {"step": int(step), "time": round(time.time(), 3), **plain}
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        try:
            parse_line(data)  # as it will be read
        except ValueError as error:
            raise RunError(f"step {step} cannot be logged: {error}.") from None
        if len(data) >= LINE_BYTES:
            raise RunError(f"step {step} cannot be logged: it takes {len(data):,} bytes; log less at a time.")
        self._waiting.append((self.end, data))
        numbers = {name: value for name, value in plain.items() if isinstance(value, int | float)}
        for name, copy in self._copies.items():
            try:
                copy.log(int(step), numbers)
                self._failed.discard(name)
            except Exception as error:  # of a foreign library
                self._report(name, error)
        self.flush()

    @property
    def waiting(self) -> int:
        """Lines that could not be written yet."""
        return len(self._waiting)

    @property
    def end(self) -> int:
        """Where the next line will start, those that wait included: a mark to `cut` back to."""
        if self._waiting:
            start, line = self._waiting[-1]
            return start + len(line)
        return os.fstat(self._file.fileno()).st_size

    def flush(self) -> None:
        """Write the lines that wait, in order; raises why one could not be, and leaves no part of it."""
        file = self._file.fileno()
        while self._waiting:
            start, line = self._waiting[0]
            try:
                if os.fstat(file).st_size != start:  # a part of this line, of a write that failed
                    os.ftruncate(file, start)
                view = memoryview(line)
                while view:
                    view = view[os.write(file, view) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file, start)
                raise
            self._waiting.popleft()

    def mark(self) -> int:
        """Make what was logged durable and return the file's length, to `cut` back to."""
        self.flush()
        os.fsync(self._file.fileno())
        return self.end

    def checked(self, mark: Any, named: str) -> int:
        """The length to `cut` to for a mark that `named` saved; `RunCorrupt` if it is not the end of a line.

        A log that was removed or emptied is accepted with a warning: the lines before the mark are missing.
        """
        size = os.fstat(self._file.fileno()).st_size
        if type(mark) is not int or mark < 0:
            raise RunCorrupt(
                f"{named} records {mark!r} as the length of {self.path}, which is not "
                "valid; resume from another checkpoint."
            )
        if mark and not size:
            log.warning(
                "%s is empty, %s was saved at %d bytes of it: those lines are missing.",
                self.path,
                named,
                mark,
            )
            return 0
        if mark > size:
            raise RunCorrupt(
                f"{named} was saved when {self.path} had {mark:,} bytes, now it has {size:,}; restore that "
                "file, or remove it to resume without its lines."
            )
        with self.path.open("rb") as file:
            file.seek(max(0, mark - 1))
            if mark and file.read(1) != b"\n":
                raise RunCorrupt(
                    f"{self.path} has no line that ends at byte {mark:,}, where {named} was saved; restore "
                    "that file, or remove it to resume without its lines."
                )
        return mark

    def cut(self, mark: int) -> None:
        """Delete the lines after `mark`, durably; never makes the file longer."""
        descriptor = self._file.fileno()
        if mark < os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, mark)
            os.fsync(descriptor)

    def close(self) -> None:
        """Write the lines that wait and close the file and its copies; raises if lines are lost."""
        try:
            self.flush()
        except OSError as error:
            lost = f"{error.strerror}; lines that were not written are lost: {self.waiting}"
            raise OSError(error.errno, lost, str(self.path)) from error
        finally:
            self._file.close()
            for name, copy in self._copies.items():
                try:
                    copy.close()
                except Exception as error:  # of a foreign library
                    self._report(name, error)

    def _report(self, name: str, error: Exception) -> None:
        if name not in self._failed:
            self._failed.add(name)
            log.warning("logging to %s failed, %s has all lines: %s", name, self.path, error)


def _complete_bytes(path: Path) -> int:
    """The length of a log without an incomplete last line; reads a block at a time, from the end.

    Holes are skipped: a log that was extended to a terabyte takes no time.
    """
    with path.open("rb") as file:
        for first, end in reversed(_extents(file)):
            while end > first:
                start = max(first, end - (1 << 16))
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                if found >= 0:
                    return start + found + 1
                end = start
    return 0


def _extents(file: BinaryIO) -> list[tuple[int, int]]:
    """The parts [start, stop) of a file that are stored; the others are zeros."""
    size, found, stop = file.seek(0, os.SEEK_END), list[tuple[int, int]](), 0
    while stop < size:
        try:
            start = os.lseek(file.fileno(), stop, os.SEEK_DATA)
            stop = os.lseek(file.fileno(), start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows
                break
            return [(0, size)]  # a file system that does not know
        found.append((start, stop))
    return found


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file, one at a time; a last line that is still being written is left out.

    `RunCorrupt` at the first line that is not a line of metrics of at most `LINE_BYTES`.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline(LINE_BYTES)
            if not line.endswith(b"\n"):
                if len(line) == LINE_BYTES:
                    raise RunCorrupt(f"line {number:,} of {path} is longer than {LINE_BYTES:,} bytes.")
                return
            try:
                yield parse_line(line)
            except ValueError as error:
                raise RunCorrupt(f"line {number:,} of {path} is not valid: {error}.") from None


def parse_line(line: bytes) -> dict[str, Any]:
    """One line of metrics; ValueError unless it is a JSON object with the numbers `step` and `time`."""
    values = untrusted.parse_json(line)
    if not isinstance(values, dict):
        raise ValueError(f"it holds a JSON {type(values).__name__} where an object is expected")
    for name in ("step", "time"):
        if not is_number(values.get(name)) or not 0 <= values[name] < TIME_LIMIT:
            raise ValueError(f"it has {str(values.get(name))[:60]!r} as its {name}")
    return values


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value from JSON is a finite number, and not a bool."""
    return type(value) in (int, float) and -LARGEST < value < LARGEST  # type: ignore[operator]


def _plain(value: Any) -> Any:
    if isinstance(value, bool | str) or value is None:
        return value
    if hasattr(value, "tolist"):  # NumPy and JAX arrays and scalars
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN
    if isinstance(value, int | float):
        return value
    raise RunError(
        f"a metric is a number, a string or a list of them, not {type(value).__name__}: {value!r}."
    )


def _open_copy(
    name: Logger, folder: Path, run_name: str, run_id: str, config: Mapping[str, Any]
) -> _TensorBoard | _Wandb:
    try:
        return _TensorBoard(folder) if name == "tensorboard" else _Wandb(folder, run_name, run_id, config)
    except ImportError:
        raise RunError(f"logging to {name} needs its library: pip install 'lakepond[{name}]'.") from None


class _TensorBoard:
    """Writes events itself: at a full disk the thread of tensorboardX's own writer ends, and `add` blocks."""

    def __init__(self, folder: Path) -> None:
        import tensorboardX.proto.event_pb2
        import tensorboardX.record_writer
        import tensorboardX.summary

        self._board = tensorboardX
        self._folder, self._opened = folder / "tensorboard", 0
        self._path = folder
        self._writer: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        try:
            if self._writer is None:
                self._open(step)
            for name, value in numbers.items():
                self._write(step, summary=self._board.summary.scalar(name, value))
            self._writer.flush()
        except BaseException:  # the file may end with a part of an event: the next step opens a new one
            with suppress(OSError):
                self.close()
            with suppress(OSError):
                if self._path.stat().st_size == 0:
                    self._path.unlink()
            raise

    def _open(self, step: int) -> None:
        self._folder.mkdir(exist_ok=True)
        self._opened += 1
        unique = f"{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{self._opened}"
        self._path = self._folder / f"events.out.tfevents.{unique}"
        self._writer = self._board.record_writer.RecordWriter(str(self._path))
        session = self._board.proto.event_pb2.SessionLog
        self._write(0, file_version="brain.Event:2")
        self._write(step, session_log=session(status=session.START))  # hides later steps of a killed run

    def _write(self, step: int, **content: Any) -> None:
        event = self._board.proto.event_pb2.Event(wall_time=time.time(), step=step, **content)
        self._writer.write(event.SerializeToString())

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class _Wandb:
    """Works without a login: offline unless a key or WANDB_MODE says otherwise.

    `step` is logged as a metric and made the axis of all others, because W&B's own step may not go back,
    as a resumed run does.
    """

    def __init__(self, folder: Path, run_name: str, run_id: str, config: Mapping[str, Any]) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "lakepond"),
            name=run_name,
            id=run_id,  # not its name: runs on two machines have the same one
            resume="allow",
            dir=str(folder),
            config=dict(config),
            mode=cast(Literal["online", "offline", "disabled"], mode),
            reinit="create_new",  # a process may train several runs at once
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({"step": step, **numbers})

    def close(self) -> None:
        self._run.finish()
