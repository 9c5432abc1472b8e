"""Epochs: every unit exactly once, whatever the number of ranks and workers and wherever it stops."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakepond import SampleError
from lakepond.adapters.epochs import Epoch, EpochPosition


def plan(units, batch_size, block=4, group=12, **settings):
    return Epoch(units, batch_size, block, group, **{"seed": 0, "number": 0, **settings})


def batches(epoch, group):
    units = epoch.units_of(group, epoch.block_order())
    return [units[at : at + epoch.batch_size] for at in range(0, len(units), epoch.batch_size)]


sizes = st.tuples(
    st.integers(1, 300), st.integers(1, 40), st.integers(1, 9), st.integers(1, 90), st.integers(1, 4)
)


@given(sizes, st.integers(0, 3))
def test_the_ranks_together_see_every_unit_once(size, number):
    units, batch_size, block, group, world_size = size
    seen = []
    for rank in range(world_size):
        epoch = plan(units, batch_size, block, group, number=number, rank=rank, world_size=world_size)
        found = [batch for g in range(epoch.groups) for batch in batches(epoch, g)]
        assert [len(batches(epoch, g)) for g in range(epoch.groups)] == [
            epoch.batches_of(g) for g in range(epoch.groups)
        ]
        assert len(found) == epoch.batches
        assert all(len(batch) == batch_size for batch in found[:-1])  # only the last one may be short
        seen += found
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(units))


@given(sizes)
def test_with_drop_last_all_batches_are_full_and_all_ranks_have_as_many(size):
    units, batch_size, block, group, world_size = size
    seen = []
    for rank in range(world_size):
        epoch = plan(units, batch_size, block, group, rank=rank, world_size=world_size, drop_last=True)
        found = [batch for g in range(epoch.groups) for batch in batches(epoch, g)]
        assert len(found) == epoch.batches == units // world_size // batch_size
        assert all(len(batch) == batch_size for batch in found)
        seen += found
    seen = np.concatenate([np.zeros(0, np.int64), *seen])
    assert len(np.unique(seen)) == len(seen)


@given(sizes, st.integers(0, 60), st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_an_epoch_continues_from_any_position_with_another_number_of_workers(
    size, stop, before, after, chance
):
    units, batch_size, block, group, _ = size
    epoch, position, seen = plan(units, batch_size, block, group), EpochPosition(), []

    def run(position, workers, count):
        """Deliver batches, the workers in any order."""
        queues = [
            [(g, b) for g, done in position.remaining(epoch, w, workers) for b in batches(epoch, g)[done:]]
            for w in range(workers)
        ]
        while any(queues) and count:
            g, batch = chance.choice([queue for queue in queues if queue]).pop(0)
            position.add(g, epoch)
            seen.append(batch)
            count -= 1

    run(position, before, stop)
    run(EpochPosition.from_state_dict(json.loads(json.dumps(position.state_dict()))), after, -1)
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(units))


def test_epochs_and_seeds_have_different_orders_and_equal_ones_the_same():
    orders = [
        np.concatenate([b for g in range(e.groups) for b in batches(e, g)])
        for e in (plan(200, 8), plan(200, 8, number=1), plan(200, 8, seed=1), plan(200, 8))
    ]
    assert np.array_equal(orders[0], orders[3])
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])


def test_every_unit_is_as_likely_in_every_batch():
    counts = np.zeros((10, 40))  # batch by unit
    for number in range(4000):
        epoch = plan(40, 4, block=4, group=20, number=number)
        found = [b for g in range(epoch.groups) for b in batches(epoch, g)]
        for k, batch in enumerate(found):
            counts[k, batch] += 1
    expected = 4000 / 10
    assert ((counts - expected) ** 2 / expected).sum() < 400 + 6 * np.sqrt(2 * 400)  # chi-square, 6 sigma


def test_draws_with_replacement_are_uniform_and_differ_between_ranks_groups_and_epochs():
    found = {
        (number, rank, g): plan(
            60, 5, number=number, rank=rank, world_size=2, replace=True, group=10
        ).units_of(g, np.arange(15))
        for number in range(600)
        for rank in range(2)
        for g in range(3)
    }
    assert len({draws.tobytes() for draws in found.values()}) == len(found)
    counts = np.bincount(np.concatenate(list(found.values())), minlength=60)
    expected = counts.sum() / 60
    assert ((counts - expected) ** 2 / expected).sum() < 60 + 6 * np.sqrt(120)


@pytest.mark.parametrize("state", [{}, {"epoch": 0, "first": 0}, {"epoch": "a", "first": 0, "delivered": []}])
def test_what_is_not_a_position_is_refused(state):
    with pytest.raises(SampleError, match="state_dict"):
        EpochPosition.from_state_dict(state)
