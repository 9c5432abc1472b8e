"""Cut off before any file change, every operation leaves what was acknowledged, and can be continued."""

from __future__ import annotations

import pytest

from faults import crash_points
from faults.operations import OPERATIONS


@pytest.mark.parametrize("name", [name for name, operation in OPERATIONS.items() if not operation.trains])
def test_nothing_acknowledged_is_lost_wherever_it_is_cut_off(name, tmp_path):
    found = crash_points.drill(OPERATIONS[name], tmp_path, most=40, seed=7)
    assert found.checked >= 6
    assert not found.failures, "\n".join(found.failures[:5])


@pytest.mark.parametrize("name", ["train erl", "train mixture", "start over"])
def test_a_trainer_that_is_cut_off_ends_as_one_that_was_not(name, tmp_path):
    found = crash_points.drill(OPERATIONS[name], tmp_path, most=8, seed=3)
    assert found.checked >= 6
    assert not found.failures, "\n".join(found.failures[:5])
