"""Any gymnax environment with discrete actions, by its id: its copies run on the device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.envs.games import find_game
from lakepond.envs.vector import EnvState, EnvStep
from lakepond.errors import ConfigError
from lakepond.lazy import deferred
from lakepond.types import Field


def _gymnax() -> Any:
    """The library, without the second that it takes to import what only its pictures need."""
    with deferred("seaborn", "matplotlib.pyplot"):
        import gymnax
    return gymnax


@dataclass(frozen=True)
class Gymnax:
    """Many copies of one environment."""

    name: str
    """the game"""
    sticky: float = 0.0
    """probability that the last action is repeated instead of the chosen one"""
    resumes: ClassVar[bool] = True
    """all of it is arrays"""
    _suffix: ClassVar[str] = ""
    """of the id, after the name"""

    def __post_init__(self) -> None:
        games = list(_gymnax().registered_envs)
        object.__setattr__(self, "name", find_game(self.name, games, "gymnax"))
        if not hasattr(self._rules.action_space(self._rules.default_params), "n"):
            raise ConfigError(f"{self.name} has continuous actions; these agents need discrete ones.")

    @cached_property
    def _rules(self) -> Any:
        with jax.ensure_compile_time_eval():  # it holds arrays, which must not be those of a trace
            return _gymnax().make(self.name + self._suffix)[0]

    @cached_property
    def obs(self) -> Field:
        """One observation, a single row; small integers and flags as uint8, else float32."""
        key = jax.ShapeDtypeStruct((2,), jnp.uint32)  # type: ignore[no-untyped-call]
        seen, _ = jax.eval_shape(self._rules.reset_env, key, self._rules.default_params)
        if not hasattr(seen, "shape"):
            raise ConfigError(f"an observation of {self.name} is {seen}; these agents need a single array.")
        kind = "uint8" if np.dtype(seen.dtype) in (np.uint8, np.bool_) else "float32"
        return Field(seen.shape, kind, rows=None)

    @property
    def actions(self) -> int:
        """The number of actions."""
        return int(self._rules.num_actions)

    def reset(self, key: jax.Array, count: int) -> EnvState:
        """`count` copies at the start of an episode."""
        obs, inner = jax.vmap(self._rules.reset_env, (0, None))(
            jax.random.split(key, count), self._rules.default_params
        )
        # without weak types, which steps do not return: programs would be compiled twice
        inner = jax.tree.map(lambda x: jnp.asarray(x, x.dtype), inner)
        return EnvState(inner, obs.astype(self.obs.dtype), jnp.zeros(count, jnp.int32), jnp.zeros(count))

    def step(self, state: EnvState, action: jax.Array, key: jax.Array) -> tuple[EnvState, EnvStep]:
        """One step of every copy; those whose episode ends are reset."""
        count = action.shape[0]
        key_sticky, key_step = jax.random.split(key)
        repeats = jax.random.uniform(key_sticky, (count,)) < self.sticky
        action = jnp.where(repeats, state.last_action, action)
        obs, inner, reward, terminated, truncated, info = jax.vmap(self._rules.step, (0, 0, 0, None))(
            jax.random.split(key_step, count), state.inner, action, self._rules.default_params
        )
        truncated = truncated & ~terminated
        ended = terminated | truncated
        score = state.score + reward
        obs = obs.astype(self.obs.dtype)
        step = EnvStep(
            obs=obs,
            next_obs=info["final_observation"].astype(self.obs.dtype),
            reward=reward.astype(jnp.float32),
            terminated=terminated,
            truncated=truncated,
            score=score,
            over=ended,
        )
        return EnvState(inner, obs, jnp.where(ended, 0, action), jnp.where(ended, 0.0, score)), step
