"""Any Gymnasium environment with discrete actions: its copies live on the host and are stepped inside `jit`.

    Gymnasium("CartPole-v1")       any id that is registered; "module:Id" imports the module first
    Gymnasium(MyVectorEnv)         a function that makes a vector environment of n copies
    Gymnasium(MyVectorEnv(32))     one that is there: for one agent, with as many copies

An id makes copies that reset within the step that ends an episode, so that its true last observation is
seen. Other vector environments do it as their `autoreset_mode` says. With NEXT_STEP a new episode begins with
a step of its own, whose action does nothing: it is reported as what it is worth, from an episode's last
observation to the same, reward 0, and counts as no episode.

Observations that are no single array are flattened, as Gymnasium does it: a `Discrete` one becomes a one-hot.
The state of a host's environment cannot be saved: a run that is resumed begins new episodes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from jax.experimental import io_callback

from lakepond.envs.games import find_game
from lakepond.envs.vector import EnvState, EnvStep, on_host
from lakepond.errors import ConfigError
from lakepond.types import Array, Field

Maker = Callable[[int], Any]
"""makes a vector environment of that many copies"""


class Gymnasium:
    """Many copies of one environment; two of these are never equal, for each has copies of its own."""

    resumes = False

    def __init__(self, env: str | Maker | VectorEnv[Any, Any, Any], *, reuse: bool = False) -> None:
        """`reuse`: a reset takes copies again that were stepped before, as an evaluation does."""
        self._only = env if isinstance(env, VectorEnv) else None
        self._make = _maker(env)
        self._reuse = reuse or self._only is not None
        self._opened: list[_Copies] = []
        one = self._make(1)
        self.name = _find(env) if isinstance(env, str) else type(one.unwrapped).__name__
        space, actions = one.single_observation_space, one.single_action_space
        if self._only is None:
            one.close()
        if not isinstance(actions, spaces.Discrete):
            raise ConfigError(
                f"{self.name} has the action space {actions}; these agents need discrete actions."
            )
        if not isinstance(space, spaces.Box):
            raise ConfigError(
                f"{self.name} has the observation space {space}; wrap it so that it "
                "returns one array (a Box)."
            )
        self.actions, self._first_action = int(actions.n), int(actions.start)
        self.obs = Field(space.shape, "uint8" if space.dtype in (np.uint8, bool) else "float32", rows=None)

    def reset(self, key: jax.Array, count: int) -> EnvState:
        """`count` copies at the start of an episode."""
        if self._only is not None and self._only.num_envs != count:
            raise ConfigError(
                f"{count} copies of {self.name} are needed, but the given environment has "
                f"{self._only.num_envs}; pass a function that creates them."
            )
        seed = jax.random.randint(key, (), 0, 2**31 - 1 - count)
        outputs = _output((), "int32"), self._observations(count)
        begin = on_host(partial(io_callback, lambda seed: self._open(count, int(seed)), outputs))
        number, obs = begin(seed)
        return EnvState(number, obs, jnp.zeros(count, jnp.int32), jnp.zeros(count))

    def step(self, state: EnvState, action: jax.Array, key: jax.Array) -> tuple[EnvState, EnvStep]:
        """One step of every copy; chance is their own, so the key is not used."""
        count = action.shape[0]
        seen = self._observations(count)
        flags = [_output((count,), "bool")] * 3
        outputs = _output((), "int32"), seen, seen, _output((count,), "float32"), *flags
        # the callback depends on the number that the previous step returned, so steps keep their order
        advance = on_host(partial(io_callback, self._step, outputs))
        number, obs, next_obs, reward, terminated, truncated, over = advance(
            state.inner, action + self._first_action
        )
        score = state.score + reward
        step = EnvStep(obs, next_obs, reward, terminated, truncated, score, over)
        return EnvState(number, obs, action, jnp.where(terminated | truncated, 0.0, score)), step

    def _observations(self, count: int) -> Any:
        return _output((count, *self.obs.shape), self.obs.dtype)

    def _open(self, count: int, seed: int) -> tuple[Array, Array]:
        """On the host: copies that have no other user. Those not stepped yet are another agent's."""
        opened = enumerate(self._opened)
        free = (i for i, c in opened if self._reuse and c.stepped and c.env.num_envs == count)
        number = next(free, len(self._opened))
        if number == len(self._opened):
            self._opened.append(_Copies(self._make(count), self.obs.dtype))
        return np.array(number, np.int32), self._opened[number].reset(seed)

    def _step(self, number: Array, action: Array) -> tuple[Array, ...]:
        return np.asarray(number), *self._opened[int(number)].step(np.asarray(action))


class _Copies:
    """A vector environment with any autoreset mode; `reset` comes first."""

    def __init__(self, env: VectorEnv[Any, Any, Any], dtype: Any) -> None:
        declared = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self.env, self.dtype = env, np.dtype(dtype)
        self.mode = AutoresetMode(getattr(env.unwrapped, "autoreset_mode", declared))

    def reset(self, seed: int) -> Array:
        self.stepped = False
        self.terminated = self.truncated = np.zeros(self.env.num_envs, bool)
        self.obs = np.array(self.env.reset(seed=seed)[0], self.dtype)
        return self.obs

    def step(self, action: Array) -> tuple[Array, ...]:
        """What follows, what truly followed, reward, terminated, truncated, and whether an episode ended."""
        self.stepped = True
        before, starting = self.obs, self.terminated | self.truncated
        seen, reward, terminated, truncated, info = self.env.step(action)
        obs = np.array(seen, self.dtype)
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool) & ~terminated
        reward, next_obs = np.array(reward, np.float32), obs
        over = terminated | truncated
        if self.mode == AutoresetMode.NEXT_STEP:
            # the step that starts an episode ends as the one before it did
            ended = self.terminated, self.truncated
            self.terminated, self.truncated = terminated & ~starting, truncated & ~starting
            over = self.terminated | self.truncated
            if starting.any():
                next_obs = np.where(starting.reshape(-1, *[1] * (obs.ndim - 1)), before, obs)
                reward = np.where(starting, np.float32(0), reward)
                terminated = np.where(starting, ended[0], terminated)
                truncated = np.where(starting, ended[1], truncated)
        elif over.any():
            if self.mode == AutoresetMode.SAME_STEP:
                next_obs = obs.copy()
                for i in np.flatnonzero(over):
                    next_obs[i] = info["final_obs"][i]
            else:
                first = self.env.reset(options={"reset_mask": over})[0]
                obs = np.where(over.reshape(-1, *[1] * (obs.ndim - 1)), np.array(first, self.dtype), obs)
        self.obs = obs
        return obs, next_obs, reward, terminated, truncated, over


def _output(shape: tuple[int, ...], dtype: Any) -> Any:
    """The type of an array that a callback returns."""
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _maker(env: str | Maker | VectorEnv[Any, Any, Any]) -> Maker:
    """What makes copies."""
    if isinstance(env, VectorEnv):
        return lambda _: env
    if not isinstance(env, str):
        return env
    found = _find(env)

    def make(count: int) -> Any:
        if gymnasium.spec(found).entry_point is None:  # there are only vector environments of it
            return gymnasium.make_vec(found, count)
        return gymnasium.make_vec(
            found,
            count,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
            wrappers=[_as_array],
            disable_env_checker=True,
        )

    return make


def _as_array(env: Any) -> Any:
    is_array = isinstance(env.observation_space, spaces.Box)
    return env if is_array else gymnasium.wrappers.FlattenObservation(env)


def _find(name: str) -> str:
    """The id that is meant; without a version the newest."""
    module, _, wanted = name.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"{name!r}: the module {module!r} cannot be imported ({error}).") from error
    newest: dict[str, Any] = {}
    for spec in gymnasium.registry.values():
        bare = spec.id.rpartition("-v")[0] if spec.version is not None else spec.id
        if bare not in newest or (spec.version or 0) > (newest[bare].version or 0):
            newest[bare] = spec
    if wanted in newest:
        return str(newest[wanted].id)
    return find_game(wanted, list(gymnasium.registry), "Gymnasium")
