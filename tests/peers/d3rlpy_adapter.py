"""Tests of lakepond's adapter for d3rlpy, in an environment of its own: run by `make peers-d3rlpy`."""

import re
from pathlib import Path

import d3rlpy
import numpy as np
import pytest
from d3rlpy.dataset import (
    Episode,
    FrameStackTransitionPicker,
    InfiniteBuffer,
    MixedReplayBuffer,
    MultiStepTransitionPicker,
    ReplayBuffer,
)

import lakepond as lp
from lakepond.adapters.d3rlpy import LakeBuffer, LakeReplayBuffer

LENGTHS = (5, 9, 1, 7, 12)
"""steps of the episodes; every second one terminates, the others are truncated"""


def make(path, *, kind="continuous", pair=False, shape=(1, 12, 12)):
    """A lake of two interleaved streams and the same episodes as d3rlpy's own, in the same order."""
    rng = np.random.default_rng(0)
    shapes = [shape, (3,)] if pair else [shape]
    fields = tuple(lp.Field(each, "float32") for each in shapes)
    action = lp.Field((2,), "float32") if kind == "continuous" else lp.Field((), "int64")
    spec = lp.Spec(obs=fields if pair else fields[0], action=action)
    episodes = []
    with lp.Replay.open(path, spec, capacity=50) as replay:
        waiting = []
        for number, steps in enumerate(LENGTHS):
            obs = [rng.random((steps + 1, *each), np.float32) for each in shapes]
            actions = (
                rng.random((steps, 2), np.float32) if kind == "continuous" else rng.integers(0, 4, steps)
            )
            rewards = rng.random(steps).astype(np.float32)
            terminated = number % 2 == 0
            observations = [each[:-1] for each in obs] if pair else obs[0][:-1]
            episodes.append(
                Episode(
                    observations,
                    actions if actions.ndim > 1 else actions[:, None],
                    rewards[:, None],
                    terminated,
                )
            )
            for t in range(steps):
                waiting.append((number % 2, t, number, obs, actions, rewards, terminated and t == steps - 1))
        streams = [[step for step in waiting if step[0] == s] for s in (0, 1)]
        while any(streams):  # the streams take turns
            for stream in filter(None, streams):
                s, t, number, obs, actions, rewards, end = stream.pop(0)
                here, there = (tuple(each[t + k] for each in obs) for k in (0, 1))
                replay.record(
                    obs=here if pair else here[0],
                    next_obs=there if pair else there[0],
                    action=actions[t],
                    reward=rewards[t],
                    terminated=end,
                    truncated=t == LENGTHS[number] - 1 and not end,
                    stream=s,
                )
        replay.commit()
    order = [0, 2, 4, 1, 3]  # streams one after another
    return [episodes[i] for i in order]


def same(ours, theirs):
    for name in ("observations", "actions", "rewards"):
        one, two = getattr(ours, name), getattr(theirs, name)
        for a, b in zip(*([one], [two]) if isinstance(two, np.ndarray) else (one, two), strict=True):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b)


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_the_same_data_and_draws_as_d3rlpys_own_buffer(tmp_path, kind, pair):
    episodes = make(tmp_path / "lake", kind=kind, pair=pair)
    ours = LakeReplayBuffer(tmp_path / "lake", action_size=None if kind == "continuous" else 4)
    theirs = ReplayBuffer(InfiniteBuffer(), episodes=episodes)
    assert ours.transition_count == theirs.transition_count == sum(LENGTHS) - 2
    assert ours.size() == theirs.size() == 5
    for name in ("action_space", "action_size"):
        assert getattr(ours.dataset_info, name) == getattr(theirs.dataset_info, name)
    for one, two in zip(ours.episodes, theirs.episodes, strict=True):
        same(one, two)
        assert (one.terminated, len(one), one.transition_count) == (
            two.terminated, len(two), two.transition_count)  # fmt: skip
        assert one.compute_return() == two.compute_return()
        assert one.observation_signature == two.observation_signature
        assert one.action_signature == two.action_signature
    batches = []
    for dataset in (ours, theirs):
        np.random.seed(3)
        batches.append((dataset.sample_transition_batch(64), dataset.sample_trajectory_batch(16, 6)))
    for one, two in zip(*batches, strict=True):
        for name in vars(two):
            if name == "transitions":
                for a, b in zip(one.transitions, two.transitions, strict=True):
                    assert np.array_equal(a.rewards_to_go, b.rewards_to_go)
            elif name != "length":
                a, b = getattr(one, name), getattr(two, name)
                for x, y in zip(*([a], [b]) if isinstance(b, np.ndarray) else (a, b), strict=True):
                    assert np.array_equal(x, y), name


@pytest.mark.parametrize("picker", [MultiStepTransitionPicker(3, 0.9), FrameStackTransitionPicker(4)])
def test_other_pickers_read_whole_episodes(tmp_path, picker):
    episodes = make(tmp_path / "lake")
    found = []
    for dataset in (
        LakeReplayBuffer(tmp_path / "lake", transition_picker=picker),
        ReplayBuffer(InfiniteBuffer(), episodes=episodes, transition_picker=picker),
    ):
        np.random.seed(3)
        found.append(dataset.sample_transition_batch(64))
    for name in ("observations", "next_observations", "rewards", "terminals", "intervals"):
        assert np.array_equal(getattr(found[0], name), getattr(found[1], name))


def test_a_buffer_is_read_only_and_can_be_mixed_with_an_online_one(tmp_path):
    make(tmp_path / "lake")
    ours = LakeReplayBuffer(tmp_path / "lake")
    with pytest.raises(lp.SpecError, match="MixedReplayBuffer"):
        ours.append_episode(ours.episodes[0])
    online = ReplayBuffer(InfiniteBuffer(), episodes=[Episode(**ours.episodes[0].serialize())])
    mixed = MixedReplayBuffer(online, ours, secondary_mix_ratio=0.5)
    assert len(mixed.sample_transition_batch(32)) == 32
    with pytest.raises(IndexError, match="32"):
        LakeBuffer(tmp_path / "lake")[32]


def test_a_lake_of_another_form_is_refused(tmp_path):
    spec = lp.Spec(obs={"a": lp.Field((2,), "float32")}, action=lp.Field((), "int64"))
    with lp.Replay.open(tmp_path / "lake", spec, capacity=5) as replay:
        replay.commit()
    with pytest.raises(lp.SpecError, match="arrays or tuples"):
        LakeReplayBuffer(tmp_path / "lake")


def test_an_algorithm_trains_from_a_lake_as_from_d3rlpys_own_buffer(tmp_path):
    episodes = make(tmp_path / "lake", kind="discrete", shape=(70,))
    values = []
    for dataset in (
        LakeReplayBuffer(tmp_path / "lake", action_size=4),
        ReplayBuffer(InfiniteBuffer(), episodes=episodes),
    ):
        d3rlpy.seed(0)
        dqn = d3rlpy.algos.DQNConfig(batch_size=8).create()
        dqn.fit(dataset, n_steps=20, n_steps_per_epoch=20, show_progress=False, save_interval=100,
                logger_adapter=d3rlpy.logging.NoopAdapterFactory())  # fmt: skip
        values.append(dqn.predict_value(np.ones((1, 70), np.float32), np.array([1])))
    assert np.array_equal(values[0], values[1])


def test_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs/howto/offline-datasets.md"
    namespace: dict[str, object] = {}
    found = re.findall(
        r'^```python title="with d3rlpy"\n(.*?)^```', page.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found
    for code in found:
        exec(compile(code, str(page), "exec"), namespace)
