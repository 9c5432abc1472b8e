"""A plugin for pytest that puts lakepond's classes in the place of d3rlpy's buffers and its dataset.

`InfiniteBuffer` and `FIFOBuffer` are `LakeBuffer`, and `ReplayBuffer` is `LakeReplayBuffer`: its episodes are
recorded in a lake in a temporary folder first, because a lake is only read here.
"""

import tempfile
from pathlib import Path

import d3rlpy.dataset
import numpy as np
from d3rlpy.dataset import replay_buffer

import lakepond as lp
from lakepond.adapters import d3rlpy as ours

FOLDERS = []
"""temporary folders, removed at the end of the tests"""


def lake_of(episodes, observation, action):
    """A lake with these episodes, one after another in one stream."""
    FOLDERS.append(tempfile.TemporaryDirectory())
    path = Path(FOLDERS[-1].name) / "lake"
    fields = tuple(
        lp.Field(tuple(shape), dtype)
        for shape, dtype in zip(observation.shape, observation.dtype, strict=True)
    )
    spec = lp.Spec(
        obs=fields if len(fields) > 1 else fields[0],
        action=lp.Field(tuple(action.shape[0]), action.dtype[0]),
    )
    capacity = max(1, sum(map(len, episodes)))
    with lp.Replay.open(path, spec, capacity=capacity) as replay:
        for episode in episodes:
            last = np.arange(len(episode)) == len(episode) - 1
            obs = episode.observations
            parts = (obs,) if isinstance(obs, np.ndarray) else tuple(obs)
            after = tuple(np.concatenate([part[1:], part[-1:]]) for part in parts)
            replay.record(
                obs=parts if len(fields) > 1 else parts[0],
                next_obs=after if len(fields) > 1 else after[0],
                action=episode.actions,
                reward=episode.rewards[:, 0],
                terminated=last & episode.terminated,
                truncated=last & (not episode.terminated),
                stream=0,
            )
        replay.commit()
    return lp.Lake.open(path)


class Buffer(ours.LakeBuffer):
    """A `LakeBuffer` that can be made before its lake, as d3rlpy's tests make theirs."""

    def __init__(self, lake=None):
        if isinstance(lake, lp.Lake):
            super().__init__(lake)
        else:  # no argument, or the limit of a FIFOBuffer
            nothing = d3rlpy.dataset.Signature(dtype=[np.dtype(np.float32)], shape=[(1,)])
            self.lake = lake_of([], nothing, nothing)


class Dataset(ours.LakeReplayBuffer):
    """A `LakeReplayBuffer` that takes the arguments of d3rlpy's `ReplayBuffer`."""

    def __init__(self, buffer, transition_picker=None, trajectory_slicer=None, writer_preprocessor=None,
                 episodes=(), env=None, observation_signature=None, action_signature=None,
                 reward_signature=None, action_space=None, action_size=None, **cache):  # fmt: skip
        lake = lake_of(
            episodes,
            observation_signature or episodes[0].observation_signature,
            action_signature or episodes[0].action_signature,
        )
        super().__init__(
            lake,
            transition_picker=transition_picker,
            trajectory_slicer=trajectory_slicer,
            action_size=action_size,
        )


ours.LakeBuffer = Buffer
for module in (d3rlpy.dataset, replay_buffer):
    module.InfiniteBuffer = module.FIFOBuffer = Buffer
    module.ReplayBuffer = Dataset


def pytest_configure(config):
    """The folder that d3rlpy's tests write to."""
    Path("test_data").mkdir(exist_ok=True)


def pytest_unconfigure(config):
    """Remove the lakes."""
    for folder in FOLDERS:
        folder.cleanup()
