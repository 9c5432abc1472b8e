"""Numbers given as options: an invalid one is one sentence and exit code 2, and nothing is changed."""

import dataclasses
import re
import typing

import pytest

from lakepond.cli import load, main
from lakepond.cli.commands import runnable

BEFORE = {
    "plan": ["--preset", "eigen2"],
    "push": ["{lake}", "file://{tmp}/bucket"],
    "pull": ["file://{tmp}/bucket", "{tmp}/new"],
    "gc": ["file://{tmp}/bucket"],
    "export": ["{lake}", "{tmp}/steps.parquet"],
    "play": ["{tmp}"],
    "evaluate": ["{tmp}"],
    **{f"train {name}": ["--out", "{tmp}/run"] for name in ("erl", "single", "mixture", "live")},
    "compare": ["--folder", "{tmp}/runs"],
    "collect": ["--writer", "c0", "--lake", "{lake}", "--env", "CartPole-v1", "--policy", "nowhere:Policy"],
    "data synthetic": ["--out", "{tmp}/panel.npz"],
    "data check": ["{tmp}/prices.csv"],
}
"""the arguments that a command needs; {lake} if it is not named here"""
NAMES_SOMETHING = ("commit", "checkpoint")
"""numbers of things that exist or do not: exit code 1"""


def numeric(kind: type) -> list[tuple[str, bool]]:
    """The options of a command that take a number, and whether it may have a fraction."""
    hints = typing.get_type_hints(kind)
    return [
        (field.name, float in (hints[field.name], *typing.get_args(hints[field.name])))
        for field in dataclasses.fields(kind)
        if {int, float} & {hints[field.name], *typing.get_args(hints[field.name])}
        and field.name not in NAMES_SOMETHING
    ]


KINDS = {name: load(name) for name in runnable()}
CASES = [
    (name, option, value)
    for name, kind in KINDS.items()
    for option, fraction in numeric(kind)
    for value in (("-1", "nan", "inf") if fraction else ("-1",))
]


def test_the_list_of_options_is_not_empty():
    assert {("watch", "every", "-1"), ("ls", "limit", "-1"), ("plan", "pool", "-1")} <= set(CASES)


@pytest.mark.parametrize(("name", "option", "value"), CASES)
def test_an_impossible_number_is_one_sentence(name, option, value, lake, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    needed = [word.format(lake=lake, tmp=tmp_path) for word in BEFORE.get(name, ["{lake}"])]
    flag = f"--{option.replace('_', '-')}"
    assert main([*name.split(), *needed, flag, value]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"lakepond: {flag} must be ")
    assert value in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("words", ["show {lake}", "verify {lake}", "export {lake} {tmp}/new.parquet"])
def test_a_commit_that_does_not_exist_is_told_with_all_that_do(words, lake, tmp_path, capsys):
    for number in (999, -1):
        named = words.format(lake=lake, tmp=tmp_path).split()
        assert main([*named, "--commit", str(number)]) == 1
        assert f"has no commit {number}; it has 0–2." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("view {lake} --port 70000", "--port must be between 0 and 65535, but is 70000."),
        ("compact {lake} --keep-every 3", "--keep-every 3 needs --keep-last, the number of newest commits"),
        (
            "gc file:///nowhere --keep-every 3",
            "--keep-every 3 needs --keep-last, the number of newest commits",
        ),
        ("plan --preset x", "Expected one of ('eigen2', 'gpu', 'gravitar')"),
        ("view {lake} --port abc", "Error parsing --port: 'abc' is not an integer"),
        ("train erl --resume-from x", "Error parsing --resume-from: 'x' is not an integer"),
        ("show {lake} --commit None", "Error parsing --commit: 'None' is not an integer"),
        ("watch {lake} --every 1s", "Error parsing --every: '1s' is not a number"),
    ],
)
def test_a_wrong_value_is_one_sentence(words, sentence, lake, capsys):
    assert main(words.format(lake=lake).split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.sub(r"[\s│|]", "", sentence) in re.sub(r"[\s│|]", "", err)  # it may be wrapped, in a frame
