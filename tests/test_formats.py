"""One way to write sizes, numbers and durations, in commands, logs and reports."""

import pytest

from lakepond.formats import age, counted, duration, number, percent, ranges, ratio, short, size, span


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1 kB"),
        (1_500, "1.5 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (1_265_333_760, "1.27 GB"),
        (196e9, "196 GB"),
        (-1_500, "-1.5 kB"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_a_size_has_three_significant_digits(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0012, "1.2 ms"),
        (0.9999, "1 s"),
        (3.44, "3.44 s"),
        (59.97, "1 min"),
        (61, "1 min 1 s"),
        (11_520, "3 h 12 min"),
        (3_599.7, "1 h"),
        (86_399, "1 d"),
        (90_000, "1 d 1 h"),
        (None, "–"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert duration(seconds) == text


def test_numbers():
    assert [number(x) for x in (11_520.0, 1_234.5, 0.12345, 1e-7, float("nan"), 1.5e9 + 0.5)] == [
        "11,520",
        "1,234",
        "0.1235",
        "1e-7",
        "–",
        "1.5e9",
    ]
    assert [short(x) for x in (5, 2_500, 1e6, 2.5e9)] == ["5", "2.5k", "1M", "2.5B"]
    assert [percent(x) for x in (-0.01, 25.35, 120.4)] == ["0 %", "25.4 %", "120 %"]
    assert [ratio(x) for x in (1.0, 99.96, 3_401.2, None)] == ["1.0x", "100x", "3,401x", "–"]
    assert [ratio(x) for x in (0.0, 0.0157, 0.094, 0.0999)] == ["0.0x", "0.016x", "0.094x", "0.1x"]
    assert [counted(x, "step") for x in (0, 1, 1_000)] == ["0 steps", "1 step", "1,000 steps"]
    assert (number(50_000), number(None)) == ("50,000", "–")
    assert (span(64.7e9, 78.4e9), span(1e6, 2e9), span(3, 3)) == ("64.7–78.4 GB", "1 MB–2 GB", "3 B")
    assert (age(0, 192), age(10, 0)) == ("3 min 12 s ago", "in the future")


def test_ranges_of_numbers_leave_nothing_out():
    assert ranges([]) == "none"
    assert ranges([4]) == "4"
    assert ranges([0, 1, 2, 3, 7, 9, 10, 11]) == "0–3, 7, 9–11"
    assert ranges(list(range(0, 40, 2))) == "0, 2, 4, 6, ... (12 more) ..., 32, 34, 36, 38"
