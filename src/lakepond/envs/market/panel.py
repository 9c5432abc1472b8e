"""A panel: a table of daily prices, one row per day, one column per instrument.

              symbols[0]   symbols[1]   ...
    dates[0]  o h l c      NaN            low <= open, close <= high
    dates[1]  o h l c      o h l c        NaN in all four: no trade that day, or not listed

A panel holds what was traded: prices are not carried over missing days (`features` does that).
"""

from __future__ import annotations

import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lakepond import untrusted
from lakepond.errors import MarketDataError
from lakepond.lake.files import write_bytes

FORMAT = 1
"""version of the file; a reader refuses what is newer than itself"""

PRICES = ("open", "high", "low", "close")


@dataclass(frozen=True, eq=False)
class Panel:
    """Daily prices of many instruments, checked when made and read-only afterwards."""

    dates: npt.NDArray[np.datetime64]
    """(days,) datetime64[D], strictly increasing"""
    symbols: tuple[str, ...]
    """one name an instrument, each once"""
    open: npt.NDArray[np.float64]
    """(days, instruments); NaN where nothing was traded"""
    high: npt.NDArray[np.float64]
    """(days, instruments)"""
    low: npt.NDArray[np.float64]
    """(days, instruments)"""
    close: npt.NDArray[np.float64]
    """(days, instruments)"""

    def __post_init__(self) -> None:
        own = object.__setattr__  # frozen
        own(self, "dates", _owned(self.dates, "datetime64[D]"))
        own(self, "symbols", tuple(str(symbol) for symbol in self.symbols))
        for name in PRICES:
            own(self, name, _owned(getattr(self, name), np.float64))
        self._check_axes()
        self._check_prices()

    def _check_axes(self) -> None:
        if self.dates.ndim != 1 or not len(self.dates) or not self.symbols:
            raise MarketDataError(
                f"A panel needs at least one day and one symbol, but dates are {self.dates.shape} and "
                f"there are {len(self.symbols)} symbols."
            )
        for name in PRICES:
            found = getattr(self, name).shape
            if found != self.shape:
                raise MarketDataError(
                    f"`{name}` is {found}, but {len(self.dates)} dates and {len(self.symbols)} symbols "
                    f"need {self.shape}."
                )
        if np.isnat(self.dates).any():
            raise MarketDataError(f"dates[{int(np.isnat(self.dates).argmax())}] is not a date (NaT).")
        late = np.flatnonzero(self.dates[1:] <= self.dates[:-1])
        if late.size:
            row = int(late[0]) + 1
            raise MarketDataError(
                f"Dates must increase, but dates[{row}] is {self.dates[row]} after {self.dates[row - 1]}; "
                "sort the days and keep each once."
            )
        if len(set(self.symbols)) < len(self.symbols):
            twice = next(symbol for symbol in self.symbols if self.symbols.count(symbol) > 1)
            raise MarketDataError(
                f"Symbol {twice!r} occurs more than once; each instrument needs its own name."
            )

    def _check_prices(self) -> None:
        prices: npt.NDArray[np.float64] = np.stack([self.open, self.high, self.low, self.close])
        missing = np.isnan(prices).sum(axis=0)
        self._refuse((missing > 0) & (missing < len(PRICES)), "has some of its four prices but not all")
        self._refuse(np.isinf(prices).sum(axis=0) > 0, "has an infinite price")
        self._refuse((prices <= 0).sum(axis=0) > 0, "has a price of zero or below; write NaN for no trade")
        outside = (self.low > np.minimum(self.open, self.close)) | (
            self.high < np.maximum(self.open, self.close)
        )
        self._refuse(outside, "breaks low <= open, close <= high")

    def _refuse(self, wrong: npt.NDArray[np.bool_], why: str) -> None:
        """Name the first day and symbol at fault, and how many there are."""
        if not wrong.any():
            return
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        prices = ", ".join(f"{name} {getattr(self, name)[row, column]:g}" for name in PRICES)
        raise MarketDataError(
            f"{self.symbols[column]} on {self.dates[row]} {why} ({prices}); {int(wrong.sum())} such "
            "values in total."
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(days, instruments)."""
        return len(self.dates), len(self.symbols)

    @property
    def traded(self) -> npt.NDArray[np.bool_]:
        """(days, instruments): whether there was a trade."""
        return ~np.isnan(self.close)

    def last(self, days: int) -> Panel:
        """The most recent `days` days."""
        if not 1 <= days <= len(self.dates):
            raise MarketDataError(f"Asked for the last {days} days of a panel that has {len(self.dates)}.")
        return self._take(slice(len(self.dates) - days, None), range(len(self.symbols)))

    def best_covered(self, instruments: int) -> Panel:
        """The `instruments` traded on most days, in the panel's own order; a tie goes to the earlier one."""
        if not 1 <= instruments <= len(self.symbols):
            raise MarketDataError(f"Asked for {instruments} symbols of a panel that has {len(self.symbols)}.")
        by_coverage = np.argsort(-self.traded.sum(axis=0), kind="stable")
        return self._take(slice(None), sorted(int(i) for i in by_coverage[:instruments]))

    def _take(self, rows: slice, columns: range | list[int]) -> Panel:
        prices = (getattr(self, name)[rows][:, columns] for name in PRICES)
        return Panel(self.dates[rows], tuple(self.symbols[i] for i in columns), *prices)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the panel as an .npz without pickles, atomically; folders are created as needed."""
        target, file = Path(path), io.BytesIO()
        target.parent.mkdir(parents=True, exist_ok=True)
        arrays = {name: getattr(self, name) for name in PRICES}
        days = self.dates.astype(np.int64)  # days since 1970-01-01
        np.savez_compressed(file, format=FORMAT, days=days, symbols=np.array(self.symbols), **arrays)
        write_bytes(target.parent, target.name, file.getvalue())
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Panel:
        """Read what `save` wrote; nothing in the file is ever executed."""
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise MarketDataError(f"{path} is not a panel file; `lakepond data` creates one.")
        with untrusted.blaming(
            f"{path} is not a complete panel: it", MarketDataError, "create it again with `lakepond data`"
        ):
            table = untrusted.read_npz(path)
            version = int(table["format"])
            if version > FORMAT:
                raise MarketDataError(
                    f"{path} has panel format {version}, newer than {FORMAT}; upgrade lakepond."
                )
            days, symbols = table["days"].astype("datetime64[D]"), tuple(table["symbols"].tolist())
            return cls(days, symbols, *(table[name] for name in PRICES))


def _owned(values: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """A read-only copy, so that a panel cannot change after it was checked."""
    try:
        array = np.array(values, dtype=dtype, order="C")
    except (ValueError, TypeError) as error:
        raise MarketDataError(f"Cannot read the panel's values as {np.dtype(dtype)}: {error}.") from error
    array.setflags(write=False)
    return array


def last_trade(traded: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """(days, instruments): the last day up to each day on which an instrument traded; -1 before its first."""
    return np.maximum.accumulate(np.where(traded, np.arange(len(traded))[:, None], -1), axis=0)
