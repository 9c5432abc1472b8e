"""How numbers, tables and JSON look on the command line: the same in every command.

Data goes to stdout: as text for people, or with `--json` as one JSON object on one line. The objects are a
contract, written down in docs/cli.md: a key keeps its name and meaning; new ones may join. Sizes are bytes,
durations seconds, moments UTC in ISO 8601, shares between 0 and 1; what is not known is null.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_json(told: dict[str, Any]) -> None:
    """One JSON object on stdout, on one line, without NaN."""
    print(json.dumps(_plain(told), allow_nan=False), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def talk(sentence: str) -> None:
    """Print a sentence for people to stderr; never data. A terminal that hung up is no reason to stop."""
    try:
        print(sentence, file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def printable(text: object) -> str:
    """Text from a file that came from elsewhere, without control characters such as terminal escapes."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in str(text))


def literal(text: object) -> str:
    """The same for a table or a line of `console()`, where square brackets would be read as markup."""
    from rich.markup import escape

    return escape(printable(text))


def console() -> Console:
    """Where tables go: stdout; plain and wide where that is no terminal."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 140
    return Console(highlight=False, width=wide)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields `tell(done, total)`, which draws a bar on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


NARROW = 90
"""a terminal of fewer columns gets less in a line"""


def is_narrow() -> bool:
    """Whether tables have to do with less."""
    return console().width < NARROW


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A table whose first `left` columns are words and whose others are numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(
        title=title or None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False, title_style="bold"
    )
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i < left else "right", overflow="fold", no_wrap=i >= left)
    for row in rows:
        made.add_row(*row)
    return made


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and what they are, one a line."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


def line(*cells: tuple[str, int]) -> Table:
    """One line of cells with their widths, so that lines printed one by one stand below each other."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    for _, width in cells:
        made.add_column(min_width=width or None, no_wrap=bool(width), overflow="fold")
    made.add_row(*(text for text, _ in cells))
    return made


def size(count: float | None) -> str:
    """Bytes in the units disks are sold in, 1 GB = 10^9: "7.8 GB"."""
    if count is None:
        return "–"
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= 0.9995 * factor:
            value = count / factor
            return f"{value:,.1f} {unit}" if value < 99.95 else f"{value:,.0f} {unit}"
    return f"{count:,.0f} B"


def count(number: float | None) -> str:
    """A whole number with its thousands apart."""
    return "–" if number is None else f"{number:,.0f}"


def duration(seconds: float | None) -> str:
    """A length of time, in its two largest units: "3 h 12 min"."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    left, parts = round(seconds), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if left >= length or (unit == "s" and not parts):
            parts.append(f"{left // length} {unit}")
            left %= length
    return " ".join(parts[:2])


def ratio(times: float | None) -> str:
    """How many times smaller: "3,401x"."""
    return "–" if times is None else f"{times:,.1f}x" if times < 100 else f"{times:,.0f}x"


def span(low: float, high: float) -> str:
    """A size that lies between two: "64.7–78.4 GB"."""
    one, other = size(low), size(high)
    if one == other:
        return one
    return f"{one.removesuffix(other[-3:])}–{other}"


def age(moment: float, now: float) -> str:
    """How long ago a moment was."""
    return "in the future" if moment > now + 1 else f"{duration(max(0.0, now - moment))} ago"
