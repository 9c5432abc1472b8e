"""Guards: warnings with a forecast, in the log and in the metrics, and what happens at the floor."""

import logging

import pytest

from lakepond import machine
from lakepond.errors import ConfigError
from lakepond.guards import Guard

GB = 10**9


@pytest.fixture
def disk(monkeypatch):
    """A disk whose free space the test sets."""
    left = {"free": 100 * GB, "available": 50 * GB, "resident": GB}
    monkeypatch.setattr(machine, "free_disk", lambda path: left["free"])
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(64 * GB, left["available"]))
    monkeypatch.setattr(machine, "resident", lambda: left["resident"])
    return left


@pytest.fixture
def warned(caplog):
    caplog.set_level(logging.WARNING, logger="lakepond")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_quiet_disk_is_quiet_and_its_numbers_are_in_the_metrics(disk, warned, tmp_path):
    guard = Guard(tmp_path, last=25)
    for generation in range(1, 26):
        answer = guard.check(generation)
    assert warned() == []
    assert answer["disk_free_bytes"] == 100 * GB
    assert answer["disk_floor_at"] is None
    assert answer["memory_available_bytes"] == 50 * GB
    assert answer["rss_bytes"] == GB
    assert guard.saving
    assert not guard.stopping


def test_it_warns_early_with_the_generation_at_which_the_floor_is_reached(disk, warned, tmp_path):
    guard = Guard(tmp_path, last=25)  # floor: 20 GB, as the trading project wanted
    at = []
    for generation in range(1, 21):
        answer = guard.check(generation)
        at.append(answer["disk_floor_at"])
        disk["free"] -= 4 * GB
    # 100 GB at generation 1, 4 GB less each: 20 GB are left at generation 21
    assert at[:3] == [None] * 3  # too early to tell
    assert set(at[3:]) == {21}
    assert "88 GB free" in warned()[0]
    assert "the limit is 20 GB, 4 GB used per generation: reached at about generation 21" in warned()[0]
    assert 2 < len(warned()) < 8  # again half-way, not every time


def test_a_jump_is_no_trend(disk, warned, tmp_path):
    guard = Guard(tmp_path, last=1_000)
    for generation in range(1, 20):
        answer = guard.check(generation)
        disk["free"] -= 40 * GB if generation == 3 else 0
        disk["resident"] += 20 * GB if generation == 1 else 0
        disk["available"] -= GB  # other processes
    assert (answer["disk_floor_at"], answer["memory_floor_at"]) == (None, None)
    assert warned() == []


def test_a_run_that_ends_before_the_floor_is_not_warned_of(disk, warned, tmp_path):
    guard = Guard(tmp_path, last=15)
    for generation in range(1, 16):
        guard.check(generation)
        disk["free"] -= 4 * GB
    assert warned() == []


def test_without_a_last_generation_only_what_is_near_is_warned_of(disk, warned, tmp_path):
    guard = Guard(tmp_path)
    for generation in range(1, 6):
        guard.check(generation)
        disk["free"] -= GB  # 75 generations to go
    assert warned() == []
    disk["free"] = 30 * GB
    guard.check(6)
    assert len(warned()) == 1


@pytest.mark.parametrize(
    ("at_floor", "saving", "stopping", "words"),
    [
        ("warn", True, False, "training and saving continue"),
        ("stop_saving", False, False, "nothing is saved until there is space again"),
        ("stop", True, True, "the run ends after this generation"),
    ],
)
def test_what_happens_at_the_floor_is_a_setting(at_floor, saving, stopping, words, disk, warned, tmp_path):
    guard = Guard(tmp_path, at_floor=at_floor)
    disk["free"] = 19 * GB
    guard.check(1)
    assert (guard.saving, guard.stopping) == (saving, stopping)
    assert words in warned()[0]


def test_below_the_floor_it_forecasts_when_nothing_will_be_left(disk, warned, tmp_path):
    guard = Guard(tmp_path, last=25)
    for generation in range(1, 6):
        guard.check(generation)
        disk["free"] -= 22 * GB
    # 100 GB at generation 1, 22 GB less each: 12 GB at generation 5, and none before the next one ends
    assert "12 GB free" in warned()[-1]
    assert "22 GB used per generation: used up at about generation 5" in warned()[-1]


def test_saving_goes_on_when_there_is_space_again(disk, tmp_path):
    guard = Guard(tmp_path, min_free="5GB", at_floor="stop_saving")
    disk["free"] = 4 * GB
    guard.check(1)
    assert not guard.saving
    disk["free"] = 6 * GB
    guard.check(2)
    assert guard.saving


def test_memory_that_runs_out_is_reported_with_its_forecast(disk, warned, tmp_path):
    guard = Guard(tmp_path, min_memory="2GB", last=25)
    for generation in range(1, 5):
        answer = guard.check(generation)
        disk["available"] -= 6 * GB
        disk["resident"] += 6 * GB
    # 50 GB at generation 1, 6 GB less each: 2 GB are left at generation 9
    assert answer["memory_floor_at"] == 9
    assert "32 GB of memory available" in warned()[0]
    assert "reached at about generation 9" in warned()[0]


def test_frames_are_counted_as_frames(disk, warned, tmp_path):
    guard = Guard(tmp_path, unit="portion", last=100)
    for portion in range(1, 5):
        guard.check(portion)
        disk["free"] -= 20 * GB
    assert "reached at about portion 5" in warned()[0]


def test_a_setting_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="may be warn, stop_saving, stop"):
        Guard(tmp_path, at_floor="panic")


def test_it_watches_the_real_machine(tmp_path):
    answer = Guard(tmp_path, min_free=0).check(1)
    assert answer["disk_free_bytes"] > 0
    assert answer["memory_available_bytes"] > 0
