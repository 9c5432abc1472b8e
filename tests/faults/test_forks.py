"""Forked children change nothing and do not hang; of two writers of one lake, one at a time writes."""

from __future__ import annotations

import pytest

from faults import forks


@pytest.mark.parametrize("name", forks.CASES)
def test_a_forked_child_changes_nothing_and_does_not_hang(name, tmp_path):
    found = forks.drill(name, tmp_path)
    assert not found.failures, "\n".join(found.failures)


def test_two_processes_that_write_one_lake_lose_no_commit(tmp_path):
    forks.two_writers(tmp_path, 5)
