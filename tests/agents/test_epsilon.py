import pytest

from lakepond.agents.epsilon import Epsilon
from lakepond.errors import ConfigError


def values(schedule, ages, state=None):
    state = schedule.init() if state is None else state
    return [float(schedule.value(schedule.advance(state, age))) for age in ages]


def test_it_falls_linearly_and_stays():
    assert values(Epsilon("linear", 1.0, 0.1, 100), [0, 50, 100, 900]) == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_it_falls_exponentially():
    found = values(Epsilon("exponential", 1.0, 0.01, 100), [0, 50, 100, 900])
    assert found == pytest.approx([1.0, 0.1, 0.01, 0.01], rel=1e-5)


def test_a_constant_one_stays():
    assert values(Epsilon("constant", 0.3, 0.0, 10), [0, 10, 99]) == pytest.approx([0.3] * 3)


def test_a_reset_starts_from_its_value_and_none_changes_nothing():
    schedule = Epsilon("linear", 1.0, 0.1, 100)
    old = schedule.advance(schedule.init(), 500)
    assert values(schedule, [0, 50, 100], schedule.reset(old, 0.3)) == pytest.approx([0.3, 0.2, 0.1])
    assert values(schedule, [0], schedule.reset(old, 1.0)) == [1.0]
    assert schedule.reset(old, None) is old
    assert values(schedule, [0, 100], schedule.reset(old, 0.05)) == pytest.approx([0.05, 0.05])  # never rises


def test_agents_have_offsets_of_their_own_within_bounds():
    schedule = Epsilon("constant", 0.9, 0.0, 1, offsets=(0.0, 0.05, 0.5))
    found = [float(schedule.value(schedule.init(), agent)) for agent in range(3)]
    assert found == pytest.approx([0.9, 0.95, 1.0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": 1.5}, "both must be in"),
        ({"env_steps": 0}, "at least 1"),
        ({"kind": "exponential", "end": 0.0}, "above 0"),
        ({"start": 0.01}, "starts at 0.01 and cannot fall to 0.05"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Epsilon(**settings)
    with pytest.raises(ConfigError, match="cannot be reset"):
        Epsilon().reset(Epsilon().init(), 2.0)
