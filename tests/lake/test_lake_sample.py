"""`Lake.sample`, `steps` and `batches` deliver what a replay with the same steps delivers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import lakepond as lp
from lakepond.types import leaves

SPEC = lp.Spec(
    obs={"stack": lp.Field((4, 20, 20), "uint8", rows=0), "small": lp.Field((2,), "float32")},
    extras={"agent": lp.Field((), "int16")},
)


def episode_steps(replay: lp.Replay, count: int, streams: int = 3, seed: int = 0) -> None:
    """Steps of several streams in random order; each frame and each reward is a number of its own."""
    rng = np.random.default_rng(seed)
    frames = {s: list(rng.integers(0, 256, (4, 20, 20), np.uint8)) for s in range(streams)}
    for t in range(count):
        s = int(rng.integers(streams))
        obs = np.stack(frames[s][-4:])
        frames[s].append(rng.integers(0, 256, (20, 20), np.uint8))
        end = bool(rng.random() < 0.1)
        small = np.array([len(frames[s]), s], np.float32)
        replay.record(
            obs={"stack": obs, "small": small - np.array([1, 0], np.float32)},
            next_obs={"stack": np.stack(frames[s][-4:]), "small": small},
            action=t,
            reward=float(t),
            terminated=end,
            truncated=not end and bool(rng.random() < 0.05),
            stream=s,
            agent=s,
        )
        if end:
            frames[s] = list(rng.integers(0, 256, (4, 20, 20), np.uint8))


def same(one: lp.Batch, other: lp.Batch) -> None:
    for name, a, b in zip(one._fields, one, other, strict=True):
        for (path, x), (_, y) in zip(leaves(a, name), leaves(b, name), strict=True):
            assert (x is None) == (y is None), path
            if x is not None:
                assert x.dtype == y.dtype, path
                np.testing.assert_array_equal(x, y, err_msg=path)


@pytest.fixture
def both(tmp_path):
    """A replay that holds 150 steps of 400, and the lake with the same 150, in several segments."""
    replay = lp.Replay.open(tmp_path / "lake", SPEC, 150, max_steps=150)
    for part in range(4):
        episode_steps(replay, 100, seed=part)
        replay.commit()
    with replay, replay.lake() as lake:
        assert (lake.commit.oldest, lake.commit.recorded) == (250, 400)
        yield replay, lake


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gamma": 0.9},
        {"n_step": 3, "gamma": 0.9},
        {"n_step": 20, "gamma": 0.5, "exclude": ("obs", "next_obs['small']")},
        {"replace": False},
        {"only": ("next_obs",)},
        {"only": ()},
        {"only": ("obs['small']", "next_obs['stack']"), "n_step": 2, "gamma": 1.0},
        {"sequence_length": 3},
        {"sequence_length": 12, "across_episodes": True, "exclude": ("obs['stack']",)},
    ],
)
def test_a_lake_samples_as_the_replay_does(both, options):
    replay, lake = both
    for seed in range(3):
        mine, theirs = np.random.default_rng(seed), np.random.default_rng(seed)
        same(lake.sample(40, rng=mine, **options), replay.sample(40, rng=theirs, **options))
        assert mine.random() == theirs.random()


def test_steps_by_id_in_any_order_and_shape(both):
    replay, lake = both
    ids = np.array([300, 251, 399, 300])
    same(lake.steps(ids), replay.steps(ids))
    same(lake[ids], replay[ids])
    same(
        lake.steps(ids, n_step=4, gamma=0.9, only=("obs",)),
        replay.steps(ids, n_step=4, gamma=0.9, only=("obs",)),
    )
    same(lake.steps(260, 270), replay.steps(np.arange(260, 270)))
    assert lake.steps(np.array([[300, 301], [260, 261]])).obs["stack"].shape == (2, 2, 4, 20, 20)
    assert lake.steps(np.zeros(0, int)).obs["stack"].shape == (0, 4, 20, 20)
    with pytest.raises(
        lp.TooFewSteps, match=r"step 249 is not stored any more: commit 3 of .* has the steps \[250, 400\)"
    ):
        lake.steps([300, 249])
    with pytest.raises(lp.SampleError, match="step ids are integers"):
        lake.steps([1.5])
    for wrong in ({"n_step": 3.0}, {"beta": "0.4"}, {"gamma": float("nan")}):
        with pytest.raises(lp.SampleError, match=f"{next(iter(wrong))} must be"):
            lake.sample(4, **wrong)
    with pytest.raises(lp.SampleError, match="n_step=3 needs the discount"):
        lake.steps([300], n_step=3)


def test_what_cannot_be_sampled_is_refused(both):
    _, lake = both
    with pytest.raises(lp.SampleError, match="stores no priorities"):
        lake.sample(4, beta=0.4)
    with pytest.raises(lp.SampleError, match="not both"):
        lake.sample(4, only=("obs",), exclude=("obs",))
    with pytest.raises(lp.SampleError, match="only names observations"):
        lake.sample(4, only=("reward",))
    with pytest.raises(lp.SampleError, match="numpy Generator"):
        lake.sample(4, rng=0)
    with pytest.raises(lp.TooFewSteps, match="151 different steps were requested, but only 150"):
        lake.sample(151, replace=False)
    with pytest.raises(lp.TooFewSteps, match="none of the 150 steps starts 150 consecutive steps"):
        lake.sample(1, sequence_length=150)
    assert lake.sample(150, replace=False).step_id.tolist() != list(range(250, 400))  # a generator of its own


def test_by_priority_only_steps_with_a_stored_priority_are_drawn_in_proportion(tmp_path, rng):
    """The lake holds 100 steps, its replay 40: the commit stores the priorities of these."""
    with lp.Replay.open(tmp_path / "lake", SPEC, 40, alpha=1.0) as replay:
        episode_steps(replay, 100)
        ids = np.arange(60, 100)
        replay.update_priorities(ids, ids - 59.0)
        replay.commit()
    with lp.Lake.open(tmp_path / "lake") as lake:
        batch = lake.sample(20_000, beta=1.0, rng=rng, only=())
        counts = np.bincount(batch.step_id - 60, minlength=40)
        expected = (ids - 59.0) / (ids - 59.0).sum() * 20_000
        assert stats.chisquare(counts, expected).pvalue > 0.001
        weight = 1 / (batch.step_id - 59.0)
        np.testing.assert_allclose(batch.weight, weight / weight.max(), rtol=1e-5)
        starts = lake.sample(
            5_000, beta=1.0, sequence_length=2, across_episodes=True, rng=rng, only=()
        ).step_id
        replay_starts = replay.sample(5_000, sequence_length=2, across_episodes=True, rng=rng).step_id
        for found in (starts, replay_starts):
            possible = np.unique(found[:, 0])
            share = (possible - 59.0) / (possible - 59.0).sum() * 5_000
            assert stats.chisquare(np.bincount(found[:, 0])[possible], share).pvalue > 0.001
        assert set(np.unique(starts[:, 0])) == set(np.unique(replay_starts[:, 0]))
        once = lake.sample(40, beta=0.4, replace=False, rng=rng, only=())
        assert sorted(once.step_id.tolist()) == ids.tolist()
        assert len(set(lake.sample(5_000, rng=rng, only=()).step_id.tolist())) == 100  # uniform: all of them


def test_steps_of_two_writers_never_follow_each_other(tmp_path):
    for writer in ("a", "b"):
        with lp.Replay.open(tmp_path / "lake", SPEC, 500, writer=writer) as replay:
            episode_steps(replay, 30, streams=1)
    with lp.Lake.open(tmp_path / "lake") as lake:
        batch = lake.sample(
            200, sequence_length=2, across_episodes=True, only=(), rng=np.random.default_rng(0)
        )
        assert (np.diff(batch.step_id) == 1).all()
        assert not (batch.step_id[:, 0] == 29).any()
        assert lake.steps([29], n_step=5, gamma=0.9, only=()).num_steps.tolist() == [1]


@pytest.mark.parametrize("which", [0, 1])
def test_batches_are_samples_or_one_pass(both, which):
    source = both[which]
    drawn = list(source.batches(16, 3, rng=np.random.default_rng(1), n_step=2, gamma=0.9))
    again = np.random.default_rng(1)
    for batch in drawn:
        same(batch, source.sample(16, rng=again, n_step=2, gamma=0.9))
    endless = source.batches(16)
    assert len([next(endless) for _ in range(5)]) == 5
    passed = list(source.batches(64, replace=False, only=("obs['small']",), rng=np.random.default_rng(1)))
    assert [len(batch.step_id) for batch in passed] == [64, 64, 22]
    ids = np.concatenate([batch.step_id for batch in passed]).tolist()
    assert sorted(ids) == list(range(250, 400))
    assert ids != sorted(ids)
    for options, message in [
        ({"beta": 0.4}, "takes .* not .'beta'."),
        ({"out": drawn[0]}, "takes .* not .'out'."),
        ({"sequence_length": 4}, "sequence_length must be"),
        ({"n_step": 3}, "needs the discount"),
    ]:
        with pytest.raises(lp.SampleError, match=message):
            source.batches(8, replace=False, **options)


def test_a_pass_leaves_out_steps_that_are_evicted_meanwhile(both):
    replay, _ = both
    batches = replay.batches(50, replace=False)
    first = next(batches)
    episode_steps(replay, 100, seed=9)
    rest = np.concatenate([batch.step_id for batch in batches])
    assert rest.min() >= 350
    assert not set(rest.tolist()) & set(first.step_id.tolist())
