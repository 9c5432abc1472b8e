"""Progress for people: a bar and a last line on a terminal's stderr, nothing at all anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def watched() -> bool:
    """Whether somebody looks on."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that is told how much is done, of how much; it draws that while in the block."""
    if not watched():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda done, total: drawn.update(task, completed=done, total=total)


def say(line: str) -> None:
    """One line, if somebody looks on."""
    if watched():
        from rich.console import Console

        Console(stderr=True).print(line, highlight=False)
