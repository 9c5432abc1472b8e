"""Tables of prices, one row per day and symbol, read in pieces: CSV, Parquet and Arrow.

A table becomes a few numbers per row as it is read. A file that declares far more rows than it can hold is
refused before they are decoded, and reading stops when there are more rows than days and symbols.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lakepond.arrow_sizes import check_ipc, check_parquet
from lakepond.envs.market.features import FEATURES
from lakepond.envs.market.panel import PRICES
from lakepond.errors import MarketDataError

MOST_LISTED = 50
"""problems that are listed, of each kind"""
PIECE_ROWS = 1 << 16
SYMBOL_LENGTH = 200
MOST_ROWS = 1 << 25
"""rows of a table: 33 million, such as 10,000 days of 3,300 symbols"""
FREE_ROWS, ROWS_PER_BYTE = 1 << 20, 32
"""a file may always have that many rows; beyond them, at most this many for each of its bytes"""
MOST_RATIO = 64
"""bytes that one byte of an Arrow or Parquet file may expand to"""
FREE_CELLS, CELLS_PER_ROW = 1 << 22, 64
"""days x symbols that a panel may always have; beyond them, at most this many for each row of the table"""

Floats = npt.NDArray[np.float64]
Piece: TypeAlias = tuple[dict[str, list[object]], Sequence[int]]
"""cells of some rows by column, and the numbers of these rows in the file"""


class Problem(NamedTuple):
    """What is wrong, and where."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class Table:
    """Rows of day, symbol and numbers; `problems` is not empty if some of them are wrong."""

    symbols: list[str]
    dates: npt.NDArray[np.datetime64]
    """the day of each row"""
    codes: npt.NDArray[np.int32]
    """the index of each row's symbol in `symbols`"""
    lines: npt.NDArray[np.int64]
    """the number of each row in the file"""
    numbers: dict[str, Floats]
    """the values of each column, NaN where a cell is empty"""

    def __init__(self, heading: Sequence[str], kind: str) -> None:
        """`kind`: what a row of the file is called, "row" or "line"."""
        self.kind = kind
        self.problems: list[Problem] = []
        self.names: tuple[str, ...] = FEATURES if set(FEATURES) <= set(heading) else PRICES
        """of the numbers"""
        self.wanted = ("date", "symbol", *self.names)
        """the columns that are read"""
        self._codes: dict[str, int] = {}
        self._wrong = Counter[str]()
        absent = [name for name in ("date", "symbol", *PRICES) if name not in heading]
        if absent:
            has = ", ".join(heading[:20]) or "none"
            more = f" and {len(heading) - 20} more" if len(heading) > 20 else ""
            self.problems.append(Problem("heading", f"no column {', '.join(absent)}; it has {has}{more}"))

    def read(self, pieces: Iterable[Piece]) -> Table:
        """Read all rows, as far as that is of use, unless the heading is wrong already."""
        if self.problems:
            return self
        taken: list[tuple[npt.NDArray[Any], ...]] = []
        days: set[int] = set()
        count = 0
        for cells, rows in pieces:
            taken.append(self._columns(cells, rows))
            days.update(taken[-1][0].tolist())
            count += len(rows)
            if count > MOST_ROWS:
                raise MarketDataError(
                    f"it has more than {MOST_ROWS:,} rows; cut it to the days and symbols you need."
                )
            if count > len(days) * len(self._codes):  # a day of a symbol is there twice
                break
        if not count:
            self.problems.append(Problem("", "the table has no rows"))
            return self
        self.symbols = list(self._codes)
        dates, self.codes, self.lines, *numbers = map(np.concatenate, zip(*taken, strict=True))
        self.dates, self.numbers = dates.astype("datetime64[D]"), dict(zip(self.names, numbers, strict=True))
        if len(days) * len(self.symbols) > FREE_CELLS + CELLS_PER_ROW * count:
            what = (
                f"{count:,} rows name {len(days):,} days and {len(self.symbols):,} symbols: "
                "nearly all of the panel would be empty; keep the symbols that are traded on most days"
            )
            self.problems.append(Problem("", what))
        return self

    def _columns(self, cells: dict[str, list[object]], rows: Sequence[int]) -> tuple[npt.NDArray[Any], ...]:
        """Days, codes of symbols, numbers of the rows, then the numbers in them."""
        dates = [self._date(cell, row) for cell, row in zip(cells["date"], rows, strict=True)]
        codes = [self._codes.setdefault(str(cell), len(self._codes)) for cell in cells["symbol"]]
        longest = max(map(len, self._codes))
        if longest > SYMBOL_LENGTH:
            raise MarketDataError(f"a symbol has {longest:,} characters; the maximum is {SYMBOL_LENGTH}.")
        places = np.array(dates, np.int64), np.array(codes, np.int32), np.array(rows, np.int64)
        return *places, *(self._numbers(name, cells[name], rows) for name in self.names)

    def _date(self, cell: object, row: int) -> int:
        try:
            day = np.datetime64(str(cell)[:10], "D")
            if not np.isnat(day):
                return int(day.astype(np.int64))
        except ValueError:
            pass
        self._complain("date", row, f"{_short(cell)} is not a date; write 2026-01-31")
        return 0

    def _numbers(self, name: str, cells: list[object], rows: Sequence[int]) -> Floats:
        values = np.full(len(cells), np.nan)
        for k, cell in enumerate(cells):
            if cell is None or cell == "":
                continue
            try:
                values[k] = float(cell)  # type: ignore[arg-type]
            except (TypeError, ValueError, OverflowError):
                self._complain(name, rows[k], f"{_short(cell)} is not a number")
        return values

    def _complain(self, column: str, row: int, what: str) -> None:
        self._wrong[column] += 1
        if self._wrong[column] <= MOST_LISTED:
            self.problems.append(Problem(f"{self.kind} {row}, column {column}", what))


def _short(cell: object) -> str:
    text = repr(cell)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_csv(path: Path) -> Table:
    """The table in a CSV file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            heading = [name.strip().lower() for name in next(reader, [])]
            table = Table(heading, "line")
            return table.read(_csv_pieces(reader, heading, table))
    except csv.Error as error:
        raise MarketDataError(
            f"line {reader.line_num}: {error}; write plain comma-separated values."
        ) from error


def _csv_pieces(reader: Any, heading: list[str], table: Table) -> Iterator[Piece]:
    places = [(name, heading.index(name)) for name in table.wanted]
    cells: dict[str, list[object]] = {name: [] for name, _ in places}
    lines: list[int] = []
    for row in reader:
        if not row:
            continue
        if len(row) != len(heading):
            what = f"has {len(row)} cells, the heading has {len(heading)}"
            table.problems.insert(0, Problem(f"line {reader.line_num}", what))
            return
        lines.append(reader.line_num)
        for name, place in places:
            cells[name].append(row[place].strip())
        if len(lines) == PIECE_ROWS:
            yield cells, lines
            cells, lines = {name: [] for name, _ in places}, []
    if lines:
        yield cells, lines


def read_parquet(path: Path) -> Table:
    """The table in a Parquet file."""
    import pyarrow.parquet as pq

    _check_rows(check_parquet(path, MOST_RATIO), path)
    with pq.ParquetFile(path) as opened:
        texts = [
            opened.schema.column(i).path
            for i in range(len(opened.schema))
            if opened.schema.column(i).physical_type == "BYTE_ARRAY"
        ]
    # texts stay a dictionary and an index: one long text may be repeated in every row
    with pq.ParquetFile(path, read_dictionary=texts, pre_buffer=False) as opened:
        batches = partial(opened.iter_batches, PIECE_ROWS, use_threads=False)
        return _arrow_table(opened.schema_arrow, lambda wanted: batches(columns=wanted))


def read_arrow(path: Path) -> Table:
    """The table in an Arrow IPC file (Feather version 2)."""
    import pyarrow as pa

    _check_rows(check_ipc(path, MOST_RATIO), path)
    with pa.OSFile(os.fspath(path)) as file:
        reader = pa.ipc.open_file(file)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        return _arrow_table(reader.schema, lambda _: batches)


def _check_rows(rows: int, path: Path) -> None:
    size = path.stat().st_size
    if rows > FREE_ROWS + ROWS_PER_BYTE * size:
        raise MarketDataError(f"its {size:,} bytes declare {rows:,} rows, more than prices fit into.")


def _arrow_table(schema: Any, batches: Callable[[list[str]], Iterable[Any]]) -> Table:
    """The table of a schema whose types are checked; `batches`: of the columns that are read."""
    heading = {name.strip().lower(): name for name in schema.names}
    if len(heading) < len(schema.names):
        raise MarketDataError("two of its columns have the same name.")
    table = Table(list(heading), "row")
    columns = {name: heading[name] for name in table.wanted if name in heading}
    for name in columns.values():
        if not _is_plain(schema.field(name).type):
            raise MarketDataError(
                f"column {name} is {schema.field(name).type}, not text, a date or a number."
            )
    return table.read(_arrow_pieces(batches(list(columns.values())), columns))


def _is_plain(kind: Any) -> bool:
    import pyarrow.types as t

    if t.is_dictionary(kind):
        kind = kind.value_type
    plain = (t.is_integer, t.is_floating, t.is_decimal, t.is_null, t.is_string, t.is_large_string, t.is_date)
    return any(check(kind) for check in (*plain, t.is_timestamp))


def _arrow_pieces(batches: Iterable[Any], columns: dict[str, str]) -> Iterator[Piece]:
    """Pieces of batches; `columns`: their names in the file by those that are wanted."""
    rows = 0
    for batch in batches:
        batch.validate(full=True)  # or offsets in the file may point outside of its buffers
        for at in range(0, batch.num_rows, PIECE_ROWS):
            part = batch.slice(at, PIECE_ROWS)
            cells = {name: _cells(part.column(column)) for name, column in columns.items()}
            yield cells, range(rows, rows + part.num_rows)
            rows += part.num_rows


def _cells(column: Any) -> list[object]:
    import pyarrow.types as t

    if not t.is_dictionary(column.type):
        return list(column.to_pylist())
    values = column.dictionary.to_pylist()
    return [None if i is None else values[i] for i in column.indices.to_pylist()]
