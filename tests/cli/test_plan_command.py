"""`lakepond plan`: tables, JSON, verdict and exit code."""

import shutil
from dataclasses import dataclass

import numpy as np
import pytest

import lakepond as lp
from lakepond.cli import main
from lakepond.formats import size
from lakepond.runs import Run


def test_the_preset_prints_the_storys_table(capsys):
    assert main(["plan", "--preset", "eigen2", "--disk", "100GB", "--ram", "16GB"]) == 0
    out = capsys.readouterr().out
    for reported in ("7.5", "37.4", "74.8", "112.2", "149.6", "187.0"):
        assert f"{reported} GB" in out
    assert "3.74 MiB" in out
    assert "2,500 distinct rows" in out
    assert "That machine is large enough" in out


def test_ranges_are_shown_on_a_terminal_of_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    main(["plan", "--preset", "eigen2"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "25 50,000 187.0 GB 196 GB 64.7–78.4 GB 46.1–54.6 MB" in lines  # as in docs/tutorials/market.md


def test_a_machine_that_is_too_small_is_exit_code_1(json_of, capsys):
    words = ["plan", "--preset", "eigen2", "--store", "plain", "--disk", "50GB", "--ram", "175GB"]
    planned = json_of(*words, code=1)
    assert planned["verdict"]["fits"] is False
    assert len(planned["verdict"]["why"]) == 2
    assert main(words) == 1
    assert "too small" in capsys.readouterr().out


def test_shapes_are_planned_as_the_preset_they_describe(json_of):
    machine = ["--disk", "1TB", "--ram", "1TB"]
    schedule = ["--per-generation", 2_000, "--generations", 25, "--pool", 2_500]
    shapes = json_of("plan", "--obs", "504,108,9:float32", "--action", "108,2", *schedule, *machine)
    preset = json_of("plan", "--preset", "eigen2", *machine)
    assert shapes["growth"] == preset["growth"]
    assert len(shapes["growth"]) == 25
    assert shapes["growth"][-1]["reported_gb"] == 187.0


def test_small_observations_are_planned_without_deduplication(json_of):
    planned = json_of("plan", "--obs", "4:float32", "--per-generation", 1000, "--generations", 3)
    assumed = planned["assumptions"]
    assert assumed.startswith("Assumed: observations this small are stored without deduplication; gzip ")
    assert "0 distinct rows" not in assumed


def test_an_environment_is_planned_by_its_spaces(json_of, capsys):
    planned = json_of("plan", "--env", "ALE/Gravitar-v5", "--play", 0, "--disk", "1TB", "--ram", "1TB")
    assert planned["transition_bytes"] == 2 * 210 * 160 * 3 + 8 + 4 + 2
    assert capsys.readouterr().out == ""


def test_a_run_is_planned_on_from_what_it_measured(make_run, json_of):
    run = make_run()
    planned = json_of("plan", "--from", run, "--disk", "1TB", "--ram", "64GB")
    assert planned["measured"]["steps"] == 150
    assert planned["measured"]["steps_per_commit"] == 50
    assert planned["measured"]["disk_full_after_steps"] > 1e6
    assert planned["generations"] == 4  # as the settings of the run say
    assert len(planned["growth"]) == 4


@dataclass(frozen=True)
class Settings:
    """As a run of erl has them: 16 agents, 3 + 12 // 5 checkpoints at the end."""

    generations: int = 12
    elites: int = 6
    children: int = 6
    mutants: int = 4
    capacity: int = 120
    batch_size: int = 8
    keep_last: int = 3
    keep_every: int = 5
    min_free: str = "1GB"
    push_every: int = 4


def test_a_run_is_planned_from_its_own_sizes_and_settings(tmp_path, lake, json_of, capsys):
    run = tmp_path / "run"
    with Run.create(run, "erl", Settings()) as made:
        shutil.copytree(lake, made.lake_folder)
        for generation in range(1, 4):
            made.log(generation, {"rss_bytes": 700_000_000})
            made.save(generation, {"population": np.zeros(100_000, np.float32)}, {})
    planned = json_of("plan", "--from", run)
    newest = sum(file.stat().st_size for file in (run / "checkpoints" / "00000003").iterdir())
    parts = planned["parts"]
    assert parts[f"checkpoints, 5 x {size(newest)}"] == [5 * newest] * 2
    assert parts["to be left free (min_free)"] == [1e9, 1e9]
    assert not {"margin", "temporary files", "logs"} & parts.keys()  # assumptions of a run that is not there
    assert not any(name.startswith("population") for name in parts)
    need = planned["stores"]["lakepond"]
    assert need["run"][1] == pytest.approx(1e9 + 5 * newest, rel=0.01)  # not 61 GB
    assert 0.69e9 < need["memory"] < 0.71e9  # as logged
    assert planned["generations"] == 12
    assert main(["plan", "--from", str(run)]) == 0
    out = capsys.readouterr().out
    assert "upload every 4 gen" in out
    assert "This machine is large enough" in out
    more = json_of("plan", "--from", run, "--population", 16, "--agent-size", "2MB")
    assert more["parts"]["population, 16 x 2 MB"] == [32e6, 32e6]


def test_a_lake_without_a_run_needs_what_it_takes(lake, json_of):
    need = json_of("plan", "--from", lake)["stores"]["lakepond"]["run"]
    with lp.Lake.open(lake) as opened:
        assert need[1] < 5 * opened.stats().bytes_on_disk


@pytest.mark.parametrize(
    "words", ["", "--preset eigen2 --obs 4", "--obs 4,x", "--obs 4:float99", "--preset eigen2 --disk much"]
)
def test_wrong_arguments_are_exit_code_2(words, capsys):
    assert main(["plan", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err
