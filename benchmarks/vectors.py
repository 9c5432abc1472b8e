"""Small vectors: 17 floats, 6 actions, the tasks of MuJoCo. One step per call, eight per call, sampling, PER.

Every contestant is used as its documentation has it, and hands over the form that its users get: NumPy, or
torch tensors. The reward of a step is its number, so what is sampled can be checked against its source.
"""
# ruff: noqa: D102  (the verbs are described once, in `Contestant`)

from __future__ import annotations

import logging
from functools import partial
from typing import Any, ClassVar

import numpy as np

from benchmarks.measure import Rate, interleaved
from benchmarks.report import Section

OBS, ACTIONS, BATCH, N_STEP, GAMMA = 17, 6, 256, 3, 0.99
ALPHA, BETA = 0.6, 0.4


class Data:
    """Consecutive steps of eight environments; their numbers are their rewards."""

    def __init__(self, steps: int, envs: int) -> None:
        rng = np.random.default_rng(0)
        obs = rng.standard_normal((steps + 1, envs, OBS)).astype(np.float32)
        self.obs, self.next_obs = obs[:-1], obs[1:]
        self.action = rng.standard_normal((steps, envs, ACTIONS)).astype(np.float32)
        self.reward = np.arange(steps * envs, dtype=np.float64).reshape(steps, envs)  # as Gymnasium has it
        self.done = np.zeros((steps, envs), bool)
        self.done[199::200] = True
        self.steps, self.envs = steps, envs

    def calls(self, one: bool) -> list[Any]:
        """The values of each call, in the order of Gymnasium; `one`: of one environment, without a vector."""
        values = (self.obs, self.action, self.reward, self.next_obs, self.done, np.zeros_like(self.done))
        at: Any = 0 if one else ...
        return [tuple(value[t][at] for value in values) for t in range(self.steps)]


class Contestant:
    """`add`: one call; `sample`: a batch; `reward_of`: the rewards of a batch, as NumPy.

    `prepare`: the arguments of all calls, as an environment hands them over, before the clock runs.
    """

    name: ClassVar[str]

    def __init__(self, capacity: int, envs: int, *, prioritised: bool = False, n_step: int = 1) -> None: ...

    def prepare(self, data: Data) -> list[Any]: ...

    def add(self, step: Any) -> None: ...

    def sample(self) -> Any: ...

    def sample_and_update(self) -> Any: ...

    def reward_of(self, batch: Any) -> np.ndarray: ...


class Lakepond(Contestant):
    """What is measured here."""

    name = "lakepond"

    def __init__(self, capacity: int, envs: int, *, prioritised: bool = False, n_step: int = 1) -> None:
        import lakepond as lp

        spec = lp.Spec(obs=lp.Field((OBS,), "float32"), action=lp.Field((ACTIONS,), "float32"))
        self._replay = lp.Replay(spec, capacity, alpha=ALPHA if prioritised else None)
        self._rng = np.random.default_rng(0)
        self._n_step, self._envs = n_step, envs

    def prepare(self, data: Data) -> list[Any]:
        return data.calls(one=self._envs == 1)

    def add(self, step: Any) -> None:
        obs, action, reward, next_obs, terminated, truncated = step
        self._replay.record(
            obs=obs,
            action=action,
            reward=reward,
            next_obs=next_obs,
            terminated=terminated,
            truncated=truncated,
        )

    def sample(self) -> Any:
        return self._replay.sample(BATCH, rng=self._rng, n_step=self._n_step, gamma=GAMMA)

    def sample_and_update(self) -> Any:
        batch = self._replay.sample(BATCH, rng=self._rng, beta=BETA)
        self._replay.update_priorities(batch.step_id, np.abs(batch.reward))
        return batch

    def reward_of(self, batch: Any) -> np.ndarray:
        return batch.reward


class Cpprb(Contestant):
    """cpprb; n-step returns are computed when steps are added."""

    name = "cpprb"

    def __init__(self, capacity: int, envs: int, *, prioritised: bool = False, n_step: int = 1) -> None:
        from cpprb import PrioritizedReplayBuffer, ReplayBuffer

        columns = {
            "obs": {"shape": OBS, "dtype": np.float32},
            "act": {"shape": ACTIONS, "dtype": np.float32},
            "rew": {},
            "next_obs": {"shape": OBS, "dtype": np.float32},
            "done": {},
        }
        more: dict[str, Any] = {"alpha": ALPHA} if prioritised else {}
        if n_step > 1:
            more["Nstep"] = {"size": n_step, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}
        kind = PrioritizedReplayBuffer if prioritised else ReplayBuffer
        self._buffer, self._envs = kind(capacity, columns, **more), envs

    def prepare(self, data: Data) -> list[Any]:
        return data.calls(one=self._envs == 1)

    def add(self, step: Any) -> None:
        obs, action, reward, next_obs, done, _ = step
        self._buffer.add(obs=obs, act=action, rew=reward, next_obs=next_obs, done=done)
        if self._envs == 1 and done:
            self._buffer.on_episode_end()

    def sample(self) -> Any:
        return self._buffer.sample(BATCH)

    def sample_and_update(self) -> Any:
        batch = self._buffer.sample(BATCH, beta=BETA)
        self._buffer.update_priorities(batch["indexes"], np.abs(batch["rew"][:, 0]))
        return batch

    def reward_of(self, batch: Any) -> np.ndarray:
        return batch["rew"][:, 0]


class StableBaselines(Contestant):
    """stable-baselines3; it has no priorities."""

    name = "SB3"

    def __init__(self, capacity: int, envs: int, *, prioritised: bool = False, n_step: int = 1) -> None:
        from gymnasium.spaces import Box
        from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

        if prioritised:
            raise LookupError("it has no priorities")
        spaces = (Box(-np.inf, np.inf, (OBS,), np.float32), Box(-1, 1, (ACTIONS,), np.float32))
        self._infos: list[dict[str, Any]] = [{} for _ in range(envs)]
        if n_step > 1:
            self._buffer: Any = NStepReplayBuffer(
                capacity, *spaces, device="cpu", n_envs=envs, n_steps=n_step, gamma=GAMMA
            )
        else:
            self._buffer = ReplayBuffer(capacity, *spaces, device="cpu", n_envs=envs)

    def prepare(self, data: Data) -> list[Any]:
        return data.calls(one=False)  # a vector environment, also of one

    def add(self, step: Any) -> None:
        obs, action, reward, next_obs, done, _ = step
        self._buffer.add(obs, next_obs, action, reward, done, self._infos)

    def sample(self) -> Any:
        return self._buffer.sample(BATCH)

    def sample_and_update(self) -> Any:
        raise LookupError("it has no priorities")

    def reward_of(self, batch: Any) -> np.ndarray:
        return batch.rewards.numpy()[:, 0]


class TorchRL(Contestant):
    """TorchRL; n-step returns are computed by its transform when steps are added."""

    name = "TorchRL"

    def __init__(self, capacity: int, envs: int, *, prioritised: bool = False, n_step: int = 1) -> None:
        logging.getLogger("torchrl").setLevel(logging.WARNING)
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

        if n_step > 1:
            raise LookupError("its n-step transform works on trajectories of a collector")
        self._envs = envs
        if prioritised:
            self._buffer: Any = TensorDictPrioritizedReplayBuffer(
                alpha=ALPHA, beta=BETA, storage=LazyTensorStorage(capacity), batch_size=BATCH
            )
        else:
            self._buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=BATCH)

    def prepare(self, data: Data) -> list[Any]:
        import torch

        data.reward = data.reward.astype(np.float32)
        return [[torch.from_numpy(value) for value in step] for step in data.calls(one=False)]

    def add(self, step: Any) -> None:
        from tensordict import TensorDict

        obs, action, reward, next_obs, terminated, truncated = step
        columns = {
            "obs": obs,
            "next_obs": next_obs,
            "action": action,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
        }
        self._buffer.extend(TensorDict(columns, batch_size=[self._envs]))

    def sample(self) -> Any:
        return self._buffer.sample()

    def sample_and_update(self) -> Any:
        batch = self._buffer.sample()
        batch["td_error"] = batch["reward"].abs()
        self._buffer.update_tensordict_priority(batch)
        return batch

    def reward_of(self, batch: Any) -> np.ndarray:
        return batch["reward"].numpy()


class Tianshou(Contestant):
    """tianshou; n-step returns are computed by its policies, not by the buffer."""

    name = "tianshou"

    def __init__(self, capacity: int, envs: int, *, prioritised: bool = False, n_step: int = 1) -> None:
        from tianshou.data import Batch, PrioritizedVectorReplayBuffer, VectorReplayBuffer

        if n_step > 1:
            raise LookupError("its policies compute n-step returns, not its buffers")
        self._batch = Batch
        if prioritised:
            self._buffer: Any = PrioritizedVectorReplayBuffer(capacity, envs, alpha=ALPHA, beta=BETA)
        else:
            self._buffer = VectorReplayBuffer(capacity, envs)

    def prepare(self, data: Data) -> list[Any]:
        return data.calls(one=False)

    def add(self, step: Any) -> None:
        obs, action, reward, next_obs, terminated, truncated = step
        made = self._batch(
            obs=obs,
            act=action,
            rew=reward,
            terminated=terminated,
            truncated=truncated,
            obs_next=next_obs,
            info=self._batch(),
        )
        self._buffer.add(made)

    def sample(self) -> Any:
        return self._buffer.sample(BATCH)[0]

    def sample_and_update(self) -> Any:
        batch, indices = self._buffer.sample(BATCH)
        self._buffer.update_weight(indices, np.abs(batch.rew))
        return batch

    def reward_of(self, batch: Any) -> np.ndarray:
        return batch.rew


CONTESTANTS: list[type[Contestant]] = [Lakepond, Cpprb, StableBaselines, TorchRL, Tianshou]


def make_all(capacity: int, envs: int, **more: Any) -> dict[str, Contestant]:
    """The contestants that have this feature, empty."""
    found = {}
    for kind in CONTESTANTS:
        try:
            found[kind.name] = kind(capacity, envs, **more)
        except (LookupError, RuntimeError) as error:
            if not isinstance(error, LookupError) and "is not available" not in str(error):
                raise
    return found


def adding(envs: int, calls: int, capacity: int, repeats: int) -> dict[str, Rate]:
    """Calls a second, filling and overwriting the ring."""
    buffers = make_all(capacity, envs)

    def add(buffer: Contestant, steps: list[Any]) -> None:
        for step in steps:
            buffer.add(step)

    turns = {
        name: partial(add, buffer, buffer.prepare(Data(calls, envs))) for name, buffer in buffers.items()
    }
    return interleaved(turns, calls, repeats)


def sampling(method: str, capacity: int, repeats: int, **more: Any) -> dict[str, Rate]:
    """Batches a second from a full ring of one environment, which is checked first."""
    data, buffers = Data(capacity, 1), make_all(capacity, 1, **more)
    many = 50
    for buffer in buffers.values():
        for step in buffer.prepare(Data(capacity, 1)):
            buffer.add(step)
        if "n_step" not in more:
            rewards = buffer.reward_of(getattr(buffer, method)())
            if len(rewards) != BATCH or not np.isin(rewards, data.reward).all():
                raise AssertionError(f"{buffer.name} hands over steps that were never added")

    def sample(buffer: Contestant) -> None:
        for _ in range(many):
            getattr(buffer, method)()

    turns = {name: lambda buffer=buffer: sample(buffer) for name, buffer in buffers.items()}
    return interleaved(turns, many, repeats)


def run(quick: bool) -> list[Section]:
    """One row per measure: microseconds of each contestant, and the ratio to the fastest peer."""
    import torch

    torch.set_num_threads(1)  # with two, its small operations are slower
    names = [kind.name for kind in CONTESTANTS]
    columns = ["measure", *names, "unit", "fastest peer / lakepond", "bar", "verdict"]
    section = Section("vectors: 17 floats, 6 actions", columns)
    size, repeats = (20_000, 3) if quick else (1_000_000, 15)
    calls = 2_000 if quick else 20_000
    measured = {
        "add, one step per call": adding(1, calls, size, repeats),
        "add, eight environments per call": adding(8, calls // 4, size, repeats),
        f"sample({BATCH})": sampling("sample", size // 5, repeats),
        f"sample({BATCH}), {N_STEP}-step returns": sampling("sample", size // 5, repeats, n_step=N_STEP),
        f"sample({BATCH}) by priority and update": sampling(
            "sample_and_update", size // 5, repeats, prioritised=True
        ),
    }
    for measure, rates in measured.items():
        micros = {name: 1e6 / rate.best for name, rate in rates.items()}
        ratio = min(micros[name] for name in micros if name != "lakepond") / micros["lakepond"]
        cells = [micros.get(name) for name in names]
        section.add(measure, *cells, "µs per call", ratio, "above 1", ratio > 1)
    section.notes += [
        f"rings of {size:,} steps for adding and {size // 5:,} for sampling; rewards are float64, as "
        "Gymnasium returns them; new arrays for every batch; best of the turns, which alternate",
        "torch runs with one thread; SB3 and TorchRL hand over tensors, the others NumPy arrays",
        "–: the library has no such buffer (SB3: priorities; TorchRL, tianshou: n-step returns)",
    ]
    return [section]
