"""Priorities in a lake: a commit writes those that changed, and every commit gives all of them back."""

from __future__ import annotations

import numpy as np
import pytest
from test_lake import record, spec_of

import lakepond as lp
from lakepond.flow import lake_to_pond, pond_to_lake

WORLD = "vector"


def weights(replay: lp.Replay) -> dict[int, float]:
    pond = replay._pond
    ids = pond.ids()
    return dict(zip(ids.tolist(), pond.priorities.weights(pond.places(ids)).tolist(), strict=True))


def test_every_commit_gives_back_the_priorities_of_its_moment(tmp_path):
    """Few change, many change, none does; the ring goes round; all are written again now and then."""
    path, rng, then = tmp_path / "lake", np.random.default_rng(0), {}
    with lp.Replay.open(path, spec_of(WORLD), capacity=400, alpha=0.6) as replay:
        for k in range(60):
            n = replay.stats().recorded
            record(replay, WORLD, n, n + (120 if k < 4 else k % 8))
            live = replay._pond.ids()
            some = rng.choice(live, min(len(live), [0, 3, 20, 300][k % 4] if k > 40 else 5), replace=False)
            replay.update_priorities(some, np.abs(rng.standard_normal(len(some))))
            then[replay.commit().number] = weights(replay), replay.commit(wait=False)
        again = {number: done.result() for number, (_, done) in then.items()}  # nothing is new in these
    changes = [len(commit.priority_changes) for commit in again.values()]
    assert max(changes) == pond_to_lake.MOST_CHANGES
    assert changes.count(0) < 20
    for number, (known, _) in then.items():
        for each in (number, again[number].number):
            copy = lp.Replay(spec_of(WORLD), 400, alpha=0.6)
            with lp.Lake.open(path, commit=each) as lake:
                lake.verify()
                lake_to_pond.resume(lake, copy._pond)
            assert weights(copy) == known


def test_a_commit_costs_what_changed(tmp_path):
    rng = np.random.default_rng(0)
    with lp.Replay.open(tmp_path / "lake", spec_of(WORLD), capacity=20_000, alpha=0.6) as replay:
        for start in range(0, 20_000, 2_000):
            record(replay, WORLD, start, start + 2_000)
        replay.update_priorities(np.arange(20_000), rng.random(20_000))
        whole = replay.commit()
        replay.update_priorities(np.arange(100), rng.random(100))
        few = replay.commit()
        assert few.priorities == whole.priorities
        assert few.bytes_written < 0.05 * whole.priorities.bytes
        replay.update_priorities(np.arange(20_000), rng.random(20_000))
        assert replay.commit().priority_changes == ()  # all of them: written whole
    with lp.Replay.open(tmp_path / "lake", capacity=20_000, alpha=0.6) as again:
        again.update_priorities([7], [0.5])
        assert again.commit().priority_changes == ()  # a resumed replay begins with all


def test_the_file_of_a_change_is_checked_and_kept(tmp_path):
    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of(WORLD), capacity=500, alpha=0.6, keep_last=1) as replay:
        record(replay, WORLD, 0, 500)
        for k in range(5):
            replay.update_priorities([k], [3.0])
            commit = replay.commit()
        assert len(commit.priority_changes) == 4
        assert {file.name for file in (path / "segments").iterdir()} == {
            name for name, _ in replay.lake().files()
        }
    file = path / "segments" / f"{commit.priority_changes[1].digest}.steps"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with (
        lp.Lake.open(path) as lake,
        pytest.raises(lp.LakeCorrupt, match="does not match the digest in its name"),
    ):
        lake.verify()
