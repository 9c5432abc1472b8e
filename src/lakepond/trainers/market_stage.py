"""Before the first generation: check settings and memory, load the prices, and copy them to the device."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np

from lakepond import machine
from lakepond.agents.market_network import POSITION
from lakepond.envs.market import functional
from lakepond.envs.market.features import FEATURES
from lakepond.envs.market.files import read_market
from lakepond.envs.market.history import History
from lakepond.envs.market.observe import spans, summaries
from lakepond.envs.market.synthetic import synthetic
from lakepond.errors import ConfigError
from lakepond.formats import size
from lakepond.lake.files import write_bytes
from lakepond.trainers.erl_settings import LIMITS
from lakepond.trainers.limits import check_limits
from lakepond.trainers.market_rollout import World
from lakepond.types import RowSource

if TYPE_CHECKING:
    from lakepond.trainers.erl_settings import Config

NAMES = "market.json"


class Market(NamedTuple):
    """The history on the host, and what episodes need of it on the device."""

    history: History
    world: World
    source: RowSource
    """the rows that recorded windows refer to"""

    @property
    def inputs(self) -> int:
        """Numbers a day and instrument that a network sees."""
        return int(self.world.summaries.shape[-1])


def check(config: Config) -> None:
    """Raise `ConfigError` for invalid settings."""
    check_limits(config, LIMITS)
    new = config.sizes.total * config.episodes * config.rules.trading_days
    if new > config.capacity:
        raise ConfigError(
            f"a generation records {new:,} steps, but the replay holds {config.capacity:,}; raise capacity."
        )


def open_market(config: Config) -> Market:
    """Read or make the prices, and put what is needed of them on the device."""
    if config.panel is None:
        check_memory(config, (config.days, config.instruments, len(FEATURES)))
        panel = synthetic(config.days, config.instruments, seed=config.market_seed, signal=config.signal)
        table = None
    else:
        panel, table = read_market(config.panel, days=config.days, instruments=config.instruments)
        check_memory(config, (*panel.shape, len(FEATURES) if table is None else table.shape[-1]))
    history = History.of(
        panel, config.rules, table=table, validation=config.validation, holdout=config.holdout
    )
    seen = jnp.asarray(summaries(history.rows, config.rules.context))
    return Market(history, World(functional.Prices.of(history), seen), RowSource(history.rows))


def write_names(market: Market, folder: Path) -> None:
    """Symbols, dates and closing prices for `lakepond view`: the lake has numbers and normalised rows."""
    history = market.history
    names = {
        "symbols": list(history.symbols),
        "dates": np.datetime_as_string(history.dates, "D").tolist(),
        "close": [
            [float(f"{price:.6g}") if math.isfinite(price) else None for price in one]
            for one in history.close.T.tolist()
        ],
    }
    data, file = json.dumps(names).encode(), folder / NAMES
    if not file.exists() or file.read_bytes() != data:
        write_bytes(folder, NAMES, data)


def check_memory(config: Config, shape: tuple[int, int, int]) -> None:
    """Raise `ConfigError` before the first generation if the machine has too little memory."""
    parts = memory_needed(config, shape)
    needed, free = sum(parts.values()), machine.memory().available
    if needed > free:
        largest = max(parts, key=lambda name: parts[name])
        raise ConfigError(
            f"this run needs about {size(needed)} of memory, most of it for {largest} "
            f"({size(parts[largest])}), but {size(free)} is available; lower capacity, "
            "instruments, episodes or batch_size."
        )


def memory_needed(config: Config, shape: tuple[int, int, int]) -> dict[str, int]:
    """Bytes by purpose, from the sizes of the arrays; an estimate from above for float32 on a CPU."""
    days, instruments, width = shape
    inputs = width * (len(spans(config.rules.context)) + 1)
    agents, trading = config.sizes.total, config.rules.trading_days
    step = instruments * 4 * (2 + 2 * POSITION) + 128  # action, both positions, and their indices
    played = agents * config.episodes * trading * instruments * 4 * (config.width + 2 + 2 * POSITION)
    judged = agents * config.fitness_episodes * trading * instruments * 4 * config.width
    attention = config.batch_size * instruments * (inputs + 8 * config.width + 3 * instruments)
    return {
        "prices, features and their summaries": days * instruments * (64 + 48 * width + 8 * inputs),
        "the replay": config.capacity * step + 3 * days * instruments * width * 4,
        "the episodes of a generation": 2 * (played + judged),
        "gradient steps": 4 * 4 * (2 + config.critics) * attention,
        "JAX and its programs": 700 << 20,
    }
