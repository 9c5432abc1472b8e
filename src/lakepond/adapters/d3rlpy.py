"""d3rlpy: train offline from a lake that may be larger than memory.

    dataset = LakeReplayBuffer("lakes/demo")
    d3rlpy.algos.DQNConfig().create().fit(dataset, n_steps=10_000)

d3rlpy keeps an episode as its observations without the last one, so the last step of an episode that did not
terminate is not a transition, as with d3rlpy's own buffers.
"""

from __future__ import annotations

import dataclasses
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

import d3rlpy.dataset as d3
import numpy as np
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import BasicTrajectorySlicer, BasicTransitionPicker, Signature, Transition

from lakepond.errors import SpecError, TooFewSteps
from lakepond.lake.read.episodes import Episode, episode_of
from lakepond.lake.read.lake import Lake
from lakepond.lake.read.sequences import episodes_of
from lakepond.types import Array, Field, Tree

CACHE_BYTES = 256 << 20
"""bytes of complete episodes in the cache, for pickers and slicers that need these"""


class LakeBuffer:
    """The episodes of a lake by d3rlpy's `BufferProtocol`; read-only.

    Memory: 8 bytes per step for its id and 4 for its reward, and whole episodes only while they are used.
    """

    def __init__(self, lake: Lake | str | os.PathLike[str]) -> None:
        self.lake = lake if isinstance(lake, Lake) else Lake.open(os.fspath(lake))
        spec = self.lake.spec
        if isinstance(spec.obs, dict) or not isinstance(spec.action, Field) or spec.reward.shape:
            raise SpecError(
                "d3rlpy takes observations that are arrays or tuples of them, one array of actions and one "
                f"reward per step, but {self.lake.path} has {spec}."
            )
        episodes = episodes_of(self.lake)
        if not len(episodes.ids):
            raise TooFewSteps(f"{self.lake.path} has no steps; record some and commit them.")
        self.ids, self.starts, self.terminated = episodes
        self.sizes = episodes.sizes
        counts = self.sizes - ~self.terminated
        self._before = np.cumsum(counts) - counts
        self._count = int(counts.sum())
        rewards = np.asarray(self.lake.column("reward"), np.float32)
        self.rewards: Array = rewards[self.ids - self.lake.commit.oldest]
        self._cache: OrderedDict[int, Episode] = OrderedDict()

    def append(self, episode: Any, index: int) -> None:
        """Refuse: it is read-only."""
        raise SpecError(
            f"{self.lake.path} is read-only here; collect into another buffer and combine the two with "
            "d3rlpy.dataset.MixedReplayBuffer."
        )

    @cached_property
    def episodes(self) -> Sequence[Any]:
        """All episodes; each is read when its data is used."""
        return [LakeEpisode(self, number) for number in range(len(self.starts))]

    @property
    def transition_count(self) -> int:
        """The number of transitions."""
        return self._count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[LakeEpisode, int]:
        if not -self._count <= index < self._count:
            raise IndexError(f"transitions are in [0, {self._count:,}), not {index}.")
        number, at = self.find(index % self._count)
        return LakeEpisode(self, int(number)), int(at)

    def find(self, transitions: Any) -> tuple[Any, Any]:
        """The episode of a transition, or of each of several, and its position there."""
        number = np.searchsorted(self._before, transitions, "right") - 1
        return number, transitions - self._before[number]

    def read(self, number: int) -> Episode:
        """A complete episode, from the cache if it was read recently."""
        if number in self._cache:
            self._cache.move_to_end(number)
            return self._cache[number]
        start = int(self.starts[number])
        ids = self.ids[start : start + int(self.sizes[number])]
        episode = episode_of(self.lake.reader, self.lake.spec, ids)
        self._cache[number] = episode
        size = self.lake.spec.step_nbytes
        while len(self._cache) > 1 and sum(e.steps for e in self._cache.values()) * size > CACHE_BYTES:
            self._cache.popitem(last=False)
        return episode


class LakeEpisode(d3.Episode):
    """One episode; its arrays are read when they are used."""

    def __init__(self, buffer: LakeBuffer, number: int) -> None:
        self.buffer, self.number = buffer, number

    @property
    def observations(self) -> Any:
        """(steps, ...), or a list of such arrays."""
        return _each(itemgetter(slice(len(self))), self.buffer.read(self.number).obs)

    @property
    def actions(self) -> Array:
        """(steps, size), or (steps, 1) if they are discrete."""
        return _with_axis(self.buffer.read(self.number).action)

    @property
    def rewards(self) -> Array:
        """(steps, 1) float32."""
        start = int(self.buffer.starts[self.number])
        return self.buffer.rewards[start : start + len(self), None]

    @property
    def terminated(self) -> bool:
        """Whether the last step terminated the episode."""
        return bool(self.buffer.terminated[self.number])

    def size(self) -> int:
        """The number of steps."""
        return int(self.buffer.sizes[self.number])

    def __len__(self) -> int:
        return self.size()


class LakeReplayBuffer(d3.ReplayBuffer):
    """d3rlpy's dataset over a lake. A batch is read in one call, and only its own steps are.

    That holds for `BasicTransitionPicker` and `BasicTrajectorySlicer`, the defaults; others read whole
    episodes, of which some are kept in memory.
    """

    def __init__(
        self,
        lake: Lake | str | os.PathLike[str],
        *,
        transition_picker: Any = None,
        trajectory_slicer: Any = None,
        action_size: int | None = None,
    ) -> None:
        """`action_size`: number of discrete actions; by default the largest recorded one plus one."""
        buffer = LakeBuffer(lake)
        obs, action = buffer.lake.spec.obs, buffer.lake.spec.action
        fields = obs if isinstance(obs, tuple) else (obs,)
        discrete = np.dtype(action.dtype).kind in "biu"
        if action_size is None and discrete:
            action_size = int(np.asarray(buffer.lake.column("action")).max()) + 1
        super().__init__(
            buffer,
            transition_picker=transition_picker,
            trajectory_slicer=trajectory_slicer,
            observation_signature=Signature([f.dtype for f in fields], [f.shape for f in fields]),
            action_signature=Signature([action.dtype], [action.shape or (1,)]),
            reward_signature=Signature([np.dtype(np.float32)], [(1,)]),
            action_space=ActionSpace.DISCRETE if discrete else ActionSpace.CONTINUOUS,
            action_size=int(np.prod(action.shape)) if action_size is None else action_size,
        )

    def sample_transition(self) -> Any:
        """One transition, uniformly."""
        if type(self._transition_picker) is not BasicTransitionPicker:
            return super().sample_transition()
        return self._transitions(self._draw(1))[0]

    def sample_transition_batch(self, batch_size: int) -> Any:
        """A batch of transitions, uniformly; the draws are those of d3rlpy with the same seed."""
        if type(self._transition_picker) is not BasicTransitionPicker:
            return super().sample_transition_batch(batch_size)
        return d3.TransitionMiniBatch.from_transitions(self._transitions(self._draw(batch_size)))

    def _draw(self, count: int) -> Array:
        return np.array([np.random.randint(self._buffer.transition_count) for _ in range(count)])

    def _transitions(self, index: Array) -> list[Any]:
        buffer: LakeBuffer = self._buffer
        number, at = buffer.find(index)
        start, size = buffer.starts[number], buffer.sizes[number]
        terminal = buffer.terminated[number] & (at == size - 1)
        step = start + at
        batch = buffer.lake.steps(buffer.ids[step])
        following = np.where(terminal, step, step + 1)
        next_action = _with_axis(buffer.lake.steps(buffer.ids[following], only=()).action)
        action = _with_axis(batch.action)
        found = []
        for i in range(len(index)):
            end = bool(terminal[i])
            next_obs = _each(itemgetter(i), batch.next_obs)
            found.append(
                Transition(
                    observation=_each(itemgetter(i), batch.obs),
                    action=action[i],
                    reward=buffer.rewards[step[i] : step[i] + 1],
                    next_observation=_each(np.zeros_like, next_obs) if end else next_obs,
                    next_action=np.zeros_like(next_action[i]) if end else next_action[i],
                    terminal=float(end),
                    interval=1,
                    rewards_to_go=buffer.rewards[step[i] : start[i] + size[i], None],
                )
            )
        return found

    def sample_trajectory(self, length: int) -> Any:
        """A part of an episode that ends at a transition drawn uniformly."""
        if type(self._trajectory_slicer) is not BasicTrajectorySlicer:
            return super().sample_trajectory(length)
        buffer: LakeBuffer = self._buffer
        number, at = map(int, buffer.find(self._draw(1)[0]))
        start, size = int(buffer.starts[number]), int(buffer.sizes[number])
        first = max(0, at + 1 - length)
        batch = buffer.lake.steps(buffer.ids[start + first : start + at + 1])
        part = d3.Episode(
            observations=list(batch.obs) if isinstance(batch.obs, tuple) else batch.obs,
            actions=_with_axis(batch.action),
            rewards=buffer.rewards[start + first : start + size, None],  # to the end, for the returns to go
            terminated=bool(buffer.terminated[number]) and at == size - 1,
        )
        trajectory = self._trajectory_slicer(part, at - first, length)
        timesteps = np.where(trajectory.masks > 0, trajectory.timesteps + first, trajectory.timesteps)
        return dataclasses.replace(trajectory, timesteps=timesteps)


def _with_axis(actions: Array) -> Array:
    return actions[:, None] if actions.ndim == 1 else actions


def _each(change: Callable[[Array], Array], obs: Tree) -> Any:
    """Observations with `change` applied; several arrays are a list, as d3rlpy has them."""
    return [change(each) for each in obs] if isinstance(obs, tuple | list) else change(obs)
