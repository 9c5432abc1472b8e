"""The log of a run: a line of JSON each time, and the same to TensorBoard and Weights & Biases if asked for.

The file is the truth; the others are copies for people who look there. Nothing is kept in memory.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from lakepond.errors import RunCorrupt, RunError

log = logging.getLogger("lakepond")
LINE_BYTES = 16 << 20
"""length from which a line is not taken for one that a trainer wrote"""
Logger = Literal["tensorboard", "wandb"]


class Metrics:
    """`metrics.jsonl`, appended to by the one process that trains."""

    def __init__(
        self, path: Path, loggers: Sequence[Logger], *, run_name: str, config: Mapping[str, Any]
    ) -> None:
        self.path = path
        if path.is_symlink():
            raise RunError(
                f"{path} is a symbolic link, which is not followed: replace it with the file itself."
            )
        self._file = path.open("ab")
        self._copies: list[_Copy] = [_open_copy(name, path.parent, run_name, config) for name in loggers]

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one line; values are numbers, strings, or lists of them."""
        plain = {name: _plain(value) for name, value in metrics.items()}
        line = {"step": int(step), "time": round(time.time(), 3), **plain}
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        numbers = {name: value for name, value in plain.items() if isinstance(value, int | float)}
        for copy in self._copies:
            copy.log(int(step), numbers)

    def mark(self) -> int:
        """Make what was logged durable and return the file's length, to `cut` back to."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def checked(self, mark: Any, named: str) -> int:
        """The length to `cut` to for a mark that `named` saved; `RunCorrupt` if it is not the end of a line.

        A log that was removed or emptied is accepted with a warning: the lines before the mark are missing.
        """
        self._file.flush()
        size = os.fstat(self._file.fileno()).st_size
        if type(mark) is not int or mark < 0:
            raise RunCorrupt(f"{named} says that {self.path} had {mark!r} bytes, which is not a length.")
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
        self._file.flush()
        descriptor = self._file.fileno()
        if mark < os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, mark)
            os.fsync(descriptor)

    def close(self) -> None:
        """Flush and close the file and its copies."""
        self._file.close()
        for copy in self._copies:
            copy.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file, one at a time; a last line that is still being written is left out.

    `RunCorrupt` at the first line that is not a JSON object of at most `LINE_BYTES`.
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
                values = json.loads(line)
            except (ValueError, RecursionError):
                values = None
            if not isinstance(values, dict):
                raise RunCorrupt(f"line {number:,} of {path} is not JSON as a trainer writes it.")
            yield values


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


class _Copy(Protocol):
    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def _open_copy(name: Logger, folder: Path, run_name: str, config: Mapping[str, Any]) -> _Copy:
    try:
        return _TensorBoard(folder) if name == "tensorboard" else _Wandb(folder, run_name, config)
    except ImportError:
        raise RunError(f"logging to {name} needs its library: pip install 'lakepond[{name}]'.") from None


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._open = partial(SummaryWriter, str(folder / "tensorboard"))
        self._writer: SummaryWriter | None = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._open(purge_step=step)  # hides what a killed run logged after its checkpoint
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Wandb:
    """Works without a login: offline unless a key or WANDB_MODE says otherwise.

    `step` is logged as a metric and made the axis of all others, because W&B's own step may not go back,
    as a resumed run does.
    """

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any]) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "lakepond"),
            name=run_name,
            id=run_name,
            resume="allow",
            dir=str(folder),
            config=dict(config),
            mode=cast(Literal["online", "offline", "disabled"], mode),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({"step": step, **numbers})

    def close(self) -> None:
        self._run.finish()
