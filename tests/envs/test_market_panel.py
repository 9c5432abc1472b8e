"""An invalid panel is refused in one sentence; a valid one is saved and loaded bit for bit."""

import os
import pickle

import numpy as np
import pytest

from lakepond.envs.market import Panel, synthetic
from lakepond.envs.market.panel import PRICES
from lakepond.errors import LakepondError, MarketDataError

NAN = np.nan


def a_panel(**changes):
    """Two days, two symbols; B is not traded on the first day."""
    parts = {
        "dates": ["2024-01-02", "2024-01-03"],
        "symbols": ("A", "B"),
        "open": [[10.0, NAN], [11.0, 5.0]],
        "high": [[12.0, NAN], [13.0, 6.0]],
        "low": [[9.0, NAN], [10.0, 4.0]],
        "close": [[11.0, NAN], [12.0, 5.5]],
    }
    return Panel(**(parts | changes))


def same(one: Panel, other: Panel) -> bool:
    arrays = ("dates", *PRICES)
    return one.symbols == other.symbols and all(
        getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in arrays
    )


def test_a_panel_knows_its_shape_and_who_trades():
    panel = a_panel()
    assert panel.shape == (2, 2)
    assert panel.dates.dtype == np.dtype("datetime64[D]")
    np.testing.assert_array_equal(panel.traded, [[True, False], [True, True]])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"open": [[10.0], [11.0]]}, r"`open` is \(2, 1\), but 2 dates and 2 symbols need \(2, 2\)\."),
        ({"dates": ["2024-01-03", "2024-01-02"]}, r"dates\[1\] is 2024-01-02 after 2024-01-03; sort"),
        ({"dates": ["2024-01-02", "2024-01-02"]}, r"dates\[1\] is 2024-01-02 after 2024-01-02; sort"),
        ({"dates": ["2024-01-02", "NaT"]}, r"dates\[1\] is not a date"),
        ({"dates": ["2024-01-02", "soon"]}, r"Cannot read the panel's values as datetime64\[D\]"),
        ({"symbols": ("A", "A")}, r"Symbol 'A' occurs more than once"),
        ({"symbols": ()}, r"at least one day and one symbol"),
        (
            {"low": [[0.0, NAN], [10.0, 4.0]]},
            r"A on 2024-01-02 has a price of zero or below.* low 0.* 1 such",
        ),
        ({"low": [[9.0, NAN], [10.0, -4.0]]}, r"B on 2024-01-03 has a price of zero or below"),
        ({"high": [[12.0, NAN], [13.0, np.inf]]}, r"B on 2024-01-03 has an infinite price"),
        ({"high": [[12.0, NAN], [11.5, 6.0]]}, r"A on 2024-01-03 breaks low <= open, close <= high"),
        ({"low": [[9.0, NAN], [11.1, 4.0]]}, r"A on 2024-01-03 breaks low <= open, close <= high"),
        ({"open": [[10.0, 5.0], [11.0, 5.0]]}, r"B on 2024-01-02 has some of its four prices but not all"),
    ],
)
def test_a_panel_that_cannot_be_is_refused(changes, sentence):
    with pytest.raises(MarketDataError, match=sentence):
        a_panel(**changes)


def test_the_error_is_also_a_value_error():
    assert issubclass(MarketDataError, ValueError)
    assert issubclass(MarketDataError, LakepondError)


def test_nobody_can_change_a_panel_after_it_was_checked():
    mine = np.array([[11.0, NAN], [12.0, 5.5]])
    panel = a_panel(close=mine)
    mine[0, 0] = -1
    assert panel.close[0, 0] == 11
    with pytest.raises(ValueError, match="read-only"):
        panel.close[0, 0] = -1


def test_a_saved_panel_comes_back_bit_for_bit(tmp_path):
    panel = synthetic(60, 5, seed=3)
    path = panel.save(tmp_path / "new" / "folder" / "panel.npz")
    assert same(Panel.load(path), panel)
    assert os.listdir(path.parent) == ["panel.npz"]


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    old = a_panel()
    path = old.save(tmp_path / "panel.npz")

    def full(file, **arrays):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space left"):
        synthetic(60, 5).save(path)
    assert same(Panel.load(path), old)
    assert os.listdir(tmp_path) == ["panel.npz"]


def test_a_torn_file_is_refused_wherever_it_was_torn(tmp_path):
    whole = a_panel().save(tmp_path / "whole.npz").read_bytes()
    torn = tmp_path / "torn.npz"
    for size in range(0, len(whole) - 1, 97):
        torn.write_bytes(whole[:size])
        with pytest.raises(MarketDataError, match=r"torn\.npz is not a"):
            Panel.load(torn)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, prices=np.ones(3))
    with pytest.raises(MarketDataError, match="not a complete panel"):
        Panel.load(path)
    np.savez(path, format=99)
    with pytest.raises(MarketDataError, match="panel format 99, newer than 1"):
        Panel.load(path)
    with pytest.raises(FileNotFoundError):
        Panel.load(tmp_path / "none.npz")


class Trap:
    sprung = False

    def __reduce__(self):
        return (setattr, (Trap, "sprung", True))


def test_a_pickle_in_a_panel_is_never_executed(tmp_path):
    path = tmp_path / "trap.npz"
    np.savez(path, format=1, days=np.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(MarketDataError, match="not a complete panel"):
        Panel.load(path)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(MarketDataError, match="not a panel file"):
        Panel.load(path)
    assert not Trap.sprung


def test_slices_keep_days_and_symbols_together():
    panel = synthetic(200, 9, seed=1)
    late = panel.last(50)
    assert late.dates[0] == panel.dates[150]
    np.testing.assert_array_equal(late.close, panel.close[150:])

    best = late.best_covered(4)
    covered = dict(zip(late.symbols, late.traded.mean(axis=0), strict=True))
    left_out = [covered[symbol] for symbol in late.symbols if symbol not in best.symbols]
    assert min(covered[symbol] for symbol in best.symbols) >= max(left_out)
    assert list(best.symbols) == sorted(best.symbols)
    for i, symbol in enumerate(best.symbols):
        np.testing.assert_array_equal(best.close[:, i], late.close[:, late.symbols.index(symbol)])


def test_slices_that_cannot_be_are_refused():
    with pytest.raises(MarketDataError, match="last 3 days of a panel that has 2"):
        a_panel().last(3)
    with pytest.raises(MarketDataError, match="0 symbols of a panel that has 2"):
        a_panel().best_covered(0)
