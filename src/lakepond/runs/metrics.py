"""The log of a run: a line of JSON each time, and the same to TensorBoard and Weights & Biases if asked for.

The file is the truth; the others are copies for people who look there. Nothing is kept in memory.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeGuard, cast

from lakepond import untrusted
from lakepond.errors import RunError

Logger = Literal["tensorboard", "wandb"]
LINE_BYTES = 16 << 20
"""of the longest line that is read"""
TIME_LIMIT = 2e11
"""steps, and seconds since 1970, are fewer: dates end with the year 9999"""
LARGEST = 1e300
"""larger numbers are not drawn: sums and ratios of them would overflow"""


class Metrics:
    """`metrics.jsonl`, appended to by the one process that trains."""

    def __init__(
        self, path: Path, loggers: Sequence[Logger], *, run_name: str, config: Mapping[str, Any]
    ) -> None:
        self.path = path
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
        return self._file.tell()

    def cut(self, mark: int) -> None:
        """Forget the lines after `mark`: the run goes on from there."""
        self._file.truncate(mark)
        self._file.seek(mark)

    def close(self) -> None:
        """Flush and close the file and its copies."""
        self._file.close()
        for copy in self._copies:
            copy.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file, one at a time; a last line that is still being written is left out.

    ValueError for a line that is not a line of metrics.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES):
            if line.endswith(b"\n"):
                yield parse_line(line)
            elif len(line) == LINE_BYTES:
                raise ValueError(f"a line is longer than {LINE_BYTES:,} bytes")


def parse_line(line: bytes) -> dict[str, Any]:
    """One line of metrics; ValueError unless it is a JSON object with the numbers `step` and `time`."""
    values = untrusted.parse_json(line)
    if not isinstance(values, dict):
        raise ValueError(f"a line holds a JSON {type(values).__name__} where an object is expected")
    for name in ("step", "time"):
        if not is_number(values.get(name)) or not 0 <= values[name] < TIME_LIMIT:
            raise ValueError(f"a line has {str(values.get(name))[:60]!r} as its {name}")
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
