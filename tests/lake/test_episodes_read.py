"""Episodes and rows of a lake are complete, in memory that does not grow with the lake."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import lakepond as lp
from lakepond.lake.read import episodes
from lakepond.lake.read.sequences import episodes_of

GOING_ON = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}


def frames(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (count, *shape), dtype=np.uint8)


@pytest.mark.parametrize("shape", [(4,), (40, 40)])  # stored as values, as rows
@pytest.mark.parametrize("commit", [False, True])
def test_a_cut_ends_an_episode_even_if_the_observations_are_equal(tmp_path, shape, commit):
    still = np.zeros(shape, np.float32)
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=lp.Field(shape)), capacity=100) as replay:
        for stream in (0, 1, 0, 1, 1):
            replay.record(obs=still, next_obs=still, stream=stream, **GOING_ON)
        replay.cut(1)
        if commit:  # the cut is between two files, and stream 0 continues across them
            replay.commit()
        for stream in (1, 0, 1):
            replay.record(obs=still, next_obs=still, stream=stream, **GOING_ON)
    with lp.Lake.open(tmp_path / "lake") as lake:
        found = [episode.step_id.tolist() for episode in lake.episodes()]
        known = episodes_of(lake)
    assert found == [[1, 3, 4], [0, 2, 6], [5, 7]]
    assert sorted(found) == sorted(each.tolist() for each in np.split(known.ids, known.starts[1:]))


@pytest.mark.parametrize("compared", [episodes.COMPARED, 50, 1])
def test_an_observation_with_the_first_and_last_row_of_another_is_another(tmp_path, monkeypatch, compared):
    monkeypatch.setattr(episodes, "COMPARED", compared)
    rows = frames(50, 64)
    other = rows[5:25].copy()
    other[10] = rows[40]
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=lp.Field((20, 64), "uint8")), capacity=100) as replay:
        for t in range(5):
            replay.record(obs=rows[t : t + 20], next_obs=rows[t + 1 : t + 21], **GOING_ON)
        replay.record(obs=other, next_obs=rows[6:26], follows_previous=True, **GOING_ON)
        replay.record(obs=rows[6:26], next_obs=rows[7:27], **GOING_ON)
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.reader.layouts()[0].length == 20
        before, after = lake.episodes()
    assert (before.steps, after.steps) == (5, 2)
    assert (before.obs[-1] == rows[5:25]).all()
    assert (after.obs[0] == other).all()


def test_memory_does_not_grow_with_the_steps_of_a_lake(tmp_path):
    count, envs = 400_000, 4000
    obs, flags = np.zeros((envs, 1), np.float32), np.ones(envs, bool)
    step = {"obs": obs, "next_obs": obs, "action": np.zeros(envs, np.int64), "reward": obs[:, 0]}
    spec = lp.Spec(obs=lp.Field((1,)))
    with lp.Replay.open(tmp_path / "lake", spec, capacity=count // 4) as replay:
        for _ in range(count // envs):
            replay.record(**step, terminated=flags, truncated=~flags)
    with lp.Lake.open(tmp_path / "lake") as lake:
        next(lake.episodes())  # fills the cache of columns
        tracemalloc.start()
        try:
            next(lake.episodes())
            assert tracemalloc.get_traced_memory()[1] < 20 * count  # 48 bytes per step if all ids are listed
        finally:
            tracemalloc.stop()


def record_stack(path: Path, writer: str, moves: int, steps: int, seed: int) -> int:
    """Stacks of 4 frames that move by `moves` frames; returns the number of rows of the writer."""
    seen = frames(steps * moves + 4, 40, 40, seed=seed)
    spec = lp.Spec(obs=lp.Field((4, 40, 40), "uint8"))
    with lp.Replay.open(path, spec, capacity=500, writer=writer) as replay:
        for t in range(0, steps * moves, moves):
            replay.record(obs=seen[t : t + 4], next_obs=seen[t + moves : t + moves + 4], **GOING_ON)
    with lp.Lake.open(path, writer=writer) as lake:
        return len(lake.rows())


def test_rows_of_several_writers_are_complete_or_refused(tmp_path):
    count = sum(record_stack(tmp_path / "lake", name, 1, 40, seed) for seed, name in enumerate("ab"))
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.rows().shape == (count, 40, 40)
        assert len(np.unique(np.asarray(lake.rows()), axis=0)) == lake.stats().rows == count
    assert record_stack(tmp_path / "lake", "c", 4, 40, 2) == 41  # each observation is one row
    with lp.Lake.open(tmp_path / "lake") as lake, pytest.raises(lp.SpecError, match=r"writer=.*read steps"):
        lake.rows()


def test_rows_are_refused_if_their_layout_changed(tmp_path):
    seen = frames(44, 40, 40)
    spec = lp.Spec(obs=lp.Field((4, 40, 40), "uint8"))
    with lp.Replay.open(tmp_path / "lake", spec, capacity=500) as replay:
        replay.record(obs=seen[:4], next_obs=seen[:4], **GOING_ON)  # nothing moves: no layout is found yet
        replay.commit()
        for t in range(40):
            replay.record(obs=seen[t : t + 4], next_obs=seen[t + 1 : t + 5], **GOING_ON)
    with lp.Lake.open(tmp_path / "lake") as lake:
        with pytest.raises(lp.SpecError, match="changed while steps were recorded; read steps"):
            lake.rows()
        assert [episode.steps for episode in lake.episodes()] == [41]


def test_a_column_is_read_a_part_at_a_time_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr("lakepond.lake.read.exports.SCANNED_STEPS", 7)
    still = np.zeros(1, np.float32)
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=lp.Field((1,))), capacity=100) as replay:
        for t in range(50):
            replay.record(obs=still, next_obs=still, **GOING_ON | {"reward": float(t)})
            if t == 20:
                replay.commit()
    places = np.random.default_rng(0).integers(0, 50, 60)
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.column("reward")[places].tolist() == places.tolist()
        assert np.asarray(lake.column("reward")).tolist() == list(range(50))
