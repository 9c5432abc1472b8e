"""`lakepond plan`: tables, JSON, verdict and exit code."""

import pytest

from lakepond.cli import main


def test_the_preset_prints_the_storys_table(capsys):
    assert main(["plan", "--preset", "eigen2", "--disk", "100GB", "--ram", "16GB"]) == 0
    out = capsys.readouterr().out
    for told in (
        "7.5 GB",
        "37.4 GB",
        "74.8 GB",
        "112.2 GB",
        "149.6 GB",
        "187.0 GB",
        "3.74 MiB",
        "2,500 distinct rows",
    ):
        assert told in out
    assert "That machine has enough" in out


@pytest.mark.parametrize("columns", ["60", "140"])
def test_it_fits_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    main(["plan", "--preset", "eigen2"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert not any("…" in line for line in lines)


def test_a_machine_that_is_too_small_is_exit_code_1(told, capsys):
    planned = told(
        "plan", "--preset", "eigen2", "--store", "plain", "--disk", "50GB", "--ram", "175GB", code=1
    )
    assert planned["verdict"]["fits"] is False
    assert len(planned["verdict"]["why"]) == 2
    words = ["plan", "--preset", "eigen2", "--store", "plain", "--disk", "50GB", "--ram", "175GB"]
    assert main(words) == 1
    assert "too small" in capsys.readouterr().out


def test_shapes_are_planned_as_the_preset_they_describe(told):
    machine = ["--disk", "1TB", "--ram", "1TB"]
    schedule = ["--per-generation", 2_000, "--generations", 25, "--pool", 2_500]
    shapes = told("plan", "--obs", "504,108,9:float32", "--action", "108,2", *schedule, *machine)
    preset = told("plan", "--preset", "eigen2", *machine)
    assert shapes["growth"] == preset["growth"]
    assert len(shapes["growth"]) == 25
    assert shapes["growth"][-1]["story_gb"] == 187.0


def test_an_environment_is_planned_by_its_spaces(told, capsys):
    planned = told("plan", "--env", "ALE/Gravitar-v5", "--play", 0, "--disk", "1TB", "--ram", "1TB")
    assert planned["transition_bytes"] == 2 * 210 * 160 * 3 + 8 + 4 + 2
    assert capsys.readouterr().out == ""


def test_a_run_is_planned_on_from_what_it_measured(make_run, told):
    run = make_run()
    planned = told("plan", "--from", run, "--disk", "1TB", "--ram", "64GB")
    assert planned["measured"]["steps"] == 150
    assert planned["measured"]["steps_per_commit"] == 50
    assert planned["measured"]["disk_full_after_steps"] > 1e6
    assert planned["generations"] == 4  # as the run was told
    assert len(planned["growth"]) == 4


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--preset eigen2 --obs 4",
        "--obs 4,x",
        "--obs 4:float99",
        "--preset eigen2 --disk much",
        "--preset none",
    ],
)
def test_wrong_arguments_are_exit_code_2(words, capsys):
    assert main(["plan", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err
