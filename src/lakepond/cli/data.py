"""`lakepond data`: download, generate, show and check market prices."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from lakepond import formats
from lakepond.cli import words
from lakepond.cli.options import Json, at_least, between, optional

if TYPE_CHECKING:
    from lakepond.envs.market import Panel


@dataclass(frozen=True)
class DataFetch:
    """Download real prices from a public Python wheel, clean them and save them as a panel.

    Example: lakepond data fetch pse
    """

    source: Positional[Literal["pse", "sp500", "power"]]
    """pse: Philippine Stock Exchange, 257 symbols, 2010-2021; sp500: 20 names, closes only, 1990-2022; power:
    Dutch day-ahead prices by hour, 2015-2024"""
    out: Annotated[Path | None, optional("PATH", "data/<source>.npz")] = None
    """file to write"""
    wheel: Annotated[Path | None, optional("PATH", "download with pip")] = None
    """a wheel that is on this machine already, for machines without a network"""
    json: Json = False

    def run(self) -> None:
        from lakepond.envs.market import fetch_power, fetch_pse, fetch_sp500

        fetch = {"pse": fetch_pse, "sp500": fetch_sp500, "power": fetch_power}[self.source]
        out = self.out or Path("data") / f"{self.source}.npz"
        if self.wheel is None:
            words.talk("Downloading the wheel with pip ...")
        fetched = fetch(out, wheel=self.wheel)
        result = {"source": str(fetched.source), **_summary(fetched.path, fetched.panel)}
        _print(result | {"cleaned": asdict(fetched.cleaned)}, as_json=self.json)


@dataclass(frozen=True)
class DataSynthetic:
    """Generate realistic prices from a seed and save them as a panel.

    Example: lakepond data synthetic --days 600 --instruments 20 --signal 0.1
    """

    days: int = 2500
    """number of business days, starting on 2010-01-04"""
    instruments: int = 108
    """number of instruments"""
    seed: int = 0
    """random seed; the same seed gives the same bytes"""
    signal: float = 0.0
    """strength of the mean reversion in the prices, 0 (none) to 1 (as large as the noise)"""
    out: Path = Path("data/synthetic.npz")
    """file to write"""
    json: Json = False

    def run(self) -> None:
        at_least(1, days=self.days, instruments=self.instruments)
        at_least(0, seed=self.seed)
        between(0, 1, signal=self.signal)
        from lakepond.envs.market import synthetic

        panel = synthetic(self.days, self.instruments, seed=self.seed, signal=self.signal)
        _print(_summary(panel.save(self.out), panel), as_json=self.json)


@dataclass(frozen=True)
class DataShow:
    """Show the contents of a saved panel.

    Example: lakepond data show data/pse.npz --json
    """

    file: Positional[Path]
    """a panel saved by `lakepond data fetch` or `lakepond data synthetic`"""
    json: Json = False

    def run(self) -> None:
        from lakepond.envs.market import Panel

        _print(_summary(self.file, Panel.load(self.file)), as_json=self.json)


@dataclass(frozen=True)
class DataCheck:
    """Check a file of prices: list errors by line and column, and whether it is long enough.

    Example: lakepond data check prices.csv
    """

    file: Positional[Path]
    """.csv, .parquet, .arrow, .feather, .npy or .npz; docs/market-data.md describes the format"""
    context: int = 504
    """number of days an agent observes"""
    trading_days: int = 125
    """number of days of an episode on which it trades"""
    json: Json = False

    def run(self) -> int:
        at_least(1, context=self.context, trading_days=self.trading_days)
        from lakepond.envs.market.files import inspect
        from lakepond.envs.market.history import split
        from lakepond.envs.market_rules import Rules
        from lakepond.errors import MarketDataError

        found = inspect(self.file)
        problems = [str(problem) for problem in found.problems]
        result: dict[str, Any] = {"file": str(self.file), "good": not problems, "problems": problems}
        if found.panel is not None:
            try:
                split(len(found.panel.dates), Rules(context=self.context, trading_days=self.trading_days))
            except MarketDataError as short:
                problems.append(str(short))
                result["good"] = False
            result["days"], result["symbols"] = found.panel.shape
            result["first_day"], result["last_day"] = str(found.panel.dates[0]), str(found.panel.dates[-1])
            result["own_features"] = found.table is not None
        if self.json:
            words.print_json(result)
        elif problems:
            print("\n".join(map(words.printable, problems)))
        else:
            print(
                f"{self.file} is valid: {result['days']:,} days of {result['symbols']:,} symbols, "
                f"{result['first_day']} to {result['last_day']}"
            )
        return 1 if problems else 0


def _summary(path: Path, panel: Panel) -> dict[str, Any]:
    """The contents of a panel as JSON types; shares are between 0 and 1."""
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


def _print(rows: dict[str, Any], *, as_json: bool) -> None:
    facts: list[tuple[str, str]] = []
    for name, value in rows.items():
        if isinstance(value, dict):
            facts += [
                (f"{_words(name)}: {_words(part)}", _plain(part, inner)) for part, inner in value.items()
            ]
        else:
            facts.append((_words(name), _plain(name, value)))
    words.print_result(rows, words.facts(facts), as_json=as_json)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _plain(name: str, value: object) -> str:
    if isinstance(value, float):
        return formats.percent(100 * value)
    if name == "bytes" and isinstance(value, int):
        return formats.size(value)
    return formats.number(value) if isinstance(value, int) else str(value)
