"""Real prices: cleaned with every change counted, taken from pinned wheels, refused when anything is off."""

import hashlib
import io
import subprocess
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from lakepond.envs.market import Panel, features, fetch_power, fetch_pse, fetch_sp500, sources
from lakepond.envs.market.cleaning import Cleaned, clean
from lakepond.errors import MarketDataError

NAN = np.nan


def cleaned(opened, high, low, close, *, rebase=True) -> tuple[Panel, Cleaned]:
    """One symbol, one day a value."""
    prices = np.array([opened, high, low, close], dtype=float)[:, :, None]
    dates = np.datetime64("2024-01-01") + np.arange(prices.shape[1])
    return clean(dates, ("A",), prices, rebase=rebase)


def flat(close, **options) -> tuple[Panel, Cleaned]:
    return cleaned(close, close, close, close, **options)


def test_a_clean_table_is_left_alone():
    panel, counts = cleaned([10, 11], [12, 12], [9, 10], [11, 10.5])
    assert counts == Cleaned(zeros=0, partial=0, contradictions=0, splits=0, jumps=0)
    np.testing.assert_array_equal(panel.close[:, 0], [11, 10.5])


def test_what_is_no_trade_becomes_missing_and_is_counted_once():
    panel, counts = cleaned(
        opened=[10, 0, 10, 10, 10, NAN],
        high=[12, 0, NAN, 10, 12, NAN],
        low=[9, 0, 9, 9, 10.5, NAN],
        close=[11, 0, 11, 11, 11, NAN],
    )
    np.testing.assert_array_equal(panel.traded[:, 0], [True, False, False, False, False, False])
    assert counts == Cleaned(zeros=1, partial=1, contradictions=2, splits=0, jumps=0)


def test_splits_rescale_what_came_before():
    # A consolidation of 100 to 1, then a split of 1 to 4; each day is otherwise flat or moves by a tenth.
    panel, counts = flat([0.10, 0.11, 11, 12.1, 3.025, 3.025])
    assert counts.splits == 2
    assert counts.jumps == 0
    np.testing.assert_allclose(panel.close[:, 0], [2.5, 2.75, 2.75, 3.025, 3.025, 3.025])


def test_a_split_is_seen_across_missing_days_and_the_first_trade_is_none():
    panel, counts = flat([NAN, 10, NAN, NAN, 100, 100])
    assert counts.splits == 1
    np.testing.assert_allclose(panel.close[:, 0], [NAN, 100, NAN, NAN, 100, 100])


def test_a_fall_by_less_than_half_is_a_jump_and_stays():
    panel, counts = flat([100, 55, 55])
    assert (counts.splits, counts.jumps) == (0, 1)
    np.testing.assert_array_equal(panel.close[:, 0], [100, 55, 55])


def test_prices_that_are_adjusted_already_are_not_adjusted_again():
    panel, counts = flat([100, 10], rebase=False)
    assert (counts.splits, counts.jumps) == (0, 1)
    np.testing.assert_array_equal(panel.close[:, 0], [100, 10])


def test_the_philippine_exchange_comes_whole(tmp_path):
    fetched = fetch_pse(tmp_path / "pse.npz")
    panel = Panel.load(fetched.path)
    assert panel.shape == (2798, 257)
    assert (str(panel.dates[0]), str(panel.dates[-1])) == ("2010-01-04", "2021-12-15")
    assert fetched.cleaned == Cleaned(zeros=37, partial=0, contradictions=35, splits=41, jumps=560)
    assert panel.traded.sum() == 538_336

    jollibee = panel.symbols.index("JFC")  # never split: as in the source, to the last digit
    last = [getattr(panel, name)[-1, jollibee] for name in ("open", "high", "low", "close")]
    assert last == [227.6, 227.6, 226.0, 227.0]

    trading = panel.last(2500).best_covered(108)
    assert trading.traded.mean(axis=0).min() > 0.9
    columns = [panel.symbols.index(symbol) for symbol in trading.symbols]
    assert np.isfinite(features(panel)[-2500:, columns]).mean() > 0.99
    returns = np.diff(np.log(panel.close), axis=0)
    assert np.nanmax(np.abs(returns)) < 0.7  # 5.1 before splits were taken out


def test_the_american_names_come_whole(tmp_path):
    fetched = fetch_sp500(tmp_path / "sp500.npz")
    panel = Panel.load(fetched.path)
    assert panel.shape == (8313, 20)
    assert panel.symbols[0] == "AAPL"
    assert (str(panel.dates[0]), str(panel.dates[-1])) == ("1990-01-02", "2022-12-28")
    assert panel.close[0, 0] == 0.264
    assert panel.traded.all()
    np.testing.assert_array_equal(panel.high, panel.low)  # closes only


def test_the_dutch_power_prices_come_whole(tmp_path):
    fetched = fetch_power(tmp_path / "power.npz")
    panel = Panel.load(fetched.path)
    assert panel.shape == (3660, 24)
    assert (str(panel.dates[0]), str(panel.dates[-1])) == ("2015-01-01", "2025-01-07")
    assert set(np.diff(panel.dates).astype(int).tolist()) == {1}
    assert fetched.cleaned == Cleaned(zeros=1222, partial=0, contradictions=0, splits=0, jumps=12_925)
    assert panel.close[0, :3].tolist() == [34.94, 32.19, 28.05]
    assert panel.close[-1, -3:].tolist() == [82.2, 80.01, 66.19]  # from the second of its two tables


@pytest.fixture
def a_small_source(tmp_path, monkeypatch):
    """A wheel of two symbols and two days, made the way the real one is, and the pin that fits it."""
    heading = (
        "Symbol" + ",A" * 5 + ",B" * 5 + "\n" + ",open,high,low,close,value" * 2 + "\ndt" + "," * 10 + "\n"
    )
    table = (heading + "2024-01-02,1,2,1,2,9,,,,,\n2024-01-03,2,2,2,2,9,0,0,0,0,0\n").encode()
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("/etc/somewhere/else.csv", table)
    wheel = tmp_path / "small-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(sources.PSE.member, inner.getvalue())
    pin = {"archive_bytes": len(inner.getvalue()), "sha256": hashlib.sha256(table).hexdigest()}
    small = replace(sources.PSE, shape=(2, 2), **pin)
    monkeypatch.setattr(sources, "PSE", small)
    return wheel


def test_the_inner_table_is_read_by_index_whatever_its_name(a_small_source, tmp_path):
    fetched = fetch_pse(tmp_path / "out" / "small.npz", wheel=a_small_source)
    np.testing.assert_array_equal(fetched.panel.close, [[2, NAN], [2, NAN]])
    assert fetched.cleaned.zeros == 1
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["small-1-py3-none-any.whl", "small.npz"]


@pytest.mark.parametrize(
    ("pin", "sentence"),
    [
        (
            {"sha256": "0" * 64},
            r"The table in small-1.* does not match the known checksum of fastquant 0\.1\.8\.1",
        ),
        ({"archive_bytes": 7}, r"bytes where fastquant 0\.1\.8\.1 has 7; only that version can be read"),
        ({"member": "else.zip"}, r"small-1.* is not the wheel of fastquant 0\.1\.8\.1: .*else\.zip"),
        ({"shape": (3, 2)}, r"holds \(2, 2\) days and symbols where \(3, 2\) were expected"),
    ],
)
def test_a_wheel_that_is_not_the_pinned_one_is_refused(a_small_source, tmp_path, monkeypatch, pin, sentence):
    monkeypatch.setattr(sources, "PSE", replace(sources.PSE, **pin))
    with pytest.raises(MarketDataError, match=sentence):
        fetch_pse(tmp_path / "small.npz", wheel=a_small_source)
    assert not (tmp_path / "small.npz").exists()


def test_a_file_that_is_no_wheel_is_refused(tmp_path):
    path = tmp_path / "a.whl"
    path.write_bytes(b"not a wheel")
    with pytest.raises(MarketDataError, match=r"a\.whl is not the wheel of skfolio"):
        fetch_sp500(tmp_path / "out.npz", wheel=path)
    with pytest.raises(FileNotFoundError):
        fetch_sp500(tmp_path / "out.npz", wheel=tmp_path / "none.whl")


def test_without_an_index_pip_says_so_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(MarketDataError, match=r"pip could not download fastquant .*; check the network"):
        fetch_pse(tmp_path / "out.npz")
    assert list(tmp_path.iterdir()) == []


def test_without_pip_the_next_step_is_told(tmp_path, monkeypatch):
    def no_pip(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "python: No module named pip\n")

    monkeypatch.setattr(subprocess, "run", no_pip)
    with pytest.raises(MarketDataError, match=r"has no pip .* run `python -m ensurepip`"):
        fetch_pse(tmp_path / "out.npz")


def test_a_download_that_hangs_is_given_up(tmp_path, monkeypatch):
    def hangs(command, *, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(MarketDataError, match=r"did not deliver skfolio 1\.12\.2 within 600 s"):
        fetch_sp500(tmp_path / "out.npz")
