"""The settings of PQN; separate from its code so that `--help` does not import JAX."""

from __future__ import annotations

from dataclasses import dataclass

from lakepond.errors import ConfigError


@dataclass(frozen=True)
class PQNSettings:
    """Settings of PQN; the defaults are those published for MinAtar."""

    envs: int = 128
    """copies of the environment per agent"""
    rollout: int = 32
    """steps of each copy between two updates"""
    epochs: int = 2
    """passes over the steps of a rollout"""
    minibatches: int = 32
    """gradient steps per epoch; must divide envs x rollout"""
    gamma: float = 0.99
    """discount factor per step"""
    lam: float = 0.65
    """lambda of the lambda-returns, 0 to 1"""
    learning_rate: float = 5e-4
    """initial learning rate of the agents; decays linearly to 0 over the run"""
    max_gradient: float = 10.0
    """largest norm of the gradient; larger gradients are scaled down"""

    def __post_init__(self) -> None:
        counts = (self.envs, self.rollout, self.minibatches)  # their limits are checked by the trainers
        if all(count >= 1 for count in counts) and (self.envs * self.rollout) % self.minibatches:
            raise ConfigError(
                f"envs x rollout = {self.envs} x {self.rollout} steps cannot be divided into "
                f"{self.minibatches} minibatches; choose a divisor of {self.envs * self.rollout}."
            )

    @property
    def update_steps(self) -> int:
        """Environment steps of one update."""
        return self.envs * self.rollout

    @property
    def gradient_steps(self) -> int:
        """Of one update, one after the other."""
        return self.epochs * self.minibatches
