"""Tables of prices, one row per day and symbol, read in pieces: CSV, Parquet and Arrow.

A table becomes a few numbers per row as it is read. A file that declares far more rows than it can hold is
refused before they are decoded, and reading stops when there are more rows than days and symbols.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lakepond.arrow_sizes import check_ipc, check_parquet
from lakepond.envs.market.features import FEATURES
from lakepond.envs.market.panel import PRICES
from lakepond.errors import MarketDataError

MOST_TOLD = 50
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


class Problem(NamedTuple):
    """What is wrong, and where."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class Table:
    """Rows of day, symbol and numbers; `problems` is not empty if some of them are wrong."""

    def __init__(self, heading: Sequence[str], kind: str) -> None:
        """`kind`: what a row of the file is called, "row" or "line"."""
        self.kind = kind
        self.problems: list[Problem] = []
        self.symbols: list[str] = []
        self.names: tuple[str, ...] = FEATURES if set(FEATURES) <= set(heading) else PRICES
        """of the numbers"""
        self._codes: dict[str, int] = {}
        self._wrong = dict.fromkeys(("date", *self.names), 0)
        self._days: set[int] = set()
        self._pieces: list[tuple[npt.NDArray[Any], ...]] = []
        self._columns: tuple[npt.NDArray[Any], ...] = ()
        self._rows = 0
        absent = [name for name in ("date", "symbol", *PRICES) if name not in heading]
        if absent:
            has = ", ".join(heading[:20]) or "none"
            more = f" and {len(heading) - 20} more" if len(heading) > 20 else ""
            self.problems.append(Problem("heading", f"no column {', '.join(absent)}; it has {has}{more}"))

    def __len__(self) -> int:
        return self._rows

    @property
    def wanted(self) -> tuple[str, ...]:
        """The columns that are read."""
        return ("date", "symbol", *self.names)

    def take(self, cells: dict[str, list[object]], rows: Sequence[int]) -> bool:
        """Add some rows, whose numbers in the file are `rows`; False if reading on is of no use."""
        dates = np.array([self._date(cell, rows[k]) for k, cell in enumerate(cells["date"])])
        codes = np.array([self._codes.setdefault(str(cell), len(self._codes)) for cell in cells["symbol"]])
        longest = max(map(len, self._codes), default=0)
        if longest > SYMBOL_LENGTH:
            raise MarketDataError(f"a symbol has {longest:,} characters; the maximum is {SYMBOL_LENGTH}.")
        numbers = [self._numbers(name, cells[name], rows) for name in self.names]
        self._pieces.append(
            (dates.astype(np.int64), codes.astype(np.int32), np.array(rows, np.int64), *numbers)
        )
        self._rows += len(rows)
        self._days.update(dates.tolist())
        if self._rows > MOST_ROWS:
            raise MarketDataError(
                f"it has more than {MOST_ROWS:,} rows; cut it to the days and symbols you need."
            )
        return self._rows <= len(self._days) * len(self._codes)  # or a day of a symbol is there twice

    def finish(self) -> None:
        """Join the pieces; the columns are there from now on."""
        self.symbols = list(self._codes)
        self._columns = tuple(map(np.concatenate, zip(*self._pieces, strict=True)))
        self._pieces = []
        cells = len(self._days) * len(self.symbols)
        if not self._rows:
            self.problems.append(Problem("", "the table has no rows"))
        elif cells > FREE_CELLS + CELLS_PER_ROW * self._rows:
            self.problems.append(
                Problem(
                    "",
                    f"{self._rows:,} rows name {len(self._days):,} days and {len(self.symbols):,} symbols: "
                    "nearly all of the panel would be empty; keep the symbols that are traded on most days",
                )
            )

    @property
    def dates(self) -> npt.NDArray[np.datetime64]:
        """The day of each row."""
        return self._columns[0].astype("datetime64[D]")

    @property
    def codes(self) -> npt.NDArray[np.int32]:
        """The index of each row's symbol in `symbols`."""
        return self._columns[1]

    @property
    def lines(self) -> npt.NDArray[np.int64]:
        """The number of each row in the file."""
        return self._columns[2]

    def numbers(self, name: str) -> Floats:
        """The values of a column, NaN where a cell is empty."""
        return self._columns[3 + self.names.index(name)]

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
        if self._wrong[column] <= MOST_TOLD:
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
            if not table.problems:
                for cells, lines in _csv_pieces(reader, heading, table):
                    if not table.take(cells, lines):
                        break
                table.finish()
            return table
    except csv.Error as error:
        raise MarketDataError(
            f"line {reader.line_num}: {error}; write plain comma-separated values."
        ) from error


def _csv_pieces(
    reader: Any, heading: list[str], table: Table
) -> Iterator[tuple[dict[str, list[object]], list[int]]]:
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
        heading, wanted = _arrow_heading(opened.schema_arrow)
        batches = opened.iter_batches(PIECE_ROWS, columns=wanted, use_threads=False)
        return _arrow_table(heading, batches)


def read_arrow(path: Path) -> Table:
    """The table in an Arrow IPC file (Feather version 2)."""
    import pyarrow as pa

    _check_rows(check_ipc(path, MOST_RATIO), path)
    with pa.OSFile(os.fspath(path)) as file:
        reader = pa.ipc.open_file(file)
        heading, _ = _arrow_heading(reader.schema)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        return _arrow_table(heading, batches)


def _check_rows(rows: int, path: Path) -> None:
    size = path.stat().st_size
    if rows > FREE_ROWS + ROWS_PER_BYTE * size:
        raise MarketDataError(f"its {size:,} bytes declare {rows:,} rows, more than prices fit into.")


def _arrow_heading(schema: Any) -> tuple[dict[str, str], list[str]]:
    """The columns of a schema by their lower-case names, and those that are read, their types checked."""
    import pyarrow.types as t

    def plain(kind: Any) -> bool:
        if t.is_dictionary(kind):
            kind = kind.value_type
        numbers = t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind) or t.is_null(kind)
        return bool(
            numbers or t.is_string(kind) or t.is_large_string(kind) or t.is_date(kind) or t.is_timestamp(kind)
        )

    heading = {name.strip().lower(): name for name in schema.names}
    if len(heading) < len(schema.names):
        raise MarketDataError("two of its columns have the same name.")
    wanted = [heading[name] for name in Table(list(heading), "row").wanted if name in heading]
    for name in wanted:
        if not plain(schema.field(name).type):
            raise MarketDataError(
                f"column {name} is {schema.field(name).type}, not text, a date or a number."
            )
    return heading, wanted


def _arrow_table(heading: dict[str, str], batches: Iterable[Any]) -> Table:
    table = Table(list(heading), "row")
    if table.problems:
        return table
    for part in _arrow_pieces(batches):
        cells = {name: _cells(part.column(heading[name])) for name in table.wanted}
        if not table.take(cells, range(len(table), len(table) + part.num_rows)):
            break
    table.finish()
    return table


def _arrow_pieces(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        batch.validate(full=True)  # or offsets in the file may point outside of its buffers
        yield from (batch.slice(at, PIECE_ROWS) for at in range(0, batch.num_rows, PIECE_ROWS))


def _cells(column: Any) -> list[object]:
    import pyarrow.types as t

    if not t.is_dictionary(column.type):
        return list(column.to_pylist())
    values = column.dictionary.to_pylist()
    return [None if i is None else values[i] for i in column.indices.to_pylist()]
