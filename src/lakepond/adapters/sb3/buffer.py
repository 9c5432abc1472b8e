"""`LakepondReplayBuffer`: an SB3 replay buffer over a lakepond replay.

A step of SB3 is a position and an environment; here it is a step id. Every call of `add` records one round,
a step of each environment, so the id of a step is `first + round * n_envs + env`, and a position holds the
newest round with `round % buffer_size == position`. Positions and environments are drawn as SB3 draws them,
from NumPy's global generator, so a seed gives the same batches as SB3's own buffer.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from lakepond.adapters.sb3 import storage
from lakepond.adapters.sb3.arrays import StoredArray
from lakepond.errors import LakeError, LakeNotFound, RecordError, ReplayClosed, SpecError, TooFewSteps
from lakepond.flow.agents_to_pond import FIELDS
from lakepond.replay import Replay
from lakepond.spaces import from_gymnasium
from lakepond.types import Array, Batch, Field, Spec, Tree, leaves, map_leaves

COMMIT_EVERY = 10_000
"""steps between two commits to a lake, by default"""
SMALL_BYTES = 2048
"""of a step, below which the cost of a call counts more than that of copying"""
UNUSED = 1000
"""batches without an update of priorities before a warning"""


class PrioritizedSamples(NamedTuple):
    """A batch of a prioritised buffer: SB3's fields, and what weighs the loss and names the steps."""

    observations: Any
    actions: Any
    next_observations: Any
    dones: Any
    rewards: Any
    discounts: Any
    weights: Any
    """importance weights (B, 1); the largest is 1"""
    step_ids: Array
    """for `update_priorities`"""


class LakepondReplayBuffer(ReplayBuffer):
    """SB3's replay buffer, storing each distinct row once; for Box, Discrete and Dict observations alike."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        alpha: float | None = None,
        beta: float = 0.4,
        path: str | None = None,
        cloud: str | None = None,
        commit_every: int = COMMIT_EVERY,
        lake_options: dict[str, Any] | None = None,
    ) -> None:
        """The first seven arguments are SB3's; pass the others in `replay_buffer_kwargs`.

        `n_steps`, `gamma`: n-step returns; give the gamma of the model. `alpha`: prioritised replay, with the
        exponent `beta` of the importance weights, for `PrioritizedDQN` and `PrioritizedSAC`.

        `path`: keep all steps in a lake there, and resume with its newest steps if it exists. It is committed
        every `commit_every` steps in the background, and by `save_replay_buffer`. `cloud`: the bucket that
        every commit is pushed to ("gs://bucket/run"), and that a lake is pulled from where `path` has none.
        `lake_options`: further arguments of `Replay.open`, such as {"min_free": "20GB"}.
        """
        if optimize_memory_usage:
            raise SpecError(
                "optimize_memory_usage=True would lose the last observation of every episode; leave it out, "
                "because lakepond stores each row once without it."
            )
        if n_envs < 1 or buffer_size < n_envs:
            raise SpecError(f"buffer_size={buffer_size} is less than one step of n_envs={n_envs}.")
        if n_steps < 1 or not 0 <= gamma <= 1:
            raise SpecError(f"n_steps must be at least 1 and gamma in [0, 1], not {n_steps} and {gamma}.")
        if path is None and (cloud is not None or lake_options):
            raise SpecError("cloud and lake_options need a lake; pass its folder as path.")
        if commit_every < 1:
            raise SpecError(f"commit_every must be a number of steps, at least 1, but is {commit_every}.")
        self.spec = spec_of(observation_space, action_space)
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size = buffer_size // n_envs
        self.optimize_memory_usage, self.handle_timeout_termination = False, handle_timeout_termination
        self.n_steps, self.gamma, self.alpha, self.beta = n_steps, gamma, alpha, beta
        self.path, self.cloud, self.lake_options = path, cloud, lake_options
        self.commit_every = commit_every
        self._open(None)
        if len(self.replay):
            self.end_episodes()

    # --- the replay ----------------------------------------------------------------------------------

    def _open(self, commit: int | None) -> None:
        """Open the replay, or the lake at a commit."""
        about = {
            "observation_space": str(self.observation_space),
            "action_space": str(self.action_space),
            "n_envs": self.n_envs,
            "first": 0,
        }
        capacity = self.buffer_size * self.n_envs
        if self.path is None:
            opened = storage.Storage(Replay(self.spec, capacity, alpha=self.alpha, threads=1), about)
        else:
            settings = {
                "spec": self.spec,
                "capacity": capacity,
                "alpha": self.alpha,
                "threads": 1,
                "cloud": self.cloud,
                "pull": None if self.cloud is None else "lazy",
                **(self.lake_options or {}),
            }
            opened = storage.over_lake(self.path, settings, about, commit=commit)
        self._use(opened)

    def _use(self, opened: storage.Storage) -> None:
        self._storage = opened
        weakref.finalize(self, opened.close)
        self._fields = [path for name in ("obs", "next_obs") for path, _ in leaves(self.spec.obs, name)]
        self._streams = np.arange(self.n_envs)
        self._small = self.spec.step_nbytes < SMALL_BYTES
        self._locate()
        self._committed = self.replay.recorded
        self._unused = 0  # batches sampled since priorities were updated

    def _locate(self) -> None:
        """Derive position and fullness from the steps recorded."""
        first = self._storage.about["first"]
        self._rounds = (self.replay.recorded - first) // self.n_envs
        self.pos, self.full = self._rounds % self.buffer_size, self._rounds >= self.buffer_size

    @property
    def replay(self) -> Replay:
        """The replay behind this buffer, for what SB3's buffers do not have: `stats()`, `lake()`."""
        return self._storage.replay

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.replay.stats()})"

    def ids_at(self, pos: Array, env: Array) -> Array:
        """The step ids at positions and environments; ids that are not recorded yet for empty positions."""
        newest = self._rounds - 1
        rounds = newest - (newest - pos) % self.buffer_size if self.full else pos
        ids: Array = self._storage.about["first"] + rounds * self.n_envs + env
        return ids

    def all_but(self, wanted: str) -> list[str]:
        """The observations to leave out when one field is read."""
        return [path for path in self._fields if path != wanted]

    def commit(self, *, wait: bool = True) -> None:
        """Make all steps durable in the lake; without `wait` in the background."""
        self._check_open()
        if self.path is None:
            raise LakeError("this buffer is in memory only; pass path='folder' to keep it in a lake.")
        self._storage.commit(wait=wait)
        self._committed = self.replay.recorded

    def close(self) -> None:
        """Commit the rest and release the lake; sampling still works. Done too when the buffer is dropped."""
        self._storage.close()

    def _check_open(self) -> None:
        if self._storage.stopped:
            raise ReplayClosed(self._storage.stopped)

    # --- recording -------------------------------------------------------------------------------------

    def add(
        self, obs: Tree, next_obs: Tree, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]
    ) -> None:
        """Record a step of each environment, as SB3's own."""
        self._check_open()
        spec, replay = self.spec, self._storage.replay
        ended = np.asarray(done).astype(np.bool_).reshape(-1)
        truncated = np.array([info.get("TimeLimit.truncated", False) for info in infos], np.bool_).reshape(-1)
        if not self.handle_timeout_termination:
            truncated = truncated & ended
        values = (
            self._values("obs", spec.obs, obs),
            self._values("next_obs", spec.obs, next_obs),
            self._values("action", spec.action, action),
            self._values("reward", spec.reward, reward),
            ended & ~truncated,
            truncated,
        )
        stream: Any = self._streams
        if self._small and self.n_envs == 1 == len(ended) == len(truncated):  # faster without a batch axis
            values, stream = tuple(_first(value) for value in values), 0
        replay.record(**dict(zip(FIELDS, values, strict=True)), stream=stream)
        self._rounds += 1
        self.pos += 1
        if self.pos == self.buffer_size:
            self.pos, self.full = 0, True
        uncommitted = replay.recorded - self._committed
        if self.path is not None and uncommitted >= min(self.commit_every, max(1, replay.capacity // 2)):
            self.commit(wait=False)

    def _values(self, name: str, field: Tree, value: Any) -> Tree:
        """A value of all environments with the dtype and shape of the spec, cast as SB3 casts it."""
        if isinstance(field, dict):
            if not isinstance(value, dict) or not value.keys() >= field.keys():
                got = sorted(value) if isinstance(value, dict) else type(value).__name__
                raise RecordError(f"{name} must be a dict with the keys {sorted(field)}, but is {got}.")
            return {key: self._values(f"{name}[{key!r}]", leaf, value[key]) for key, leaf in field.items()}
        array, shape = np.asarray(value), (self.n_envs, *field.shape)
        if array.shape == shape and array.dtype == field.dtype:
            return array
        try:
            return array.astype(field.dtype, copy=False).reshape(shape)
        except ValueError:
            raise RecordError(
                f"{name} has the shape {list(array.shape)}, but {self.n_envs} environments need "
                f"{list(shape)}."
            ) from None

    def reset(self) -> None:
        """Remove all steps from memory; steps in a lake stay there but are not sampled again."""
        self._check_open()
        self.replay.clear()
        self._storage.about["first"] = self.replay.recorded
        self._locate()
        if self.path is not None:
            self.commit()

    def end_episodes(self) -> None:
        """Mark the newest step of each environment as truncated unless its episode has ended.

        Called when a buffer resumes from its lake: the environments start new episodes.
        """
        for env in range(self.n_envs):
            newest = self.replay.recent(1, stream=env)
            if not (newest.terminated[0] or newest.truncated[0]):
                self.replay.end(env, truncated=True)

    # --- sampling --------------------------------------------------------------------------------------

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw a batch as SB3 does; `env` normalises it if it is a VecNormalize."""
        if self.alpha is None:
            if not self.size():
                raise TooFewSteps("the buffer has no steps; add some before sampling.")
            return BaseBuffer.sample(self, batch_size, env)
        rng = np.random.default_rng(np.random.randint(0, 2**31, size=4))
        self._unused += 1
        if self._unused == UNUSED:
            warnings.warn(
                f"{UNUSED} batches were sampled and no priority was updated; use PrioritizedDQN or "
                "PrioritizedSAC, or call update_priorities(batch.step_ids, td_errors).",
                RuntimeWarning,
                stacklevel=2,
            )
        chosen = self.replay.sample(batch_size, rng=rng, beta=self.beta, exclude=self._fields)
        samples = self._samples(chosen.step_id, env)
        weights = self._tensors(chosen.weight.astype(np.float32)[:, None])
        return PrioritizedSamples(*samples, weights=weights, step_ids=chosen.step_id)  # type: ignore[misc]

    def update_priorities(self, step_ids: Any, priorities: Any) -> None:
        """Set the priorities of the steps of a batch, usually their absolute TD errors."""
        self._unused = 0
        self.replay.update_priorities(step_ids, priorities)

    def _get_samples(self, batch_inds: Array, env: Any = None) -> Any:
        envs = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))
        return self._samples(self.ids_at(batch_inds, envs), env)

    def _samples(self, ids: Array, env: Any) -> Any:
        """The steps with these ids as SB3's samples."""
        batch = self.replay.steps(ids, n_step=self.n_steps, gamma=self.gamma)
        rewards, discounts = self._returns(batch, env)
        return self._as_samples(batch, rewards, discounts, env)

    def _as_samples(self, batch: Batch, rewards: Array, discounts: Array | None, env: Any) -> Any:
        """SB3's samples of a batch; a `done` is 1 where the bootstrap value must be ignored."""
        ended = batch.terminated
        if not self.handle_timeout_termination:
            ended = ended | batch.truncated
        kind = DictReplayBufferSamples if isinstance(batch.obs, dict) else ReplayBufferSamples
        return kind(
            observations=self._tensors(self._normalize_obs(batch.obs, env)),
            actions=self._tensors(batch.action),
            next_observations=self._tensors(self._normalize_obs(batch.next_obs, env)),
            dones=self._tensors(ended.astype(np.float32)[:, None]),
            rewards=self._tensors(rewards),
            discounts=None if discounts is None else self._tensors(discounts),
        )

    def _returns(self, batch: Batch, env: Any) -> tuple[Array, Array | None]:
        """The n-step return and the discount after it, in SB3's order of operations and precision.

        Each reward is normalised, and so clipped, before they are summed.
        """
        if self.n_steps == 1:
            return self._normalize_reward(batch.reward[:, None], env), None
        steps, first = np.arange(self.n_steps), self._storage.about["first"]
        newest = self.replay.recorded - self.n_envs + (batch.step_id - first) % self.n_envs
        ids = np.minimum(batch.step_id[:, None] + steps * self.n_envs, newest[:, None])
        counted = steps < batch.num_steps[:, None]
        each = self._normalize_reward(self.replay.steps(ids, exclude=self._fields).reward, env)
        factors = self.gamma ** steps.astype(np.float32)[None]
        rewards = np.where(counted, each * factors, 0).sum(axis=1, keepdims=True)  # inf * 0 would be NaN
        return rewards, self.gamma ** batch.num_steps.astype(np.float32)[:, None]

    def _tensors(self, tree: Tree) -> Any:
        """Tensors on the device; on the CPU they share the memory of the arrays, which nobody else has."""
        return map_leaves(lambda array: torch.as_tensor(array, device=self.device), tree)

    # --- SB3's arrays ----------------------------------------------------------------------------------

    def _stored(self, name: str) -> Any:
        if name in ("obs", "next_obs") and isinstance(self.spec.obs, dict):
            return {key: StoredArray(self, name, key) for key in self.spec.obs}
        return StoredArray(self, name)

    observations = property(lambda self: self._stored("obs"))
    next_observations = property(lambda self: self._stored("next_obs"))
    actions = property(lambda self: self._stored("action"))
    rewards = property(lambda self: self._stored("reward"))
    dones = property(lambda self: self._stored("dones"))
    timeouts = property(lambda self: self._stored("timeouts"))

    # --- saving ----------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """What `save_replay_buffer` pickles: with a lake its path and commit, without one all steps."""
        state = {name: value for name, value in self.__dict__.items() if name != "_storage"}
        if self.path is None:
            state["content"] = self.replay, self._storage.about
        else:
            self._check_open()
            state["commit"] = self._storage.commit().number
            self._committed = self.replay.recorded
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        content, commit = state.pop("content", None), state.pop("commit", None)
        self.__dict__.update(state)
        if content is not None:
            replay, about = content
            self._use(storage.Storage(replay, about))
        else:
            try:
                self._open(commit)
            except LakeNotFound as error:
                raise LakeNotFound(
                    f"the buffer was saved with commit {commit} of the lake {self.path}: {error} If it was "
                    "moved, give its folder as path in replay_buffer_kwargs: a model continues it by itself."
                ) from None
            if len(self.replay) and not hasattr(self, "truncate_last_trajectory"):  # SB3 calls that of HER
                self.end_episodes()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy without a lake; that of a buffer with a lake, which has one writer, can only be sampled."""
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        state = {name: value for name, value in self.__dict__.items() if name != "_storage"}
        new.__dict__.update(copy.deepcopy(state, memo), path=None, cloud=None, lake_options=None)
        about = dict(self._storage.about)
        new._use(storage.Storage(copy.deepcopy(self.replay, memo), about))
        return new


def _first(value: Tree) -> Tree:
    return {key: array[0] for key, array in value.items()} if isinstance(value, dict) else value[0]


def spec_of(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> Spec:
    """What SB3 stores of these spaces, as a spec."""
    obs: Tree
    if isinstance(observation_space, spaces.Dict):
        obs = {key: _field(space, f"observation_space[{key!r}]") for key, space in observation_space.items()}
    else:
        obs = _field(observation_space, "observation_space")
    return Spec(obs=obs, action=_field(action_space, "action_space", flat=True))


def _field(space: spaces.Space[Any], name: str, *, flat: bool = False) -> Field:
    """The field for a space, with its bounds or numbers; `flat`: as SB3 stores actions, never as float64."""
    known = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if not isinstance(space, known):
        raise SpecError(
            f"{name} is {space}; Stable-Baselines3 takes Box, Discrete, MultiDiscrete and MultiBinary, and "
            "for observations a Dict of these: convert it with a wrapper of gymnasium."
        )
    stored: Any = space
    if isinstance(space, spaces.Discrete):
        stored = spaces.MultiDiscrete([int(space.n)], start=[int(space.start)])
    elif flat and isinstance(space, spaces.Box):
        kind: Any = space.dtype
        stored = spaces.Box(space.low.reshape(-1), space.high.reshape(-1), dtype=kind)
    shape = (int(np.prod(stored.shape)),) if flat else tuple(stored.shape)
    dtype = np.dtype(np.float32) if flat and space.dtype == np.float64 else np.dtype(space.dtype)
    return Field(shape, dtype, space=from_gymnasium(stored))
