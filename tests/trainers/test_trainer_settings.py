"""Settings: every number has limits, and every setting has a heading and help."""

import dataclasses
import math
import typing

import pytest

from lakepond.agents.settings import PQNSettings
from lakepond.cli import main, settings
from lakepond.cli.train import HEADINGS
from lakepond.errors import ConfigError
from lakepond.trainers import compare, erl, live, mixture, single
from lakepond.trainers.limits import check_limits

KINDS = [
    (erl.Config, erl.LIMITS),
    (single.SingleConfig, single.LIMITS),
    (mixture.MixtureConfig, mixture.LIMITS),
    (live.LiveConfig, live.LIMITS),
    (compare.CompareConfig, compare.LIMITS),
]


def numbers(kind: type) -> list[str]:
    hints = typing.get_type_hints(kind)
    return [
        field.name
        for field in dataclasses.fields(kind)
        if {int, float} & {hints[field.name], *typing.get_args(hints[field.name])}
    ]


CASES = [(kind, limits, name) for kind, limits in KINDS for name in numbers(kind)]
CASES += [
    (PQNSettings, limits, name)
    for limits in (single.LIMITS, mixture.LIMITS, live.LIMITS)
    for name in numbers(PQNSettings)
]


@pytest.mark.parametrize(("kind", "limits", "name"), CASES)
def test_a_number_beyond_its_limits_is_one_sentence(kind, limits, name):
    check_limits(kind(), limits)
    plural = isinstance(getattr(kind(), name), tuple)
    above = [] if limits[name][1] == math.inf else [limits[name][1] + 1]
    for wrong in (-2, float("nan"), *above):
        with pytest.raises(ConfigError, match=f"^{name} must be .*, but is {wrong:g}.$"):
            check_limits(kind(**{name: (wrong,) if plural else wrong}), limits)


def test_a_wrong_setting_on_the_command_line_is_exit_code_2(tmp_path, capsys):
    for words in ("train erl --gamma 2", "train single --seed -1", "compare --seeds 0"):
        out = ["--folder" if "compare" in words else "--out", str(tmp_path / "run")]
        assert main([*words.split(), *out]) == 2
        printed = capsys.readouterr().err
        assert printed.splitlines()[-1].startswith("lakepond: ")
        assert " must be " in printed
        assert not (tmp_path / "run").exists()


@dataclasses.dataclass(frozen=True)
class More(erl.Config):
    another: int = 1


def test_a_setting_without_a_heading_is_noticed():
    with pytest.raises(AssertionError, match="another of More"):
        settings.options_of(More, {"demo": More()}, HEADINGS)


def test_options_change_settings_at_every_depth():
    kind = settings.options_of(erl.Config, erl.PRESETS, HEADINGS)
    first = dataclasses.replace(kind().first, generations=3)
    options = dataclasses.replace(kind(), first=first, rules=dataclasses.replace(kind().rules, context=7))
    changed = settings.with_options(erl.PRESETS["demo"], options)
    assert (changed.generations, changed.rules.context, changed.days) == (3, 7, 1600)
    assert settings.given(options, "generations") == 3
    assert settings.given(options, "push_to") is None


def test_the_settings_that_people_change_first_are_ten():
    assert len(HEADINGS[""].split()) == 10


def test_help_shows_the_values_of_the_presets(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["train", "erl", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "raise it to continue a finished run (default: 12; eigen2, gpu: 25)" in text
    assert "population options" in text
