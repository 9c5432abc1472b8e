"""A user's own prices: every format gives the same panel, every error names its line and column."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from lakepond.cli import main
from lakepond.envs.market import FEATURES, Panel, features, inspect, read_market, synthetic
from lakepond.errors import MarketDataError

PRICES = ("open", "high", "low", "close")


@pytest.fixture(scope="module")
def panel() -> Panel:
    return synthetic(80, 4, seed=2)


def columns(panel: Panel) -> dict[str, list]:
    """Long form; days without a trade are left out, or have empty cells for the first symbol."""
    table: dict[str, list] = {name: [] for name in ("date", "symbol", *PRICES)}
    for t, day in enumerate(panel.dates):
        for i, symbol in enumerate(panel.symbols):
            if panel.traded[t, i] or i == 0:
                table["date"].append(str(day))
                table["symbol"].append(symbol)
                for name in PRICES:
                    price = float(getattr(panel, name)[t, i])
                    table[name].append(price if price == price else None)
    return table


def as_csv(table: dict[str, list], path: Path) -> Path:
    rows = [
        ",".join("" if cell is None else str(cell) for cell in row)
        for row in zip(*table.values(), strict=True)
    ]
    path.write_text("\n".join([",".join(table), *rows]) + "\n")
    return path


def test_csv_parquet_and_arrow_give_the_same_panel(panel, tmp_path):
    table = columns(panel)
    files = [as_csv(table, tmp_path / "prices.csv"), tmp_path / "prices.parquet", tmp_path / "prices.arrow"]
    pyarrow.parquet.write_table(pa.table(table), files[1])
    pyarrow.feather.write_feather(pa.table(table), files[2])
    for file in files:
        read, own = read_market(file)
        assert own is None
        assert sorted(read.symbols) == sorted(panel.symbols)
        order = [read.symbols.index(symbol) for symbol in panel.symbols]
        kept = np.isin(panel.dates, read.dates)
        for name in PRICES:
            np.testing.assert_array_equal(getattr(read, name)[:, order], getattr(panel, name)[kept])


def test_numpy_files_of_prices_and_of_features(panel, tmp_path):
    prices = np.stack([getattr(panel, name) for name in PRICES], axis=-1)
    np.save(tmp_path / "ohlc.npy", prices)
    np.save(tmp_path / "features.npy", features(panel))
    np.savez(
        tmp_path / "named.npz", features=features(panel), dates=panel.dates, symbols=np.array(panel.symbols)
    )
    panel.save(tmp_path / "saved.npz")
    for name in ("features.npy", "named.npz"):  # carried over missing days: features know no gaps
        found = inspect(tmp_path / name)
        assert found.problems == []
        np.testing.assert_array_equal(found.table, features(panel))
    for name in ("ohlc.npy", "saved.npz"):
        np.testing.assert_array_equal(read_market(tmp_path / name)[0].close, panel.close)
    assert inspect(tmp_path / "named.npz").panel.symbols == panel.symbols


def test_a_table_with_all_nine_features_brings_its_own(panel, tmp_path):
    table = {name: [] for name in ("date", "symbol", *FEATURES)}
    known = features(panel)
    for t in range(50, 60):
        for i in range(2):
            table["date"].append(str(panel.dates[t]))
            table["symbol"].append(panel.symbols[i])
            for k, name in enumerate(FEATURES):
                table[name].append(float(known[t, i, k]))
    read, own = read_market(as_csv(table, tmp_path / "own.csv"))
    assert read.shape == (10, 2)
    np.testing.assert_allclose(own, known[50:60, :2], rtol=1e-6)


def test_a_panel_can_be_cut_to_its_last_days_and_best_covered(panel, tmp_path):
    np.save(tmp_path / "own.npy", features(synthetic(80, 4, seed=5))[60:])
    for file in (panel.save(tmp_path / "saved.npz"), tmp_path / "own.npy"):
        read, own = read_market(file, days=15, instruments=2)
        assert read.shape == (15, 2)
        assert own is None or own.shape == (15, 2, 9)


@pytest.mark.parametrize(
    ("column", "row", "cell", "says"),
    [
        ("high", 3, "abc", "line 5, column high: 'abc' is not a number"),
        ("date", 2, "2020-13-45", "line 4, column date: '2020-13-45' is not a date"),
        ("low", 6, -4.5, "line 8, column low: .* has a price of -4.5"),
        ("open", 1, None, "line 3, column open: .* not this one"),
        ("high", 1, 0.01, "line 3, column high: .* below its open or close"),
        ("low", 1, 1e9, "line 3, column low: .* above its open or close"),
        ("close", 1, "inf", "line 3, column close: .* infinite"),
        ("close", None, None, "heading: no column close"),
    ],
)
def test_a_fault_is_told_by_line_and_column(column, row, cell, says, panel, tmp_path, capsys):
    table = columns(panel)
    if row is None:
        table.pop(column)
    else:
        table[column][row] = cell
    file = as_csv(table, tmp_path / "prices.csv")
    with pytest.raises(MarketDataError, match=says):
        read_market(file)
    assert main(["data", "check", str(file), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["good"]
    assert any(says.split(":")[0] in problem for problem in answer["problems"])


def test_days_twice_or_out_of_order_are_told(panel, tmp_path):
    table = columns(panel)
    first = {name: cells[0] for name, cells in table.items()}
    for name, cells in table.items():
        cells.append(first[name])
    with pytest.raises(
        MarketDataError, match=r"line \d+, column date: SYN000 has 2010-01-04 already in line 2"
    ):
        read_market(as_csv(table, tmp_path / "twice.csv"))
    table = columns(panel)
    for cells in table.values():
        cells.append(cells.pop(0))  # the first day comes last
    with pytest.raises(MarketDataError, match=r"2010-01-04 of SYN000 comes after .* sort the rows by date"):
        read_market(as_csv(table, tmp_path / "unsorted.csv"))


def test_all_faults_are_listed_and_the_number_told(panel, tmp_path, capsys):
    table = columns(panel)
    for row in (3, 9, 17):
        table["high"][row] = "?"
    file = as_csv(table, tmp_path / "prices.csv")
    with pytest.raises(MarketDataError, match="and 2 more; `lakepond data check"):
        read_market(file)
    assert main(["data", "check", str(file)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_check_says_that_a_good_file_is_too_short_for_the_context_or_good(panel, tmp_path, capsys):
    file = as_csv(columns(panel), tmp_path / "prices.csv")
    assert main(["data", "check", str(file)]) == 1
    assert "has 80 days" in capsys.readouterr().out
    assert main(["data", "check", str(file), "--context", "5", "--trading-days", "2"]) == 1  # episodes of 22
    long = synthetic(300, 3).save(tmp_path / "long.npz")
    assert main(["data", "check", str(long), "--context", "30", "--trading-days", "20"]) == 0
    assert "is valid: 300 days of 3 symbols" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["prices.xlsx", "absent.csv"])
def test_what_is_no_file_of_prices_is_said_so(name, tmp_path, capsys):
    assert main(["data", "check", str(tmp_path / name)]) == 1
    assert "lakepond: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.array([{"a": 1}], dtype=object), "cannot be read"),  # a pickle is never opened
        (np.ones((10, 4)), "days, instruments, 4"),
        (np.ones((10, 3, 4)) * [[1], [1], [np.nan]], "I002 has no price on any day"),
    ],
)
def test_an_array_that_is_no_panel_is_refused(array, says, tmp_path):
    np.save(tmp_path / "array.npy", array, allow_pickle=True)
    with pytest.raises(MarketDataError, match=says):
        read_market(tmp_path / "array.npy")
