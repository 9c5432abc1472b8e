"""Before the first generation: whether settings and memory will do, the prices, and what the device needs."""

from __future__ import annotations

import json
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
from lakepond.lake.files import write_bytes
from lakepond.trainers.market_rollout import World
from lakepond.types import RowSource

if TYPE_CHECKING:
    from lakepond.trainers.erl import Config

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
    """Refuse settings that cannot be, in one sentence each."""
    if config.mutants < 2 or config.elites < 1 or config.children < 0:
        raise ConfigError(
            f"a population needs at least 1 elite and 2 mutants, the places of learner and champion, "
            f"not {config.elites} and {config.mutants}."
        )
    for name in (
        "episodes",
        "fitness_episodes",
        "validation_slices",
        "batch_size",
        "critics",
        "width",
        "inject_every",
        "push_every",
    ):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} must be at least 1, but is {getattr(config, name)}.")
    if config.generations < 1 or config.gradient_steps < 0:
        raise ConfigError(
            f"there must be at least 1 generation and 0 gradient steps, not {config.generations} and "
            f"{config.gradient_steps}."
        )
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
    """Names and dates for `lakepond view`, beside the lake, which knows instruments and days by number."""
    history = market.history
    names = {"symbols": list(history.symbols), "dates": np.datetime_as_string(history.dates, "D").tolist()}
    data, file = json.dumps(names).encode(), folder / NAMES
    if not file.exists() or file.read_bytes() != data:
        write_bytes(folder, NAMES, data)


def check_memory(config: Config, shape: tuple[int, int, int]) -> None:
    """Say before the first generation that memory will not do, with the numbers."""
    parts = memory_needed(config, shape)
    needed, free = sum(parts.values()), machine.memory().available
    if needed > free:
        largest = max(parts, key=lambda name: parts[name])
        raise ConfigError(
            f"this run needs about {needed / 1e9:.1f} GB of memory, most of it for {largest} "
            f"({parts[largest] / 1e9:.1f} GB), but {free / 1e9:.1f} GB are free; lower capacity, "
            "instruments, episodes or batch_size."
        )


def memory_needed(config: Config, shape: tuple[int, int, int]) -> dict[str, int]:
    """Bytes by purpose, from the sizes of the arrays; an estimate from above for float32 on a CPU."""
    days, instruments, width = shape
    inputs = width * (len(spans(config.rules.context)) + 1)
    agents, trading = config.sizes.total, config.rules.trading_days
    step = instruments * 4 * (2 + 2 * POSITION) + 128  # action, both positions, and what tells where they are
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
