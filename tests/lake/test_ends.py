"""End flags that are set after a step was committed reach the lake."""

from __future__ import annotations

import numpy as np
import pytest

import lakepond as lp
from lakepond.flow.device_to_lake import DeviceLake, Lanes
from lakepond.types import leaves

SPEC = lp.Spec(obs={"frame": lp.Field((20, 20), "uint8"), "small": lp.Field((), "int64")})


def record(replay: lp.Replay, start: int, stop: int, streams: int = 2, **more: object) -> None:
    """Each observation is its number; consecutive steps of a stream continue each other."""
    for t in range(start, stop):
        for s in range(streams):
            obs, next_obs = (
                {"frame": np.full((20, 20), n % 250, np.uint8), "small": np.int64(1_000 * s + n)}
                for n in (t, t + 1)
            )
            replay.record(
                obs=obs,
                next_obs=next_obs,
                action=t,
                reward=float(t),
                **{"terminated": False, "truncated": False, "stream": s, **more},
            )


def differences(one: lp.Batch, other: lp.Batch) -> dict[str, list[int]]:
    """The steps of each field in which two batches differ."""
    found = {}
    for name, a, b in zip(one._fields, one, other, strict=True):
        for (path, x), (_, y) in zip(leaves(a, name), leaves(b, name), strict=True):
            where = np.flatnonzero((x != y).reshape(len(x), -1).any(axis=1)).tolist()
            if where:
                found[path] = where
    return found


@pytest.mark.parametrize("later", [True, False])
def test_a_step_that_is_ended_after_its_commit_is_ended_in_the_next(tmp_path, later):
    with lp.Replay.open(tmp_path / "lake", SPEC, 40) as replay:
        record(replay, 0, 10)
        replay.commit()
        record(replay, 10, 20)
        before = replay.commit()
        assert replay.end(1) == 39
        assert replay.end(1, terminated=True, truncated=False) == 39  # it has ended: nothing changes
        if later:
            record(replay, 20, 25)
            replay.commit()
        # otherwise close() commits it
    with lp.Lake.open(tmp_path / "lake") as lake, lp.Lake.open(tmp_path / "lake", before.number) as old:
        lake.verify()
        old.verify()
        assert differences(lake.steps(0, 40), old.steps(0, 40)) == {"truncated": [39]}
        assert lake.commit.segments[0] == old.commit.segments[0]  # only the file with that step is new
        assert lake.steps([37, 38, 39], n_step=3, gamma=1.0).num_steps.tolist() == [2, 3 if later else 1, 1]
        assert [int(e.step_id[-1]) for e in lake.episodes()] == ([39, 48, 49] if later else [39, 38])
    with lp.Replay.open(tmp_path / "lake", SPEC, 40) as replay:
        assert replay.steps([39]).truncated.tolist() == [True]


def test_a_step_that_is_not_committed_yet_is_ended_in_memory_alone(tmp_path):
    with lp.Replay.open(tmp_path / "lake", SPEC, 40) as replay:
        record(replay, 0, 10)
        replay.end(0, terminated=True, truncated=False)
        first = replay.commit()
        assert len(first.segments) == 1
        with replay.lake() as lake:
            assert np.flatnonzero(lake.column("terminated")[:]).tolist() == [18]


@pytest.mark.parametrize("merge_after", [2, None])
def test_a_resumed_lake_is_ended_stream_by_stream_while_files_are_merged(tmp_path, merge_after):
    """Ten times opened, recorded and ended, with merges in between: only the last steps are truncated."""
    expected = []
    for part in range(10):
        with lp.Replay.open(tmp_path / "lake", SPEC, 40, merge_after=merge_after, keep_last=2) as replay:
            if part:
                expected += [replay.end(stream) for stream in (0, 1)]
            for k in range(3):
                start = 1_000 * part + 5 * k
                record(replay, start, start + 5)
                replay.commit()
    with lp.Lake.open(tmp_path / "lake") as lake:
        lake.verify()
        assert sorted(expected) == [n for part in range(1, 10) for n in (30 * part - 2, 30 * part - 1)]
        assert np.flatnonzero(lake.column("truncated")[:]).tolist() == sorted(expected)
        assert lake.steps(0, 300).reward.tolist() == [
            1_000.0 * part + t for part in range(10) for t in range(15) for _ in range(2)
        ]
        named = {name for n in lake.commits() for name, _ in lp.Lake.open(tmp_path / "lake", n).files()}
    assert {file.name for file in (tmp_path / "lake" / "segments").iterdir()} == named


def test_steps_that_have_left_the_lake_are_ignored(tmp_path):
    replay = lp.Replay(SPEC, 10)
    record(replay, 0, 5)
    replay.save(tmp_path / "saved")
    replay.end(0)
    record(replay, 5, 30)
    assert replay.save(tmp_path / "saved").oldest == 50
    replay.close()


def lanes(frames: np.ndarray, ended: list[bool]) -> Lanes:
    """One lane per row of `frames`, each with the steps between consecutive frames."""
    count, steps = len(frames), frames.shape[1] - 1
    at = np.tile(np.arange(steps), (count, 1))
    end = np.zeros((count, steps), bool)
    end[:, -1] = ended
    columns = {"action": at, "reward": at.astype(np.float32), "terminated": end, "truncated": end & False}
    rows = frames[..., None].astype(np.uint8)
    return Lanes(rows, steps, np.zeros(count, int), at, at + 1, columns)


def test_a_resumed_device_lake_marks_episodes_that_were_not_continued(tmp_path):
    spec = lp.Spec(obs=lp.Field((1,), "uint8", rows=None))
    first = np.array([[1, 2, 3], [11, 12, 13], [21, 22, 23]])
    with DeviceLake(tmp_path / "lake", spec) as lake:
        lake.pour([lanes(first, [False, False, True])])
    then = np.array([[3, 4, 5], [90, 91, 92], [95, 96, 97]])  # continued, lost, and lost after its end
    with DeviceLake(tmp_path / "lake", spec) as lake:
        lake.pour([lanes(then, [False, False, False])])
    with lp.Lake.open(tmp_path / "lake") as lake:
        lake.verify()
        batch = lake.steps(0, 12)
        assert np.flatnonzero(batch.truncated).tolist() == [3]
        assert np.flatnonzero(batch.terminated).tolist() == [5]
        assert batch.obs[:, 0].tolist() == [*first[:, :2].ravel().tolist(), *then[:, :2].ravel().tolist()]
        assert lake.steps([1, 3, 5], n_step=3, gamma=1.0).num_steps.tolist() == [3, 1, 1]
