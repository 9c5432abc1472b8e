"""MinAtar on the device: five small games on a 10 x 10 board (Young and Tian 2019, arXiv 1903.03176).

The rules are gymnax's. Ours are the sticky actions that MinAtar's authors ask for and gymnax leaves out:
with probability 0.1 the last action is repeated, in training and in evaluation. Without them Breakout has
two start states and no other chance, and a greedy evaluation is at most two different games.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from lakepond.envs.games import find_game
from lakepond.envs.gymnax import Gymnax
from lakepond.types import Field

GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")


@dataclass(frozen=True)
class MinAtar(Gymnax):
    """Many copies of one MinAtar game, as uint8 observations of (10, 10, channels)."""

    sticky: float = 0.1
    _suffix: ClassVar[str] = "-MinAtar"

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", find_game(self.name, GAMES, "MinAtar"))

    @cached_property
    def obs(self) -> Field:
        """The board, one plane per kind of object, stored as one row."""
        return Field(self._rules.obs_shape, "uint8", rows=None)
