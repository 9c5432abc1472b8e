"""The history of a run: recent steps on the device, all steps in a lake, and a fill from it now and then.

    agent ──add──▶ recent ──pour──▶ lake ──fill──▶ filled ──draw──▶ agent
                     └────────────────draw────────────────────────▶

`recent` holds the steps between two checkpoints, or half of all that is held if they are more. When it is
full, and before every checkpoint, the lake is filled into the other pond, all of it if it fits and else a
uniform sample, and `recent` starts empty. So a checkpoint needs no pond: its commit of the lake and the
number of the update determine what it held.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.agents.replay import HistoryPonds, HistoryState
from lakepond.agents.settings import PQNSettings
from lakepond.errors import ConfigError
from lakepond.flow import device_fill
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.lake.format.commits import Commit
from lakepond.lake.read.lake import Lake
from lakepond.pond.device_memory import check_fits
from lakepond.trainers import arena
from lakepond.types import Field


def make_memory(obs: Field, pqn: PQNSettings, steps: int, env_steps: int, checkpoint: int) -> HistoryPonds:
    """Ponds of at most `steps` steps together, for a run of `env_steps` and `checkpoint` per checkpoint.

    Raises `ConfigError` if they are too few, `SpecError` if they do not fit the device.
    """
    if steps < 2 * pqn.frames:
        raise ConfigError(
            f"replay_pond is {steps:,} steps, less than two updates of {pqn.frames:,}; raise it."
        )
    recent = max(1, min(steps // 2, checkpoint, env_steps) // pqn.frames) * pqn.frames
    filled = min(steps - recent, env_steps)
    memory = HistoryPonds(arena.make_pond(obs, pqn.envs, recent), device_fill.pond_for(obs, filled))
    check_fits(memory.recent.nbytes + memory.filled.nbytes, recent + filled)
    return memory


class PouredHistory:
    """A history and its lake; `state` is an argument and a result of the jitted functions."""

    def __init__(self, memory: HistoryPonds, obs: jax.Array, lake: DeviceLake) -> None:
        """An empty history; the first steps start from `obs`, (lanes, ...)."""
        self.memory, self.lake = memory, lake
        recent = memory.recent.begin(memory.recent.init(), obs)
        self.state = HistoryState(recent, memory.filled.init(), jnp.int32(0))
        self._poured = 0  # steps of each lane of `recent` that are in the lake

    def pour(self, note: dict[str, Any]) -> None:
        """Hand new steps over to the lake, which writes them in the background; they stay on the device."""
        recent = self.state.recent
        arena.pour_new(self.memory.recent, recent, self._poured, self.lake, note, "raise replay_pond")
        self._poured = int(recent.steps)

    def durable(self, note: dict[str, Any]) -> Commit | None:
        """The newest commit, once all steps are in it."""
        self.pour(note)
        return self.lake.wait()

    def fill(self, commit: int, seed: tuple[int, int]) -> None:
        """Load a uniform sample of the steps of a commit, the same for the same `seed`; empty `recent`."""
        with Lake.open(self.lake.path, commit) as lake:
            filled, older = self.state.filled, len(lake)
            self.state = self.state._replace(filled=None)  # type: ignore[arg-type]  # its memory is reused
            shape, filled = device_fill.fill(self.memory.filled, filled, lake, np.random.default_rng(seed))
        self.memory = replace(self.memory, filled=shape)
        recent = self.memory.recent.empty(self.state.recent)
        self.state = jax.block_until_ready(HistoryState(recent, filled, jnp.int32(older)))  # type: ignore[no-untyped-call]
