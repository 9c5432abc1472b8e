"""A user's own prices: CSV, Parquet, Arrow or NumPy files as a panel, every fault told by line and column.

    .csv .parquet .arrow .feather   one row a day and symbol: date, symbol, open, high, low, close
                                    (with all nine feature names as columns: those features, as they are)
    .npy   (days, instruments, 4)   open, high, low, close
           (days, instruments, 5+)  features, beginning with open, close, high, low
    .npz                            what `Panel.save` wrote; or `prices` or `features` as above, and, if
                                    wanted, `dates` and `symbols`

No trade is an empty cell, a row that is not there, or NaN. Nothing in a file is ever executed.
"""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lakepond.envs.market.features import FEATURES
from lakepond.envs.market.panel import PRICES, Panel
from lakepond.errors import MarketDataError

FIRST_DAY = np.datetime64("2000-01-03")
"""of a file without dates: business days from here on"""
MOST_TOLD = 50
"""problems that are listed, of each kind"""

Floats = npt.NDArray[np.float64]


class Problem(NamedTuple):
    """What is wrong, and where."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class Found(NamedTuple):
    """What a file holds: a panel, unless there are problems."""

    panel: Panel | None
    table: npt.NDArray[np.float32] | None
    """(days, instruments, features), where the file brought its own"""
    problems: list[Problem]


def read_market(
    path: str | os.PathLike[str], *, days: int = 0, instruments: int = 0
) -> tuple[Panel, npt.NDArray[np.float32] | None]:
    """The panel in a file, and its features if it brought them; cut to the last days and the best covered.

    0 is all of them, and so is more than there are.
    """
    found = inspect(path)
    if found.panel is None:
        first, more = found.problems[0], len(found.problems) - 1
        raise MarketDataError(
            f"{path}: {first}"
            + (f" (and {more} more; `lakepond data check {path}` lists them)" if more else "")
        )
    panel, table = found.panel, found.table
    if table is None:
        panel = panel.best_covered(min(instruments or len(panel.symbols), len(panel.symbols)))
        return panel.last(min(days or len(panel.dates), len(panel.dates))), None
    if instruments and instruments < len(panel.symbols):
        kept = panel.best_covered(instruments)
        table = table[:, [panel.symbols.index(symbol) for symbol in kept.symbols]]
        panel = kept
    if days and days < len(panel.dates):
        panel, table = panel.last(days), table[-days:]
    return panel, table


def inspect(path: str | os.PathLike[str]) -> Found:
    """Read a file and say all that is wrong with it."""
    path = Path(path)
    reader = {
        ".csv": _csv,
        ".parquet": _parquet,
        ".arrow": _arrow,
        ".feather": _arrow,
        ".npy": _npy,
        ".npz": _npz,
    }.get(path.suffix.lower())
    if reader is None:
        raise MarketDataError(
            f"{path} has no known ending; give prices as .csv, .parquet, .arrow, .feather, .npy or .npz."
        )
    if not path.exists():
        raise MarketDataError(f"{path} is not there.")
    try:
        return reader(path)
    except MarketDataError as error:
        return Found(None, None, [Problem("", str(error))])
    except (ValueError, OSError, EOFError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise MarketDataError(f"{path} cannot be read as {path.suffix}: {error}.") from error


# --- tables ----------------------------------------------------------------------------------------


class _Table(NamedTuple):
    """Cells by column, and what each row is called."""

    columns: dict[str, list[object]]
    rows: list[str]


def _csv(path: Path) -> Found:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        heading = [name.strip().lower() for name in next(reader, [])]
        columns: dict[str, list[object]] = {name: [] for name in heading}
        rows: list[str] = []
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(heading):
                told = f"has {len(cells)} cells, the heading has {len(heading)}"
                return Found(None, None, [Problem(f"line {reader.line_num}", told)])
            rows.append(f"line {reader.line_num}")
            for name, cell in zip(heading, cells, strict=True):
                columns[name].append(cell.strip())
    return _long(_Table(columns, rows))


def _parquet(path: Path) -> Found:
    import pyarrow.parquet

    return _arrow_table(pyarrow.parquet.read_table(path))


def _arrow(path: Path) -> Found:
    import pyarrow.feather

    return _arrow_table(pyarrow.feather.read_table(path))


def _arrow_table(table: object) -> Found:
    names = table.column_names  # type: ignore[attr-defined]
    columns = {name.strip().lower(): table.column(name).to_pylist() for name in names}  # type: ignore[attr-defined]
    return _long(_Table(columns, [f"row {i}" for i in range(table.num_rows)]))  # type: ignore[attr-defined]


def _long(table: _Table) -> Found:
    """One row a day and symbol."""
    needed = ("date", "symbol", *PRICES)
    absent = [name for name in needed if name not in table.columns]
    if absent:
        has = ", ".join(table.columns) or "none"
        return Found(None, None, [Problem("heading", f"no column {', '.join(absent)}; it has {has}")])
    if not table.rows:
        return Found(None, None, [Problem("", "the table has no rows")])
    problems: list[Problem] = []
    dates = _dates(table, problems)
    own_features = all(name in table.columns for name in FEATURES)
    numbers = {name: _numbers(table, name, problems) for name in (FEATURES if own_features else PRICES)}
    if problems:
        return Found(None, None, problems)

    symbols = list(dict.fromkeys(str(symbol) for symbol in table.columns["symbol"]))
    place = {symbol: i for i, symbol in enumerate(symbols)}
    column = np.array([place[str(symbol)] for symbol in table.columns["symbol"]])
    days, row = np.unique(dates, return_inverse=True)
    line = np.full((len(days), len(symbols)), -1)
    newest = np.full(len(symbols), np.datetime64("0001-01-01"))
    for k, (r, c) in enumerate(zip(row, column, strict=True)):
        if line[r, c] >= 0:
            told = f"{symbols[c]} has {dates[k]} already in {table.rows[line[r, c]]}; keep each day once"
            problems.append(Problem(f"{table.rows[k]}, column date", told))
        elif dates[k] < newest[c]:
            told = f"{dates[k]} of {symbols[c]} comes after {newest[c]}; sort the rows by date"
            problems.append(Problem(f"{table.rows[k]}, column date", told))
        line[r, c] = k
        newest[c] = max(newest[c], dates[k])

    def wide(name: str) -> Floats:
        values = np.full((len(days), len(symbols)), np.nan)
        values[row, column] = numbers[name]
        return values

    prices = np.stack([wide(name) for name in PRICES])
    problems += _wrong_prices(prices, symbols, lambda r, c: table.rows[line[r, c]])
    if problems:
        return Found(None, None, problems)
    own = np.stack([wide(name) for name in FEATURES], axis=-1).astype(np.float32) if own_features else None
    return Found(Panel(days, tuple(symbols), *prices), own, [])


def _dates(table: _Table, problems: list[Problem]) -> npt.NDArray[np.datetime64]:
    dates = np.full(len(table.rows), np.datetime64("NaT"), "datetime64[D]")
    for k, cell in enumerate(table.columns["date"]):
        try:
            dates[k] = np.datetime64(str(cell)[:10], "D")
            if np.isnat(dates[k]):
                raise ValueError
        except ValueError:
            if len(problems) < MOST_TOLD:
                problems.append(
                    Problem(f"{table.rows[k]}, column date", f"{cell!r} is no date; write 2026-01-31")
                )
    return dates


def _numbers(table: _Table, name: str, problems: list[Problem]) -> Floats:
    cells = table.columns[name]
    values = np.full(len(cells), np.nan)
    found = 0
    for k, cell in enumerate(cells):
        if cell is None or cell == "":
            continue
        try:
            values[k] = float(cell)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            found += 1
            if found <= MOST_TOLD:
                problems.append(Problem(f"{table.rows[k]}, column {name}", f"{cell!r} is not a number"))
    return values


# --- arrays ----------------------------------------------------------------------------------------


def _npy(path: Path) -> Found:
    return _array(np.load(path, allow_pickle=False), None, None)


def _npz(path: Path) -> Found:
    with np.load(path, allow_pickle=False) as held:
        names = set(held.files)
        if "format" not in names:
            known = [name for name in ("features", "prices") if name in names]
            if len(known) != 1:
                raise MarketDataError(
                    f"{path} needs `prices` or `features`, one of them, but has {', '.join(sorted(names))}."
                )
            return _array(
                held[known[0]],
                held["dates"] if "dates" in names else None,
                held["symbols"] if "symbols" in names else None,
                is_features=known[0] == "features",
            )
    return Found(Panel.load(path), None, [])


def _array(
    values: npt.NDArray[np.generic],
    dates: npt.NDArray[np.generic] | None,
    symbols: npt.NDArray[np.generic] | None,
    is_features: bool | None = None,
) -> Found:
    if values.ndim != 3 or values.shape[-1] < 4 or values.dtype.kind not in "fiu" or 0 in values.shape:
        raise MarketDataError(
            f"an array of prices is (days, instruments, 4) numbers, one of features (days, instruments, 5 or "
            f"more), but this is {values.dtype}{list(values.shape)}."
        )
    table = values.astype(np.float64)
    if is_features is None:
        is_features = table.shape[-1] > 4
    order = (0, 2, 3, 1) if is_features else (0, 1, 2, 3)  # features begin with open, close, high, low
    prices = np.stack([table[..., i] for i in order])
    days = (
        np.busday_offset(np.full(len(table), FIRST_DAY), np.arange(len(table)))
        if dates is None
        else dates.astype("datetime64[D]")
    )
    names = [f"I{i:03d}" for i in range(table.shape[1])] if symbols is None else [str(s) for s in symbols]
    problems = _wrong_prices(prices, names, lambda r, c: f"[{r}, {c}]")
    if problems:
        return Found(None, None, problems)
    return Found(Panel(days, tuple(names), *prices), table.astype(np.float32) if is_features else None, [])


# --- both ------------------------------------------------------------------------------------------


def _wrong_prices(prices: Floats, symbols: list[str], where: Callable[[int, int], str]) -> list[Problem]:
    """All that cannot be a day of an instrument; `prices` (4, days, instruments) in the order of `PRICES`."""
    problems: list[Problem] = []
    absent = np.isnan(prices)
    opened, high, low, close = prices

    def refuse(wrong: npt.NDArray[np.bool_], column: str, what: Callable[[int, int], str]) -> None:
        for r, c in np.argwhere(wrong)[:MOST_TOLD].tolist():
            problems.append(Problem(f"{where(r, c)}, column {column}", f"{symbols[c]} {what(r, c)}"))

    for i, name in enumerate(PRICES):
        refuse(
            prices[i] <= 0,
            name,
            lambda r, c, i=i: f"has a price of {prices[i, r, c]:g}; leave it empty where nothing was traded",  # type: ignore[misc]
        )
        refuse(np.isinf(prices[i]), name, lambda r, c: "has an infinite price")
    partly = absent.any(axis=0) & ~absent.all(axis=0)
    for i, name in enumerate(PRICES):
        refuse(partly & absent[i], name, lambda r, c: "has some of its four prices but not this one")
    whole = ~absent.any(axis=0)
    refuse(
        whole & (high < np.maximum(opened, close)),
        "high",
        lambda r, c: f"has a high of {high[r, c]:g} below its open or close",
    )
    refuse(
        whole & (low > np.minimum(opened, close)),
        "low",
        lambda r, c: f"has a low of {low[r, c]:g} above its open or close",
    )
    for c in np.flatnonzero(absent.all(axis=(0, 1))).tolist():
        problems.append(Problem("", f"{symbols[c]} has no price on any day; leave it out"))
    return problems
