"""The agents' Ponds on the device, and the Lake that they are poured into while the agents go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.agents.fleet import over_agents
from lakepond.errors import ConfigError
from lakepond.flow.device_to_lake import DeviceLake, Lanes
from lakepond.lake.commits import Commit, Start
from lakepond.pond.device import DevicePond, PondState
from lakepond.types import Field, Spec


def make_pond(obs: Field, envs: int, steps: int) -> DevicePond:
    """The Pond of an agent with so many environments, with room for so many steps of all of them."""
    steps //= envs
    length = obs.shape[0] if obs.rows == 0 else 1
    # room for episodes of a single step, or of eight on average where frames are large
    rows = steps * 2 + 2 if length == 1 else steps + steps // 2 + 2 * length
    return DevicePond(obs, envs, steps, rows=rows)


def open_lake(shape: DevicePond, path: Path, commit: int | Start) -> DeviceLake:
    """The Lake of such Ponds at a commit, or empty."""
    return DeviceLake(path, Spec(obs=shape.obs, action=Field((), "int32")), commit=commit)


class Ponds:
    """One Pond an agent, and one Lake; `state` is what the jitted functions take and give."""

    def __init__(self, shape: DevicePond, obs: jax.Array, lake: DeviceLake) -> None:
        """Empty Ponds of agents that see `obs`, (agents, envs, ...), and the Lake they are poured into."""
        self.shape = shape
        empty = shape.init(ponds=len(obs))
        self.state: PondState = over_agents(lambda each: shape.begin(empty, each), obs)
        self.lake = lake
        self._host: Any = None  # what was handed over last; the next takes its memory

    def pour(self, note: dict[str, Any]) -> None:
        """Hand all steps over to the Lake, which writes them in the background; the Ponds are empty then."""
        state = self.state
        if not int(state.steps[0] - state.oldest.min()):
            return
        if self._host is None or self.lake.waiting:
            self._host = jax.tree.map(np.array, state)
        else:
            jax.tree.map(np.copyto, self._host, state)
        self.lake.pour(_lanes(self._host, self.shape.capacity), note)
        self.state = state._replace(oldest=jnp.repeat(state.steps[:, None], state.oldest.shape[1], 1))

    def durable(self, note: dict[str, Any]) -> Commit | None:
        """The Lake's newest commit, once all that the agents have seen is in it."""
        self.pour(note)
        return self.lake.wait()

    def close(self) -> None:
        """Finish writing and let others."""
        self.lake.close()


def _lanes(host: Any, capacity: int) -> list[Lanes]:
    """All steps of some Ponds, whose state came as NumPy arrays."""
    steps = host.steps.tolist()
    full = np.minimum(steps[0] - host.oldest, capacity)
    if (full != full.max()).any():
        raise ConfigError(
            "episodes are so short that steps left a Pond before they were poured; lower the setting `pond`."
        )
    columns = {name: getattr(host, name) for name in ("action", "reward", "terminated", "truncated")}
    return [
        Lanes(
            host.rows[i],
            steps[i],
            host.oldest[i],
            host.at[i],
            host.next_at[i],
            {name: values[i] for name, values in columns.items()},
        )
        for i in range(len(steps))
    ]
