"""TorchRL: TensorDicts come back as they were, from a replay, a lake and a checkpoint."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv, SerialEnv

import lakepond as lp
from lakepond.adapters.torchrl import (
    LakeCheckpointer,
    LakeStorage,
    ReplayStorage,
    checkpoints,
    lake_buffer,
    record,
    replay_buffer,
    spec_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def steps(start, stop, **more):
    """Transitions whose action is their number; every tenth ends an episode."""
    n = torch.arange(start, stop)
    obs = n[:, None].float().repeat(1, 80)
    end = (n % 10 == 9)[:, None]
    no = torch.zeros_like(end)
    return TensorDict(
        {
            "observation": obs,
            "action": n,
            "done": no,
            "terminated": no,
            "collector": {"traj_ids": n // 10},
            "next": {
                "observation": obs + 1,
                "reward": n[:, None].float(),
                "done": end,
                "terminated": end & (n[:, None] % 20 == 9),
                "truncated": end & (n[:, None] % 20 == 19),
            },
            **more,
        },
        [stop - start],
    )


def equal(one, two):
    assert one.shape == two.shape
    assert set(one.keys(True, True)) == set(two.keys(True, True))
    for key in two.keys(True, True):
        assert one[key].dtype == two[key].dtype, key
        assert torch.equal(one[key], two[key]), key


@pytest.mark.parametrize("path", [None, "lake"])
def test_a_replay_buffer_keeps_the_newest_steps_and_gives_them_back(tmp_path, path):
    buffer = replay_buffer(50, None if path is None else tmp_path / path, batch_size=16)
    for start in range(0, 120, 30):
        buffer.extend(steps(start, start + 30))
    assert len(buffer) == 50
    everything = buffer[:].exclude("index")
    equal(everything[torch.argsort(everything["action"])], steps(70, 120))
    batch = buffer.sample()
    equal(batch.exclude("index"), torch.stack([steps(n, n + 1)[0] for n in batch["action"].tolist()]))
    buffer.add(steps(120, 121)[0])
    assert buffer[:]["action"].max() == 120
    assert buffer.storage.replay.stats().rows > 0
    buffer.storage.close()


def test_a_replay_buffer_continues_its_lake(tmp_path):
    buffer = replay_buffer(50, tmp_path / "lake", batch_size=16)
    buffer.extend(steps(0, 70))
    buffer.dumps(tmp_path / "checkpoint")
    buffer.storage.close()
    buffer = replay_buffer(50, tmp_path / "lake", batch_size=16)
    buffer.loads(tmp_path / "checkpoint")
    assert sorted(buffer[:]["action"].tolist()) == list(range(20, 70))
    buffer.extend(steps(70, 75))
    assert sorted(buffer[:]["action"].tolist()) == list(range(25, 75))
    buffer.storage.close()
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.sample(8, rng=np.random.default_rng(0)).obs.shape == (8, 80)
        assert len(lake) == 75


def test_a_replay_buffer_that_was_emptied_stays_so(tmp_path):
    buffer = replay_buffer(50, tmp_path / "lake", batch_size=64)
    buffer.extend(steps(0, 20))
    buffer.empty()
    assert len(buffer) == 0
    buffer.extend(steps(20, 27))
    buffer.storage.close()
    again = replay_buffer(50, tmp_path / "lake", batch_size=64)
    assert len(again) == 7
    assert set(again.sample()["action"].tolist()) == set(range(20, 27))
    again.extend(steps(27, 30))
    assert len(again) == 10
    again.storage.close()


def test_loading_a_checkpoint_returns_to_its_commit(tmp_path):
    """Later steps are gone, or writer and storage would disagree about the next position."""
    buffer = replay_buffer(50, tmp_path / "lake", batch_size=16)
    buffer.extend(steps(0, 70))
    buffer.dumps(tmp_path / "checkpoint")
    buffer.extend(steps(70, 90))
    buffer.storage.close()
    buffer = replay_buffer(50, tmp_path / "lake", batch_size=16)
    buffer.loads(tmp_path / "checkpoint")
    assert sorted(buffer[:]["action"].tolist()) == list(range(20, 70))
    buffer.extend(steps(70, 75))
    buffer.loads(tmp_path / "checkpoint")
    buffer.extend(steps(170, 175))
    assert sorted(buffer[:]["action"].tolist()) == [*range(25, 70), *range(170, 175)]
    buffer.storage.close()


@pytest.mark.parametrize("written", [0, 7, 10, 23])
def test_a_storage_in_memory_is_saved_with_its_steps_and_cursor(tmp_path, written):
    buffer = replay_buffer(10, batch_size=4)
    for n in range(written):
        buffer.add(steps(n, n + 1)[0])
    buffer.dumps(tmp_path / "checkpoint")
    for way in ("dumps", "state_dict"):
        other = replay_buffer(10, batch_size=4)
        other.extend(steps(100, 103))
        if way == "dumps":
            other.loads(tmp_path / "checkpoint")
        else:
            other.load_state_dict(buffer.state_dict())
        assert len(other) == min(written, 10)
        if written:
            equal(other[:].exclude("index"), buffer[:].exclude("index"))
        other.add(steps(50, 51)[0])
        assert other.storage[written % 10]["action"] == 50


def test_tensors_without_keys_are_stored():
    buffer = ReplayBuffer(storage=ReplayStorage(10), batch_size=4)
    buffer.extend(torch.arange(24).reshape(8, 3))
    buffer.add(torch.tensor([90, 91, 92]))
    assert buffer[8].tolist() == [90, 91, 92]
    assert torch.equal(buffer[:8], torch.arange(24).reshape(8, 3))
    assert buffer.sample().shape == (4, 3)


@pytest.mark.parametrize("lake", [False, True])
def test_slices_stay_within_episodes_that_end_flags_determine(tmp_path, lake):
    """`SliceSampler` without a key of trajectories, as with TorchRL's own storage."""
    sampler = SliceSampler(slice_len=4, end_key=("next", "done"), strict_length=False)
    data = steps(0, 60).exclude("collector")
    if lake:
        first = replay_buffer(100, tmp_path / "lake")
        first.extend(data)
        first.storage.close()
        buffer = lake_buffer(tmp_path / "lake", batch_size=32, sampler=sampler)
    else:
        buffer = TensorDictReplayBuffer(storage=ReplayStorage(100), batch_size=32, sampler=sampler)
        buffer.extend(data)
    for _ in range(20):
        found = buffer.sample()["action"].reshape(-1, 4)
        assert torch.equal(found, found[:, :1] + torch.arange(4))
        assert (found[:, 0] // 10 == found[:, 3] // 10).all()


def test_a_lake_is_sampled_as_it_was_recorded_and_never_written(tmp_path):
    buffer = replay_buffer(50, tmp_path / "lake")
    buffer.extend(steps(0, 120))
    buffer.storage.close()
    buffer = lake_buffer(tmp_path / "lake", batch_size=64)
    assert isinstance(buffer, TensorDictReplayBuffer)
    assert len(buffer) == 120
    equal(buffer[:].exclude("index"), steps(0, 120))
    equal(buffer.storage[-3], steps(117, 118)[0])
    found = torch.cat([buffer.sample()["action"] for _ in range(200)])
    counts = torch.bincount(found, minlength=120)
    expected = len(found) / 120
    assert ((counts - expected) ** 2 / expected).sum() < 120 + 6 * 240**0.5  # chi-square, 6 sigma
    with pytest.raises(RuntimeError, match="allow writing"):
        buffer.extend(steps(0, 1))
    with pytest.raises(lp.SpecError, match="read-only"):
        buffer.storage.set(0, steps(0, 1)[0])
    with pytest.raises(IndexError, match="120"):
        buffer.storage[120]
    state = json.loads(json.dumps(buffer.storage.state_dict()))
    buffer.storage.load_state_dict(state)
    with pytest.raises(lp.SpecError, match="commit"):
        buffer.storage.load_state_dict({**state, "commits": {"": 99}})
    with pytest.raises(lp.SpecError, match="another kind of storage"):
        buffer.storage.load_state_dict({"_storage": [], "_len": 0})
    buffer.storage.lake.close()


def test_a_lake_of_another_program_has_torchrls_names(tmp_path):
    spec = lp.Spec(
        obs={"image": lp.Field((2, 12, 12), "uint8"), "speed": lp.Field((), "float32")},
        action=lp.Field((2,), "float32"),
        extras={"log_prob": lp.Field((), "float32")},
    )
    with lp.Replay.open(tmp_path / "lake", spec, capacity=10) as replay:
        for t in range(6):
            replay.record(
                obs={"image": np.full((2, 12, 12), t, np.uint8), "speed": np.float32(t)},
                next_obs={"image": np.full((2, 12, 12), t + 1, np.uint8), "speed": np.float32(t + 1)},
                action=np.full(2, t, np.float32),
                reward=float(t),
                terminated=t == 5,
                truncated=False,
                log_prob=-1.0,
            )
        replay.commit()
    storage = LakeStorage(tmp_path / "lake")
    data = storage[:]
    assert data["image"].shape == (6, 2, 12, 12)
    assert data["next", "speed"].tolist() == [1, 2, 3, 4, 5, 6]
    assert data["next", "reward"].shape == (6, 1)
    assert data["next", "done"].flatten().tolist() == [False] * 5 + [True]
    assert data["log_prob"].tolist() == [-1.0] * 6
    assert data["action"].shape == (6, 2)
    storage.lake.close()


ONE = lp.Field((), "float32")


@pytest.mark.parametrize(
    ("obs", "action", "extras", "says"),
    [
        ({"action": ONE, "x": ONE}, ONE, {}, r"obs\['action'\] and action|action and obs\['action'\]"),
        ({"reward": ONE, "x": ONE}, ONE, {}, r"next_obs\['reward'\]"),
        (ONE, ONE, {"observation": ONE}, "observation"),
        ({"action": ONE, "x": ONE}, {"x": ONE}, {}, r"obs\['action'\] and action\['x'\]"),
        ({1: ONE, "1": ONE}, ONE, {}, r"obs\[1\] and obs\['1'\]"),
        ({"next": ONE, "x": ONE}, ONE, {}, r"\('next',\) and \('next', "),
    ],
)
def test_a_lake_whose_fields_have_the_same_key_in_torchrl_is_refused(tmp_path, obs, action, extras, says):
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=obs, action=action, extras=extras), 10) as replay:
        replay.commit()
    with lp.Lake.open(tmp_path / "lake") as lake, pytest.raises(lp.SpecError, match=says) as error:
        lake_buffer(lake)
    assert "LakeDataset" in str(error.value)


def test_a_lake_with_vectors_as_rewards_is_sampled_and_continued(tmp_path):
    spec = lp.Spec(
        obs={"a": lp.Field((1,), "float32"), "b": {"c": ONE}},
        action={"x": lp.Field((), "int64"), "y": ONE},
        reward=lp.Field((2,), "float32"),
    )
    with lp.Replay.open(tmp_path / "lake", spec, capacity=10) as replay:
        for t in range(5):
            obs, next_obs = ({"a": np.full(1, s, np.float32), "b": {"c": np.float32(-s)}} for s in (t, t + 1))
            replay.record(
                obs=obs,
                action={"x": t, "y": 10.0 * t},
                reward=np.array([t, t + 100], np.float32),
                next_obs=next_obs,
                terminated=t == 4,
                truncated=False,
            )
    buffer = lake_buffer(tmp_path / "lake", batch_size=64)
    batch = buffer.sample()
    assert batch["next", "reward"].shape == (64, 2)
    assert torch.equal(batch["next", "reward"][:, 0].long(), batch["action", "x"])
    assert torch.equal(batch["next", "reward"][:, 1], batch["a"][:, 0] + 100)
    before = buffer[:].exclude("index")
    buffer.storage.lake.close()
    buffer = replay_buffer(10, tmp_path / "lake")
    buffer.extend(before)
    equal(buffer[:].exclude("index"), torch.cat([before, before]))
    buffer.storage.close()


@pytest.mark.parametrize("envs", [1, 3])
def test_a_collector_fills_a_replay(envs):
    def make():
        return GymEnv("CartPole-v1", device=None)

    env = make() if envs == 1 else SerialEnv(envs, make)
    env.set_seed(0)
    torch.manual_seed(0)
    collector = Collector(env, policy=env.rand_step, total_frames=180, frames_per_batch=60)
    replay, wanted, next_id = None, [], 0
    for data in collector:
        if replay is None:
            replay = lp.Replay(spec_of(data), capacity=1_000)
        ids = record(replay, data, first_stream=5)
        assert ids.tolist() == list(range(next_id, next_id + 60))
        next_id += 60
        wanted.append(data if envs == 1 else data.transpose(0, 1).reshape(-1))
    collector.shutdown()
    assert replay is not None
    batch, data = replay.steps(np.arange(180)), torch.cat(wanted)
    assert np.array_equal(batch.obs, data["observation"])
    assert np.array_equal(batch.next_obs, data["next", "observation"])
    assert np.array_equal(batch.terminated, data["next", "terminated"].flatten())
    assert batch.stream.tolist() == [5 + i % envs for i in range(180)]
    longer = replay.steps(np.arange(150), n_step=3, gamma=1.0)
    assert (longer.num_steps[longer.discount == 1] == 3).all()  # steps of a stream follow each other
    assert longer.num_steps.max() == 3


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_checkpoints_restore_steps_and_cursor_and_write_what_is_new(tmp_path, storage):
    buffer = ReplayBuffer(storage=storage(200), batch_size=8)
    buffer.storage.checkpointer = LakeCheckpointer()
    written = []
    for start, stop in ((0, 150), (150, 160), (160, 230), (230, 231)):
        buffer.extend(steps(start, stop))
        buffer.dumps(tmp_path / "checkpoint")
        with lp.Lake.open(tmp_path / "checkpoint" / "storage" / "lake") as lake:
            written.append(lake.commit.recorded)
        other = ReplayBuffer(storage=storage(200), batch_size=8)
        other.storage.checkpointer = LakeCheckpointer()
        other.loads(tmp_path / "checkpoint")
        equal(other[:], buffer[:])
        assert other.writer._cursor == buffer.writer._cursor
    assert written == [150, 160, 230, 231]  # each step once
    buffer.storage[3] = steps(999, 1000)[0]  # past the writer: all steps are written again
    buffer.dumps(tmp_path / "checkpoint")
    other.loads(tmp_path / "checkpoint")
    equal(other[:], buffer[:])
    buffer.dumps(tmp_path / "another")
    other.loads(tmp_path / "another")
    equal(other[:], buffer[:])
    buffer.storage.checkpointer.close()


def test_a_checkpointer_does_not_keep_what_was_written_since_the_last_dump(tmp_path):
    buffer = checkpointed(10)
    recorded = []
    for adds in ([], range(10, 27), [27, 28], [], range(29, 529)):
        for i in adds:
            buffer.add(steps(i, i + 1)[0])
        if not recorded:
            buffer.extend(steps(0, 10))
        lists = [kept for kept in vars(buffer.storage.checkpointer).values() if isinstance(kept, list)]
        assert not any(lists)
        buffer.storage.dumps(tmp_path)
        assert sorted(loaded(tmp_path, 10)) == sorted(buffer[:]["action"].tolist())
        with lp.Lake.open(tmp_path / "lake") as lake:
            recorded.append(lake.commit.recorded)
    assert recorded == [10, 20, 22, 22, 32]  # the steps that are still in the ring
    buffer.storage.checkpointer.close()


def checkpointed(size):
    buffer = ReplayBuffer(storage=LazyTensorStorage(size), batch_size=8)
    buffer.storage.checkpointer = LakeCheckpointer()
    return buffer


def loaded(folder, size):
    buffer = checkpointed(size)
    buffer.storage.loads(folder)
    return buffer[:]["action"].tolist()


@pytest.mark.parametrize("fails", ["commit", "record"])
def test_a_checkpoint_after_a_failed_one_has_every_step_once(tmp_path, monkeypatch, fails):
    buffer = checkpointed(10)
    buffer.extend(steps(0, 10))
    buffer.storage.dumps(tmp_path)
    buffer.extend(steps(10, 15))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        if fails == "commit":
            patch.setattr(lp.Replay, "commit", full)
        else:
            patch.setattr(checkpoints, "PIECE_BYTES", 1)
            patch.setattr(checkpoints, "record_steps", FailsAfter(3, full))
        with pytest.raises(OSError, match="full"):
            buffer.storage.dumps(tmp_path)
    assert loaded(tmp_path, 10) == list(range(10))
    buffer.storage.dumps(tmp_path)
    assert loaded(tmp_path, 10) == [10, 11, 12, 13, 14, 5, 6, 7, 8, 9]
    buffer.extend(steps(15, 17))
    buffer.storage.dumps(tmp_path)
    buffer.storage.checkpointer.close()
    assert loaded(tmp_path, 10) == [10, 11, 12, 13, 14, 15, 16, 7, 8, 9]


class FailsAfter:
    """`record_steps` that fails after some calls."""

    def __init__(self, calls, fail):
        self.calls, self.fail, self.record = calls, fail, checkpoints.record_steps

    def __call__(self, *arguments):
        self.calls -= 1
        return self.record(*arguments) if self.calls >= 0 else self.fail()


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[2])
from test_torchrl import FailsAfter, checkpointed, checkpoints, steps

checkpoints.POND_BYTES, checkpoints.PIECE_BYTES = 60 * 700, 30 * 700
buffer = checkpointed(300)
buffer.extend(steps(0, 300))
buffer.storage.dumps(sys.argv[1])
buffer.extend(steps(300, 570))
checkpoints.record_steps = FailsAfter(6, lambda: os._exit(0))
buffer.storage.dumps(sys.argv[1])
"""


def test_a_kill_during_a_large_dump_leaves_the_checkpoint_before_it(tmp_path, monkeypatch):
    """The dump makes commits of its own, because not all of its steps fit in the pond."""
    program = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path), str(Path(__file__).parent)]
    subprocess.run(program, check=True, timeout=300)
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.commit.note["automatic"]
    assert loaded(tmp_path, 300) == list(range(300))
    storage = LakeStorage(tmp_path / "lake")
    assert storage[0]["collector", "traj_ids"].shape == ()
    storage.lake.close()
    monkeypatch.setattr(checkpoints, "POND_BYTES", 60 * 700)
    monkeypatch.setattr(checkpoints, "PIECE_BYTES", 30 * 700)
    buffer = checkpointed(300)
    for start in (5000, 6000):
        buffer.extend(steps(start, start + 300))
        buffer.storage.dumps(tmp_path)
        assert loaded(tmp_path, 300) == list(range(start, start + 300))
    buffer.storage.checkpointer.close()
    assert len(list((tmp_path / "lake" / "commits").glob("*.json"))) == 2  # older ones are deleted


@pytest.mark.parametrize("committed", [True, False])
def test_keys_survive_a_process_that_is_killed_after_automatic_commits(tmp_path, committed):
    buffer = replay_buffer(10, tmp_path / "lake")
    buffer.extend(steps(0, 8))
    if committed:
        buffer.storage.commit()
    for start in range(8, 28, 5):
        buffer.extend(steps(start, start + 5))
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.commit.note["automatic"]
        recorded = lake.commit.recorded
    shutil.copytree(tmp_path / "lake", tmp_path / "killed", ignore=shutil.ignore_patterns("lock"))
    buffer.storage.close()
    again = replay_buffer(10, tmp_path / "killed")
    again.extend(steps(recorded, recorded + 2))
    everything = again[:].exclude("index")
    equal(everything[torch.argsort(everything["action"])], steps(recorded - 8, recorded + 2))
    again.storage.close()


def test_a_storage_that_was_killed_before_its_first_steps_can_be_used(tmp_path):
    for name, commits in (("created", 0), ("committed", 1)):
        first = ReplayStorage(10, tmp_path / name)
        first.set(range(2), steps(0, 2))
        first.replay.close(discard=True)
        if not commits:
            shutil.rmtree(tmp_path / name / "commits")
        buffer = replay_buffer(10, tmp_path / name)
        assert len(buffer) == 0
        buffer.extend(steps(0, 4))
        equal(buffer[:].exclude("index"), steps(0, 4))
        buffer.storage.close()


def test_a_storage_whose_first_commit_fails_can_be_used(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "full")

    buffer = replay_buffer(10, tmp_path / "lake")
    with monkeypatch.context() as patch:
        patch.setattr(lp.Replay, "commit", full)
        with pytest.raises(OSError, match="full"):
            buffer.extend(steps(0, 4))
    buffer.extend(steps(0, 4))
    equal(buffer[:].exclude("index"), steps(0, 4))
    buffer.storage.close()


def test_a_storage_closes_the_lake_that_it_reads_its_keys_from(tmp_path, monkeypatch):
    buffer = replay_buffer(10, tmp_path / "lake")
    buffer.extend(steps(0, 4))
    buffer.storage.close()
    closed = []

    def close(self, *, of=lp.Lake.close):
        closed.append(self)
        of(self)

    opened = []

    def lake(self, commit=None, *, of=lp.Replay.lake):
        opened.append(of(self, commit))
        return opened[-1]

    monkeypatch.setattr(lp.Lake, "close", close)
    monkeypatch.setattr(lp.Replay, "lake", lake)
    buffer = replay_buffer(10, tmp_path / "lake")
    assert opened[0] in closed
    buffer.storage.close()


def test_no_steps_and_all_steps():
    buffer = replay_buffer(10)
    for start, stop in ((0, 0), (0, 5), (5, 5), (5, 7)):
        assert buffer.extend(steps(start, stop)).tolist() == list(range(start, stop))
    equal(buffer[...].exclude("index"), steps(0, 7))
    equal(buffer.storage[(...,)], steps(0, 7))


def test_tensordicts_without_transitions_are_stored_as_columns():
    buffer = replay_buffer(10, batch_size=4)
    data = TensorDict(
        {"a": torch.arange(8), "b": {"c": torch.rand(8, 3)}, "flag": torch.ones(8, 1).bool()}, [8]
    )
    buffer.extend(data)
    equal(buffer[:].exclude("index"), data)


def test_what_cannot_be_stored_is_refused_in_one_sentence(tmp_path):
    buffer = replay_buffer(10, batch_size=4)
    with pytest.raises(lp.RecordError, match="TensorDicts, not list"):
        buffer.storage.set(range(2), [(torch.rand(3),), (torch.rand(3),)])
    with pytest.raises(lp.SpecError, match="another kind of storage"):
        buffer.storage.load_state_dict(LazyTensorStorage(10).state_dict())
    both = {"a": {"b": torch.zeros(2)}, "a.b": torch.ones(2)}
    with pytest.raises(lp.SpecError, match=r"\('a', 'b'\), \('a.b',\)\] have the same name"):
        buffer.extend(TensorDict({**both, "next": both}, [2]))
    with pytest.raises(lp.SpecError, match="bfloat16"):
        buffer.extend(TensorDict({"a": torch.zeros(2, dtype=torch.bfloat16)}, [2]))
    buffer.extend(steps(0, 4))
    with pytest.raises(lp.RecordError, match="position"):
        buffer.storage.set(7, steps(0, 1)[0])
    with pytest.raises(lp.RecordError, match="earlier steps did not have"):
        buffer.storage.set(range(4, 6), steps(4, 6, extra=torch.ones(2)))
    with pytest.raises(lp.LakeError, match="memory only"):
        buffer.storage.commit()
    with pytest.raises(lp.SpecError, match="max_size=10, this storage has 20"):
        replay_buffer(20).storage.load_state_dict(buffer.storage.state_dict())
    other = replay_buffer(10, tmp_path / "one")
    other.extend(steps(0, 4))
    with pytest.raises(lp.SpecError, match=r"of the lake .*one, this storage is on .*two"):
        replay_buffer(10, tmp_path / "two").storage.load_state_dict(other.storage.state_dict())
    other.storage.close()
    replay = lp.Replay(spec_of(steps(0, 2)), capacity=10)
    with pytest.raises(lp.SpecError, match="spec_of"):
        record(replay, steps(0, 2, extra=torch.ones(2)))
    with pytest.raises(lp.RecordError, match="no steps yet"):
        LakeCheckpointer().dumps(LazyTensorStorage(10), tmp_path)
