"""The market of a training run: history on the host, prices and summaries on the device, names in a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.envs.market.functional import Prices
from lakepond.envs.market.history import History
from lakepond.envs.market.observe import summaries
from lakepond.envs.market.panel import Panel
from lakepond.envs.market_rules import Rules
from lakepond.lake.files import write_bytes
from lakepond.types import RowSource

NAMES = "market.json"


class World(NamedTuple):
    """What all episodes share, on the device."""

    prices: Prices
    summaries: jax.Array
    """(days, instruments, inputs)"""


class Market(NamedTuple):
    """The history on the host, and what episodes need of it on the device."""

    history: History
    world: World
    source: RowSource
    """the rows that recorded windows refer to"""

    @classmethod
    def of(cls, panel: Panel, rules: Rules, **parts: Any) -> Market:
        """The market of a panel; `parts`: `table`, `validation` and `holdout` of `History.of`."""
        history = History.of(panel, rules, **parts)
        seen = jnp.asarray(summaries(history.rows, rules.context))
        return cls(history, World(Prices.of(history), seen), RowSource(history.rows))

    @property
    def inputs(self) -> int:
        """Numbers per day and instrument that a network sees."""
        return int(self.world.summaries.shape[-1])

    def write_names(self, folder: Path) -> None:
        """Symbols, dates and closing prices for `lakepond view`: the lake has numbers and normalised rows."""
        history = self.history
        names = {
            "symbols": list(history.symbols),
            "dates": np.datetime_as_string(history.dates, "D").tolist(),
            "close": [
                [float(f"{price:.6g}") if math.isfinite(price) else None for price in one]
                for one in history.close.T.tolist()
            ],
        }
        data, file = json.dumps(names, allow_nan=False).encode(), folder / NAMES
        if not file.exists() or file.read_bytes() != data:
            write_bytes(folder, NAMES, data)
