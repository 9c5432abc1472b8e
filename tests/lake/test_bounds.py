"""Memory for reading a lake is bounded by what its files hold, whatever the numbers in it say."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from benchmarks import large_lakes
from test_lake import record, same_batch, spec_of

import lakepond as lp
from lakepond.flow import lake_to_device, lake_to_pond
from lakepond.lake.format import tracks
from lakepond.lake.format.blocks import ShardInfo
from lakepond.lake.format.steps import StepsInfo
from lakepond.lake.format.tracks import Track, runs_of
from lakepond.sampling import draw


def padded(t: int) -> np.ndarray:
    """A stack whose first row is padding that all steps share: row 0 of the lake stays live."""
    return np.stack([np.zeros(16, np.int64), np.full(16, t + 1)])


def small_step(t: int) -> dict:
    obs = np.full(2, t, np.float32)
    return {
        "obs": obs,
        "next_obs": obs + 1,
        "action": 0,
        "reward": float(t),
        "terminated": False,
        "truncated": False,
    }


def test_the_index_of_rows_is_sized_by_the_rows_that_are_there(tmp_path):
    spec = lp.Spec(obs=lp.Field((2, 16), "int64", rows=0))
    with lp.Replay.open(tmp_path / "lake", spec, capacity=100, max_steps=100, keep_last=1) as replay:
        for t in range(20_000):
            replay.record(
                obs=padded(t),
                action=0,
                reward=float(t),
                next_obs=padded(t + 1),
                terminated=False,
                truncated=False,
            )
            if t % 100 == 99:
                replay.commit()
    with lp.Lake.open(tmp_path / "lake") as lake:
        rows = sum(file.shard.rows for _, file in lake.reader.row_files(0))
        assert next(lake.reader.row_files(0))[0] == 0  # the padding
        assert lake.commit.next_rows[0] > 20_000
        assert rows < 2_000
        assert lake.reader.rows_count(0) == rows
        with lp.Replay(spec, capacity=100) as replay:
            with lake_to_pond._Rows(lake, replay._pond, ours=False) as index:
                for part in lake.parts(np.arange(19_900, 20_000)):
                    index.hold([part])
            loaded = sum(len(numbers) for slots in index._slots for numbers, _ in slots._parts)
            assert loaded == 102  # and not 20,000 row numbers
            replay.fill_from(lake, 100, rng=np.random.default_rng(0))
            batch = replay.sample(50, rng=np.random.default_rng(1))
            assert (batch.obs[:, 1, 0] == batch.reward + 1).all()
    with lp.Replay.open(tmp_path / "lake", capacity=100) as replay:
        batch = replay.steps(np.arange(19_900, 20_000))
        assert batch.reward.tolist() == list(range(19_900, 20_000))
        assert (batch.obs[:, 1, 0] == batch.reward + 1).all()
        assert not batch.obs[:, 0].any()


def test_loaded_rows_are_found_by_number_through_gaps():
    slots = lake_to_pond._Slots()
    assert slots.of(np.array([0, 5])).tolist() == [-1, -1]
    slots.add(np.array([0, 2, 1000]), np.array([7, 8, 9]))
    slots.add(np.array([1, 999, 1 << 39]), np.array([10, 11, 12]))
    assert slots.of(np.array([0, 1, 2, 3, 999, 1000, 1001, 1 << 39])).tolist() == [
        7,
        10,
        8,
        -1,
        11,
        9,
        -1,
        12,
    ]
    rng = np.random.default_rng(0)
    known: dict[int, int] = {}
    slots = lake_to_pond._Slots()
    for new in np.sort(rng.permutation(1 << 16).reshape(64, -1), axis=1):
        slots.add(new, new % 1000)
        known |= {int(n): int(n) % 1000 for n in new}
        some = np.sort(rng.choice(1 << 16, 100, replace=False))
        assert slots.of(some).tolist() == [known.get(int(n), -1) for n in some]


def test_memory_to_choose_steps_does_not_follow_the_size_of_a_lake(tmp_path, monkeypatch):
    monkeypatch.setattr(draw, "LARGEST_CHOICE", 1 << 16)
    large_lakes.make(tmp_path / "lake", entries=240, num_commits=2, steps=5_000, row_bytes=8)
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert len(lake) == 1_200_000
        lake.query(stream=0, since_commit=1)  # what it reads is kept in memory
        tracemalloc.start()
        ids = lake_to_pond.draw(lake, 100_000, np.random.default_rng(0))
        assert tracemalloc.get_traced_memory()[1] < 5e6  # 8 bytes per step are 9.6 MB
        assert (np.diff(ids) > 0).all()
        assert len(ids) == 100_000
        assert ids[0] < 1_000
        assert ids[-1] >= 1_199_000
        for chosen in (
            lambda: lake_to_device.plan(lake, 1_000, rng=np.random.default_rng(0)).columns["step_id"],
            lambda: lake.query(stream=7, since_commit=0),
        ):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            assert len(chosen()) in (0, 1_000)
            assert tracemalloc.get_traced_memory()[1] - before < 5e6
        tracemalloc.stop()


def test_a_track_that_stays_encoded_has_the_same_row_numbers(monkeypatch):
    rng = np.random.default_rng(3)
    numbers = np.concatenate([np.arange(at, at + n) for at, n in rng.integers(1, 50, (200, 2))])
    data = runs_of(numbers).tobytes()
    decoded = Track(data, shift=7)
    monkeypatch.setattr(tracks, "DECODED_ENTRIES", 0)
    encoded = Track(data, shift=7)
    assert encoded.nbytes < decoded.nbytes
    assert len(encoded) == len(decoded) == len(numbers)
    where = rng.integers(0, len(numbers), (40, 2, 5))
    assert (encoded[where] == numbers[where] + 7).all()
    assert (decoded[where] == numbers[where] + 7).all()


@pytest.mark.parametrize("world", ["frames first", "dict and tuple", "market window"])
def test_a_lake_whose_tracks_stay_encoded_reads_the_same(world, tmp_path, monkeypatch):
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=60) as replay:
        record(replay, world, 0, 80)
    with lp.Lake.open(tmp_path / "lake") as lake:
        right = lake.steps(20, 80)
        lake.verify()
    monkeypatch.setattr(tracks, "DECODED_ENTRIES", 0)
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert same_batch(lake.steps(20, 80), right)
        lake.verify()
    with lp.Replay.open(tmp_path / "lake", capacity=60) as replay:
        assert same_batch(replay.steps(np.arange(20, 80))._replace(weight=right.weight), right)


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (StepsInfo(1 << 20, 3000, "x"), "cannot hold 1,048,576 steps"),
        (ShardInfo(1 << 30, 64, 3528, "zstd", 3000, "x"), "cannot hold 1,073,741,824 rows"),
        (ShardInfo(100, 64, 1 << 20, "zstd", 3000, "x"), "exceed the limit"),
        (ShardInfo(100, 64, 10, "none", 3000, "x"), "cannot hold 100 rows"),
    ],
)
def test_a_file_is_not_believed_to_hold_more_than_it_can(info, says):
    with pytest.raises(ValueError, match=says):
        info.check_size()


def test_priorities_that_overflow_with_their_exponent_are_refused(tmp_path):
    spec = lp.Spec(obs=lp.Field((2,), "float32"))
    with lp.Replay.open(tmp_path / "lake", spec, capacity=10, alpha=3.0) as replay:
        for t in range(4):
            replay.record(**small_step(t))
        with pytest.raises(lp.SampleError, match="finite"):
            replay.update_priorities(np.arange(4), np.full(4, 1e200))  # its weight would be infinite
        replay.update_priorities(np.arange(4), np.full(4, 1e95))
    with lp.Replay.open(tmp_path / "lake", capacity=10, alpha=3.0) as replay:
        assert len(replay) == 4
    with pytest.raises(lp.LakeCorrupt, match=r"overflow with alpha=9\.0"):
        lp.Replay.open(tmp_path / "lake", capacity=10, alpha=9.0)


def test_a_lake_none_of_whose_commits_is_intact_is_not_written_to(tmp_path):
    spec = lp.Spec(obs=lp.Field((2,), "float32"))
    with lp.Replay.open(tmp_path / "lake", spec, capacity=10) as replay:
        replay.record(**small_step(0))
    for commit in (tmp_path / "lake" / "commits").iterdir():
        commit.write_bytes(b"{}")
    with pytest.raises(lp.LakeCorrupt, match="none of them is intact"):
        lp.Replay.open(tmp_path / "lake", capacity=10)
