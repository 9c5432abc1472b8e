"""A mixture has an exact share of every source in every batch, and says which row is whose."""

from __future__ import annotations

import numpy as np
import pytest
from collectors import STREAMS, Collector, agrees, same_batch, spec_of, step_of
from scipy import stats

import lakepond as lp


@pytest.fixture
def sources(tmp_path):
    """A replay in memory (who 1), an old lake (who 2) and a followed one (who 3)."""
    replay = lp.Replay(spec_of("frames first"), 100, alpha=0.6)
    for n in range(60):
        replay.record(**step_of(1, n, "frames first"))
    for who in (2, 3):
        writer = Collector(tmp_path / f"lake-{who}", who, "frames first")
        writer.record(90)
        writer.close()
    with lp.Lake.open(tmp_path / "lake-2") as lake, lp.Replay.follow(tmp_path / "lake-3", 70) as followed:
        yield replay, lake, followed


def test_every_batch_has_the_same_shares(sources):
    mixed = lp.mix(dict(zip(sources, (0.5, 0.3, 0.2), strict=True)), seed=1)
    for size in (1, 2, 3, 7, 10, 64, 256):
        counts = mixed.counts(size)
        assert sum(counts) == size
        assert all(
            abs(count - share * size) < 1 for count, share in zip(counts, (0.5, 0.3, 0.2), strict=True)
        )
        batch = mixed.sample(size)
        assert np.bincount(batch.extras["source"], minlength=3).tolist() == counts
        assert (batch.extras["who"] == batch.extras["source"] + 1).all()
        agrees_but_streams(batch)
    assert mixed.counts(10) == [5, 3, 2]
    assert lp.mix({sources[0]: 3, sources[1]: 1}).counts(256) == [192, 64]
    assert lp.mix({sources[0]: 1, sources[1]: 1, sources[2]: 1}).counts(100) == [34, 33, 33]
    assert lp.mix({sources[0]: 0.1, sources[1]: 0.2, sources[2]: 0.7}).counts(10) == [1, 2, 7]


def agrees_but_streams(batch: lp.Batch) -> None:
    """Each source numbers its own streams."""
    numbered = batch.stream + 10 * batch.extras["source"]
    agrees(batch._replace(stream=numbered), "frames first")


def test_within_a_source_every_step_has_the_same_chance(sources):
    _, lake, followed = sources
    mixed = lp.mix({lake: 0.6, followed: 0.4}, seed=2)
    batch = mixed.sample(20_000)
    for i, (start, stop) in enumerate([(0, 90), (20, 90)]):
        counts = np.bincount(batch.reward[batch.extras["source"] == i].astype(int), minlength=stop)[start:]
        assert stats.chisquare(counts).pvalue > 1e-4


def test_the_options_of_sample_apply_to_all(sources):
    mixed = lp.mix(dict(zip(sources, (0.5, 0.3, 0.2), strict=True)))
    same = [mixed.sample(32, rng=np.random.default_rng(5), n_step=3, gamma=0.9) for _ in range(2)]
    assert same_batch(*same)
    assert same[0].num_steps.max() == 3
    some = mixed.sample(20, sequence_length=4)
    assert some.extras["source"].shape == some.reward.shape == (20, 4)
    assert (np.diff(some.reward, axis=1) == STREAMS).all()
    assert mixed.sample(20, exclude=["next_obs"]).next_obs is None
    assert len(set(mixed.sample(100, replace=False).reward[:50])) == 50
    assert [len(batch.reward) for batch in mixed.batches(8, 3)] == [8, 8, 8]
    replay = sources[0]
    replay.update_priorities(np.arange(60), np.where(np.arange(60) == 7, 1e6, 0.0))
    batch = mixed.sample(40, beta=0.5, timeout=5.0)
    mine = batch.extras["source"] == 0
    assert (batch.step_id[mine] == 7).all()
    assert (batch.weight[~mine] == 1).all()
    assert repr(mixed).startswith("Mixture(0.5: Replay(")


def test_sources_may_have_the_keys_of_their_dicts_in_another_order():
    sources = []
    for keys in ("ab", "ba"):
        field = lp.Field((2,), "float32")
        replay = lp.Replay(lp.Spec(obs=dict.fromkeys(keys, field), action=dict.fromkeys(keys, field)), 10)
        values = {"a": np.full(2, 1, np.float32), "b": np.full(2, 2, np.float32)}
        replay.record(
            obs=values, action=values, reward=0.0, next_obs=values, terminated=False, truncated=False
        )
        sources.append(replay)
    batch = lp.mix(dict.fromkeys(sources, 1.0)).sample(8)
    for tree in (batch.obs, batch.action, batch.next_obs):
        assert (tree["a"] == 1).all()
        assert (tree["b"] == 2).all()


def test_what_cannot_be_mixed(sources, tmp_path):
    replay, lake, followed = sources
    other = lp.Replay(spec_of("vector"), 10)
    for wrong, why in [
        ({}, "at least one source"),
        ({replay: 0.0}, "share of a source must be above 0"),
        ({replay: float("nan")}, "share of a source must be above 0"),
        ({replay: 1, "lake": 1}, "a source is a Replay or a Lake, not str"),
        ({replay: 1, other: 1}, r"sources 0 and 1 have different specs \(.*obs"),
    ]:
        with pytest.raises(lp.SpecError, match=why):
            lp.mix(wrong)
    taken = lp.Replay(lp.Spec(obs=lp.Field((2,)), action=lp.Field(), extras={"source": lp.Field()}), 10)
    with pytest.raises(lp.SpecError, match="an extra field 'source'"):
        lp.mix({taken: 1})
    mixed = lp.mix({lake: 1, followed: 1})
    for options, why in [
        ({"out": None}, "omit out"),
        ({"beta": 0.4}, "beta needs priorities"),
        ({"rng": 3}, "rng must be a numpy Generator"),
        ({"n_step": 2}, "needs the discount"),
    ]:
        with pytest.raises(lp.SampleError, match=why):
            mixed.sample(4, **options)
