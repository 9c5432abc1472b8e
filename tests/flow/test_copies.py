"""Replays across process boundaries: pickled, deep-copied, forked and spawned; and snapshots."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import lakepond as lp
from lakepond.types import leaves

SPEC = lp.Spec(
    obs={"stack": lp.Field((4, 20, 20), "uint8"), "small": lp.Field((2,), "float32")},
    extras={"agent": lp.Field((), "int16")},
)


def record(replay: lp.Replay, count: int, seed: int = 0, streams: int = 3) -> None:
    """Steps of several streams; some episodes end, some are cut, and some frames repeat."""
    rng = np.random.default_rng(seed)
    frames = {s: list(rng.integers(0, 4, (4, 20, 20), np.uint8)) for s in range(streams)}
    for t in range(count):
        s = t % streams
        obs = np.stack(frames[s][-4:])
        frames[s].append(rng.integers(0, 256, (20, 20), np.uint8))
        replay.record(
            obs={"stack": obs, "small": np.array([t, s], np.float32)},
            next_obs={"stack": np.stack(frames[s][-4:]), "small": np.array([t + streams, s], np.float32)},
            action=t,
            reward=float(t),
            terminated=bool(rng.random() < 0.1),
            truncated=False,
            stream=s,
            agent=s,
        )


def same(one: lp.Batch, other: lp.Batch) -> None:
    for name, a, b in zip(one._fields, one, other, strict=True):
        for (path, x), (_, y) in zip(leaves(a, name), leaves(b, name), strict=True):
            assert x.dtype == y.dtype, path
            np.testing.assert_array_equal(x, y, err_msg=path)


def same_replays(one: lp.Replay, other: lp.Replay) -> None:
    """The same steps, links and priorities, and the same batches from here on."""
    assert (one.oldest, one.recorded, one.capacity, one.spec) == (
        other.oldest,
        other.recorded,
        other.capacity,
        other.spec,
    )
    ids = np.arange(one.oldest, one.recorded)
    same(one.steps(ids, n_step=4, gamma=0.9), other.steps(ids, n_step=4, gamma=0.9))
    for options in ({}, {"sequence_length": 3}, {"sequence_length": 3, "across_episodes": True}):
        same(one.sample(32, **options), other.sample(32, **options))
    same(one.recent(3, stream=1), other.recent(3, stream=1))


COPIES = {
    "pickle": lambda replay: pickle.loads(pickle.dumps(replay)),
    "pickle 2": lambda replay: pickle.loads(pickle.dumps(replay, 2)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("alpha", [None, 0.7])
@pytest.mark.parametrize("steps", [60, 250])
def test_a_replay_in_memory_is_copied_with_all_it_holds(how, alpha, steps):
    replay = lp.Replay(SPEC, 100, alpha=alpha, seed=3)
    record(replay, steps)
    if alpha is not None:
        replay.update_priorities(replay.sample(40).step_id, np.linspace(0, 5, 40))
    replay.cut(1)
    other = COPIES[how](replay)
    same_replays(replay, other)
    for each in (replay, other):  # both can be recorded to: layout, ids, links and the cut are the same
        record(each, 30, seed=1)
    same_replays(replay, other)
    record(other, 30, seed=2)
    assert replay.recorded == steps + 30  # and neither changes the other
    other._pond.leaves[0].store.check()


@pytest.mark.parametrize("lake", [False, True])
def test_a_cut_is_copied_too(tmp_path, lake):
    spec = lp.Spec(obs=lp.Field((), "int64"))
    replay = lp.Replay.open(tmp_path / "lake", spec, 10) if lake else lp.Replay(spec, 10)
    for t in range(6):
        if t == 5:
            replay.cut(0)
            replay = pickle.loads(pickle.dumps(replay))
            replay._refused = None  # a copy of a lake cannot be recorded to otherwise
        replay.record(obs=t, next_obs=t + 1, action=0, reward=1.0, terminated=False, truncated=False)
    assert replay.steps([1, 3, 4], n_step=3, gamma=1.0).num_steps.tolist() == [3, 2, 1]


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_replay_with_hardly_any_steps_is_copied(steps):
    replay = lp.Replay(SPEC, 100)
    record(replay, steps)
    if steps == 5:
        replay.clear()
    other = pickle.loads(pickle.dumps(replay))
    assert (len(other), other.recorded, other.oldest) == (len(replay), replay.recorded, replay.oldest)
    record(replay, 40, seed=1)
    record(other, 40, seed=1)
    ids = np.arange(replay.oldest, replay.recorded)
    same(replay.steps(ids), other.steps(ids))


def test_steps_that_were_filled_at_random_stay_alone(tmp_path):
    with lp.Replay.open(tmp_path / "lake", SPEC, 100) as source:
        record(source, 100, streams=1)
        source.commit()
        replay = lp.Replay(SPEC, 100)
        with source.lake() as lake:
            replay.fill_from(lake, 50, rng=np.random.default_rng(0))
    record(replay, 30, streams=1)  # linked steps after them
    replay.snapshot(tmp_path / "snapshot")
    with lp.Replay.open_saved(tmp_path / "snapshot", 100) as reopened:
        reopened.save(tmp_path / "snapshot")
    again = lp.Replay.open_saved(tmp_path / "snapshot", 100)
    for each in (replay, pickle.loads(pickle.dumps(replay)), again, pickle.loads(pickle.dumps(again))):
        starts = each.sample(500, sequence_length=2, across_episodes=True).step_id[:, 0]
        assert set(starts.tolist()) == set(range(50, 79))
        with pytest.raises(lp.TooFewSteps):
            each.sample(4, sequence_length=31, across_episodes=True)
    again.close()


def test_a_pickle_has_each_row_once_and_runs_nothing_but_what_makes_arrays():
    replay = lp.Replay(lp.Spec(obs=lp.Field((8, 64, 64), "uint8", rows=0)), 2_000)
    frames = np.random.default_rng(0).integers(0, 256, (1_009, 64, 64), np.uint8)
    for t in range(1_000):
        replay.record(
            obs=frames[t : t + 8],
            next_obs=frames[t + 1 : t + 9],
            action=t,
            reward=0.0,
            terminated=False,
            truncated=False,
        )
    data = pickle.dumps(replay)
    assert len(data) < 1.05 * frames.nbytes + 200_000  # without deduplication: 16 times that
    assert len(data) < 1.2 * replay.stats().bytes_held
    called = Names(io.BytesIO(data))
    called.load()
    assert called.found - {"lakepond.replay.Replay", "lakepond.flow.persistence._restored"} <= {
        "lakepond.types.Spec",
        "lakepond.types.Field",
        "numpy.dtype",
        "numpy.ndarray",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.numeric._frombuffer",
        "numpy._core.multiarray.scalar",
    }


class Names(pickle.Unpickler):
    """Collects the names that a pickle calls."""

    def __init__(self, file):
        super().__init__(file)
        self.found = set()

    def find_class(self, module, name):
        self.found.add(f"{module}.{name}")
        return super().find_class(module, name)


# --- with a lake ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
@pytest.mark.parametrize("alpha", [None, 0.7])
def test_a_replay_with_a_lake_is_copied_as_path_and_commit(tmp_path, how, alpha):
    with lp.Replay.open(tmp_path / "lake", SPEC, 100, alpha=alpha, seed=3) as replay:
        record(replay, 250)
        if alpha is not None:
            replay.update_priorities(replay.sample(40).step_id, np.linspace(0, 5, 40))
        other = COPIES[how](replay)
        same_replays(replay, other)
        assert len(pickle.dumps(replay)) < 4_000
        for refused in (
            lambda: record(other, 1),
            other.commit,
            other.flush,
            lambda: other.save(tmp_path / "other"),
            lambda: other.fill_from(replay.lake(), 3, rng=np.random.default_rng(0)),
        ):
            with pytest.raises(lp.LakeReadOnly, match=r"copy of the one that writes .*lake, as of commit"):
                refused()
        again = pickle.loads(pickle.dumps(other))  # a copy of a copy takes its content along
        same_replays(other, again)
        with pytest.raises(lp.LakeReadOnly):
            record(again, 1)
        record(replay, 50, seed=1)
        assert other.recorded == 250
        with pytest.raises(lp.LakeLocked, match="written by this process already"):
            lp.Replay.open(tmp_path / "lake", SPEC, 100)


def test_a_replay_whose_lake_has_no_commit_and_one_that_was_cleared(tmp_path):
    with lp.Replay.open(tmp_path / "lake", SPEC, 100) as replay:
        other = pickle.loads(pickle.dumps(replay))
        assert len(other) == 0
        with pytest.raises(lp.LakeReadOnly):
            record(other, 1)
        record(replay, 30)
        replay.clear()
        record(replay, 10, seed=1)
        other = pickle.loads(pickle.dumps(replay))
        same_replays(replay, other)


def test_a_saved_replay_is_copied_by_content(tmp_path):
    replay = lp.Replay(SPEC, 100, seed=0)
    record(replay, 60)
    replay.save(tmp_path / "saved")
    record(replay, 60, seed=1)
    other = pickle.loads(pickle.dumps(replay))
    same_replays(replay, other)
    record(other, 10)
    other.save(tmp_path / "another")
    replay.close()


# --- processes --------------------------------------------------------------------------------------


def work(replay, queue):
    """In another process: sample, and say what happens to a step that is recorded."""
    try:
        batch = replay.sample(64, rng=np.random.default_rng(7), n_step=2, gamma=0.9)
        try:
            record(replay, 1)
            recorded = "recorded"
        except lp.LakepondError as error:
            recorded = type(error).__name__
        queue.put((os.getpid(), batch, recorded))
    except BaseException as error:
        queue.put((os.getpid(), repr(error), ""))


@pytest.fixture(scope="module")
def other_process():
    """A process of its own, because this one may hold JAX, which must not be forked."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def parent(method: str, path: Path | None) -> tuple[list[tuple[int, lp.Batch, str]], lp.Batch]:
    """What two workers answer, and the batch that they should have drawn."""
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    with lp.Replay(SPEC, 100) if path is None else lp.Replay.open(path, SPEC, 100) as replay:
        record(replay, 150)
        workers = [context.Process(target=work, args=(replay, queue)) for _ in range(2)]
        for worker in workers:
            worker.start()
        answers = [queue.get(timeout=120) for _ in workers]
        for worker in workers:
            worker.join(60)
        return answers, replay.sample(64, rng=np.random.default_rng(7), n_step=2, gamma=0.9)


@pytest.mark.parametrize(
    ("method", "lake", "recorded"),
    [
        ("spawn", False, "recorded"),
        ("spawn", True, "LakeReadOnly"),
        ("fork", False, "recorded"),
        ("fork", True, "ForkedReplay"),
    ],
)
def test_workers_sample_what_their_parent_holds(tmp_path, other_process, method, lake, recorded):
    path = tmp_path / "lake" if lake else None
    answers, expected = other_process.submit(parent, method, path).result(timeout=300)
    assert len({pid for pid, _, _ in answers} | {os.getpid()}) == 3
    for _, batch, happened in answers:
        assert isinstance(batch, lp.Batch), batch
        same(batch, expected)
        assert happened == recorded


# --- snapshots and the generator --------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [None, 0.7])
@pytest.mark.parametrize("lake", [False, True])
def test_a_snapshot_holds_the_steps_and_binds_nothing(tmp_path, lake, alpha):
    if lake:
        replay = lp.Replay.open(tmp_path / "lake", SPEC, 100, alpha=alpha)
    else:
        replay = lp.Replay(SPEC, 100, alpha=alpha)
    record(replay, 130)
    if alpha is not None:
        replay.update_priorities(np.arange(60, 130), np.linspace(0, 5, 70))
    for part in range(2):
        commit = replay.snapshot(tmp_path / f"snapshot {part}")
        assert (commit.number, commit.oldest, commit.recorded) == (0, replay.oldest, replay.recorded)
        with lp.Lake.open(tmp_path / f"snapshot {part}") as read:
            read.verify()
            ids = np.arange(replay.oldest, replay.recorded)
            same(read.steps(ids, n_step=3, gamma=0.9), replay.steps(ids, n_step=3, gamma=0.9))
        with lp.Replay.open_saved(tmp_path / f"snapshot {part}", 100, alpha=alpha) as other:
            same_replays(replay, other)
        with pytest.raises(lp.SpecError, match="already exists"):
            replay.snapshot(tmp_path / f"snapshot {part}")
        record(replay, 25, seed=part + 1)
    if lake:  # its own lake has all steps, as if there had been no snapshot
        replay.commit()
        with replay.lake() as own:
            own.verify()
            assert own.steps(0, 180).reward[:130].tolist() == list(range(130))
    else:
        replay.save(tmp_path / "saved")
    replay.close()


def test_a_reopened_replay_draws_what_it_would_have_drawn(tmp_path):
    def batches(replay: lp.Replay) -> list[int]:
        return np.concatenate([replay.sample(9).step_id for _ in range(3)]).tolist()

    with lp.Replay.open(tmp_path / "lake", SPEC, 100, seed=5) as replay:
        record(replay, 60)
        batches(replay)
        replay.commit()
        expected = batches(replay)
    for commit in (None, 0):
        with lp.Replay.open(tmp_path / "lake", capacity=100, seed=99, commit=commit) as again:
            assert batches(again) == expected
    fresh = lp.Replay(SPEC, 100, seed=5)
    record(fresh, 60)
    assert batches(fresh) != expected
    fresh.save(tmp_path / "saved")
    expected = batches(fresh)
    fresh.close()
    with lp.Replay.open_saved(tmp_path / "saved", 100) as again:
        assert batches(again) == expected


def test_one_lake_by_two_spellings_of_its_path(tmp_path, monkeypatch):
    """Relative and absolute: the same folder, to `save` and to the lock."""
    monkeypatch.chdir(tmp_path)
    replay = lp.Replay(SPEC, 100)
    record(replay, 10)
    assert replay.save("saved").number == 0
    assert replay.save(tmp_path / "saved").number == 1
    with pytest.raises(lp.LakeLocked, match="written by this process already"):
        lp.Replay.open_saved(tmp_path / "saved", 100)
    with pytest.raises(lp.SpecError, match=r"is saved to saved, not to other; use `snapshot`"):
        replay.save("other")
    replay.close()
