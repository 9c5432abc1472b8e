"""Tables at every width: numbers and units are never cut, and text from files is never markup."""

import re
from dataclasses import dataclass

import numpy as np
import pytest

import lakepond as lp
from lakepond.cli import compare, evaluate, main, train, words
from lakepond.runs import Run

SPEC = lp.Spec(obs=lp.Field((1,), "float32"))
WIDTHS = ["60", "80", "140"]
NOTE = (
    "a note of many words, and a_path/without/any/space/"
    + "x" * 150
    + " [/done] [bold]not bold[/bold] :smile:"
)
NAMES = ["run[lr=1e-3]", "run [/red] with spaces", "deep/" + "n" * 120]


def fill(replay: lp.Replay, steps: int) -> None:
    obs = np.arange(steps + 1, dtype=np.float32)[:, None]
    nothing = np.zeros(steps, bool)
    replay.record(
        obs=obs[:-1],
        action=np.zeros(steps, np.int64),
        reward=np.arange(steps, dtype=np.float32),
        next_obs=obs[1:],
        terminated=nothing,
        truncated=nothing,
        stream=0,
    )


def squeezed(text: str) -> str:
    """Without white space: what wraps over lines is one piece again."""
    return re.sub(r"\s", "", text)


def printed(console_words: list[str], columns: str, monkeypatch, capsys, code: int = 0) -> str:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(console_words) == code
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(columns)
    return out


@pytest.mark.parametrize("columns", [30, 60, 80, 140])
@pytest.mark.parametrize("text", [(0,), (0, 3), (0, 4)])
def test_no_number_is_cut_and_no_text_is_lost(columns, text, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    cells = [
        [f"{NOTE} {i}" if j in text else f"{10**j * (1_234 + i):,} GB" for j in range(5)] for i in range(3)
    ]
    words.console().print(
        words.NumberTable("title [x]", ["one", "two", "three", "four", "five"], cells, text=text)
    )
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    for row in cells:
        for j, cell in enumerate(row):
            assert j in text or cell in out


def test_text_in_one_column_wraps_and_is_complete(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    words.console().print(words.NumberTable("", ["note", "steps"], [[NOTE, "1,234"]]))
    out = capsys.readouterr().out
    assert "1,234" in out
    assert squeezed(NOTE) in squeezed(out.replace("1,234", ""))


@pytest.fixture
def named(tmp_path, monkeypatch):
    """A folder with runs whose names and notes look like markup."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        with lp.Replay.open(tmp_path / "runs" / name, SPEC, capacity=2_000) as replay:
            fill(replay, 1_234)
            replay.commit({"note": NOTE, "[lr]": "[/]"})
    return "runs"


@pytest.mark.parametrize("columns", WIDTHS)
def test_ls_and_show_print_names_and_notes_as_they_are(columns, named, monkeypatch, capsys):
    out = printed(["ls"], columns, monkeypatch, capsys)
    assert out.count("1,234") == len(NAMES)
    assert out.count(" kB") == len(NAMES)
    for name in NAMES[:2] if columns == "140" else []:
        assert f"runs/{name}" in out
    one = [f"{named}/{NAMES[0]}"]
    out = printed(["ls", *one], columns, monkeypatch, capsys)
    assert "1,234" in out
    assert "[/done]" in out
    out = printed(["show", *one], columns, monkeypatch, capsys)
    assert "1,234 live: [0, 1,234)" in out
    assert squeezed(NOTE) in squeezed(out)
    out = printed(["status", *one], columns, monkeypatch, capsys)
    assert NAMES[0] in out
    assert "1,234 steps" in out


@dataclass(frozen=True)
class Config:
    generations: int = 12
    min_free: str = "1GB"


@pytest.fixture
def run(tmp_path):
    """A run with large metrics, a bracketed name and an upload that failed."""
    folder = tmp_path / "run[a=1]"
    with Run.create(folder, "erl", Config()) as made:
        with lp.Replay.open(made.lake_folder, SPEC, capacity=2_000) as replay:
            fill(replay, 1_234)
        names = ("steps", "recorded", "fitness_best", "train_seconds_total", "[red]name")
        for step in range(1, 4):
            made.log(step, dict.fromkeys(names, 11_520.0) | {"critic_loss": 0.2098553})
    (folder / "upload.json").write_text('{"url": "gs://b/[x]", "last_error": "denied [/red]"}')
    return folder


@pytest.mark.parametrize("columns", WIDTHS)
def test_status_writes_numbers_in_full_and_units(columns, run, monkeypatch, capsys):
    out = printed(["status", str(run)], columns, monkeypatch, capsys)
    text = " ".join(out.split())
    assert "steps 11,520" in text
    assert "e+" not in text
    assert "train seconds total 3 h 12 min" in text
    assert "critic loss 0.2099" in text
    for name in ("run[a=1]", "gs://b/[x]", "denied [/red]", "[red]name 11,520"):
        assert squeezed(name) in squeezed(out)


@pytest.mark.parametrize("columns", WIDTHS)
def test_every_table_of_a_plan_fits(columns, run, monkeypatch, capsys):
    for source in (["--preset", "eigen2"], ["--preset", "gravitar"], ["--from", str(run)]):
        out = printed(["plan", *source, "--disk", "1TB", "--ram", "1TB"], columns, monkeypatch, capsys)
        assert "…" not in out
        assert "512 GB" in out
        for line in out.splitlines():  # no unit without its number, no number without its unit
            assert not re.match(r"^\s*(B|kB|MB|GB)\b", line) or "per step" in line


ACCOUNT = {
    "total_return": 123_456.7,
    "sharpe": 1.234,
    "max_drawdown": 99.9,
    "trades": 123_456,
    "win_rate": 51.0,
    "exposure": 100.0,
}
EVALUATION = {
    "champion": ACCOUNT,
    "buy_and_hold": ACCOUNT,
    "random": ACCOUNT,
    "random_same_targets": ACCOUNT,
    "champion_beats_random": 0.99,
    "champion_beats_random_same_targets": 0.98,
    "part": "validation",
    "first_day": "2018-01-01",
    "last_day": "2019-12-31",
    "sweep": [
        {
            "cost": 0.25,
            "slippage": 0.5,
            "champion": 98_765.4,
            "buy_and_hold": 1.0,
            "random": -2.0,
            "champion_beats_random": 0.5,
        }
    ],
}


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_table_of_an_evaluation_fits(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    for table in evaluate.tables(EVALUATION):
        words.console().print(table)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(columns)
    assert out.count("+123456.7 %") == 4
    assert out.count("123,456") == 4
    assert out.count("+98765.4 %") == 1


@pytest.mark.parametrize("found", [{"evaluation": EVALUATION}, {}])
@pytest.mark.parametrize("columns", WIDTHS)
def test_the_result_of_a_training_fits(columns, found, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    folder = "runs/[/red]" + "n" * 90
    result = {
        "folder": folder,
        "steps": 123_456_789,
        "training_seconds": 123_456.0,
        "blocked_on_saving_seconds": 4_567.0,
        "bytes_plain": 187 * 10**9,
        "bytes_held": 1_234_567_890,
        "bytes_on_disk": 999_999_999,
        "commits": 12_345,
        "evaluation_folder": f"{folder}/evaluation/validation",
        "report": f"{folder}/report.html",
    }
    for part in train.summary(result | found):
        words.console().print(part)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(columns)
    for fact in ("187 GB uncompressed", "1.23 GB", "1 GB in the lake, 12,345 commits", "3.70 % of the time"):
        assert fact in out
    assert out.count("+123456.7 %") == (4 if found else 0)
    assert squeezed(f"{folder}/report.html") in squeezed(out)


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_table_of_a_comparison_fits(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    found = {"runs": 1_234, "mean": [123_456.78, 100_000.0, 200_000.0], "iqm": [1.0, 1.0, 1.0]}
    arms = {name: found for name in ("arm[1]", "b" * 90)}
    words.console().print(compare.table(arms))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(columns)
    assert out.count("123456.78") == 2
    assert "arm[1]" in out


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_facts_of_a_panel_fit(columns, tmp_path, monkeypatch, capsys):
    path = str(tmp_path / "panel[1].npz")
    made = ["data", "synthetic", "--days", "30", "--instruments", "2", "--out", path]
    out = printed(made, columns, monkeypatch, capsys)
    assert squeezed(path) in squeezed(out)
    assert re.search(r"\d kB", out)


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_doctors_lines_fit(columns, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lakepond.doctor.software.accelerator", lambda: next(iter(checks)))
    from lakepond.doctor.check import Finding

    checks = [Finding("accelerator", "warn", "JAX cannot be used: [/red] " + "y" * 90, "do [this]")]
    out = printed(["doctor", "--path", str(tmp_path)], columns, monkeypatch, capsys)
    assert "[/red]" in out
    assert "→ do [this]" in out
