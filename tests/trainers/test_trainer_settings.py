"""Settings: every number has limits, and every setting has a heading and help."""

import dataclasses
import math
import typing

import pytest

from lakepond.agents.settings import PQNSettings
from lakepond.cli import main, settings
from lakepond.cli.train import HEADINGS
from lakepond.envs.market import Rules
from lakepond.errors import ConfigError, MarketDataError
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
    usual = getattr(kind(), name)
    plural, most = isinstance(usual, tuple), limits[name][1]
    above = [] if isinstance(usual, int) and most == math.inf else [most + 1]  # that is inf
    for wrong in (-2, float("nan"), *above):
        with pytest.raises(ConfigError, match=f"^{name} must be .*, but is {wrong:g}.$"):
            check_limits(kind(**{name: (wrong,) if plural else wrong}), limits)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (single.SingleConfig, {"suite": "x"}),
        (single.SingleConfig, {"epsilon_kind": "x"}),
        (mixture.MixtureConfig, {"clone_optimiser": "x"}),
        (mixture.MixtureConfig, {"epsilon_reset": "x"}),
        (live.LiveConfig, {"big_learner": None}),
        (compare.CompareConfig, {"network": "x"}),
        (erl.Config, {"at_floor": "x"}),
        (erl.Config, {"rules": dataclasses.replace(erl.Config().rules, credit="x")}),
    ],
)
def test_a_word_that_is_not_among_those_of_its_setting_is_one_sentence(kind, setting):
    limits = dict(KINDS)[kind]
    with pytest.raises(ConfigError, match=r"^\w+ must be .+ or .+, but is ('x'|None)\.$"):
        check_limits(kind(**setting), limits)
    check_limits(mixture.MixtureConfig(epsilon_reset="keep"), mixture.LIMITS)


PQN = dataclasses.replace(PQNSettings(), max_gradient=0.0)


@pytest.mark.parametrize(
    ("check", "config", "message"),
    [
        (erl.check, erl.Config(blend_low=0.9), "blend_low is 0.9, more than blend_high, which is 0.8; lower"),
        (erl.check, erl.Config(mutation_std=0.5), "mutation_std is 0.5, more than mutation_std_max"),
        (
            erl.check,
            erl.Config(learn_from=60_000),
            "learn_from is 60,000, more than capacity, which is 50,000",
        ),
        (single.build, single.SingleConfig(replay_rewarded=0.5), "replay_rewarded has no effect without"),
        (single.build, single.SingleConfig(replay_newest=9_000), "replay_newest has no effect without"),
        (single.build, single.SingleConfig(epsilon_end=0.9, epsilon_start=0.5), "starts at 0.5 and cannot"),
        (single.build, single.SingleConfig(pqn=PQN), "max_gradient must be above 0, but is 0"),
        (live.build, live.LiveConfig(big_replay_ratio=0), "big_replay_ratio must be above 0, but is 0"),
        (mixture.build, mixture.MixtureConfig(big_new_layers=4), "is 4, but the network has 3 layers"),
    ],
)
def test_settings_without_effect_are_one_sentence(check, config, message):
    with pytest.raises(ConfigError, match=message):
        check(config)


@pytest.mark.parametrize(
    "wrong",
    [{"threshold": 2.0}, {"threshold": 1.0}, {"inaction_penalty": math.nan}, {"target_high": math.inf}],
)
def test_rules_of_the_market_that_can_never_be_met_are_refused(wrong):
    with pytest.raises(MarketDataError, match=r"must be|finite"):
        Rules(**wrong)


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
