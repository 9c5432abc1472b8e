"""Progress bar and summary line on stderr if it is a terminal; otherwise no output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def watched() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Context manager that yields a function `progress(done, total)`, which draws a progress bar."""
    if not watched():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda done, total: drawn.update(task, completed=done, total=total)


def say(line: str) -> None:
    """Print one line to stderr if it is a terminal."""
    if watched():
        from rich.console import Console

        Console(stderr=True).print(line, highlight=False)
