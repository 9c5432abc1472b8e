"""Copies of columns for a hand-over: their memory is used again only when nothing refers to them."""

import numpy as np

from lakepond.flow.pond_to_lake import KEPT_BYTES, Copies

RING = {
    "action": np.arange(24, dtype=np.float32).reshape(8, 3),
    "stamp": np.arange(8).astype("M8[s]"),
    "flag": np.arange(8) % 3 == 0,
    "nothing": np.zeros((8, 0)),
}


def test_every_entry_is_copied_also_across_the_end_of_the_ring():
    for start, stop in ((0, 8), (5, 11), (8, 9), (3, 3)):
        at = np.arange(start, stop) % 8
        for name, copy in Copies().between(RING, start, stop).items():
            assert copy.dtype == RING[name].dtype
            np.testing.assert_array_equal(copy, RING[name][at])


def test_a_copy_that_is_still_referred_to_is_not_overwritten():
    copies = Copies()
    part = copies.between(RING, 0, 4)["action"][1:3]  # a view of one column holds the memory
    before = part.copy()
    copies.between(RING, 4, 8)
    np.testing.assert_array_equal(part, before)


def test_memory_is_used_again_when_nothing_refers_to_it():
    copies = Copies()
    address = copies.between(RING, 0, 8)["action"].ctypes.data
    assert copies.between(RING, 2, 6)["action"].ctypes.data == address


def test_large_memory_is_not_kept():
    copies, large = Copies(), {"x": np.zeros(KEPT_BYTES + 64, np.uint8)}
    copies.between(large, 0, KEPT_BYTES + 64)
    assert copies._memory.nbytes == 0
