"""The distribution of every way to draw, against exact probabilities."""

from __future__ import annotations

import collections
import itertools
import threading
import tracemalloc

import numpy as np
import pytest
from scipy import stats

import lakepond as lp
from lakepond.sampling import draw


def new_replay(steps: int, capacity: int, alpha: float | None = None) -> lp.Replay:
    """One stream of consecutive steps; each reward is its step id."""
    replay = lp.Replay(lp.Spec(obs=lp.Field((), "int64")), capacity, alpha=alpha)
    for t in range(steps):
        replay.record(obs=t, next_obs=t + 1, action=0, reward=float(t), terminated=False, truncated=False)
    return replay


def test_prioritised_sequences_start_anywhere(rng):
    """Equal priorities: the upper half of the ring was never drawn."""
    replay = new_replay(1_000, 1_000, alpha=0.6)
    starts = np.concatenate([replay.sample(32, sequence_length=4, rng=rng).step_id[:, 0] for _ in range(500)])
    counts = np.bincount(starts // 100, minlength=10)
    possible = np.full(10, 100)
    possible[9] = 97
    assert stats.chisquare(counts, possible / possible.sum() * counts.sum()).pvalue > 0.001


def test_prioritised_sequences_are_drawn_in_proportion_to_the_priority_of_their_start(rng):
    replay = new_replay(60, 40, alpha=1.0)  # the ring has wrapped: 20..59 are live
    ids = np.arange(20, 60)
    replay.update_priorities(ids, (ids % 4).astype(float) + 1)
    starts = replay.sample(40_000, sequence_length=3, rng=rng).step_id[:, 0]
    expected = (ids[:-2] % 4 + 1) / (ids[:-2] % 4 + 1).sum()
    assert stats.chisquare(np.bincount(starts - 20, minlength=38), expected * 40_000).pvalue > 0.001


def test_a_prioritised_batch_is_not_sorted(rng):
    replay = new_replay(1_000, 1_000, alpha=0.6)
    position = np.zeros(64)
    for _ in range(300):
        position += replay.sample(64, rng=rng).step_id
    assert np.abs(position / 300 - 500).max() < 100  # the mean id is the same at every place of a batch


@pytest.mark.parametrize("count", [3, 30])
def test_without_replacement_by_priority_each_first_step_is_drawn_in_proportion(rng, count):
    replay = new_replay(60, 40, alpha=1.0)
    ids = np.arange(20, 60)
    replay.update_priorities(ids, ids - 19.0)
    drawn = [replay.sample(count, replace=False, rng=rng).step_id for _ in range(3_000)]
    assert all(len(set(each.tolist())) == count for each in drawn)
    firsts = np.bincount([each[0] - 20 for each in drawn], minlength=40)
    expected = (ids - 19) / (ids - 19).sum() * 3_000
    assert stats.chisquare(firsts, expected).pvalue > 0.001


@pytest.mark.parametrize("alpha", [None, 1.0])
def test_without_replacement_every_order_has_its_exact_probability(rng, alpha):
    """All 60 ordered choices of 3 of 5 steps; each step is drawn in proportion among those that are left."""
    replay = new_replay(9, 5, alpha)
    weight = np.ones(5)
    if alpha is not None:
        weight = np.array([1.0, 2.0, 3.0, 4.0, 10.0])
        replay.update_priorities(np.arange(4, 9), weight)
    drawn = collections.Counter(
        tuple((replay.sample(3, replace=False, rng=rng).step_id - 4).tolist()) for _ in range(12_000)
    )
    orders = list(itertools.permutations(range(5), 3))
    expected = []
    for a, b, c in orders:
        left = weight.sum() - np.array([0, weight[a], weight[a] + weight[b]])
        expected.append(float(np.prod(weight[[a, b, c]] / left)))
    assert sum(expected) == pytest.approx(1)
    counts, expected = np.array([drawn[order] for order in orders]), np.array(expected) * 12_000
    rare = expected < 5  # chi-square needs larger cells
    pairs = [(np.append(x[~rare], x[rare].sum()) if rare.any() else x) for x in (counts, expected)]
    assert stats.chisquare(*pairs).pvalue > 0.001


@pytest.mark.parametrize("alpha", [None, 1.0])
@pytest.mark.parametrize("rounds", [draw.ROUNDS, 1], ids=["at random", "all starts tried"])
def test_each_possible_start_of_a_sequence_has_its_exact_probability(rng, monkeypatch, alpha, rounds):
    """Episodes of 1, 2, 3, ... steps; also if starts are so rare that all steps are tried."""
    monkeypatch.setattr(draw, "ROUNDS", rounds)
    monkeypatch.setattr(draw, "CHUNK", 40)  # pieces of 10 steps
    replay = lp.Replay(lp.Spec(obs=lp.Field((), "int64")), 200, alpha=alpha)
    ends = {n * (n + 1) // 2 - 1 for n in range(1, 20)}
    for t in range(190):
        replay.record(obs=t, next_obs=t + 1, action=0, reward=0.0, terminated=t in ends, truncated=False)
    weight = np.ones(190)
    if alpha is not None:
        weight = 1.0 + np.arange(190) % 5
        replay.update_priorities(np.arange(190), weight)
    for across in (False, True):
        starts = np.array([t for t in range(187) if across or not {t, t + 1, t + 2} & ends])
        drawn = replay.sample(30_000, sequence_length=4, across_episodes=across, rng=rng).step_id
        assert (np.diff(drawn) == 1).all()
        counts = np.bincount(drawn[:, 0], minlength=190)
        assert counts.sum() == counts[starts].sum()
        expected = weight[starts] / weight[starts].sum() * 30_000
        assert stats.chisquare(counts[starts], expected).pvalue > 0.001


def test_other_threads_record_while_all_steps_are_tried_for_a_rare_sequence(rng, monkeypatch):
    """Steps are evicted between two pieces of the search; what is returned is live and complete."""
    monkeypatch.setattr(draw, "ROUNDS", 1)
    monkeypatch.setattr(draw, "CHUNK", 32)  # pieces of 4 steps
    replay, pieces_of, pieces = lp.Replay(lp.Spec(obs=lp.Field((), "int64")), 60), draw.pieces_of, []

    def record(end: bool) -> None:
        t = replay.recorded
        replay.record(obs=t, next_obs=t + 1, action=0, reward=float(t), terminated=end, truncated=False)

    for t in range(60):
        record(end=t < 40)

    def record_meanwhile(*arguments):
        for ids in pieces_of(*arguments):
            thread = threading.Thread(target=lambda: [record(end=True) for _ in range(2)])
            thread.start()
            thread.join(20)
            assert not thread.is_alive()
            pieces.append(ids)
            yield ids

    monkeypatch.setattr(draw, "pieces_of", record_meanwhile)
    found = replay.sample(300, sequence_length=8, rng=rng)
    assert len(pieces) == 15
    assert replay.oldest == 30
    assert set(found.step_id[:, 0].tolist()) == set(range(40, 54))
    assert (np.diff(found.step_id) == 1).all()
    assert (found.reward == found.step_id).all()


@pytest.mark.parametrize("count", [30, 500, 999, 1_000])
def test_distinct_numbers_of_several_groups_are_equally_likely(rng, monkeypatch, count):
    """Groups of 64 numbers, the last of 40: no repeats, each number and each order equally often."""
    monkeypatch.setattr(draw, "LARGEST_CHOICE", 64)
    monkeypatch.setattr(draw, "SPARSE", 1_000)
    drawn, firsts = np.zeros(1_000, int), np.zeros(10, int)
    rounds = 1 + 30_000 // count
    for _ in range(rounds):
        numbers = draw.distinct(1_000, count, rng)
        assert len(np.unique(numbers)) == len(numbers) == count
        drawn[numbers] += 1
        firsts[numbers[0] // 100] += 1
    left = (1 - count / 1_000) * 1_000 / 999  # of the variance of draws with replacement
    if left:
        assert stats.chi2.sf(((drawn - drawn.mean()) ** 2).sum() / drawn.mean() / left, 999) > 0.001
    assert stats.chisquare(firsts).pvalue > 0.001


@pytest.mark.parametrize(("sizes", "count"), [((30, 50, 5), 40), ((7, 2, 1), 9), ((40, 41), 81)])
def test_the_parts_of_groups_have_the_hypergeometric_distribution(rng, sizes, count):
    parts = np.array([draw.split(np.array(sizes), count, rng) for _ in range(2_000)])
    assert (parts.sum(axis=1) == count).all()
    assert (parts <= sizes).all()
    for size, counts in zip(sizes, parts.T, strict=True):
        expected = stats.hypergeom(sum(sizes), size, count).pmf(np.arange(size + 1)) * len(parts)
        cells = np.bincount(counts, minlength=size + 1)
        often = expected >= 5
        pairs = [np.append(x[often], x[~often].sum()) for x in (cells, expected)]
        pairs = [x[:-1] if pairs[1][-1] < 1e-9 else x for x in pairs]
        assert cells[expected < 1e-9].sum() == 0
        assert len(pairs[0]) < 2 or stats.chisquare(*pairs).pvalue > 0.001


def test_the_parts_of_more_than_two_billion_elements_follow_the_sizes_of_their_groups(rng):
    """`Generator.multivariate_hypergeometric` refuses them."""
    sizes = np.array([1, 2, 3, 4]) << 35
    parts = sum(draw.split(sizes, 1_000_000, rng) for _ in range(4))
    assert stats.chisquare(parts, sizes / sizes.sum() * 4_000_000).pvalue > 0.001


def test_memory_for_distinct_numbers_follows_how_many_are_drawn(rng):
    tracemalloc.start()
    for count in (80_000, 400_000):  # every 50th and every 10th of them
        assert len(np.unique(draw.distinct(4_000_000, count, rng))) == count
        assert tracemalloc.get_traced_memory()[1] < 10e6 + 30 * count  # 4,000,000 numbers are 32 MB
        tracemalloc.reset_peak()
    tracemalloc.stop()


def test_a_pass_over_all_steps_is_a_uniform_permutation(rng):
    replay = new_replay(5, 5)
    drawn = collections.Counter(
        tuple(np.concatenate([batch.step_id for batch in replay.batches(2, replace=False, rng=rng)]).tolist())
        for _ in range(6_000)
    )
    assert len(drawn) == 120
    assert stats.chisquare(list(drawn.values())).pvalue > 0.001


def test_importance_weights_depend_on_the_batch_alone(rng):
    """One TD error of 0 among many must not scale all weights down."""
    replay = new_replay(1_000, 1_000, alpha=1.0)
    errors = np.ones(1_000)
    errors[7] = 0.0
    replay.update_priorities(np.arange(1_000), errors)
    batch = replay.sample(64, beta=1.0, rng=rng)
    assert 7 not in batch.step_id
    assert batch.weight.tolist() == pytest.approx([1.0] * 64)


def test_priorities_of_sequences_are_updated_as_they_come(rng):
    replay = new_replay(100, 100, alpha=1.0)
    batch = replay.sample(4, sequence_length=5, rng=rng)
    replay.update_priorities(batch.step_id, np.zeros((4, 5)))
    drawn = set(replay.sample(2_000, rng=rng).step_id.tolist())
    assert not drawn & set(batch.step_id.reshape(-1).tolist())
    with pytest.raises(lp.SampleError, match="one priority for each step id"):
        replay.update_priorities(batch.step_id, np.zeros((5, 4)))


def test_a_replay_has_a_generator_of_its_own():
    one, other, third = (lp.Replay(lp.Spec(obs=lp.Field((), "int64")), 50, seed=seed) for seed in (7, 7, 8))
    for replay in (one, other, third):
        for t in range(50):
            replay.add(obs=t, next_obs=t + 1, action=0, reward=0.0, terminated=False, truncated=False)
    first = one.sample(32).step_id.tolist()
    assert first == other.sample(32).step_id.tolist()
    assert first != third.sample(32).step_id.tolist()
    assert first != one.sample(32).step_id.tolist()


def test_gamma_is_required_with_n_step_returns():
    replay = new_replay(10, 10)
    with pytest.raises(lp.SampleError, match="n_step=3 needs the discount"):
        replay.sample(2, n_step=3)
    assert replay.sample(2).discount.tolist() == [1.0, 1.0]


def test_steps_by_id_are_indexed_and_left_out_fields_are_none():
    replay = new_replay(20, 10)
    assert replay[[12, 19]].reward.tolist() == [12, 19]
    assert replay[15].reward.tolist() == [15]
    batch = replay.steps([11], n_step=2, gamma=0.5, exclude=("next_obs",))
    assert batch.reward.tolist() == [17.0]
    assert batch.next_obs is None
    assert (replay.oldest, replay.recorded) == (10, 20)


def test_all_steps_without_replacement_whatever_the_priorities(rng):
    """Priorities over 12 orders of magnitude: each step comes once, and the weights are as before."""
    replay = new_replay(300, 300, alpha=1.0)
    replay.update_priorities(np.arange(300), 10.0 ** (-np.arange(300) / 25))
    before = replay._pond.priorities.held.copy()
    for count in (40, 299, 300):
        drawn = replay.sample(count, replace=False, rng=rng).step_id.tolist()
        assert len(set(drawn)) == count
    assert (replay._pond.priorities.held == before).all()


def test_an_interrupted_draw_without_replacement_leaves_the_priorities_as_they_were(rng, monkeypatch):
    replay = new_replay(300, 300, alpha=1.0)
    replay.update_priorities(np.arange(300), 10.0 ** (-np.arange(300) / 25))
    priorities = replay._pond.priorities
    before, total, calls = priorities.held.copy(), priorities.total(), []

    def interrupt(points):
        calls.append(len(points))
        if len(calls) == 3:
            monkeypatch.setattr(priorities, "_put_back", lambda: None)  # not even the clean-up is reached
            raise KeyboardInterrupt
        return find(points)

    find = priorities.find
    monkeypatch.setattr(priorities, "find", interrupt)
    with pytest.raises(KeyboardInterrupt):
        replay.sample(200, replace=False, rng=rng)
    assert (priorities.held != before).any()
    monkeypatch.undo()
    replay.sample(1, rng=rng)
    assert (priorities.held == before).all()
    assert priorities.total() == total


def test_sequences_that_hardly_any_step_starts_are_found_in_bounded_memory(rng):
    """One possible start among 50,000 steps: all are tried, a part at a time."""
    replay = lp.Replay(lp.Spec(obs=lp.Field((), "int64")), 50_000)
    t = np.arange(50_000)
    ends = t % 7 == 6
    ends[30_000:30_064] = False
    replay.record(
        obs=t,
        next_obs=t + 1,
        action=t,
        reward=t.astype(np.float32),
        terminated=ends,
        truncated=ends & False,
        stream=0,
    )
    starts = replay.sample(8, sequence_length=64, rng=rng).step_id[:, 0]
    assert set(starts.tolist()) <= set(range(29_995, 30_008))
    tracemalloc.start()
    with pytest.raises(lp.TooFewSteps, match="none of the 50,000 steps starts 500 consecutive"):
        replay.sample(8, sequence_length=500, rng=rng)
    assert tracemalloc.get_traced_memory()[1] < 150e6  # 50,000 x 500 ids would be 200 MB
    tracemalloc.stop()


def test_an_infinite_reward_at_the_end_of_an_episode_is_an_infinite_return():
    replay = lp.Replay(lp.Spec(obs=lp.Field((), "int64")), 10)
    for t, reward in enumerate([1.0, np.inf]):
        replay.record(obs=t, next_obs=t + 1, action=0, reward=reward, terminated=t == 1, truncated=False)
    assert replay.steps([0, 1], n_step=5, gamma=0.5).reward.tolist() == [np.inf, np.inf]
