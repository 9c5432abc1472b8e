"""A disk that is full for a while: nothing acknowledged is lost, and all is saved when the space returns."""

from __future__ import annotations

import pytest

from faults import full_disk
from faults.outcome import Skipped


@pytest.mark.parametrize("name", full_disk.WALKS)
def test_all_that_was_handed_over_is_saved_when_the_space_returns(name, tmp_path):
    try:
        found = full_disk.walk(name, tmp_path, [0, 4096, 16_384])
    except Skipped as why:
        pytest.skip(str(why))
    assert not found.failures, "\n".join(found.failures)
    assert found.notes, "the disk was never full"
