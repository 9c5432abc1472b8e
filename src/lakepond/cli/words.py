"""How commands print: JSON, tables, lines of facts, sentences and progress bars.

Data goes to stdout: as text for people, or with `--json` as one JSON object on one line. The objects are a
contract, documented in docs/json.md: a key keeps its name and meaning; keys may be added. Sizes are bytes,
durations seconds, moments UTC in ISO 8601, shares between 0 and 1; an unknown value is null.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from lakepond.adapters.progress import bar
from lakepond.formats import json_ready

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

    Cell = str | Text


def print_json(result: dict[str, Any]) -> None:
    """Print one JSON object to stdout, on one line, without NaN."""
    print(json.dumps(json_ready(result), allow_nan=False), flush=True)


def print_result(result: dict[str, Any], text: RenderableType, *, as_json: bool) -> None:
    """Print the result of a command to stdout: with --json as one object, else as text for people."""
    if as_json:
        print_json(result)
    elif isinstance(text, str):
        print(text)
    else:
        console().print(text)


def talk(sentence: str) -> None:
    """Print a sentence for people to stderr; never data. A closed terminal is not an error."""
    try:
        print(sentence, file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def printable(text: object) -> str:
    """Untrusted text without control characters such as terminal escapes."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in str(text))


def styled(*parts: str | tuple[str, str]) -> Text:
    """Text with colours: each part is a text, or a text and its style."""
    from rich.text import Text

    clean = [printable(p) if isinstance(p, str) else (printable(p[0]), p[1]) for p in parts]
    return Text.assemble(*clean)


def console() -> Console:
    """Where tables go: stdout; 140 columns wide if that is not a terminal.

    Square brackets are printed as they are: a run may be called "run[lr=1e-3]".
    """
    from rich.console import Console

    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 140
    return Console(highlight=False, markup=False, emoji=False, width=wide)


def paragraph(text: str) -> str:
    """A text wrapped to the console's width, with an empty line after it; numbers stay with their units."""
    joined = re.sub(r"(?<=\d) (?=(?:[kMGT]?B|MiB|steps)\b|%)", "\0", text)
    return "\n".join(wrap(joined, console().width, break_on_hyphens=False)).replace("\0", " ") + "\n"


def progress(what: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Yields `show(done, total)`, which draws a bar on stderr if that is a terminal."""
    return bar(printable(what))


NARROW = 90
"""a terminal with fewer columns gets fewer columns in a table"""
TEXT_WIDTH = 16
"""columns that a column of text needs at least; longer text wraps"""
GAP = 2
"""columns between two columns of a table"""


def is_narrow() -> bool:
    """Whether tables should leave out what is not essential."""
    return console().width < NARROW


@dataclass(frozen=True)
class NumberTable:
    """A table whose columns `text` hold text and whose other columns hold numbers.

    Numbers and their units are never wrapped or cut; text wraps. If the numbers do not fit side by side, each
    row is printed as a block of lines, "name  value".
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    text: Collection[int] = (0,)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Called by Rich, with the width that there is."""
        from rich import box, table

        cells = [[_cell(value) for value in row] for row in self.rows]
        if self.title:
            yield styled((self.title, "bold"))
        if self._least_width(cells) > options.max_width:
            for row in cells:
                yield facts(zip(self.columns, row, strict=True))
                yield ""
            return
        made = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        for i, column in enumerate(self.columns):
            is_text = i in self.text  # Rich makes only such columns narrower
            made.add_column(
                column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text
            )
        for row in cells:
            made.add_row(*row)
        yield made

    def _least_width(self, cells: Sequence[Sequence[Text]]) -> int:
        """The width of the table if its text wraps."""
        width = 0
        for i, column in enumerate(zip(self.columns, *cells, strict=True)):
            widest = max(line.cell_len for cell in map(_cell, column) for line in (cell.split() or [cell]))
            width += GAP + (min(widest, TEXT_WIDTH) if i in self.text else widest)
        return width


def facts(rows: Iterable[tuple[Cell, Cell]]) -> RenderableType:
    """Names and values, one per line."""
    from rich import table

    made = table.Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(_cell(name), _cell(value))
    return made


def line(*cells: tuple[Cell, int]) -> RenderableType:
    """One line of cells with their widths, so that lines printed one by one stand below each other."""
    from rich import table

    made = table.Table.grid(padding=(0, 2))
    for _, width in cells:
        made.add_column(min_width=width or None, no_wrap=bool(width), overflow="fold")
    made.add_row(*(_cell(text) for text, _ in cells))
    return made


def _cell(value: Cell) -> Text:
    return styled(value) if isinstance(value, str) else value
