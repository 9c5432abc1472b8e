"""Signals at random moments of real processes: run again, each command ends as an undisturbed one."""

from __future__ import annotations

import random

import pytest

from faults import signals
from lakepond.trainers.compare import CompareConfig, Job, arm_settings


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("push", ["SIGTERM"]),
        ("pull", ["SIGINT"]),
        ("compact", ["SIGKILL", "SIGSTOP"]),
        ("repair", ["SIGHUP"]),
        ("import", ["SIGKILL", "SIGSTOP"]),
    ],
)
def test_a_command_that_gets_a_signal_can_be_repeated(name, sent, tmp_path):
    found = signals.drill_command(name, tmp_path, random.Random(5), signals=sent)
    assert not found.failures, "\n".join(found.failures)


def test_a_writer_that_is_killed_loses_nothing_acknowledged(tmp_path):
    found = signals.drill_writer(tmp_path, random.Random(5), rounds=4)
    assert not found.failures, "\n".join(found.failures)


def test_a_trainer_that_is_killed_and_stopped_ends_bit_for_bit_the_same(tmp_path):
    found = signals.drill_trainer("erl", tmp_path, random.Random(4), signals=["SIGKILL", "SIGSTOP"])
    assert not found.failures, "\n".join(found.failures)


def test_the_comparison_of_the_drill_has_valid_settings(tmp_path):
    settings, _ = arm_settings(CompareConfig(**signals.COMPARED), Job("Breakout", "single", 0, tmp_path))
    assert settings.env_steps == signals.COMPARED["env_steps"]
