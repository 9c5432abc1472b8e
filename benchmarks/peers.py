"""One adapter a contestant, all with the same verbs, each used as its own documentation would have it.

    record(steps, call)   eight environments made one step each
    sample()              256 transitions, in the form the library hands over (this is what is timed)
    unpack(batch)         -> step, obs, next_obs as NumPy with the stack first (this is not)

The reward of a step is its own number, so every transition handed over can be checked against its source.
Peers that need the steps of an episode one after the other (cpprb with `next_of`, TorchRL with slices) get
each environment's steps kept back until its episode ends, as the caller's arrays: nothing is cheaper.
"""
# ruff: noqa: D102  (the methods are described above)

from __future__ import annotations

import logging
from typing import Any, ClassVar

import numpy as np

from benchmarks.frames import ENVS, STACK, Steps

BATCH = 256
OBS = (STACK, 84, 84)
Unpacked = tuple[np.ndarray, np.ndarray, np.ndarray]


class Lakepond:
    """What is measured here; nothing declared but shape and type."""

    name: ClassVar[str] = "lakepond"

    def __init__(self, capacity: int) -> None:
        import lakepond as lp

        self._replay = lp.Replay(lp.Spec(obs=lp.Field(OBS, "uint8"), action=lp.Field((), "int64")), capacity)
        self._rng = np.random.default_rng(0)
        self._batch: Any = None

    def record(self, steps: Steps, call: int) -> None:
        self._replay.record(
            obs=steps.obs[call],
            action=steps.action[call],
            reward=steps.step[call].astype(np.float32),
            next_obs=steps.next_obs[call],
            terminated=steps.terminated[call],
            truncated=steps.truncated[call],
        )

    def sample(self) -> Any:
        return self._replay.sample(BATCH, rng=self._rng)

    def sample_reused(self) -> Any:
        """The same into the arrays of the last call."""
        self._batch = self._replay.sample(BATCH, rng=self._rng, out=self._batch)
        return self._batch

    def unpack(self, batch: Any) -> Unpacked:
        return batch.reward, batch.obs, batch.next_obs

    def __len__(self) -> int:
        """Steps held."""
        return self._replay.stats().steps

    def bytes_held(self) -> int:
        """The library's own accounting."""
        return self._replay.stats().bytes_held


class _Episodes:
    """Keeps the steps of each environment back until its episode ends."""

    def __init__(self) -> None:
        self._kept: list[list[tuple[Steps, int]]] = [[] for _ in range(ENVS)]

    def record(self, steps: Steps, call: int) -> None:
        for env, kept in enumerate(self._kept):
            kept.append((steps, call))
            if steps.terminated[call, env] or steps.truncated[call, env]:
                self.record_episode(kept, env)
                kept.clear()

    def finish(self) -> None:
        """Hand over the episodes under way as if they ended here."""
        for env, kept in enumerate(self._kept):
            if kept:
                self.record_episode(kept, env)
                kept.clear()

    def record_episode(self, kept: list[tuple[Steps, int]], env: int) -> None:
        raise NotImplementedError


class CpprbNextOf(_Episodes):
    """cpprb that stores obs once for obs and next_obs; single adds are its faster way here."""

    name: ClassVar[str] = "cpprb next_of"
    stack_compress: ClassVar[str | None] = None

    def __init__(self, capacity: int) -> None:
        from cpprb import ReplayBuffer

        super().__init__()
        columns = {
            "obs": {"shape": (84, 84, STACK), "dtype": np.uint8},  # the stack must be the last axis
            "act": {"dtype": np.int64},
            "rew": {},
            "done": {},
        }
        self._buffer = ReplayBuffer(capacity, columns, next_of="obs", stack_compress=self.stack_compress)

    def record_episode(self, kept: list[tuple[Steps, int]], env: int) -> None:
        for steps, call in kept:
            self._buffer.add(
                obs=steps.obs_last[call, env],
                act=steps.action[call, env],
                rew=steps.step[call, env],
                next_obs=steps.next_obs_last[call, env],
                done=steps.terminated[call, env],
            )
        self._buffer.on_episode_end()

    def sample(self) -> dict[str, np.ndarray]:
        return self._buffer.sample(BATCH)

    def unpack(self, batch: dict[str, np.ndarray]) -> Unpacked:
        return batch["rew"], np.moveaxis(batch["obs"], -1, 1), np.moveaxis(batch["next_obs"], -1, 1)

    def __len__(self) -> int:
        """Steps held."""
        return self._buffer.get_stored_size()


class CpprbStack(CpprbNextOf):
    """cpprb that stores frames once; whole episodes in one add are its faster way here."""

    name: ClassVar[str] = "cpprb next_of + stack_compress"
    stack_compress: ClassVar[str | None] = "obs"

    def record_episode(self, kept: list[tuple[Steps, int]], env: int) -> None:
        self._buffer.add(
            obs=np.stack([steps.obs_last[call, env] for steps, call in kept]),
            act=np.array([steps.action[call, env] for steps, call in kept]),
            rew=np.array([steps.step[call, env] for steps, call in kept]),
            next_obs=np.stack([steps.next_obs_last[call, env] for steps, call in kept]),
            done=np.array([steps.terminated[call, env] for steps, call in kept]),
        )
        self._buffer.on_episode_end()


class StableBaselines:
    """stable-baselines3, obs once for obs and next_obs."""

    name: ClassVar[str] = "SB3 optimize_memory_usage"

    def __init__(self, capacity: int) -> None:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        self._buffer = ReplayBuffer(
            capacity,
            Box(0, 255, OBS, np.uint8),
            Discrete(18),
            device="cpu",
            n_envs=ENVS,
            optimize_memory_usage=True,
            handle_timeout_termination=False,  # it refuses both
        )
        self._infos: list[dict[str, Any]] = [{} for _ in range(ENVS)]

    def record(self, steps: Steps, call: int) -> None:
        done = steps.terminated[call] | steps.truncated[call]
        obs, next_obs = steps.obs[call], steps.next_obs[call]
        self._buffer.add(obs, next_obs, steps.action[call], steps.step[call], done, self._infos)

    def sample(self) -> Any:
        return self._buffer.sample(BATCH)

    def unpack(self, batch: Any) -> Unpacked:
        return batch.rewards.numpy(), batch.observations.numpy(), batch.next_observations.numpy()

    def __len__(self) -> int:
        """Steps held."""
        return self._buffer.size() * ENVS


class TorchRLDense:
    """TorchRL with everything stored as it comes, eight steps in one extend."""

    name: ClassVar[str] = "TorchRL dense"

    def __init__(self, capacity: int) -> None:
        logging.getLogger("torchrl").setLevel(logging.WARNING)
        from torchrl.data import LazyTensorStorage, ReplayBuffer

        self._buffer = ReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=BATCH)

    def record(self, steps: Steps, call: int) -> None:
        import torch
        from tensordict import TensorDict

        columns = {
            "obs": torch.from_numpy(steps.obs[call]),
            "next_obs": torch.from_numpy(steps.next_obs[call]),
            "action": torch.from_numpy(steps.action[call]),
            "reward": torch.from_numpy(steps.step[call].astype(np.float32)),
            "terminated": torch.from_numpy(steps.terminated[call]),
            "truncated": torch.from_numpy(steps.truncated[call]),
        }
        self._buffer.extend(TensorDict(columns, batch_size=[ENVS]))

    def sample(self) -> Any:
        return self._buffer.sample()

    def unpack(self, batch: Any) -> Unpacked:
        return batch["reward"].numpy(), batch["obs"].numpy(), batch["next_obs"].numpy()

    def __len__(self) -> int:
        """Steps held."""
        return len(self._buffer)


class TorchRLSlices(_Episodes):
    """TorchRL with one frame a step: a transition is a slice of five frames, an episode one extend.

    The padding at the start of an episode is stored as three frames of its own, so that a slice may begin
    there. Its sampler draws an episode first, then a slice: not uniform over transitions.
    """

    name: ClassVar[str] = "TorchRL single frames, slices"

    def __init__(self, capacity: int) -> None:
        logging.getLogger("torchrl").setLevel(logging.WARNING)
        from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler

        super().__init__()
        length = STACK + 1
        sampler = SliceSampler(slice_len=length, traj_key="episode", cache_values=True, strict_length=True)
        self._buffer = ReplayBuffer(
            storage=LazyTensorStorage(capacity), sampler=sampler, batch_size=BATCH * length
        )
        self._episode = 0

    def record_episode(self, kept: list[tuple[Steps, int]], env: int) -> None:
        import torch
        from tensordict import TensorDict

        steps, call = kept[0]
        rows = len(kept) + STACK
        frame = np.empty((rows, 84, 84), np.uint8)
        frame[:STACK] = steps.obs[call, env]
        for row, (steps, call) in enumerate(kept, STACK):
            frame[row] = steps.next_obs[call, env, -1]
        columns = {"frame": torch.from_numpy(frame), "episode": torch.full((rows,), self._episode)}
        for name, source, dtype in (
            ("action", "action", np.int64),
            ("reward", "step", np.float32),
            ("terminated", "terminated", bool),
            ("truncated", "truncated", bool),
        ):
            column = np.zeros(rows, dtype)  # the values of a step lie beside the newest frame of its obs
            column[STACK - 1 : -1] = [getattr(steps, source)[call, env] for steps, call in kept]
            columns[name] = torch.from_numpy(column)
        self._buffer.extend(TensorDict(columns, batch_size=[rows]))
        self._episode += 1

    def sample(self) -> Any:
        rows = self._buffer.sample().view(BATCH, STACK + 1)
        frame = rows["frame"]
        return rows["reward"][:, STACK - 1], frame[:, :STACK], frame[:, 1:]  # views: no copy of its own

    def unpack(self, batch: Any) -> Unpacked:
        return tuple(part.numpy() for part in batch)

    def __len__(self) -> int:
        """Steps held, near enough: frames less what each episode holds beyond its steps."""
        rows = self._buffer[:]["episode"]
        return len(rows) - STACK * len(rows.unique())


class Tianshou:
    """tianshou with one frame a step, stacks made when sampled."""

    name: ClassVar[str] = "tianshou stack_num, last obs only"

    def __init__(self, capacity: int) -> None:
        from tianshou.data import Batch, VectorReplayBuffer

        self._batch = Batch
        self._buffer = VectorReplayBuffer(
            capacity, ENVS, stack_num=STACK, ignore_obs_next=True, save_only_last_obs=True
        )

    def record(self, steps: Steps, call: int) -> None:
        step = self._batch(
            obs=steps.obs[call],
            act=steps.action[call],
            rew=steps.step[call].astype(np.float64),
            terminated=steps.terminated[call],
            truncated=steps.truncated[call],
            obs_next=steps.next_obs[call],
            info=self._batch(),
        )
        self._buffer.add(step)

    def sample(self) -> Any:
        return self._buffer.sample(BATCH)[0]

    def unpack(self, batch: Any) -> Unpacked:
        return batch.rew, batch.obs, batch.obs_next

    def __len__(self) -> int:
        """Steps held."""
        return len(self._buffer)


PEERS = [CpprbStack, CpprbNextOf, StableBaselines, TorchRLDense, TorchRLSlices, Tianshou]
CONTESTANTS = {contestant.name: contestant for contestant in [Lakepond, *PEERS]}
