"""Progress bar and summary line on stderr if it is a terminal; otherwise no output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def is_watched() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function `progress(done, total)`, which draws a progress bar with the label `what`."""
    if not is_watched():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    stderr = Console(stderr=True, markup=False, emoji=False)
    with Progress(*columns, TimeRemainingColumn(), console=stderr, transient=True) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda done, total: drawn.update(task, completed=done, total=total or None)


def print_line(line: str) -> None:
    """Print one line to stderr if it is a terminal."""
    if is_watched():
        print(line, file=sys.stderr)  # noqa: T201
