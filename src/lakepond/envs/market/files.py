"""A user's own prices: CSV, Parquet, Arrow or NumPy files as a panel, errors by line and column.

    .csv .parquet .arrow .feather   one row a day and symbol: date, symbol, open, high, low, close
                                    (with all nine feature names as columns: those features, as they are)
    .npy   (days, instruments, 4)   open, high, low, close
           (days, instruments, 5+)  features, beginning with open, close, high, low
    .npz                            what `Panel.save` wrote; or `prices` or `features` as above, and, if
                                    wanted, `dates` and `symbols`

No trade is an empty cell, a row that is not there, or NaN. Nothing in a file is ever executed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lakepond import untrusted
from lakepond.envs.market.features import FEATURES
from lakepond.envs.market.panel import PRICES, Panel
from lakepond.envs.market.tables import (
    MOST_LISTED,
    Floats,
    Problem,
    Table,
    read_arrow,
    read_csv,
    read_parquet,
)
from lakepond.errors import MarketDataError

FIRST_DAY = np.datetime64("2000-01-03")
"""of a file without dates: business days from here on"""


class MarketFile(NamedTuple):
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
    rows, columns = panel.shape
    days, instruments = min(days or rows, rows), min(instruments or columns, columns)
    kept = panel.best_covered(instruments)
    if table is not None:
        table = table[-days:, [panel.symbols.index(symbol) for symbol in kept.symbols]]
    return kept.last(days), table


def inspect(path: str | os.PathLike[str]) -> MarketFile:
    """Read a file and list everything that is wrong with it."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (*TABLES, *ARRAYS):
        raise MarketDataError(
            f"{path} has an unknown file extension; give prices as .csv, .parquet, .arrow, .feather, "
            ".npy or .npz."
        )
    if not path.exists():
        raise MarketDataError(f"{path} does not exist.")
    with untrusted.blaming(path, MarketDataError, f"restore it, or write it again as {path.suffix}"):
        try:
            return _long(TABLES[suffix](path)) if suffix in TABLES else ARRAYS[suffix](path)
        except MarketDataError as error:
            return MarketFile(None, None, [Problem("", str(error))])


# --- tables ----------------------------------------------------------------------------------------


def _long(table: Table) -> MarketFile:
    """The panel of a table with one row per day and symbol."""
    if table.problems:
        return MarketFile(None, None, table.problems)
    days, row = np.unique(table.dates, return_inverse=True)
    if problems := _misplaced_rows(table, row):
        return MarketFile(None, None, problems)
    shape = len(days), len(table.symbols)

    def wide(name: str) -> Floats:
        values = np.full(shape, np.nan)
        values[row, table.codes] = table.numbers[name]
        return values

    line = np.full(shape, -1)
    line[row, table.codes] = table.lines
    prices = np.stack([wide(name) for name in PRICES])
    has_features = table.names == FEATURES
    own = np.stack([wide(name) for name in FEATURES], axis=-1).astype(np.float32) if has_features else None
    problems = _wrong_prices(prices, table.symbols, lambda r, c: f"{table.kind} {line[r, c]}")
    return MarketFile(None if problems else Panel(days, tuple(table.symbols), *prices), own, problems)


def _misplaced_rows(table: Table, row: npt.NDArray[np.int64]) -> list[Problem]:
    """Days of a symbol that come twice or out of order."""
    symbols, dates, column, kind = table.symbols, table.dates, table.codes, table.kind
    first, again = _repeats(row, column, len(symbols))
    found = [
        (k, f"{symbols[column[k]]} has {dates[k]} already in {kind} {table.lines[j]}; keep each day once")
        for k, j in zip(again[:MOST_LISTED].tolist(), first[:MOST_LISTED].tolist(), strict=True)
    ]
    found += [
        (k, f"{dates[k]} of {symbols[column[k]]} comes after {newest}; sort the rows by date")
        for k, newest in _not_sorted(dates, column, again)
    ]
    return [Problem(f"{kind} {table.lines[k]}, column date", what) for k, what in found]


def _repeats(
    row: npt.NDArray[np.int64], column: npt.NDArray[np.int32], symbols: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows that have the day and symbol of an earlier one: that earlier one, and they themselves."""
    key = row.astype(np.int64) * symbols + column
    order = np.argsort(key, kind="stable")
    same = np.flatnonzero(key[order[1:]] == key[order[:-1]])
    by_row = np.argsort(order[same + 1], kind="stable")
    return order[same][by_row], order[same + 1][by_row]


def _not_sorted(
    dates: npt.NDArray[np.datetime64], column: npt.NDArray[np.int32], repeats: npt.NDArray[np.int64]
) -> list[tuple[int, np.datetime64]]:
    """Rows whose day comes before an earlier row's of the same symbol, and that row's day."""
    order = np.argsort(column, kind="stable")
    days, codes = dates[order].astype(np.int64), column[order].astype(np.int64)
    # the latest day so far of each symbol: a running maximum that starts again with each symbol
    span = int(days.max() - days.min()) + 1
    latest = np.maximum.accumulate(days - days.min() + codes * span) - codes * span + days.min()
    late = np.flatnonzero(days < latest)
    late = late[~np.isin(order[late], repeats)]
    late = late[np.argsort(order[late])][:MOST_LISTED]
    return [(int(order[k]), latest[k].astype("datetime64[D]")) for k in late]


# --- arrays ----------------------------------------------------------------------------------------


def _npz(path: Path) -> MarketFile:
    names = untrusted.npz_names(path)
    if "format" in names:
        return MarketFile(Panel.load(path), None, [])
    known = [name for name in ("features", "prices") if name in names]
    if len(known) != 1:
        raise MarketDataError(
            f"{path} needs `prices` or `features`, one of them, but has {', '.join(sorted(names)[:20])}."
        )
    held = untrusted.read_npz(path, (known[0], "dates", "symbols"))
    return _array(held[known[0]], held.get("dates"), held.get("symbols"), is_features=known[0] == "features")


def _array(
    values: npt.NDArray[np.generic],
    dates: npt.NDArray[np.generic] | None = None,
    symbols: npt.NDArray[np.generic] | None = None,
    is_features: bool | None = None,
) -> MarketFile:
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
    if dates is None:
        dates = np.busday_offset(np.full(len(table), FIRST_DAY), np.arange(len(table)))
    days = dates.astype("datetime64[D]")
    names = [f"I{i:03d}" for i in range(table.shape[1])] if symbols is None else [str(s) for s in symbols]
    own = table.astype(np.float32) if is_features else None
    problems = _wrong_prices(prices, names, lambda r, c: f"[{r}, {c}]")
    panel = None if problems else Panel(days, tuple(names), *prices)
    return MarketFile(panel, own, problems)


# --- both ------------------------------------------------------------------------------------------


def _wrong_prices(prices: Floats, symbols: list[str], where: Callable[[int, int], str]) -> list[Problem]:
    """All invalid days of an instrument; `prices` (4, days, instruments) in the order of `PRICES`."""
    problems: list[Problem] = []
    absent = np.isnan(prices)
    opened, high, low, close = prices

    def refuse(wrong: npt.NDArray[np.bool_], column: str, what: Callable[[int, int], str]) -> None:
        for r, c in np.argwhere(wrong)[:MOST_LISTED].tolist():
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


TABLES = {".csv": read_csv, ".parquet": read_parquet, ".arrow": read_arrow, ".feather": read_arrow}
ARRAYS = {".npy": lambda path: _array(untrusted.read_npy(path)), ".npz": _npz}
"""readers by file extension"""
