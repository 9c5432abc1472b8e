"""Sampling, checked against numbers worked by hand."""

import numpy as np
import pytest
from scipy import stats

import lakepond as lp


def new_replay(capacity: int = 100, alpha: float | None = None, **field: object) -> lp.Replay:
    return lp.Replay(lp.Spec(obs=lp.Field((2,), "float32", **field)), capacity, alpha=alpha)


def record(replay: lp.Replay, reward: float, *, end: str = "", stream: int = 0) -> None:
    """A step whose observations tell its number: obs (n, 0), next_obs (n, 1)."""
    n = replay.stats().recorded
    replay.record(
        obs=np.array([n, 0], np.float32),
        action=n,
        reward=reward,
        next_obs=np.array([n, 1], np.float32),
        terminated=end == "terminated",
        truncated=end == "truncated",
        stream=stream,
        follows_previous=True,
    )


# --- uniform ---


def test_uniform_sampling_is_uniform(rng):
    replay = new_replay(capacity=50)
    for i in range(80):  # the ring has wrapped
        record(replay, i)
    ids = replay.sample(50_000, rng=rng).step_id
    assert set(ids.tolist()) == set(range(30, 80))
    assert stats.chisquare(np.bincount(ids - 30, minlength=50)).pvalue > 0.01


def test_without_replacement_each_step_comes_once(rng):
    replay = new_replay()
    for i in range(40):
        record(replay, i)
    assert sorted(replay.sample(40, rng=rng, replace=False).step_id.tolist()) == list(range(40))
    firsts = [replay.sample(1, rng=rng, replace=False).step_id[0] for _ in range(4000)]
    assert stats.chisquare(np.bincount(firsts, minlength=40)).pvalue > 0.01


def test_the_same_rng_and_content_give_the_same_batch():
    def draw(chunks: list[int]) -> lp.Batch:
        replay = new_replay(capacity=30)
        for chunk in chunks:  # the content alone counts, not how it was handed over
            ids = np.arange(replay.stats().recorded, replay.stats().recorded + chunk)
            replay.record(
                obs=np.stack([ids, ids], 1).astype(np.float32),
                action=ids,
                reward=ids.astype(np.float32),
                next_obs=np.stack([ids, ids + 1], 1).astype(np.float32),
                terminated=ids % 7 == 6,
                truncated=ids < 0,
                stream=0,
            )
        return replay.sample(64, rng=np.random.default_rng(5), n_step=3, gamma=0.9)

    a, b = draw([45]), draw([1, 20, 3, 21])
    for x, y in zip(a[:-1], b[:-1], strict=True):
        assert np.array_equal(x, y)


# --- prioritised ---


def test_probabilities_are_priority_to_the_alpha(rng):
    replay = new_replay(alpha=0.5)
    for i in range(4):
        record(replay, i)
    replay.update_priorities([0, 1, 2, 3], [1.0, 4.0, 9.0, 16.0])  # sqrt: 1, 2, 3, 4 of 10
    ids = replay.sample(20_000, rng=rng).step_id
    assert stats.chisquare(np.bincount(ids, minlength=4), np.array([2000, 4000, 6000, 8000])).pvalue > 0.01


def test_importance_weights_by_hand(rng):
    replay = new_replay(alpha=1.0)
    for i in range(3):
        record(replay, i)
    replay.update_priorities([0, 1, 2], [1.0, 2.0, 5.0])  # P = 1/8, 2/8, 5/8
    batch = replay.sample(200, rng=rng, beta=0.5)
    # (N P)^-beta over its largest value, that of P = 1/8: (P / (1/8))^-0.5
    expected = {0: 1.0, 1: 2**-0.5, 2: 5**-0.5}
    for step_id, weight in zip(batch.step_id.tolist(), batch.weight.tolist(), strict=True):
        assert weight == pytest.approx(expected[step_id], rel=1e-6)
    assert {0, 1, 2} == set(batch.step_id.tolist())
    assert (replay.sample(50, rng=rng, beta=0.0).weight == 1).all()


def test_new_steps_get_the_largest_priority_there_has_been(rng):
    replay = new_replay(capacity=10, alpha=1.0)
    for i in range(10):
        record(replay, i)
    replay.update_priorities(np.arange(10), np.full(10, 0.01))
    replay.update_priorities([3], [7.0])
    record(replay, 10)
    counts = np.bincount(replay.sample(3000, rng=rng).step_id, minlength=11)
    assert abs(counts[3] - counts[10]) < 200
    assert counts[[3, 10]].sum() > 2900
    assert counts[0] == 0  # it has left


def test_late_updates_of_steps_that_have_left_are_passed_over(rng):
    replay = new_replay(capacity=5, alpha=1.0)
    for i in range(5):
        record(replay, i)
    late = replay.sample(5, rng=rng, replace=False).step_id
    for i in range(5, 10):
        record(replay, i)
    replay.update_priorities(late, np.full(5, 1e6))  # must not reach steps 5..9, which took their places
    counts = np.bincount(replay.sample(5000, rng=rng).step_id, minlength=10)[5:]
    assert stats.chisquare(counts).pvalue > 0.01


def test_a_priority_of_zero_is_rare_but_never_lost(rng):
    replay = new_replay(alpha=1.0)
    for i in range(3):
        record(replay, i)
    replay.update_priorities([0, 1, 2], [0.0, 0.0, 0.0])
    assert len(set(replay.sample(100, rng=rng).step_id.tolist())) == 3


@pytest.mark.parametrize("capacity", [1, 64, 65, 4097, 300_000])
def test_the_sum_tree_draws_what_it_holds(capacity, rng):
    from lakepond.sampling.priorities import Priorities

    tree = Priorities(capacity, alpha=1.0)
    places = rng.choice(capacity, min(capacity, 500), replace=False)
    weights = rng.random(len(places)) + 1e-9
    tree.sync(0, capacity)
    tree.sync(capacity, capacity)  # all are evicted
    assert tree.total() == 0
    tree.restore(places, weights, 1.0)
    assert tree.total() == pytest.approx(weights.sum())
    drawn = tree.draw(20_000, rng)
    assert set(drawn.tolist()) <= set(places.tolist())
    counts = np.bincount(drawn, minlength=capacity)[places]
    assert np.abs(counts - 20_000 * weights / weights.sum()).max() < 60


# --- n-step and episode ends ---


def test_n_step_returns_by_hand(rng):
    """Rewards 1, 2, 3, 4, 5 with gamma 0.5; the episode terminates at the third step."""
    replay = new_replay()
    for reward, end in [(1, ""), (2, ""), (3, "terminated"), (4, ""), (5, "")]:
        record(replay, reward, end=end)
    batch = replay.sample(200, rng=rng, n_step=3, gamma=0.5)
    by_hand = {
        0: (1 + 0.5 * 2 + 0.25 * 3, 2, 0.0),  # reaches the end: no bootstrap
        1: (2 + 0.5 * 3, 2, 0.0),
        2: (3.0, 2, 0.0),
        3: (4 + 0.5 * 5, 4, 0.25),  # the stream is only recorded so far: bootstrap after two steps
        4: (5.0, 4, 0.5),
    }
    assert set(batch.step_id.tolist()) == set(by_hand)
    for i, step_id in enumerate(batch.step_id.tolist()):
        value, last, discount = by_hand[step_id]
        assert batch.reward[i] == value
        assert batch.discount[i] == discount
        assert batch.next_obs[i].tolist() == [last, 1]
        assert batch.terminated[i] == (last == 2)


def test_truncation_stops_the_sum_but_not_the_bootstrap(rng):
    replay = new_replay()
    for reward, end in [(1, ""), (2, "truncated"), (100, ""), (100, "")]:
        record(replay, reward, end=end)
    batch = replay.steps([0, 1])
    assert batch.truncated.tolist() == [False, True]
    sample = replay.sample(100, rng=rng, n_step=5, gamma=0.9)
    i = sample.step_id.tolist().index(0)
    assert sample.reward[i] == pytest.approx(1 + 0.9 * 2)
    assert sample.discount[i] == pytest.approx(0.81)
    assert sample.next_obs[i].tolist() == [1, 1]  # the true last observation, not the next episode's first
    assert sample.truncated[i]
    assert not sample.terminated[i]


def test_n_step_follows_its_stream_through_interleaved_neighbours(rng):
    replay = new_replay()
    for i in range(12):
        record(replay, 10.0 ** (i % 3), stream=i % 3)
    batch = replay.sample(100, rng=rng, n_step=3, gamma=1.0)
    for i, step_id in enumerate(batch.step_id.tolist()):
        steps = min(3, (11 - step_id) // 3 + 1)
        assert batch.reward[i] == steps * 10.0 ** (step_id % 3)
        assert batch.next_obs[i, 0] == step_id + 3 * (steps - 1)


def test_the_reward_may_be_a_vector(rng):
    replay = lp.Replay(lp.Spec(obs=lp.Field((), "int64"), reward=lp.Field((2,), "float64")), 10)
    for i in range(4):
        replay.record(obs=i, action=0, reward=[i, 10 * i], next_obs=i + 1, terminated=False, truncated=False)
    batch = replay.sample(50, rng=rng, n_step=2, gamma=0.5)
    i = batch.step_id.tolist().index(1)
    assert batch.reward[i].tolist() == [1 + 1, 10 + 10]


# --- sequences ---


def test_sequences_stay_within_an_episode_unless_told_otherwise(rng):
    replay = new_replay()
    for i in range(9):
        record(replay, i, end="terminated" if i == 3 else "")
    starts = {tuple(s) for s in replay.sample(300, rng=rng, sequence_length=4).step_id.tolist()}
    assert starts == {(0, 1, 2, 3), (4, 5, 6, 7), (5, 6, 7, 8)}
    crossing = {
        tuple(s)
        for s in replay.sample(300, rng=rng, sequence_length=4, across_episodes=True).step_id.tolist()
    }
    assert crossing == {tuple(range(i, i + 4)) for i in range(6)}


def test_every_possible_start_is_alike(rng):
    replay = new_replay()
    for i in range(60):
        record(replay, i, end="truncated" if i % 11 == 10 else "", stream=i % 2)
    starts = replay.sample(20_000, rng=rng, sequence_length=5).step_id[:, 0]
    _, counts = np.unique(starts, return_counts=True)
    assert stats.chisquare(counts).pvalue > 0.01


def test_sequences_that_are_rare_are_found(rng):
    replay = new_replay(capacity=5000)
    for i in range(2000):
        record(replay, i, end="terminated" if i < 1990 else "")
    assert (replay.sample(7, rng=rng, sequence_length=10).step_id[:, 0] == 1990).all()


# --- out, recent, steps ---


def test_out_is_filled_and_returned(rng):
    replay = new_replay()
    for i in range(10):
        record(replay, i)
    first = replay.sample(8, rng=rng)
    kept = first.obs
    again = replay.sample(8, rng=rng, out=first)
    assert again.obs is kept
    assert (again.obs[:, 0] == again.step_id).all()


def test_recent_of_a_stream():
    replay = new_replay()
    for i in range(10):
        record(replay, i, stream=i % 2)
    assert replay.recent(3).step_id.tolist() == [7, 8, 9]
    assert replay.recent(2, stream=0).step_id.tolist() == [6, 8]


def test_a_cut_stream_begins_anew(rng):
    replay = new_replay()
    for i in range(6):
        if i == 3:
            replay.cut(0)
        record(replay, 1.0)
    batch = replay.sample(100, rng=rng, n_step=5, gamma=1.0)
    for i, step_id in enumerate(batch.step_id.tolist()):
        assert batch.reward[i] == (3 - step_id if step_id < 3 else 6 - step_id)
    assert {tuple(s) for s in replay.sample(99, rng=rng, sequence_length=3).step_id.tolist()} == {
        (0, 1, 2),
        (3, 4, 5),
    }
