"""`lakepond data`: what it prints, where, and with which exit code."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from lakepond._version import __version__
from lakepond.cli import main
from lakepond.envs.market import Panel, synthetic


@pytest.fixture
def small(tmp_path) -> Path:
    return synthetic(80, 4, seed=2).save(tmp_path / "small.npz")


def test_synthetic_writes_the_panel_the_library_makes(tmp_path, capsys):
    out = tmp_path / "made" / "panel.npz"
    words = f"data synthetic --days 80 --instruments 4 --seed 2 --signal 0.2 --out {out} --json"
    assert main(words.split()) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["days"], answer["symbols"], answer["first_day"]) == (80, 4, "2010-01-04")
    np.testing.assert_array_equal(Panel.load(out).close, synthetic(80, 4, seed=2, signal=0.2).close)


def test_synthetic_writes_below_data_unless_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "synthetic", "--days", "30", "--instruments", "2"]) == 0
    assert Panel.load("data/synthetic.npz").shape == (30, 2)


def test_show_prints_a_table(small, capsys):
    assert main(["data", "show", str(small)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in out.splitlines())
    assert (lines["days"], lines["symbols"], lines["first day"]) == ("80", "4", "2010-01-04")
    assert "distance to mean" in out
    assert lines["coverage: all"].endswith(" %")
    assert lines["bytes"].endswith(" kB")


def test_show_prints_json_with_true_numbers(small, capsys):
    assert main(["data", "show", str(small), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    panel = Panel.load(small)
    assert answer["coverage"]["all"] == pytest.approx(panel.traded.mean())
    assert answer["coverage"]["least_traded"] == pytest.approx(panel.traded.mean(axis=0).min())
    assert answer["features_finite"]["close"] >= answer["coverage"]["all"]
    assert (
        answer["features_finite"]["all_nine"] == answer["features_finite"]["trix"]
    )  # the slowest to warm up
    assert answer["bytes"] == small.stat().st_size


def test_fetch_saves_and_tells_what_was_cleaned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "fetch", "sp500", "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)  # nothing but JSON on stdout
    assert err == "Downloading the wheel with pip ...\n"
    assert answer["source"] == "skfolio 1.12.2"
    assert answer["cleaned"] == {"zeros": 0, "partial": 0, "contradictions": 0, "splits": 0, "jumps": 8}
    assert Panel.load("data/sp500.npz").shape == (8313, 20)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("data show none.npz", "lakepond: none.npz: No such file or directory.\n"),
        ("data show torn.npz", "lakepond: torn.npz is not a panel file; `lakepond data` creates one.\n"),
        (
            "data fetch pse --wheel torn.npz",
            "lakepond: torn.npz is not the wheel of fastquant 0.1.8.1: File is not a zip file.\n",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_1(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torn.npz").write_bytes(b"PK and no more")
    assert main(words.split()) == 1
    assert capsys.readouterr() == ("", sentence)


@pytest.mark.parametrize("words", ["data fetch nyse", "data show", "data synthetic --days x"])
def test_wrong_usage_is_exit_code_2_and_nothing_on_stdout(words, capsys):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lakepond {__version__}\n"


def test_an_interrupt_is_quiet(small, monkeypatch, capsys):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(Panel, "load", interrupted)
    assert main(["data", "show", str(small)]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_mistake_of_ours_keeps_its_traceback(small, monkeypatch):
    def broken(path):
        raise ZeroDivisionError

    monkeypatch.setattr(Panel, "load", broken)
    with pytest.raises(ZeroDivisionError):
        main(["data", "show", str(small)])
