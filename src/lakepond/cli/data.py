"""`lakepond data`: get market prices, make them up, look at them, check your own."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg, subcommand

if TYPE_CHECKING:
    from lakepond.envs.market import Panel


@dataclass(frozen=True)
class Fetch:
    """Fetch real prices out of a public wheel, clean them and save them as a panel.

    Example: lakepond data fetch pse
    """

    source: Positional[Literal["pse", "sp500"]]
    """pse: Philippine Stock Exchange, 257 symbols, 2010-2021; sp500: 20 names, closes only, 1990-2022"""
    out: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(default: data/<source>.npz)")] = None
    """file to write"""
    wheel: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(default: ask pip)")] = None
    """a wheel that is already here, for machines without a network"""
    json: bool = False
    """print JSON instead of a table"""

    def run(self) -> None:
        """Download, clean, save, tell."""
        from lakepond.envs.market import fetch_pse, fetch_sp500

        fetch = {"pse": fetch_pse, "sp500": fetch_sp500}[self.source]
        out = self.out or Path("data") / f"{self.source}.npz"
        if self.wheel is None:
            print("asking pip for the wheel ...", file=sys.stderr)
        fetched = fetch(out, wheel=self.wheel)
        told = {"source": str(fetched.source), **_summary(fetched.path, fetched.panel)}
        _tell(told | {"cleaned": asdict(fetched.cleaned)}, as_json=self.json)


@dataclass(frozen=True)
class Synthetic:
    """Make up realistic prices, exact by seed, and save them as a panel.

    Example: lakepond data synthetic --days 600 --instruments 20 --signal 0.1
    """

    days: int = 2500
    """business days from 2010-01-04 on"""
    instruments: int = 108
    """number of symbols"""
    seed: int = 0
    """the same seed gives the same bytes"""
    signal: float = 0.0
    """strength of the planted mean reversion, 0 (none) to 1 (as large as the noise)"""
    out: Path = Path("data/synthetic.npz")
    """file to write"""
    json: bool = False
    """print JSON instead of a table"""

    def run(self) -> None:
        """Generate, save, tell."""
        from lakepond.envs.market import synthetic

        panel = synthetic(self.days, self.instruments, seed=self.seed, signal=self.signal)
        _tell(_summary(panel.save(self.out), panel), as_json=self.json)


@dataclass(frozen=True)
class Show:
    """Tell what a saved panel holds.

    Example: lakepond data show data/pse.npz --json
    """

    file: Positional[Path]
    """a panel saved by `lakepond data fetch` or `lakepond data synthetic`"""
    json: bool = False
    """print JSON instead of a table"""

    def run(self) -> None:
        """Load, compute the features, tell."""
        from lakepond.envs.market import Panel

        _tell(_summary(self.file, Panel.load(self.file)), as_json=self.json)


@dataclass(frozen=True)
class Check:
    """Say what is wrong with a file of prices, by line and column, and whether it is long enough to train on.

    Example: lakepond data check prices.csv
    """

    file: Positional[Path]
    """.csv, .parquet, .arrow, .feather, .npy or .npz; docs/market-data.md tells what must be in it"""
    context: int = 504
    """days an agent sees"""
    trading_days: int = 125
    """days of an episode on which it decides"""
    json: bool = False
    """print JSON instead of lines"""

    def run(self) -> int:
        """Read, check, tell; exit code 1 if something is wrong."""
        from lakepond.envs.market.files import inspect
        from lakepond.envs.market.history import split
        from lakepond.envs.market.rules import Rules
        from lakepond.errors import MarketDataError

        found = inspect(self.file)
        problems = [str(problem) for problem in found.problems]
        told: dict[str, Any] = {"file": str(self.file), "good": not problems, "problems": problems}
        if found.panel is not None:
            try:
                split(len(found.panel.dates), Rules(context=self.context, trading_days=self.trading_days))
            except MarketDataError as short:
                problems.append(str(short))
                told["good"] = False
            told["days"], told["symbols"] = found.panel.shape
            told["first_day"], told["last_day"] = str(found.panel.dates[0]), str(found.panel.dates[-1])
            told["own_features"] = found.table is not None
        if self.json:
            print(json.dumps(told))
        elif problems:
            print("\n".join(problems))
        else:
            print(
                f"{self.file} is good: {told['days']:,} days of {told['symbols']:,} symbols, "
                f"{told['first_day']} to {told['last_day']}"
            )
        return 1 if problems else 0


@dataclass(frozen=True)
class Data:
    """Market prices: fetch them, make them up, look at them, check your own.

    Example: lakepond data fetch pse
    """

    command: Annotated[
        Annotated[Fetch, subcommand("fetch")]
        | Annotated[Synthetic, subcommand("synthetic")]
        | Annotated[Show, subcommand("show")]
        | Annotated[Check, subcommand("check")],
        arg(name=""),
    ]

    def run(self) -> int | None:
        """Pass on to the verb."""
        return self.command.run()


def _summary(path: Path, panel: Panel) -> dict[str, Any]:
    """What a panel holds, in plain JSON types; shares are of 1."""
    import numpy as np

    from lakepond.envs.market import FEATURES, features

    days, symbols = panel.shape
    coverage = panel.traded.mean(axis=0)
    finite = np.isfinite(features(panel))
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        "days": days,
        "symbols": symbols,
        "first_day": str(panel.dates[0]),
        "last_day": str(panel.dates[-1]),
        "coverage": {
            "all": float(coverage.mean()),
            "least_traded": float(coverage.min()),
            "symbols_from_90_percent": int((coverage >= 0.9).sum()),
        },
        "features_finite": {
            "all_nine": float(finite.all(axis=-1).mean()),
            **{name: float(finite[..., i].mean()) for i, name in enumerate(FEATURES)},
        },
    }


def _tell(rows: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows))
        return
    for name, value in rows.items():
        if not isinstance(value, dict):
            print(f"{_words(name):<18}  {_plain(value)}")
            continue
        for i, (part, inner) in enumerate(value.items()):
            print(f"{_words(name) if i == 0 else '':<18}  {_words(part):<24}  {_plain(inner):>9}")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else str(value)
