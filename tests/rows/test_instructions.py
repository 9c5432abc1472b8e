"""Bytes that compiled code moves by address."""

from __future__ import annotations

import numpy as np
import pytest

from lakepond.rows import instructions
from lakepond.rows.memory import address_of

SIZES = [0, 1, 63, 64, 65, 127, instructions.STREAMED - 1, instructions.STREAMED, 7_056, 28_224, 40_001]


@pytest.mark.parametrize(
    "copy", [instructions.copy, instructions.copy_bypassing_cache], ids=["copy", "bypassing"]
)
@pytest.mark.parametrize("size", SIZES)
def test_copies_are_exact_at_any_address(copy, size):
    rng = np.random.default_rng(size)
    source = rng.integers(0, 256, size + 64, dtype=np.uint8)
    for to, at in [(0, 0), (1, 0), (0, 1), (16, 48), (63, 7), (64, 64)]:
        target = rng.integers(0, 256, size + 256, dtype=np.uint8)
        expected = target.copy()
        expected[to : to + size] = source[at : at + size]
        copy(address_of(target) + to, address_of(source) + at, size)
        assert np.array_equal(target, expected), (to, at)
