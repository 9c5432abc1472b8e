"""The wall clock jumps by hours and years: order is by number, and nothing is lost."""

from __future__ import annotations

import random

import pytest

from faults import clocks


@pytest.mark.parametrize("name", clocks.WALKS)
def test_a_clock_that_jumps_loses_nothing(name, tmp_path):
    found = clocks.drill(name, tmp_path, random.Random(1), rounds=2)
    assert not found.failures, "\n".join(found.failures)
