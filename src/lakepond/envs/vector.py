"""What the trainers ask of an environment: many copies at once, stepped by pure functions inside `jit`.

    state = env.reset(key, count)
    state, step = env.step(state, action, key)

An episode that ends is reset automatically: `step.obs` is then the first observation of the next episode
and `step.next_obs` the true last one of this. `terminated` (the game is over) and `truncated` (the time
is) stay apart: a value is bootstrapped behind the second, never behind the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import jax
from jax.custom_batching import sequential_vmap

from lakepond.types import Field


class EnvState(NamedTuple):
    """Many copies of an environment between two steps."""

    inner: Any
    obs: jax.Array
    last_action: jax.Array
    score: jax.Array
    """the sum of the true rewards of the episode so far"""


class EnvStep(NamedTuple):
    """The result of one step; every array has a leading axis of copies."""

    obs: jax.Array
    """what the next action is chosen from"""
    next_obs: jax.Array
    """what truly followed, also at an episode's end"""
    reward: jax.Array
    """what the agent learns from"""
    terminated: jax.Array
    truncated: jax.Array
    score: jax.Array
    """the sum of the true rewards of the episode, this step included"""
    over: jax.Array
    """whether an episode ended here with that score"""


class Environment(Protocol):
    """Many copies of one game."""

    @property
    def name(self) -> str:
        """The game."""

    @property
    def obs(self) -> Field:
        """One observation; with `rows=0` it is a stack of frames, oldest first."""

    @property
    def actions(self) -> int:
        """The number of actions."""

    @property
    def resumes(self) -> bool:
        """Whether its state can be saved; if not, a run that is resumed begins new episodes."""

    def reset(self, key: jax.Array, count: int) -> EnvState:
        """`count` copies at the start of an episode."""

    def step(self, state: EnvState, action: jax.Array, key: jax.Array) -> tuple[EnvState, EnvStep]:
        """One step of every copy."""


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls the host: under `vmap` it is called for one agent after another."""
    return cast("Callable[..., Any]", sequential_vmap(function))  # type: ignore[no-untyped-call]
