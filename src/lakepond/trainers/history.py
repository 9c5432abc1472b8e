"""The history of a run: recent steps on the device, all steps in a lake, and a fill from it now and then.

    agent ──add──▶ recent ──pour──▶ lake ──fill──▶ filled ──draw──▶ agent
                     └────────────────draw────────────────────────▶

`recent` holds the steps between two checkpoints, or half of all that is held if they are more. When it is
full, and before every checkpoint, the lake is filled into the other pond, all of it if it fits and else a
uniform sample, and `recent` starts empty. So a checkpoint needs no pond: its commit of the lake and the
number of the update determine what it held. A history of the newest N steps is filled from the newest
N - `recent` steps of the lake, so that it holds no older step when `recent` is full.
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


def make_memory(
    obs: Field,
    pqn: PQNSettings,
    steps: int,
    env_steps: int,
    checkpoint: int,
    *,
    newest: int | None = None,
    rewarded: float = 0.0,
    runs: int = 1,
) -> HistoryPonds:
    """Ponds of at most `steps` steps together, for a run of `env_steps` and `checkpoint` per checkpoint.

    newest: the size of the history, if it is not all steps; rewarded: see `HistoryPonds`; runs: that have
    such ponds at a time. Raises `ConfigError` if the steps are too few, `SpecError` if the ponds do not fit
    the device.
    """
    for name, given in {"replay_pond": steps, "replay_newest": newest}.items():
        if given is not None and given < 2 * pqn.frames:
            raise ConfigError(
                f"{name} is {given:,} steps, less than two updates of {pqn.frames:,}; raise it."
            )
    steps = steps if newest is None else min(steps, newest)
    recent = max(1, min(steps // 2, checkpoint, env_steps) // pqn.frames) * pqn.frames
    filled = min(steps - recent, env_steps)
    ponds = arena.make_pond(obs, pqn.envs, recent), device_fill.pond_for(obs, filled)
    memory = HistoryPonds(*ponds, rewarded)
    check_fits(runs * (memory.recent.nbytes + memory.filled.nbytes), runs * (recent + filled))
    return memory


class PouredHistory:
    """A history and its lake; `state` is an argument and a result of the jitted functions."""

    def __init__(
        self, memory: HistoryPonds, obs: jax.Array, lake: DeviceLake, newest: int | None = None
    ) -> None:
        """An empty history of at most the `newest` steps; the first ones start from `obs`, (lanes, ...)."""
        self.memory, self.lake = memory, lake
        room = memory.recent.lanes * memory.recent.capacity
        self._newest = None if newest is None else newest - room  # of the lake: `recent` has the others
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
            filled, newest = self.state.filled, self._newest
            older = len(lake) if newest is None else min(newest, len(lake))
            self.state = self.state._replace(filled=None)  # type: ignore[arg-type]  # its memory is reused
            rng = np.random.default_rng(seed)
            shape, filled = device_fill.fill(self.memory.filled, filled, lake, rng, newest=newest)
        self.memory = replace(self.memory, filled=shape)
        recent = self.memory.recent.empty(self.state.recent)
        self.state = jax.block_until_ready(HistoryState(recent, filled, jnp.int32(older)))  # type: ignore[no-untyped-call]
