"""Epsilon, the share of random actions: one schedule that can be reset, for one agent or many.

    value
    1.0 ┤╲
        │ ╲            reset(to=0.3)
    0.3 ┤  ╲           ╱╲
        │   ╲         ╱  ╲
    end ┤    ╲───────╱    ╲──────────
        └────────────┬───────────────▶ environment steps

The schedule is what is true (a frozen record), `EpsilonState` what flows: where each agent started from and
how many of its own environment steps ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from lakepond.errors import ConfigError


class EpsilonState(NamedTuple):
    """One number, or one for each agent."""

    start: jax.Array
    """the value right after the last reset"""
    age: jax.Array
    """the agent's own environment steps since then"""


@dataclass(frozen=True)
class Epsilon:
    """From `start` to `end` over `env_steps` of the agent's own environment steps, then constant."""

    kind: Literal["linear", "exponential", "constant"] = "linear"
    start: float = 1.0
    end: float = 0.05
    env_steps: int = 100_000
    """the agent's own environment steps until `end` is reached; a constant epsilon stays at `start`"""
    offsets: tuple[float, ...] = ()
    """added to each agent's value, for agents that explore differently; none: all alike"""

    def __post_init__(self) -> None:
        if not (0 <= self.end <= 1 and 0 <= self.start <= 1):
            raise ConfigError(f"epsilon goes from {self.start} to {self.end}; both must be in [0, 1].")
        if self.env_steps < 1:
            raise ConfigError(f"the epsilon schedule has {self.env_steps} steps; it must have at least 1.")
        if self.kind != "constant" and self.start < self.end:
            raise ConfigError(
                f"epsilon starts at {self.start} and cannot fall to {self.end}; lower its end, or take a "
                "constant epsilon."
            )
        if self.kind == "exponential" and self.end == 0:
            raise ConfigError(
                "an exponential epsilon must fall to an end above 0; use a linear schedule for 0."
            )

    def init(self) -> EpsilonState:
        """The schedule at its start."""
        return EpsilonState(jnp.float32(self.start), jnp.int32(0))

    def value(self, state: EpsilonState, agent: jax.Array | int = 0) -> jax.Array:
        """The current value."""
        part = jnp.minimum(state.age / self.env_steps, 1.0)
        if self.kind == "constant":
            value = state.start
        elif self.kind == "linear":
            value = state.start + part * (jnp.minimum(self.end, state.start) - state.start)
        else:
            value = state.start * (jnp.minimum(self.end / state.start, 1.0)) ** part
        if self.offsets:
            value = value + jnp.asarray(self.offsets, jnp.float32)[jnp.asarray(agent) % len(self.offsets)]
        return jnp.clip(value, 0.0, 1.0)

    def advance(self, state: EpsilonState, env_steps: int | jax.Array) -> EpsilonState:
        """The schedule after `env_steps` more steps of the agent."""
        return state._replace(age=state.age + env_steps)

    def reset(self, state: EpsilonState, to: float | None) -> EpsilonState:
        """Restart at that value (1.0: a full restart); None: continue unchanged."""
        if to is None:
            return state
        if not 0 <= to <= 1:
            raise ConfigError(f"epsilon cannot be reset to {to}; it must be in [0, 1].")
        return EpsilonState(jnp.full_like(state.start, to), jnp.zeros_like(state.age))
