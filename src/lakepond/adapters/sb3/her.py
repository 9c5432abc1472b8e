"""Hindsight experience replay with SB3's strategies, draws and bookkeeping over a lakepond replay."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Self

import numpy as np
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from lakepond.adapters.sb3 import storage
from lakepond.adapters.sb3.buffer import LakepondReplayBuffer
from lakepond.errors import SampleError, SpecError
from lakepond.types import Array, Tree

BOUNDS = ("ep_start", "ep_length", "_current_ep_start")
"""where the episodes of the steps begin and how long they are"""


class LakepondHerReplayBuffer(LakepondReplayBuffer, HerReplayBuffer):
    """SB3's HerReplayBuffer, storing each distinct row once; goals and rewards are computed when sampling."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        env: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        **options: Any,
    ) -> None:
        """As SB3's; `options` are those of `LakepondReplayBuffer` but `n_steps` and `alpha`."""
        keys = getattr(observation_space, "spaces", {})
        if not {"achieved_goal", "desired_goal"} <= set(keys):
            raise SpecError(
                "HER needs a Dict observation with 'observation', 'achieved_goal' and 'desired_goal', not "
                f"{observation_space}."
            )
        if options.get("n_steps", 1) != 1 or options.get("alpha") is not None:
            raise SpecError("HER has no n-step returns and no priorities; leave n_steps and alpha out.")
        if copy_info_dict and options.get("path") is not None:
            raise SpecError("a lake does not store info dicts; use copy_info_dict without path.")
        strategy: Any = goal_selection_strategy
        if isinstance(strategy, str):
            strategy = KEY_TO_GOAL_STRATEGY.get(strategy.lower())
        if not isinstance(strategy, GoalSelectionStrategy):
            raise SpecError(
                f"goal_selection_strategy={goal_selection_strategy!r} is not one of "
                f"{sorted(KEY_TO_GOAL_STRATEGY)}."
            )
        self.goal_selection_strategy = strategy
        self.env, self.copy_info_dict, self.n_sampled_goal = env, copy_info_dict, n_sampled_goal
        self.her_ratio = 1 - (1.0 / (n_sampled_goal + 1))
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            **options,
        )

    def _use(self, opened: storage.Storage) -> None:
        super()._use(opened)
        if self.copy_info_dict and "infos" not in self.__dict__:
            self.infos = np.full((self.buffer_size, self.n_envs), None, object)
        if "ep_start" not in self.__dict__:  # a copy in memory has them
            self._find_episodes()

    def _find_episodes(self) -> None:
        """Derive the bounds of episodes from the flags of the steps stored."""
        shape = (self.buffer_size, self.n_envs)
        self.ep_start, self.ep_length = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._current_ep_start = np.zeros(self.n_envs, np.int64)
        first = max(0, self._rounds - self.buffer_size)
        ended = self.dones[np.arange(first, self._rounds) % self.buffer_size] > 0
        for env in range(self.n_envs):
            ends = first + np.flatnonzero(ended[:, env]) + 1
            starts = np.concatenate([[first], ends[:-1]])
            for start, stop in zip(starts, ends, strict=False):
                where = np.arange(start, stop) % self.buffer_size
                self.ep_start[where, env] = start % self.buffer_size
                self.ep_length[where, env] = stop - start
            begin = ends[-1] if len(ends) else first
            self.ep_start[np.arange(begin, self._rounds) % self.buffer_size, env] = begin % self.buffer_size
            self._current_ep_start[env] = begin % self.buffer_size
            if first > 0 and not self._starts_episode(first, env):  # its first steps were evicted
                stop = ends[0] if len(ends) else self._rounds
                self.ep_length[np.arange(first, stop) % self.buffer_size, env] = 0

    def _starts_episode(self, number: int, env: int) -> bool:
        """Whether the step before a round, which only a lake still has, ended its episode."""
        if self.path is None:
            return False
        step = int(self._storage.about["first"]) + (number - 1) * self.n_envs + env
        with self.replay.lake() as lake:
            if not lake.commit.oldest <= step < lake.commit.recorded:
                return False
            before = lake.steps(step, step + 1)
        return bool(before.terminated[0] | before.truncated[0])

    def reset(self) -> None:
        """Remove all steps."""
        super().reset()
        self._find_episodes()

    def end_episodes(self) -> None:
        """Truncate unfinished episodes; they can be sampled from then on."""
        super().end_episodes()
        for env in np.flatnonzero(self._current_ep_start != self.pos):
            self._compute_episode_length(int(env))

    def truncate_last_trajectory(self) -> None:
        """As SB3's, which sets `dones` and then `timeouts`; here a step that has ended cannot be changed."""
        if (self._current_ep_start != self.pos).any():
            warnings.warn(
                "The last trajectory in the replay buffer will be truncated. If you are in the same episode "
                "as when it was saved, pass truncate_last_traj=False to load_replay_buffer.",
                stacklevel=2,
            )
            self.end_episodes()

    def add(
        self, obs: Tree, next_obs: Tree, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]
    ) -> None:
        """Record a step of each environment; an old episode is not sampled once its first step is evicted."""
        pos = self.pos
        super().add(obs, next_obs, action, reward, done, infos)
        for env in np.flatnonzero(self.ep_length[pos]):
            stop = self.ep_start[pos, env] + self.ep_length[pos, env]
            self.ep_length[np.arange(pos, stop) % self.buffer_size, env] = 0
        self.ep_start[pos] = self._current_ep_start
        if self.copy_info_dict:
            self.infos[pos] = infos
        for env in np.flatnonzero(np.asarray(done).reshape(-1)):
            self._compute_episode_length(int(env))

    # --- sampling --------------------------------------------------------------------------------------

    sample = HerReplayBuffer.sample

    def _get_real_samples(self, batch_indices: Array, env_indices: Array, env: Any = None) -> Any:
        """Recorded transitions; all fields are read once."""
        return self._samples(self.ids_at(batch_indices, env_indices), env)

    def _get_virtual_samples(self, batch_indices: Array, env_indices: Array, env: Any = None) -> Any:
        """Transitions with new goals and the rewards for these; only the goals are read from other steps."""
        if self.env is None:
            raise SampleError("HER computes rewards with its environment; call set_env(env) after loading.")
        batch = self.replay.steps(self.ids_at(batch_indices, env_indices))
        goals = self._sample_goals(batch_indices, env_indices)
        batch.obs["desired_goal"][:] = batch.next_obs["desired_goal"][:] = goals
        infos: Any = [{} for _ in goals]
        if self.copy_info_dict:
            infos = copy.deepcopy(self.infos[batch_indices, env_indices])
        achieved = batch.next_obs["achieved_goal"]
        found = self.env.env_method("compute_reward", achieved, goals, infos, indices=[0])
        rewards = np.asarray(found[0]).astype(np.float32)[:, None]
        return self._as_samples(batch, self._normalize_reward(rewards, env), None, env)

    # --- saving ----------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Without the environment, which SB3 sets again, and without what step flags determine."""
        state = super().__getstate__()
        derived = ("env", *BOUNDS) if self.path else ("env",)
        return {name: value for name, value in state.items() if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "env": None})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self.env)] = self.env
        return super().__deepcopy__(memo)
