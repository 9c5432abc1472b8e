"""MinAtar on the device: five small games on a 10 x 10 board (Young and Tian 2019, arXiv 1903.03176).

The rules are gymnax's. Ours are the sticky actions that MinAtar's authors ask for and gymnax leaves out:
with probability 0.1 the last action is repeated, in training and in evaluation. Without them Breakout has
two start states and no other chance, and a greedy evaluation is at most two different games.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from lakepond.envs.games import find_game
from lakepond.envs.vector import EnvState, EnvStep
from lakepond.types import Field

GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")


@dataclass(frozen=True)
class MinAtar:
    """Many copies of one MinAtar game, as uint8 observations of (10, 10, channels)."""

    game: str
    sticky: float = 0.1
    """probability that the last action is repeated instead of the chosen one"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "game", find_game(self.game, GAMES, "MinAtar"))

    @property
    def resumes(self) -> bool:
        """All of it is arrays."""
        return True

    @property
    def name(self) -> str:
        """The game."""
        return self.game

    @cached_property
    def _rules(self) -> Any:
        import gymnax  # seconds: it imports plotting libraries

        with jax.ensure_compile_time_eval():  # it holds arrays, which must not be those of a trace
            return gymnax.make(f"{self.game}-MinAtar")[0]

    @cached_property
    def obs(self) -> Field:
        """The board, one plane a kind of thing; all of it is one row."""
        return Field(self._rules.obs_shape, "uint8", rows=None)

    @property
    def actions(self) -> int:
        """The minimal set of the game."""
        return int(self._rules.num_actions)

    def reset(self, key: jax.Array, count: int) -> EnvState:
        """`count` copies at the start of an episode."""
        obs, inner = jax.vmap(self._rules.reset_env, (0, None))(
            jax.random.split(key, count), self._rules.default_params
        )
        return EnvState(inner, obs.astype(jnp.uint8), jnp.zeros(count, jnp.int32), jnp.zeros(count))

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
        obs = obs.astype(jnp.uint8)
        step = EnvStep(
            obs=obs,
            next_obs=info["final_observation"].astype(jnp.uint8),
            reward=reward.astype(jnp.float32),
            terminated=terminated,
            truncated=truncated,
            score=score,
            over=ended,
        )
        return EnvState(inner, obs, jnp.where(ended, 0, action), jnp.where(ended, 0.0, score)), step
