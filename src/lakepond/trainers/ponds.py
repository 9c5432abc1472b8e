"""The agents' Pond on the device, and the Lake that it is poured into while the agents continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from lakepond.errors import ConfigError
from lakepond.flow.device_to_lake import DeviceLake, Lanes
from lakepond.lake.format.commits import Commit, Start
from lakepond.pond.device import DevicePond, PondState
from lakepond.types import Field, Spec


def make_pond(obs: Field, lanes: int, steps: int) -> DevicePond:
    """A Pond with one lane per environment and room for `steps` steps of all lanes together."""
    capacity = steps // lanes
    length = obs.shape[0] if obs.rows == 0 else 1
    # single rows: enough for episodes of one step; stacks: for episodes of eight steps on average
    rows = capacity * 2 + 2 if length == 1 else capacity + capacity // 2 + 2 * length
    return DevicePond(obs, lanes, capacity, rows=rows)


def open_lake(shape: DevicePond, path: Path, commit: int | Start) -> DeviceLake:
    """The Lake of such Ponds at a commit, or empty."""
    return DeviceLake(path, Spec(obs=shape.obs, action=Field((), "int32")), commit=commit)


class Ponds:
    """One Pond with a lane for each environment of each agent, and one Lake.

    `state` is the argument and result of the jitted functions.
    """

    def __init__(self, shape: DevicePond, obs: jax.Array, lake: DeviceLake) -> None:
        """An empty Pond that starts from `obs`, (agents, envs, ...), and the Lake it is poured into."""
        self.shape = shape
        self.state: PondState = shape.begin(shape.init(), obs.reshape(-1, *shape.obs.shape))
        self._poured = 0  # steps of each lane that are in the Lake
        self.lake = lake
        self._host: Any = None  # the last copy on the host; its memory is reused

    def pour(self, note: dict[str, Any]) -> None:
        """Hand all steps over to the Lake, which writes them in the background, and empty the Pond."""
        state, steps = self.state, int(self.state.steps)
        if steps == self._poured:
            return
        if int(state.oldest.max()) > self._poured:
            raise ConfigError(
                "episodes are so short that steps were evicted from the Pond before they were poured; "
                "lower the setting `pond`."
            )
        if self._host is None or self.lake.waiting:
            self._host = jax.tree.map(np.array, state)
        else:
            jax.tree.map(np.copyto, self._host, state)
        host = self._host
        columns = {name: getattr(host, name) for name in ("action", "reward", "terminated", "truncated")}
        self.lake.pour([Lanes(host.rows, steps, host.oldest, host.at, host.next_at, columns)], note)
        self.state, self._poured = self.shape.empty(state), steps

    def durable(self, note: dict[str, Any]) -> Commit | None:
        """The newest commit of the Lake, after all steps of the agents are in it."""
        self.pour(note)
        return self.lake.wait()

    def close(self) -> None:
        """Finish writing and release the Lake."""
        self.lake.close()
