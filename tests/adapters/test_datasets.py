"""Torch datasets over a lake: correct data, every step once, and the same in worker processes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import lakepond as lp
from lakepond.adapters.datasets import LakeDataset, LakeLoader, LakeSteps
from lakepond.lake.read.loaded import LoadedSteps
from lakepond.types import leaves, rebuild
from reference import WORLDS

sys.path.insert(0, str(Path(__file__).parents[1] / "lake"))
from test_lake import agrees, record, spec_of


def make(path, world="frames first", steps=150, **options):
    with lp.Replay.open(path, spec_of(world), capacity=60, **options) as replay:
        record(replay, world, 0, 40)
        replay.commit()
        record(replay, world, 40, steps)
        replay.commit()
    return path


def arrays(batch):
    """A batch of tensors as one of arrays."""

    def one(tree):
        values = iter([leaf.numpy() for _, leaf in leaves(tree)])
        return rebuild(tree, lambda: next(values))

    return lp.Batch(*(one(tree) for tree in batch))


def ids(batches):
    return np.sort(np.concatenate([batch.step_id.numpy().reshape(-1) for batch in batches]))


@pytest.mark.parametrize("world", WORLDS)
def test_every_step_comes_once_and_as_it_was_recorded(tmp_path, world):
    make(tmp_path / "lake", world)
    dataset = LakeDataset(tmp_path / "lake", 16, seed=3, buffer_bytes=1 << 14)
    batches = list(LakeLoader(dataset))
    assert len(batches) == len(dataset) == 10
    assert np.array_equal(ids(batches), np.arange(150))
    for batch in map(arrays, batches):
        assert (batch.weight == 1).all()
        assert (batch.num_steps == 1).all()
        assert np.array_equal(batch.discount, 1.0 - batch.terminated)
        for i in range(len(batch.reward)):
            agrees(batch, i, world)


def test_epochs_follow_each_other_and_an_early_end_skips_nothing(tmp_path):
    dataset = LakeDataset(make(tmp_path / "lake"), 16, seed=3)
    loader = LakeLoader(dataset)
    first = [batch for batch in loader]
    second = [batch for batch, _ in zip(loader, range(3), strict=False)]  # takes four
    assert dataset.epoch == 1
    second += list(loader)
    assert dataset.epoch == 2
    assert np.array_equal(ids(first), np.arange(150))
    assert len(second) == 9  # the fourth batch was taken and not kept
    assert not np.array_equal(first[0].step_id, second[0].step_id)
    dataset.set_epoch(0)
    assert np.array_equal(next(iter(dataset)).step_id, first[0].step_id)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_loop_may_stop_with_the_last_batch_of_an_epoch(tmp_path, world_size):
    path = make(tmp_path / "lake")
    ranks = [
        LakeLoader(LakeDataset(path, 16, seed=3, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    for epoch in range(4):
        assert {rank.lake_dataset.epoch for rank in ranks} == {epoch}
        taken = [batch for rank in ranks for batch in itertools.islice(rank, len(rank))]
        assert np.array_equal(ids(taken), np.arange(150))
        for i, rank in enumerate(ranks):  # resumes from here
            ranks[i] = LakeLoader(LakeDataset(path, 16, seed=3, rank=i, world_size=world_size))
            ranks[i].load_state_dict(json.loads(json.dumps(rank.state_dict())))
    assert [len(list(rank)) for rank in ranks] == [len(rank) for rank in ranks]
    assert {rank.lake_dataset.epoch for rank in ranks} == {5}


def test_a_rank_without_batches_counts_epochs(tmp_path):
    loader = LakeLoader(LakeDataset(make(tmp_path / "lake"), 100, world_size=2, rank=1, drop_last=True))
    assert [len(list(loader)) for _ in range(3)] == [0, 0, 0]
    assert loader.lake_dataset.epoch == 3


def test_a_position_is_saved_and_continued_at_its_commit(tmp_path):
    path = make(tmp_path / "lake")
    loader = LakeLoader(LakeDataset(path, 16, seed=3))
    whole = list(loader)
    loader.lake_dataset.set_epoch(0)
    seen = [batch for _, batch in zip(range(4), loader, strict=False)]
    state = loader.state_dict()
    with lp.Replay.open(path, capacity=60) as replay:  # the lake grows meanwhile
        record(replay, "frames first", 150, 200)
        replay.commit()
    other = LakeLoader(LakeDataset(path, 16, seed=3))
    assert len(other.lake_dataset.lake) == 200
    other.load_state_dict(state)
    seen += list(other)
    assert all(torch.equal(one.step_id, two.step_id) for one, two in zip(whole, seen, strict=True))
    assert other.lake_dataset.epoch == 1


def test_a_position_that_is_refused_changes_nothing(tmp_path):
    path = make(tmp_path / "lake")
    state = LakeDataset(path, 16, seed=1).state_dict()
    with lp.Replay.open(path, capacity=60) as replay:
        record(replay, "frames first", 150, 200)
    dataset = LakeDataset(path, 16, seed=2)
    next(iter(dataset))
    before = dataset.state_dict()
    with pytest.raises(lp.SampleError, match="seed"):
        dataset.load_state_dict(state)
    assert dataset.state_dict() == before
    assert len(dataset.lake) == 200
    assert len(list(dataset)) == 12


def test_ranks_divide_an_epoch(tmp_path, monkeypatch):
    path = make(tmp_path / "lake")
    parts = [list(LakeDataset(path, 16, seed=3, rank=rank, world_size=3)) for rank in range(3)]
    assert np.array_equal(ids([batch for part in parts for batch in part]), np.arange(150))
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    dataset = LakeDataset(path, 16, seed=3)
    assert (dataset.rank, dataset.world_size) == (2, 3)
    assert np.array_equal(ids(dataset), ids(parts[2]))
    even = [len(list(LakeDataset(path, 16, rank=r, world_size=4, drop_last=True))) for r in range(4)]
    assert even == [2, 2, 2, 2]


def test_draws_with_replacement(tmp_path):
    dataset = LakeDataset(make(tmp_path / "lake"), 50, seed=3, replace=True)
    found = np.concatenate([batch.step_id.numpy() for _ in range(200) for batch in dataset])
    assert len(found) == 200 * 150
    counts = np.bincount(found, minlength=150)
    assert ((counts - 200) ** 2 / 200).sum() < 150 + 6 * np.sqrt(300)  # chi-square, 6 sigma


def test_sequences_cover_every_step_once_within_its_episode(tmp_path):
    dataset = LakeDataset(make(tmp_path / "lake"), 4, seed=3, sequence_length=3, burn_in=2)
    learned = []
    for batch in map(arrays, dataset):
        assert batch.obs.shape[:2] == (len(batch.reward), 5)
        for i in range(len(batch.reward)):
            sequence = lp.Batch(*(rebuild_at(tree, i) for tree in batch))
            learn = np.flatnonzero(sequence.weight)
            assert np.array_equal(learn, np.arange(learn[0], learn[-1] + 1))
            real = sequence.step_id[: learn[-1] + 1]
            assert np.array_equal(np.diff(real), np.full(len(real) - 1, 3))  # three streams take turns
            assert (sequence.step_id[learn[-1] :] == real[-1]).all()  # filled up with the last step
            turn = real // 3
            assert len(set(turn // 7)) == 1  # episodes last seven steps
            assert learn[0] == min(2, turn[learn[0]] % 7)  # all steps there are to burn in, at most two
            for t in range(len(real)):
                agrees(sequence, t, "frames first")
            learned.append(sequence.step_id[learn])
    learned = np.concatenate(learned)
    assert np.array_equal(np.sort(learned), np.arange(150))


def rebuild_at(tree, i):
    values = iter([leaf[i] for _, leaf in leaves(tree)])
    return rebuild(tree, lambda: next(values))


def test_sequences_do_not_cross_a_cut_nor_a_writer(tmp_path):
    for name in ("a", "b"):
        with lp.Replay.open(tmp_path / "lake", spec_of("frames first"), capacity=60, writer=name) as replay:
            record(replay, "frames first", 0, 9)  # three streams of three steps
            replay.cut(1)
            record(replay, "frames first", 9, 12)
            replay.commit()
    dataset = LakeDataset(tmp_path / "lake", 100, sequence_length=10)
    (batch,) = dataset
    found = sorted(row[weight == 1].tolist() for row, weight in zip(batch.step_id, batch.weight, strict=True))
    once = [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8, 11], [10]]
    assert found == sorted([*once, *([step + 12 for step in row] for row in once)])


def test_a_group_takes_about_the_memory_that_was_given(tmp_path):
    frames = np.random.default_rng(0).integers(0, 255, (2004, 84, 84), dtype=np.uint8)
    spec = lp.Spec(obs=lp.Field((4, 84, 84), "uint8"), action=lp.Field((), "int64"))
    windows = np.lib.stride_tricks.sliding_window_view(frames, 4, axis=0).transpose(0, 3, 1, 2)
    with lp.Replay.open(tmp_path / "lake", spec, capacity=2000, codec="none") as replay:
        for at in range(0, 2000, 100):
            replay.record(
                obs=np.ascontiguousarray(windows[at : at + 100]),
                action=np.arange(at, at + 100),
                reward=np.zeros(100, np.float32),
                next_obs=np.ascontiguousarray(windows[at + 1 : at + 101]),
                terminated=np.zeros(100, bool),
                truncated=np.zeros(100, bool),
                stream=0,
            )
        replay.commit()
    for options in ({}, {"replace": True}, {"sequence_length": 10, "burn_in": 5}):
        dataset = LakeDataset(tmp_path / "lake", 2, buffer_bytes=2 << 20, **options)
        plan = dataset._plan(0)
        units = plan.units_of(0, plan.block_order())
        steps = units if dataset._sequences is None else dataset._sequences.steps(units)[0]
        nbytes = LoadedSteps(dataset.lake, np.unique(steps)).nbytes
        assert 0.4 * (2 << 20) < nbytes < 1.3 * (2 << 20), (options, nbytes)


def test_the_map_style_view(tmp_path):
    view = LakeSteps(make(tmp_path / "lake"))
    assert len(view) == 150
    assert view[7].reward == 7
    assert view[-1].step_id == 149
    agrees(arrays(view[[3, 100, 3]]), 1, "frames first")
    with pytest.raises(IndexError, match="150"):
        view[150]
    loader = DataLoader(view, batch_size=32, shuffle=True)
    batches = list(loader)
    assert np.array_equal(ids(batches), np.arange(150))
    agrees(arrays(batches[0]), 5, "frames first")
    sampler = BatchSampler(RandomSampler(view), 32, drop_last=False)
    batches = list(DataLoader(view, sampler=sampler, batch_size=None))
    assert np.array_equal(ids(batches), np.arange(150))


def test_bad_input_is_refused_in_one_sentence(tmp_path):
    path = make(tmp_path / "lake")
    for options, message in (
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": 4, "burn_in": 3}, "sequence_length"),
        ({"batch_size": 4, "sequence_length": 0}, "at least 1 step"),
        ({"batch_size": 4, "rank": 1}, "together"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "world size"),
    ):
        with pytest.raises(lp.SampleError, match=message):
            LakeDataset(path, **options)
    with pytest.raises(lp.LakeNotFound):
        LakeDataset(tmp_path / "nothing", 4)
    with lp.Replay.open(tmp_path / "empty", spec_of("frames first"), capacity=60) as replay:
        replay.commit()
    with pytest.raises(lp.TooFewSteps, match="no step"):
        LakeDataset(tmp_path / "empty", 4)
    dataset = LakeDataset(path, 4)
    with pytest.raises(lp.SampleError, match="batch_size"):
        LakeLoader(dataset, batch_size=4)
    with pytest.raises(lp.SampleError, match="persistent_workers"):
        LakeLoader(dataset, num_workers=1, persistent_workers=True)
    state = LakeDataset(path, 8, seed=1).state_dict()
    with pytest.raises(lp.SampleError, match=r"'batch_size': 8, 'seed': 1.*'batch_size': 4, 'seed': 0"):
        dataset.load_state_dict(state)


PROGRAM = """
import multiprocessing, os, sys
import numpy as np, torch
import lakepond as lp
from torch.utils.data import DataLoader
from lakepond.adapters.datasets import LakeDataset, LakeLoader, LakeSteps

path = sys.argv[1]

def ids(batches):
    return np.sort(np.concatenate([batch.step_id.numpy().reshape(-1) for batch in batches]))

def right(batch):
    want = lp.Lake.open(path).steps(0, 150)
    assert np.array_equal(batch.obs.numpy(), want.obs[batch.step_id])
    assert np.array_equal(batch.next_obs.numpy(), want.next_obs[batch.step_id])
    assert np.array_equal(batch.reward.numpy(), batch.step_id.numpy())

"""


def run(path, code):
    """In a process of its own: this one may hold JAX, which must not be forked."""
    program = path.parent / "program.py"
    program.write_text(PROGRAM + textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, "-W", "error", program, path], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_workers_divide_an_epoch_and_continue_it_with_fork_and_spawn(tmp_path):
    code = """
    if __name__ == "__main__":
        alone = list(LakeDataset(path, 8, seed=3))
        streams = [batch.step_id for batch in LakeLoader(LakeDataset(path, 8, seed=3, replace=True))]
        for context in ("fork", "spawn"):
            dataset = LakeDataset(path, 8, seed=3)
            loader = LakeLoader(dataset, num_workers=2 if context == "fork" else 1,
                                multiprocessing_context=context)  # a spawned one imports PyTorch again
            batches = []
            for batch in loader:  # abandoned while the workers have read ahead
                batches.append(batch)
                if len(batches) == 5:
                    break
            state = loader.state_dict()
            rest = LakeLoader(LakeDataset(path, 8, seed=3), num_workers=1 if context == "fork" else 0,
                              multiprocessing_context=context if context == "fork" else None)
            rest.load_state_dict(state)
            batches += list(rest)
            assert np.array_equal(ids(batches), np.arange(150)), context
            assert len(batches) == len(alone)
            assert {b.step_id.numpy().tobytes() for b in batches} == {
                b.step_id.numpy().tobytes() for b in alone}
            for batch in batches:
                right(batch)
        loader = LakeLoader(LakeDataset(path, 8, seed=3), num_workers=2)
        for epoch in range(2):  # each loop stops with the last batch
            batches = [batch for _, batch in zip(range(len(loader)), loader)]
            assert np.array_equal(ids(batches), np.arange(150)), epoch
        plain = list(DataLoader(LakeDataset(path, 8, seed=3, replace=True), batch_size=None, num_workers=2))
        found = {batch.step_id.numpy().tobytes() for batch in plain}
        assert len(found) == len(plain)  # every worker has its own draws
        assert found == {draws.numpy().tobytes() for draws in streams}
        view = DataLoader(LakeSteps(path), batch_size=16, shuffle=True, num_workers=2)
        assert np.array_equal(ids(view), np.arange(150))
    """
    run(make(tmp_path / "lake"), code)


def test_ranks_of_torch_distributed_divide_an_epoch(tmp_path):
    code = """
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            torch.distributed.init_process_group("gloo", init_method=f"file://{path}.store", rank=rank,
                                                 world_size=2)
            dataset = LakeDataset(path, 8, seed=3)
            assert (dataset.rank, dataset.world_size) == (rank, 2)
            np.save(f"{path}.{rank}.npy", ids(LakeLoader(dataset, num_workers=1)))
            torch.distributed.barrier()
            os._exit(0)
        children.append(child)
    assert all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)
    parts = [np.load(f"{path}.{rank}.npy") for rank in range(2)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(150))
    """
    run(make(tmp_path / "lake"), code)
